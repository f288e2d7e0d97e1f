// SPDX-License-Identifier: Apache-2.0

package deploy

import (
	"context"
	"crypto/rand"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	authorization "k8s.io/api/authorization/v1"
	kerrors "k8s.io/apimachinery/pkg/api/errors"
	meta "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"
	"sigs.k8s.io/yaml"

	"github.com/mcs-attest/mcs-attest/pkg/api/v1alpha1"
	"github.com/mcs-attest/mcs-attest/testvm/cluster"
)

// The accounts' names in the API server.
const (
	accountPrefix     = "system:serviceaccount:" + Namespace + ":"
	frontAccount      = accountPrefix + ServiceAccount
	controllerAccount = accountPrefix + Controller
)

// objects has a valid object of each granted resource.
var objects = map[string]string{
	"nodes":                `{apiVersion: v1, kind: Node}`,
	"secrets":              `{apiVersion: v1, kind: Secret, stringData: {key: value}}`,
	"configmaps":           `{apiVersion: v1, kind: ConfigMap, data: {key: value}}`,
	"events":               `{apiVersion: v1, kind: Event, involvedObject: {kind: Machine, namespace: NAMESPACE, name: m}, reason: Test, message: m, type: Normal, source: {component: test}}`,
	"leases":               `{apiVersion: coordination.k8s.io/v1, kind: Lease, spec: {holderIdentity: me}}`,
	"attestationpolicies":  `{apiVersion: mcs-attest.dev/v1alpha1, kind: AttestationPolicy, spec: {pools: [p], mode: Audit}}`,
	"attestationverifiers": `{apiVersion: mcs-attest.dev/v1alpha1, kind: AttestationVerifier}`,
	"machineattestations":  `{apiVersion: mcs-attest.dev/v1alpha1, kind: MachineAttestation, spec: {}}`,
	"tokenreviews":         `{apiVersion: authentication.k8s.io/v1, kind: TokenReview, spec: {token: t}}`,
	"subjectaccessreviews": `{apiVersion: authorization.k8s.io/v1, kind: SubjectAccessReview, spec: {user: u, nonResourceAttributes: {path: /metrics, verb: get}}}`,
	"identityclaims": `{apiVersion: mcs-attest.dev/v1alpha1, kind: IdentityClaim, spec: {component: c, machineUID: u,
		machineRef: {apiVersion: machine.openshift.io/v1beta1, kind: Machine, namespace: machines, name: m}}}`,
}

// caller calls the API as an account of the verifier, and as an administrator for the setup.
type caller struct {
	t               *testing.T
	c               *cluster.Cluster
	verifier, admin dynamic.Interface
	reviews         kubernetes.Interface
}

func newCaller(t *testing.T, overlay string) *caller {
	t.Helper()
	c := cluster.Start(t)
	c.InstallClusterAPI(t)
	c.InstallOpenShift(t)
	c.InstallMetal3(t)
	Apply(t, c, overlay)
	return as(t, c, ServiceAccount)
}

func as(t *testing.T, c *cluster.Cluster, account string) *caller {
	t.Helper()
	w := &caller{t: t, c: c}
	api := c.ServiceAccount(t, Namespace, account)
	var err error
	if w.verifier, err = dynamic.NewForConfig(api); err != nil {
		t.Fatal(err)
	}
	if w.reviews, err = kubernetes.NewForConfig(api); err != nil {
		t.Fatal(err)
	}
	if w.admin, err = dynamic.NewForConfig(c.Admin()); err != nil {
		t.Fatal(err)
	}
	return w
}

func (g Grant) gvr() schema.GroupVersionResource {
	version := map[string]string{
		"": "v1", "apps": "v1", "coordination.k8s.io": "v1", "mcs-attest.dev": "v1alpha1", "machine.openshift.io": "v1beta1",
		"cluster.x-k8s.io": "v1beta2", "metal3.io": "v1alpha1", "authentication.k8s.io": "v1", "authorization.k8s.io": "v1",
		"machineconfiguration.openshift.io": "v1", "security.openshift.io": "v1",
	}[g.Group]
	return schema.GroupVersionResource{Group: g.Group, Version: version, Resource: g.Resource}
}

