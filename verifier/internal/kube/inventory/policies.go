// SPDX-License-Identifier: Apache-2.0

package inventory

import (
	"cmp"
	"encoding/json"
	"log/slog"
	"maps"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/mcs-attest/mcs-attest/pkg/anchors"
	"github.com/mcs-attest/mcs-attest/pkg/api/v1alpha1"
	"github.com/mcs-attest/mcs-attest/pkg/evidence/tpm2"
	"github.com/mcs-attest/mcs-attest/pkg/manifest"
	"github.com/mcs-attest/mcs-attest/pkg/policy"
	"github.com/mcs-attest/mcs-attest/verifier/internal/kube"
	"github.com/mcs-attest/mcs-attest/verifier/internal/kube/sources"
	"github.com/mcs-attest/mcs-attest/verifier/internal/trust"
	"github.com/mcs-attest/mcs-attest/verifier/internal/view"
)

// Policies has the AttestationPolicies, and the ConfigMaps with reference values and anchors. It also
// has the names of the MachineConfigPools. It is safe for concurrent use.
type Policies struct {
	o     policiesOptions
	roots atomic.Pointer[anchors.Set] // in force

	mu       sync.Mutex
	listed   bool // policies were read, and the cluster has the kind
	policies map[string]*policyState
	leaving  map[string]*policyState // deleted, but in force for the time of lingering
	left     int                     // the number of deletions
	set      *policy.Set             // the last one that compiled
	clash    map[string]string
	content  content
	read     bool            // the ConfigMaps were read
	trust    *trust.Trust    // nil if it must be joined again
	pools    map[string]bool // MachineConfigPools; empty if there are none
}

// policiesOptions configure Policies. The functions are called without a lock.
type policiesOptions struct {
	Log    *slog.Logger
	Faults *Faults
	// Trigger belongs to the controller that writes the conditions of policies.
	Trigger *kube.Trigger
	// Changed is called when the view may have changed, PoolsChanged when MachineConfigPools have.
	Changed      func()
	PoolsChanged func()
}

// policyState is one AttestationPolicy.
type policyState struct {
	object  *v1alpha1.AttestationPolicy // without the spec
	parsed  []policy.Parsed             // the last good ones
	atStart bool                        // it existed, and was broken, when the verifier started
}

func newPolicies(o policiesOptions) *Policies {
	p := &Policies{
		o: o, policies: map[string]*policyState{}, leaving: map[string]*policyState{}, set: &policy.Set{},
		content: content{}, pools: map[string]bool{},
	}
	p.roots.Store(anchors.NewSet())
	return p
}

// Sources returns the sources to watch.
func (p *Policies) Sources(namespace string) []*sources.Source {
	return []*sources.Source{
		{Kind: policyKind, Whole: true, Object: &unstructured.Unstructured{},
			Read: compactPolicy, Put: p.putPolicy, Drop: p.dropPolicy,
			Listed: func() { p.setListed(true) }, Vanished: func() { p.setListed(false) }},
		{Kind: poolKind, Optional: true, Advisory: true, Object: &metav1.PartialObjectMetadata{},
			Read: compactName, Put: p.putPool, Drop: p.dropPool, Listed: p.poolsChanged},
		{Kind: configMapKind, Namespace: namespace, Selector: LabelContent + " in (" + strings.Join(contents(), ",") + ")",
			Whole: true, Object: &corev1.ConfigMap{}, Read: compactConfigMap, Put: p.putContent, Drop: p.dropContent,
			Listed: p.contentRead},
	}
}

// compile joins the policies; see package folder. If the set contradicts itself, the previous one stays
// in force. Before all policies were read there are none: in an incomplete set, the policy for every
// pool may be less strict than a pool's own policy. The caller holds the lock.
func (p *Policies) compile() *policy.Set {
	if !p.listed {
		p.set = &policy.Set{}
		return p.set
	}
	var parsed []policy.Parsed
	suspended := ""
	all := maps.Clone(p.leaving)
	maps.Copy(all, p.policies)
	for _, name := range slices.Sorted(maps.Keys(all)) {
		one := all[name]
		parsed = append(parsed, one.parsed...)
		if one.parsed == nil && one.atStart {
			suspended = cmp.Or(suspended, v1alpha1.KindAttestationPolicy+" "+name)
		}
	}
	set, problems := policy.CompileParsed(parsed...)
	if set == nil && len(p.leaving) > 0 {
		return p.set // one may replace another that is about to be deleted
	}
	clash := map[string]string{}
	if set == nil {
		for _, problem := range problems {
			if !problem.Warning {
				name := strings.TrimPrefix(problem.File, policyFile)
				clash[name] = cmp.Or(clash[name], describe(problem))
			}
		}
		set = p.set
	} else if suspended != "" {
		set = set.Suspended(suspended)
	}
	if !maps.Equal(clash, p.clash) {
		for name, text := range clash {
			p.o.Log.Error("policies contradict each other; the last good set stays in force", "policy", name, "problem", text)
		}
		p.clash = clash
		p.o.Trigger.EnqueueAfter(joinPause, kube.PriorityChange, p.policyRequests()...)
	}
	p.set = set
	return set
}

