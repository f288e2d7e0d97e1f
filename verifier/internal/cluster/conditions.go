package cluster

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	kerrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"

	"github.com/mcs-attest/mcs-attest/pkg/api/v1alpha1"
	"github.com/mcs-attest/mcs-attest/pkg/provisioning"
	"github.com/mcs-attest/mcs-attest/pkg/restore"
	"github.com/mcs-attest/mcs-attest/verifier/internal/kube/events"
	"github.com/mcs-attest/mcs-attest/verifier/internal/kube/inventory"
	"github.com/mcs-attest/mcs-attest/verifier/internal/kube/records"
)

var randReader = rand.Reader

var (
	attestationsResource = v1alpha1.GroupVersion.WithResource("machineattestations")
	policiesResource     = v1alpha1.GroupVersion.WithResource("attestationpolicies")
	verifiersResource    = v1alpha1.GroupVersion.WithResource("attestationverifiers")
)

// Reasons of conditions and Events.
const (
	reasonAccepted  = "Accepted"
	reasonNotUsable = "NotUsable"
	reasonClash     = "ContradictsAnother"
	reasonNoPool    = "PoolNotFound"
	reasonAsWanted  = "AsExpected"
)

// certificateWarning is how long before its end a serving certificate is reported.
// The Machine Config Operator renews it two years ahead.
const certificateWarning = 30 * 24 * time.Hour

// report tells of an object that cannot be used, or can again.
func (c *Cluster) report(ctx context.Context, k faultKey) error {
	c.mu.Lock()
	f, bad := c.faults[k]
	c.mu.Unlock()
	if bad {
		c.events.Emit(events.Event{About: f.about, Warning: true, Reason: reasonNotUsable, Message: f.text})
	}
	switch k.kind {
	case policyKind.String():
		return c.judge(ctx, k.name)
	case attestationKind.String():
		return c.judgeAttestation(ctx, k.key, f, bad)
	}
	return nil
}

// judgeAttestation keeps the condition Accepted of a MachineAttestation. One that
// was never refused needs none.
func (c *Cluster) judgeAttestation(ctx context.Context, k key, f fault, bad bool) error {
	client := c.dynamic.Resource(attestationsResource).Namespace(k.namespace)
	o, err := client.Get(ctx, k.name, metav1.GetOptions{})
	if records.Missing(err) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("read MachineAttestation %s: %w", k, err)
	}
	status, _, _ := unstructured.NestedMap(o.Object, "status")
	conditions := conditionsOf(status)
	want := metav1.Condition{Type: v1alpha1.ConditionAccepted, Status: metav1.ConditionTrue, Reason: reasonAccepted, Message: "in force as it stands", ObservedGeneration: o.GetGeneration()}
	if bad {
		want.Status, want.Reason, want.Message = metav1.ConditionFalse, reasonNotUsable, f.text
	} else if meta.FindStatusCondition(conditions, v1alpha1.ConditionAccepted) == nil {
		return nil
	}
	if !c.set1(&conditions, want) {
		return nil
	}
	patch, err := json.Marshal(map[string]any{
		"metadata": map[string]any{"resourceVersion": o.GetResourceVersion()},
		"status":   map[string]any{"conditions": conditions},
	})
	if err != nil {
		return err
	}
	c.tasks.limit.Accept()
	_, err = client.Patch(ctx, k.name, types.MergePatchType, patch, metav1.PatchOptions{}, "status")
	if kerrors.IsConflict(err) || records.Missing(err) {
		return nil // the watch brings what came first
	}
	return err
}