func in(client dynamic.Interface, g Grant) dynamic.ResourceInterface {
	if g.Namespace == "" || slices.Contains([]string{"attestationpolicies", "attestationverifiers", "identityclaims",
		"nodes", "machineconfigpools"}, g.Resource) {
		return client.Resource(g.gvr())
	}
	return client.Resource(g.gvr()).Namespace(g.Namespace)
}

// object returns a new object, with the grant's name if it has one.
func (w *caller) object(g Grant) *unstructured.Unstructured {
	w.t.Helper()
	var o unstructured.Unstructured
	if err := yaml.Unmarshal([]byte(strings.ReplaceAll(objects[g.Resource], "NAMESPACE", g.Namespace)),
		&o.Object); err != nil || o.Object == nil {
		w.t.Fatalf("%s: no object to try it with (%v)", g, err)
	}
	name := g.Name
	switch {
	case name != "":
	case g.Resource == "attestationverifiers":
		name = "cluster"
	case g.Resource == "machineattestations": // the processes that serve may delete no other
		name = v1alpha1.PendingPrefix + strings.ToLower(rand.Text()[:8])
	case g.Resource == "identityclaims":
		raw := make([]byte, 32)
		rand.Read(raw)
		name = fmt.Sprintf("%x", raw)
	default:
		name = "rbac-" + strings.ToLower(rand.Text()[:8])
	}
	o.SetName(name)
	return &o
}

// ensure creates the object of the grant as administrator, unless it exists.
func (w *caller) ensure(ctx context.Context, g Grant) *unstructured.Unstructured {
	w.t.Helper()
	o := w.object(g)
	made, err := in(w.admin, g).Create(ctx, o, meta.CreateOptions{})
	if kerrors.IsAlreadyExists(err) {
		made, err = in(w.admin, g).Get(ctx, o.GetName(), meta.GetOptions{})
	}
	if err != nil {
		w.t.Fatalf("%s: make %s: %v", g, o.GetName(), err)
	}
	return made
}

// try makes the call that a grant permits, as the verifier.
func (w *caller) try(g Grant) error {
	w.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	mine := in(w.verifier, g)
	one := meta.ListOptions{}
	if g.Name != "" {
		one.FieldSelector = "metadata.name=" + g.Name
	}
	switch g.Verb {
	case "list":
		_, err := mine.List(ctx, one)
		return err
	case "watch":
		seen, err := mine.Watch(ctx, one)
		if err == nil {
			seen.Stop()
		}
		return err
	case "get":
		name := g.Name
		if objects[g.Resource] != "" {
			name = w.ensure(ctx, g).GetName()
		} else if name == "" {
			name = "unknown"
		}
		_, err := mine.Get(ctx, name, meta.GetOptions{})
		if objects[g.Resource] == "" && kerrors.IsNotFound(err) {
			return nil // an account that may not read does not learn that either
		}
		return err
	case "create":
		o := w.object(g)
		review := strings.HasSuffix(g.Resource, "reviews") // not stored, so without a name
		if review {
			o.SetName("")
		}
		if o.GetName() == v1alpha1.VerifierName { // it exists, because of another grant
			err := in(w.admin, g).Delete(ctx, o.GetName(), meta.DeleteOptions{})
			if err != nil && !kerrors.IsNotFound(err) {
				w.t.Fatal(err)
			}
		}
		_, err := mine.Create(ctx, o, meta.CreateOptions{})
		if err == nil && !review {
			err = in(w.admin, g).Delete(ctx, o.GetName(), meta.DeleteOptions{})
		}
		return err
	case "update":
		o := w.ensure(ctx, g)
		if g.Subresource == "" {
			o.SetAnnotations(map[string]string{"rbac-test": rand.Text()})
			_, err := mine.Update(ctx, o, meta.UpdateOptions{})
			return err
		}
		_, err := mine.UpdateStatus(ctx, o, meta.UpdateOptions{})
		return err
	case "patch":
		o := w.ensure(ctx, g)
		change, sub := `{"metadata":{"annotations":{"rbac-test":"`+rand.Text()+`"}}}`, []string{}
		if g.Subresource != "" {
			change, sub = `{"status":{}}`, []string{g.Subresource}
		}
		_, err := mine.Patch(ctx, o.GetName(), types.MergePatchType, []byte(change), meta.PatchOptions{}, sub...)
		return err
	case "delete":
		o := w.ensure(ctx, g)
		return mine.Delete(ctx, o.GetName(), meta.DeleteOptions{})
	case "use": // not an API call: admission checks it
		if !w.may(g.Verb, g.Group, g.Resource, g.Subresource, g.Namespace, g.Name) {
			return kerrors.NewForbidden(g.gvr().GroupResource(), g.Name, nil)
		}
		return nil
	}
	w.t.Fatalf("%s: nothing here tries it", g)
	return nil
}