// policyFile is the prefix of a policy's name in problems.
const policyFile = v1alpha1.KindAttestationPolicy + "/"

// readPolicy is an AttestationPolicy as read from the API.
type readPolicy struct {
	parsed []policy.Parsed // nil if it cannot be used
	status v1alpha1.AttestationPolicyStatus
}

// compactPolicy parses a policy with the parser for files of policies.
func compactPolicy(o client.Object) (any, []manifest.Problem) {
	own := maps.Clone(fields(o))
	status, _ := own["status"].(map[string]any)
	delete(own, "status") // written by the verifier, possibly by a newer version
	var p readPolicy
	// A status that cannot be parsed is written again.
	_ = runtime.DefaultUnstructuredConverter.FromUnstructured(status, &p.status)
	raw, err := json.Marshal(own)
	if err != nil {
		return p, []manifest.Problem{{What: err.Error()}}
	}
	parsed, problems := policy.Parse(policyFile+o.GetName(), raw)
	if len(parsed) == 0 {
		return p, orProblem(problems, "no policy")
	}
	if !manifest.Failed(problems) {
		p.parsed = parsed
	}
	return p, problems
}

// policyStateOf returns the state of a policy. It is complete if the policy can be used.
func policyStateOf(o *sources.Object) *policyState {
	p, _ := o.Value.(readPolicy)
	return &policyState{parsed: p.parsed, object: &v1alpha1.AttestationPolicy{
		ObjectMeta: metav1.ObjectMeta{
			Name: o.Name, UID: types.UID(o.UID), Generation: o.Generation, ResourceVersion: strconv.FormatUint(o.Version, 10),
		},
		Status: p.status,
	}}
}

func (p *Policies) putPolicy(o *sources.Object) []manifest.Problem {
	p.o.Faults.drop(policyKind, o.NamespacedName) // immediately, so that no condition is about both states
	p.mu.Lock()
	p.policies[o.Name] = policyStateOf(o)
	delete(p.leaving, o.Name)
	p.mu.Unlock()
	for _, problem := range o.Problems {
		p.o.Log.Warn("policy", "name", o.Name, "problem", describe(problem))
	}
	p.o.Trigger.EnqueueAfter(joinPause, kube.PriorityChange, policyKind.Request(o.NamespacedName))
	p.o.Changed()
	return o.Problems
}

// putUnusable receives a policy that cannot be used. Its last good state stays in force.
func (p *Policies) putUnusable(o *sources.Object) {
	p.mu.Lock()
	defer p.mu.Unlock()
	before := p.policies[o.Name]
	if before == nil {
		before = cmp.Or(p.leaving[o.Name], &policyState{atStart: !p.listed})
		delete(p.leaving, o.Name)
	}
	next := policyStateOf(o)
	next.parsed, next.atStart = before.parsed, before.atStart
	p.policies[o.Name] = next
}

// lingering is the time for which deleted policies stay in force after the last deletion. If all
// policies or their CRD are deleted, the API deletes one after the other. The policy for every pool
// must not outlive the stricter ones.
const lingering = 2 * time.Second

func (p *Policies) dropPolicy(n types.NamespacedName) {
	p.mu.Lock()
	if one := p.policies[n.Name]; one != nil {
		p.leaving[n.Name] = one
		delete(p.policies, n.Name)
	}
	p.left++
	left := p.left
	p.mu.Unlock()
	time.AfterFunc(lingering, func() { p.expire(left) })
	p.o.Changed()
}

// expire removes the deleted policies, unless more were deleted since.
func (p *Policies) expire(left int) {
	p.mu.Lock()
	if p.left == left {
		clear(p.leaving)
	}
	p.mu.Unlock()
	p.o.Changed()
}

// setListed records that all policies are known, or that the cluster does not have the kind. In the
// latter case, the state is as before the first read.
func (p *Policies) setListed(listed bool) {
	p.mu.Lock()
	p.listed = listed
	if !listed {
		clear(p.leaving)
	}
	p.mu.Unlock()
	p.o.Changed()
}

// wereListed reports whether policies were read, and the cluster has the kind.
func (p *Policies) wereListed() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.listed
}