// judge keeps the condition Accepted of a policy; of all, without a name.
func (c *Cluster) judge(ctx context.Context, name string) error {
	c.mu.Lock()
	if name == "" {
		for name := range c.policies {
			c.tasks.add(task{about: aboutPolicy, key: key{name: name}})
		}
		c.mu.Unlock()
		return nil
	}
	p := c.policies[name]
	if p == nil {
		c.mu.Unlock()
		return nil
	}
	want := metav1.Condition{Type: v1alpha1.ConditionAccepted, Status: metav1.ConditionTrue, Reason: reasonAccepted, Message: "in force as it stands", ObservedGeneration: p.generation}
	f, bad := c.faults[faultKey{policyKind.String(), key{name: name}}]
	switch clash := c.clash[name]; {
	case c.guard.HoldsPolicies():
		want.Status, want.Reason = metav1.ConditionFalse, restore.Reason
		want.Message = "the policies of before the restore of etcd stay in force until an administrator acknowledges it"
	case bad && p.parsed == nil && p.atStart:
		want.Status, want.Reason, want.Message = metav1.ConditionFalse, reasonNotUsable, inventory.Bounded(f.text+"; there is no earlier state, and the policy of \"*\" does not apply meanwhile")
	case bad:
		want.Status, want.Reason, want.Message = metav1.ConditionFalse, reasonNotUsable, f.text
	case clash != "":
		want.Status, want.Reason, want.Message = metav1.ConditionFalse, reasonClash, inventory.Bounded(clash)
	default:
		if unknown := c.unknownPools(p); len(unknown) > 0 {
			want.Reason, want.Message = reasonNoPool, inventory.Bounded("in force; there is no MachineConfigPool "+strings.Join(unknown, ", "))
		}
	}
	conditions := slices.Clone(p.conditions)
	about, version, observed := p.about, p.version, p.observed
	c.mu.Unlock()

	news := meta.FindStatusCondition(conditions, want.Type)
	changed := news == nil || news.Reason != want.Reason
	if !c.set1(&conditions, want) && observed == want.ObservedGeneration {
		return nil
	}
	o := &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": v1alpha1.APIVersion, "kind": v1alpha1.KindAttestationPolicy,
		"metadata": map[string]any{"name": name, "resourceVersion": fmt.Sprint(version), "uid": about.UID},
		"status":   map[string]any{"observedGeneration": want.ObservedGeneration},
	}}
	if err := setConditions(o, conditions); err != nil {
		return err
	}
	c.tasks.limit.Accept()
	if _, err := c.dynamic.Resource(policiesResource).UpdateStatus(ctx, o, metav1.UpdateOptions{}); kerrors.IsConflict(err) || records.Missing(err) {
		return nil
	} else if err != nil {
		return fmt.Errorf("write the status of policy %s: %w", name, err)
	}
	if changed && want.Reason != reasonAccepted && want.Reason != restore.Reason && !bad { // of what is bad report has told
		c.events.Emit(events.Event{About: about, Warning: true, Reason: want.Reason, Message: want.Message})
	}
	return nil
}

// unknownPools are the pools of a policy that the cluster does not have. The lock
// is held. Where there are no MachineConfigPools nothing can be said.
func (c *Cluster) unknownPools(p *policyState) []string {
	if len(c.pools) == 0 {
		return nil
	}
	var unknown []string
	for _, parsed := range p.parsed {
		for _, pool := range parsed.Spec.Pools {
			if pool != "*" && !c.pools[pool] {
				unknown = append(unknown, pool)
			}
		}
	}
	return unknown
}

// set1 sets one condition by the verifier's clock and reports whether anything
// changed.
func (c *Cluster) set1(conditions *[]metav1.Condition, want metav1.Condition) bool {
	want.LastTransitionTime = metav1.NewTime(c.o.Now().UTC().Truncate(time.Second))
	return meta.SetStatusCondition(conditions, want)
}

func conditionsOf(status map[string]any) []metav1.Condition {
	var s struct {
		Conditions []metav1.Condition `json:"conditions"`
	}
	// What cannot be read is written anew.
	_ = runtime.DefaultUnstructuredConverter.FromUnstructured(map[string]any{"conditions": status["conditions"]}, &s)
	return s.Conditions
}

func setConditions(o *unstructured.Unstructured, conditions []metav1.Condition) error {
	m, err := runtime.DefaultUnstructuredConverter.ToUnstructured(&struct {
		Conditions []metav1.Condition `json:"conditions"`
	}{conditions})
	if err != nil {
		return err
	}
	return unstructured.SetNestedField(o.Object, m["conditions"], "status", "conditions")
}

// finding is one thing that is not as it should be.
type finding struct{ reason, text string }