// may asks the API server about a permission, as the verifier.
func (w *caller) may(verb, group, resource, sub, namespace, name string) bool {
	w.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	review, err := w.reviews.AuthorizationV1().SelfSubjectAccessReviews().Create(ctx,
		&authorization.SelfSubjectAccessReview{
			Spec: authorization.SelfSubjectAccessReviewSpec{ResourceAttributes: &authorization.ResourceAttributes{
				Verb: verb, Group: group, Resource: resource, Subresource: sub, Namespace: namespace, Name: name,
			}},
		}, meta.CreateOptions{})
	if err != nil {
		w.t.Fatal(err)
	}
	return review.Status.Allowed
}

// until repeats a check that the API server's caches, or a controller, may delay. The pauses grow, because some checks
// run kubectl.
func until(f func() bool) bool {
	end, wait := time.Now().Add(2*time.Minute), 10*time.Millisecond
	for ; !f(); wait = min(2*wait, 500*time.Millisecond) {
		if time.Now().After(end) {
			return false
		}
		time.Sleep(wait)
	}
	return true
}

// Each verb of each rule is necessary: with the roles as they are, the call succeeds, and
// without that verb it is forbidden.
func TestEachVerbIsSufficientAndNecessary(t *testing.T) {
	t.Parallel()
	tried := map[string]bool{} // the base's grants are tried once
	for _, overlay := range Overlays {
		t.Run(overlay, func(t *testing.T) {
			c := newCaller(t, overlay).c
			for _, account := range []string{ServiceAccount, Controller} {
				t.Run(account, func(t *testing.T) { sufficientAndNecessary(t, as(t, c, account), overlay, account, tried) })
			}
		})
	}
}

func sufficientAndNecessary(t *testing.T, w *caller, overlay, account string, tried map[string]bool) {
	// Two roles may grant the same in one namespace, if the places of two objects are equal.
	// Then the verb is removed from both.
	grants, order := map[string][]Grant{}, []string{}
	for _, g := range Grants(t, overlay, account) {
		if grants[g.String()] == nil {
			order = append(order, g.String())
		}
		grants[g.String()] = append(grants[g.String()], g)
	}
	for _, what := range order {
		g := grants[what][0]
		if tried[account+" "+what] && len(grants[what]) == 1 {
			continue
		}
		tried[account+" "+what] = true
		if strings.Contains(g.Verb+g.Group+g.Resource, "*") {
			t.Errorf("%s: a wildcard", g)
			continue
		}
		if err := w.try(g); err != nil {
			t.Errorf("%s: %v", g, err)
			continue
		}
		var restore []func()
		for _, same := range grants[what] {
			restore = append(restore, Without(t, w.c, same))
		}
		may := func() bool { return w.may(g.Verb, g.Group, g.Resource, g.Subresource, g.Namespace, g.Name) }
		if !until(func() bool { return !may() }) {
			t.Errorf("%s: still allowed when it is taken away: another rule gives it, too", g)
		} else if err := w.try(g); !kerrors.IsForbidden(err) {
			t.Errorf("%s: without it: %v", g, err)
		}
		for _, back := range restore {
			back()
		}
		if !until(may) {
			t.Fatalf("%s: still impossible after it was restored", g)
		}
	}
}