func compactName(client.Object) (any, []manifest.Problem) { return nothing{}, nil }

func (p *Policies) putPool(o *sources.Object) []manifest.Problem {
	p.mu.Lock()
	p.pools[o.Name] = true
	p.mu.Unlock()
	p.poolsChanged()
	return nil
}

func (p *Policies) dropPool(n types.NamespacedName) {
	p.mu.Lock()
	delete(p.pools, n.Name)
	p.mu.Unlock()
	p.poolsChanged()
}

// poolsChanged requests a comparison of all policies with the pools.
func (p *Policies) poolsChanged() {
	p.mu.Lock()
	all := p.policyRequests()
	p.mu.Unlock()
	p.o.Trigger.EnqueueAfter(2*joinPause, kube.PriorityChange, all...)
	p.o.PoolsChanged()
}

// hasPools reports whether the cluster has MachineConfigPools.
func (p *Policies) hasPools() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return len(p.pools) > 0
}

func (p *Policies) putContent(o *sources.Object) []manifest.Problem {
	m, ok := o.Value.(configMap)
	if !ok {
		return o.Problems
	}
	at := keyOf(o.NamespacedName)
	p.mu.Lock()
	before, atStart := p.content[at], !p.read
	p.mu.Unlock()
	next, problems := parseContent(m, before, atStart)
	p.mu.Lock()
	p.content[at], p.trust = next, nil
	p.mu.Unlock()
	p.o.Changed()
	return problems
}

func (p *Policies) contentRead() {
	p.mu.Lock()
	p.read = true
	p.mu.Unlock()
}

func (p *Policies) dropContent(n types.NamespacedName) {
	p.mu.Lock()
	delete(p.content, keyOf(n))
	p.trust = nil
	p.mu.Unlock()
	p.o.Changed()
}

// fill sets the policies, reference values and anchors of a view. It returns the roots of TPM
// manufacturers.
func (p *Policies) fill(w *view.View) *anchors.Set {
	p.mu.Lock()
	defer p.mu.Unlock()
	unread := p.content.unread()
	if !p.read {
		unread = "the ConfigMaps with reference values"
	}
	w.Policies, w.References = p.compile().WithUnreadReferences(unread), p.content.references()
	roots := p.content.roots()
	w.EKRoots = tpm2.Roots{Anchors: roots.Roots(), Intermediates: roots.Intermediates()}
	if p.trust == nil {
		var problems []manifest.Problem
		p.trust, problems = p.content.trusted()
		for _, problem := range problems {
			report := p.o.Log.Error
			if problem.Warning {
				report = p.o.Log.Warn
			}
			report("trust anchors", "problem", problem.Error())
		}
	}
	w.Trust = p.trust
	return roots
}

// EKRoots returns the roots in the ConfigMaps, for the metric of their expiry.
func (p *Policies) EKRoots() *anchors.Set { return p.roots.Load() }

// Policy returns the state of an AttestationPolicy, or false if there is none.
func (p *Policies) Policy(name string) (Policy, bool) {
	fault, _ := p.o.Faults.Fault(policyKind.String(), types.NamespacedName{Name: name})
	p.mu.Lock()
	defer p.mu.Unlock()
	one := p.policies[name]
	if one == nil {
		return Policy{}, false
	}
	out := Policy{
		Object: one.object, Fault: fault.Text, Clash: p.clash[name], NeverUsable: one.parsed == nil && one.atStart,
	}
	if len(p.pools) == 0 {
		return out, true // the pools are not known
	}
	for _, parsed := range one.parsed {
		for _, pool := range parsed.Spec.Pools {
			if pool != "*" && !p.pools[pool] {
				out.UnknownPools = append(out.UnknownPools, pool)
			}
		}
	}
	return out, true
}

// policyRequests returns a request for each policy. The lock is held.
func (p *Policies) policyRequests() (all []reconcile.Request) {
	for name := range p.policies {
		all = append(all, policyKind.Request(types.NamespacedName{Name: name}))
	}
	return all
}

// requests returns a request for each policy, for each object that cannot be used, and for each object
// with a condition that says so.
func (p *Policies) requests() []reconcile.Request {
	p.mu.Lock()
	defer p.mu.Unlock()
	return append(p.policyRequests(), p.o.Faults.requests()...)
}

// Problems returns the objects that cannot be used as they are, for the status and the metric.
func (p *Policies) Problems() []string {
	all := p.o.Faults.texts()
	p.mu.Lock()
	defer p.mu.Unlock()
	for name, text := range p.clash {
		all = append(all, policyKind.String()+" "+name+": "+text)
	}
	slices.Sort(all)
	return all
}