// degraded are the findings that somebody should look at, the gravest first.
func (c *Cluster) degraded() []finding {
	var all []finding
	now := c.o.Now()
	for _, text := range c.guard.Problems() {
		all = append(all, finding{restore.Reason, text})
	}
	for _, w := range c.inventory.Sources() {
		s, wrong := w.Status()
		switch {
		case wrong && s.Forbidden:
			all = append(all, finding{"Forbidden", s.Text})
		case wrong && s.Unsynced && !s.Advisory && now.Sub(c.began) > c.o.Pass:
			all = append(all, finding{"NotSynced", s.Text})
		}
	}
	if problems := c.Problems(); len(problems) > 0 {
		more := ""
		if n := len(problems) - 3; n > 0 {
			more = fmt.Sprintf(" and %d more", n)
			problems = problems[:3]
		}
		all = append(all, finding{"ObjectsNotUsable", strings.Join(problems, "; ") + more})
	}
	if cert := c.ServingCertificate(); cert != nil && cert.Leaf != nil && cert.Leaf.NotAfter.Sub(now) < certificateWarning {
		all = append(all, finding{"CertificateExpires", "the serving certificate ends on " + cert.Leaf.NotAfter.UTC().Format(time.RFC3339)})
	}
	if at := c.secrets.pair.Load().Ahead(now, c.o.KeyPublishDelay); !at.IsZero() {
		all = append(all, finding{"KeysDatedAhead", fmt.Sprintf("a key in Secret %s comes into use only on %s; the clock of the replica that made it is ahead, or this one's is behind", KeysSecret, at.UTC().Format(time.RFC3339))})
	}
	_, presence := c.Provisioning().At(now)
	if presence == provisioning.Absent {
		if text := c.View().Policies.WithoutProvisioningToken(); text != "" {
			all = append(all, finding{"ProvisioningTokenAbsent", fmt.Sprintf("%s; the Secret is %s", text, c.o.ProvisioningToken.Secret)})
		}
	}
	if presence == provisioning.Present {
		c.tasks.mu.Lock()
		for _, k := range slices.SortedFunc(maps.Keys(c.tasks.leftAlone), compareKeys) {
			all = append(all, finding{"UserDataLeftAlone", fmt.Sprintf("the pointer config in %s does not get the provisioning token: %s", k, c.tasks.leftAlone[k])})
		}
		c.tasks.mu.Unlock()
	}
	if nodes := c.RoleMismatches(); len(nodes) > 0 {
		all = append(all, finding{"NodeRoleMismatch", "Nodes have a control-plane role that their pool does not have: " + strings.Join(nodes, ", ")})
	}
	return append(all, c.foundByOthers()...)
}

func (c *Cluster) foundByOthers() (all []finding) {
	for _, find := range c.o.Findings {
		for _, f := range find() {
			all = append(all, finding{f.Reason, inventory.Bounded(f.Text)})
		}
	}
	return all
}

// unavailableNow says why no machine could be served, "" if one could.
func (c *Cluster) unavailableNow() finding {
	now := c.o.Now()
	if synced, missing := c.Synced(); !synced {
		return finding{"NotSynced", strings.Join(missing, "; ")}
	}
	if len(c.View().Policies.Pools()) == 0 {
		return finding{"NoPolicy", "no AttestationPolicy covers any pool"}
	}
	if _, ok := c.TokenKeys().Current(now); !ok {
		return finding{"NoKeys", "there is no key to sign tokens with"}
	}
	cert := c.ServingCertificate()
	switch {
	case cert == nil:
		return finding{"NoCertificate", "there is no serving certificate in Secret " + c.config.ServingSecret}
	case cert.Leaf != nil && now.After(cert.Leaf.NotAfter):
		return finding{"CertificateExpired", "the serving certificate ended on " + cert.Leaf.NotAfter.UTC().Format(time.RFC3339)}
	}
	return finding{}
}

// progressing says what is under way.
func (c *Cluster) progressing() finding {
	if synced, missing := c.Synced(); !synced {
		return finding{"Syncing", strings.Join(missing, "; ")}
	}
	if c.guard.Repairing() {
		return finding{"Restoring", "what was in force before etcd was restored is being set again"}
	}
	if c.secrets.pair.Load().Rotating(c.o.Now()) {
		return finding{"KeyRotation", "new keys are published and not in use yet"}
	}
	return finding{}
}