// Even without any component, the account of the processes that serve cannot enroll a machine or delete an
// administrator's objects.
func TestAttack_T49_AStolenFrontEnrollsNothingAndDeletesNoEnrollment(t *testing.T) {
	t.Parallel()
	for _, overlay := range Overlays {
		t.Run(overlay, func(t *testing.T) {
			w := newCaller(t, overlay)
			resource := v1alpha1.GroupVersion.WithResource("machineattestations")
			front, admin := w.verifier.Resource(resource).Namespace(Namespace), w.admin.Resource(resource).Namespace(Namespace)
			object := func(name, spec string) *unstructured.Unstructured {
				var o unstructured.Unstructured
				text := fmt.Sprintf("{apiVersion: %s, kind: MachineAttestation, metadata: {name: %s}, spec: {%s}}",
					v1alpha1.APIVersion, name, spec)
				if err := yaml.Unmarshal([]byte(text), &o.Object); err != nil {
					t.Fatal(err)
				}
				return &o
			}
			ctx := t.Context()
			remove := func(name string) {
				if err := admin.Delete(ctx, name, meta.DeleteOptions{}); err != nil && !kerrors.IsNotFound(err) {
					t.Fatal(err)
				}
			}
			refused := func(err error) bool { return err != nil && strings.Contains(err.Error(), "mcs-attest-records") }
			const (
				enrolls     = "pool: worker, expectedProviderID: 'aws:///a/i'"
				quarantines = "machineRef: {name: m}, quarantined: true"
			)
			rehearses := "machineRef: {name: m}, rehearsal: {ticketSHA256: '" + strings.Repeat("0", 64) +
				"', until: '2000-01-01T00:00:00Z'}"
			for _, spec := range []string{enrolls, quarantines, rehearses} {
				if !until(func() bool { // the API server applies a policy after a moment
					_, err := front.Create(ctx, object("m", spec), meta.CreateOptions{})
					remove("m")
					return refused(err)
				}) {
					t.Errorf("it creates a MachineAttestation with %s", spec)
				}
			}
			for name, spec := range map[string]string{
				"worker-0": quarantines, "worker-1": "", "pending-a": enrolls, "pending-b": quarantines,
			} {
				if !until(func() bool {
					_, err := admin.Create(ctx, object(name, spec), meta.CreateOptions{})
					if err != nil && !kerrors.IsAlreadyExists(err) {
						t.Fatal(err)
					}
					return refused(front.Delete(ctx, name, meta.DeleteOptions{}))
				}) {
					t.Errorf("it deletes %s with %q", name, spec)
				}
			}
			for _, spec := range []string{"", "machineRef: {name: m}"} {
				if _, err := front.Create(ctx, object("m", spec), meta.CreateOptions{}); err != nil {
					t.Errorf("a record with %q: %v", spec, err)
				}
				remove("m")
			}
			if _, err := front.Create(ctx, object("pending-c", ""), meta.CreateOptions{}); err != nil {
				t.Error(err)
			}
			if err := front.Delete(ctx, "pending-c", meta.DeleteOptions{}); err != nil {
				t.Errorf("a machine that waits: %v", err)
			}
		})
	}
}

// What an attacker would want from a stolen account of the verifier.
func TestAttack_T49_TheAccountsHaveOnlyTheRequiredPermissions(t *testing.T) {
	t.Parallel()
	c := newCaller(t, "openshift").c
	for _, account := range []string{ServiceAccount, Controller} {
		t.Run(account, func(t *testing.T) { nothingElse(t, as(t, c, account), accountPrefix+account) })
	}
	t.Run("with the token of a process that serves", func(t *testing.T) { frontIsNotTheCluster(t, c) })
}

// asGoodAs returns the verbs that have the same or a larger effect.
func asGoodAs(verb string) []string {
	switch verb {
	case "update", "patch":
		return []string{"update", "patch"}
	case "delete":
		return []string{"delete", "deletecollection"}
	}
	return []string{verb}
}

// frontIsNotTheCluster tries the controller's permissions of every component with the token
// of the processes that serve.
func frontIsNotTheCluster(t *testing.T, c *cluster.Cluster) {
	const machines, mco = "openshift-machine-api", "openshift-machine-config-operator"
	for _, component := range []string{"approver", "certificates", "user-data", "render", "credential"} {
		objects := withComponent(t, component)
		c.KubectlApply(t, Prerequisites(objects))
		for _, o := range objects {
			if strings.HasPrefix(o.GetKind(), "Role") || strings.HasPrefix(o.GetKind(), "ClusterRole") {
				raw, err := yaml.Marshal(o.Object)
				if err != nil {
					t.Fatal(err)
				}
				c.KubectlApply(t, string(raw))
			}
		}
	}
	front, controller := as(t, c, ServiceAccount), as(t, c, Controller)
	for _, a := range []struct{ verb, group, resource, sub, namespace, name string }{
		{"update", "certificates.k8s.io", "certificatesigningrequests", "approval", "", ""},
		{"approve", "certificates.k8s.io", "signers", "", "", "kubernetes.io/kube-apiserver-client-kubelet"},
		{"approve", "certificates.k8s.io", "signers", "", "", "kubernetes.io/kubelet-serving"},
		{"update", "", "secrets", "", machines, "worker-user-data"},
		{"update", "", "secrets", "", machines, "master-user-data"},
		{"update", "", "secrets", "", Namespace, "mcs-attest-keys"},
		{"create", "", "secrets", "", Namespace, ""},
		{"update", "", "secrets", "", "openshift-config", "machineconfig-auth"},
		{"get", "", "secrets", "", mco, "machine-config-server-ca"},
		{"update", "", "secrets", "", mco, "machine-config-server-ca"},
		{"update", "", "secrets", "", mco, "machine-config-server-tls"},
		{"update", "", "configmaps", "", mco, "machine-config-server-ca"},
		{"update", "coordination.k8s.io", "leases", "", Namespace, "mcs-attest-verifier"},
		{"delete", "mcs-attest.dev", "machineattestations", "", machines, ""},
		{"update", "mcs-attest.dev", "attestationpolicies", "status", "", ""},
		{"update", "mcs-attest.dev", "attestationverifiers", "status", "", "cluster"},
	} {
		may := func(w *caller) bool { return w.may(a.verb, a.group, a.resource, a.sub, a.namespace, a.name) }
		if !until(func() bool { return may(controller) }) {
			t.Errorf("the controller may not %s %s/%s %s in %q: the question is not honest", a.verb, a.resource, a.sub,
				a.name, a.namespace)
		}
		for _, verb := range asGoodAs(a.verb) {
			if front.may(verb, a.group, a.resource, a.sub, a.namespace, a.name) {
				t.Errorf("with a token of a process that serves: %s %s/%s %s in %q", verb, a.resource, a.sub, a.name, a.namespace)
			}
		}
	}

	// With this token an attacker does not become a node, and reads no other Secret.
	ctx := t.Context()
	request := &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": "certificates.k8s.io/v1", "kind": "CertificateSigningRequest",
		"metadata": map[string]any{"generateName": "stolen-"},
		"spec": map[string]any{
			"signerName": "kubernetes.io/kube-apiserver-client-kubelet", "request": "", "usages": []any{"client auth"},
		},
	}}
	requests := schema.GroupVersionResource{
		Group: "certificates.k8s.io", Version: "v1", Resource: "certificatesigningrequests",
	}
	if _, err := front.verifier.Resource(requests).Create(ctx, request, meta.CreateOptions{}); !kerrors.IsForbidden(err) {
		t.Errorf("a certificate signing request: %v", err)
	}
	node := schema.GroupVersionResource{Version: "v1", Resource: "nodes"}
	for _, verb := range []string{"create", "update", "patch"} {
		if front.may(verb, "", node.Resource, "", "", "") {
			t.Errorf("it may %s Nodes", verb)
		}
	}
	for _, who := range []string{"system:node:worker-0", "system:serviceaccount:" + Namespace + ":" + Controller} {
		if front.may("impersonate", "", "users", "", "", who) {
			t.Errorf("it may impersonate %s", who)
		}
	}
	if front.may("create", "", "serviceaccounts", "token", Namespace, Controller) {
		t.Error("it may have a token of the controller made")
	}
	secrets := schema.GroupVersionResource{Version: "v1", Resource: "secrets"}
	for _, k := range [][2]string{
		{"openshift-config", "pull-secret"}, {mco, "machine-config-server-ca"}, {mco, "node-bootstrapper-token"},
		{"kube-system", "any"}, {Namespace, "another"},
	} {
		_, err := front.verifier.Resource(secrets).Namespace(k[0]).Get(ctx, k[1], meta.GetOptions{})
		if !kerrors.IsForbidden(err) {
			t.Errorf("Secret %s/%s: %v", k[0], k[1], err)
		}
	}
}