// conditions are the AttestationVerifier's, by this replica's view.
func (c *Cluster) conditions() []metav1.Condition {
	yes, no := metav1.ConditionTrue, metav1.ConditionFalse
	of := func(kind string, f finding, found, fine metav1.ConditionStatus, text string) metav1.Condition {
		if f == (finding{}) {
			return metav1.Condition{Type: kind, Status: fine, Reason: reasonAsWanted, Message: text}
		}
		return metav1.Condition{Type: kind, Status: found, Reason: f.reason, Message: long(f.text)}
	}
	var degraded, holdUpgrade finding
	findings := c.degraded()
	if len(findings) > 0 {
		degraded.reason = findings[0].reason
		var texts []string
		for _, f := range findings {
			texts = append(texts, f.text)
			if f.reason == "EtcdRestored" {
				holdUpgrade = f
			}
		}
		degraded.text = strings.Join(texts, "\n")
	}
	away := c.unavailableNow()
	if away != (finding{}) {
		holdUpgrade = away
	}
	return append([]metav1.Condition{
		of(v1alpha1.ConditionAvailable, away, no, yes, "machines can attest"),
		of(v1alpha1.ConditionProgressing, c.progressing(), yes, no, "nothing is under way"),
		of(v1alpha1.ConditionDegraded, degraded, yes, no, "everything is as it should be"),
		of(v1alpha1.ConditionUpgradeable, holdUpgrade, no, yes, "the cluster may be upgraded"),
	}, c.conditionsOfOthers()...)
}

func (c *Cluster) conditionsOfOthers() (all []metav1.Condition) {
	for _, condition := range c.o.Conditions {
		if one := condition(); one.Type != "" {
			one.Message = long(one.Message)
			all = append(all, one)
		}
	}
	return all
}

// long bounds a condition's message as the CRD does.
func long(s string) string {
	const most = 8 << 10
	if len(s) > most {
		return strings.ToValidUTF8(s[:most], "")
	}
	return s
}

// writeStatus keeps the AttestationVerifier.
func (c *Cluster) writeStatus(ctx context.Context) error {
	client := c.dynamic.Resource(verifiersResource)
	o, err := client.Get(ctx, v1alpha1.VerifierName, metav1.GetOptions{})
	if records.Missing(err) {
		c.tasks.limit.Accept()
		o, err = client.Create(ctx, &unstructured.Unstructured{Object: map[string]any{
			"apiVersion": v1alpha1.APIVersion, "kind": v1alpha1.KindAttestationVerifier, "metadata": map[string]any{"name": v1alpha1.VerifierName},
		}}, metav1.CreateOptions{})
	}
	if err != nil {
		return fmt.Errorf("AttestationVerifier %s: %w", v1alpha1.VerifierName, err)
	}
	c.guard.Acknowledge(o.GetAnnotations())
	status, _, _ := unstructured.NestedMap(o.Object, "status")
	conditions := conditionsOf(status)
	changed := status["holder"] != c.o.Identity || status["version"] != c.o.Version && c.o.Version != ""
	for _, want := range c.conditions() {
		changed = c.set1(&conditions, want) || changed
	}
	nodes, _ := status["controlPlaneNodes"].([]any)
	if names, ok := c.controlPlaneNodes(nodes); ok {
		wanted := make([]any, len(names))
		for i, name := range names {
			wanted[i] = name
		}
		changed = changed || !slices.Equal(nodes, wanted)
		nodes = wanted
	}
	if !changed {
		return nil
	}
	o = o.DeepCopy()
	next := map[string]any{"holder": c.o.Identity}
	if len(nodes) > 0 {
		next["controlPlaneNodes"] = nodes
	}
	if c.o.Version != "" {
		next["version"] = c.o.Version
	}
	o.Object["status"] = next
	if err := setConditions(o, conditions); err != nil {
		return err
	}
	c.tasks.limit.Accept()
	if _, err := client.UpdateStatus(ctx, o, metav1.UpdateOptions{}); kerrors.IsConflict(err) {
		c.tasks.later(task{about: aboutStatus}, time.Second)
		return nil
	} else if err != nil {
		return fmt.Errorf("AttestationVerifier %s: %w", v1alpha1.VerifierName, err)
	}
	return nil
}