func nothingElse(t *testing.T, w *caller, account string) {
	const machines, mco, config = "openshift-machine-api", "openshift-machine-config-operator", "openshift-config"
	if !until(func() bool { // the API server reads new roles after a moment
		return w.may("list", "", "secrets", "", config, "machineconfig-auth") &&
			w.may("patch", "mcs-attest.dev", "machineattestations", "status", machines, "")
	}) {
		t.Fatal("the honest questions are answered with no")
	}
	for _, a := range []struct{ verb, group, resource, sub, namespace, name string }{
		{"list", "", "secrets", "", "", ""},
		{"list", "", "secrets", "", Namespace, ""},
		{"watch", "", "secrets", "", machines, ""},
		{"list", "", "secrets", "", config, ""},
		{"list", "", "secrets", "", mco, ""},
		{"get", "", "secrets", "", config, "pull-secret"},
		{"get", "", "secrets", "", mco, "node-bootstrapper-token"},
		{"list", "", "secrets", "", mco, "machine-config-server-ca"}, // the CA's key
		{"update", "", "secrets", "", mco, "machine-config-server-tls"},
		{"update", "", "secrets", "", machines, "worker-user-data-managed"},
		{"update", "", "secrets", "", machines, "worker-user-data"},
		{"update", "", "secrets", "", machines, "master-user-data"},
		{"delete", "", "secrets", "", machines, "worker-user-data"},
		{"delete", "", "secrets", "", Namespace, "mcs-attest-keys"},
		{"create", "", "secrets", "", machines, ""},
		{"create", "", "secrets", "", config, ""},
		{"list", "", "secrets", "", "kube-system", ""},
		{"list", "", "configmaps", "", "", ""},
		{"update", "", "configmaps", "", mco, "machine-config-server-ca"},
		{"update", "", "configmaps", "", Namespace, "mcs-attest-config"},
		{"create", "", "configmaps", "", Namespace, ""},
		{"delete", "machine.openshift.io", "machines", "", machines, ""},
		{"update", "machine.openshift.io", "machines", "", machines, ""},
		{"create", "machine.openshift.io", "machines", "", machines, ""},
		{"update", "machine.openshift.io", "machines", "status", machines, ""},
		{"delete", "cluster.x-k8s.io", "machines", "", machines, ""},
		{"list", "machine.openshift.io", "machines", "", "", ""},
		{"update", "metal3.io", "baremetalhosts", "", machines, ""},
		{"list", "", "namespaces", "", "", ""},
		{"delete", "", "namespaces", "", "", machines},
		{"get", "", "nodes", "proxy", "", ""},
		{"patch", "", "nodes", "", "", ""},
		{"patch", "", "events", "", "kube-system", ""},
		{"patch", "", "events", "", "default", ""},
		{"patch", "", "events", "", config, ""},
		{"patch", "", "events", "", mco, ""},
		{"update", "", "nodes", "status", "", ""},
		{"delete", "", "nodes", "", "", ""},
		{"update", "mcs-attest.dev", "machineattestations", "", machines, ""},
		{"update", "mcs-attest.dev", "machineattestations", "", Namespace, ""},
		{"create", "mcs-attest.dev", "machineattestations", "", "default", ""},
		{"deletecollection", "mcs-attest.dev", "machineattestations", "", machines, ""},
		{"deletecollection", "mcs-attest.dev", "identityclaims", "", "", ""},
		{"update", "mcs-attest.dev", "attestationpolicies", "", "", ""},
		{"create", "mcs-attest.dev", "attestationpolicies", "", "", ""},
		{"delete", "mcs-attest.dev", "attestationpolicies", "", "", ""},
		{"update", "machineconfiguration.openshift.io", "machineconfigpools", "", "", ""},
		{"create", "machineconfiguration.openshift.io", "machineconfigpools", "", "", ""},
		{"delete", "machineconfiguration.openshift.io", "machineconfigpools", "", "", ""},
		{"get", "machineconfiguration.openshift.io", "machineconfigs", "", "", ""},
		{"create", "machineconfiguration.openshift.io", "machineconfigs", "", "", ""},
		{"create", "", "pods", "", Namespace, ""},
		{"create", "", "pods", "exec", Namespace, ""},
		{"get", "", "pods", "log", Namespace, ""},
		{"create", "", "serviceaccounts", "token", Namespace, ServiceAccount},
		{"create", "", "serviceaccounts", "token", mco, "node-bootstrapper"},
		{"update", "certificates.k8s.io", "certificatesigningrequests", "approval", "", ""},
		{"approve", "certificates.k8s.io", "signers", "", "", "kubernetes.io/kube-apiserver-client-kubelet"},
		{"create", "rbac.authorization.k8s.io", "clusterrolebindings", "", "", ""},
		{"update", "rbac.authorization.k8s.io", "clusterroles", "", "", "mcs-attest-verifier"},
		{"escalate", "rbac.authorization.k8s.io", "clusterroles", "", "", ""},
		{"bind", "rbac.authorization.k8s.io", "clusterroles", "", "", "cluster-admin"},
		{"impersonate", "", "users", "", "", "system:admin"},
		{"impersonate", "", "groups", "", "", "system:masters"},
		{"use", "security.openshift.io", "securitycontextconstraints", "", Namespace, "privileged"},
		{"use", "security.openshift.io", "securitycontextconstraints", "", "", "hostnetwork-v2"},
		{"update", "coordination.k8s.io", "leases", "", "kube-system", "kube-controller-manager"},
		{"update", "coordination.k8s.io", "leases", "", Namespace, "another"},
		{"*", "*", "*", "", "", ""},
	} {
		for _, verb := range asGoodAs(a.verb) {
			if w.may(verb, a.group, a.resource, a.sub, a.namespace, a.name) {
				t.Errorf("it may %s %s/%s.%s %s in %q", verb, a.resource, a.sub, a.group, a.name, a.namespace)
			}
		}
	}

	// Some of the same checks with 'kubectl auth can-i'.
	for _, q := range []struct {
		want string
		args []string
	}{
		{"yes", []string{"patch", "machineattestations.mcs-attest.dev", "--subresource=status", "-n", machines}},
		{"no", []string{"update", "machineattestations.mcs-attest.dev", "-n", machines}},
		{"no", []string{"list", "secrets", "--all-namespaces"}},
		{"no", []string{"get", "secret/pull-secret", "-n", config}},
		{"no", []string{"delete", "machines.machine.openshift.io", "-n", machines}},
		{"no", []string{"patch", "nodes"}},
	} {
		out, _ := w.c.KubectlAs(account, "", append([]string{"auth", "can-i"}, q.args...)...)
		if strings.TrimSpace(out) != q.want {
			t.Errorf("kubectl auth can-i %s: %s", strings.Join(q.args, " "), out)
		}
	}

	// An actual read without a name returns nothing.
	if out, err := w.c.KubectlAs(account, "", "get", "secrets", "-n", config); err == nil {
		t.Errorf("it lists secrets:\n%s", out)
	}
}

// Every Secret that a rule names is in the configuration or one of the verifier's own keys,
// and the reverse.
func TestSecretsAreThoseOfTheConfiguration(t *testing.T) {
	for _, overlay := range Overlays {
		data, _, err := unstructured.NestedString(find(t, Objects(t, overlay), "ConfigMap", "mcs-attest-config").Object,
			"data", "mcs-attest.yaml")
		if err != nil {
			t.Fatal(err)
		}
		var c struct {
			Kubernetes struct {
				ServingSecret, CAConfigMap         string
				UserDataSecrets, MachineNamespaces []string
			}
			ProvisioningToken struct{ Secret string }
		}
		if err := yaml.Unmarshal([]byte(data), &c); err != nil {
			t.Fatal(err)
		}
		want := []string{Namespace + "/mcs-attest-keys", c.Kubernetes.ServingSecret, c.ProvisioningToken.Secret}
		for _, s := range c.Kubernetes.UserDataSecrets {
			want = append(want, s, s+"-managed")
		}
		slices.Sort(want)
		for _, account := range []string{ServiceAccount, Controller} {
			var got, namespaces []string
			for _, g := range Grants(t, overlay, account) {
				if g.Resource == "secrets" && g.Verb == "watch" {
					got = append(got, g.Namespace+"/"+g.Name)
				}
				if g.Resource == "machines" && g.Verb == "watch" && g.Group == "cluster.x-k8s.io" {
					namespaces = append(namespaces, g.Namespace)
				}
			}
			slices.Sort(got)
			if !slices.Equal(got, want) {
				t.Errorf("%s, %s: granted %v\nconfigured %v", overlay, account, got, want)
			}
			if !slices.Equal(namespaces, c.Kubernetes.MachineNamespaces) {
				t.Errorf("%s, %s: Machines are granted in %v, configured in %v", overlay, account, namespaces,
					c.Kubernetes.MachineNamespaces)
			}
		}
	}
}
