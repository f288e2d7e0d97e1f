package cluster

import (
	"cmp"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/mcs-attest/mcs-attest/pkg/anchors"
	"github.com/mcs-attest/mcs-attest/pkg/api/v1alpha1"
	"github.com/mcs-attest/mcs-attest/pkg/manifest"
	"github.com/mcs-attest/mcs-attest/pkg/measuredboot"
	"github.com/mcs-attest/mcs-attest/pkg/policy"
	"github.com/mcs-attest/mcs-attest/verifier/internal/folder"
	"github.com/mcs-attest/mcs-attest/verifier/internal/kube/inventory"
	"github.com/mcs-attest/mcs-attest/verifier/internal/trust"
)

// compile joins the policies; see folder. A set that contradicts itself leaves the
// one from before in force. Before all were read there are none: of a part, the
// one for every pool may be laxer than what the pool has of its own.
func (c *Cluster) compile() *policy.Set {
	if !c.started {
		c.set = &policy.Set{}
		return c.set
	}
	var parsed []policy.Parsed
	suspended := ""
	all := maps.Clone(c.leaving)
	maps.Copy(all, c.policies)
	for _, name := range slices.Sorted(maps.Keys(all)) {
		p := all[name]
		parsed = append(parsed, p.parsed...)
		if p.parsed == nil && p.atStart {
			suspended = cmp.Or(suspended, v1alpha1.KindAttestationPolicy+" "+name)
		}
	}
	set, problems := policy.CompileParsed(parsed...)
	if set == nil && len(c.leaving) > 0 {
		return c.set // perhaps one takes over from another that is about to go
	}
	clash := map[string]string{}
	if set == nil {
		for _, p := range problems {
			if !p.Warning {
				name := strings.TrimPrefix(p.File, policyFile)
				clash[name] = cmp.Or(clash[name], says(p))
			}
		}
		set = c.set
	} else if suspended != "" {
		set = set.Suspended(suspended)
	}
	if !maps.Equal(clash, c.clash) {
		for name, text := range clash {
			c.log.Error("policies contradict each other; the last good set stays in force", "policy", name, "problem", text)
		}
		c.clash = clash
		for name := range c.policies {
			c.tasks.add(task{about: aboutPolicy, key: key{name: name}})
		}
	}
	c.set = set
	return set
}

// policyFile begins the name of a policy among problems.
const policyFile = v1alpha1.KindAttestationPolicy + "/"

// readPolicy is an AttestationPolicy as the API has it.
type readPolicy struct {
	parsed     []policy.Parsed // nil: it cannot be used
	observed   int64
	conditions []metav1.Condition
}

// compactPolicy reads a policy by the parser that reads files of them.
func compactPolicy(o client.Object) (any, []manifest.Problem) {
	own := maps.Clone(fields(o))
	status, _ := own["status"].(map[string]any)
	delete(own, "status") // ours, perhaps a newer version's
	p := readPolicy{conditions: conditionsOf(status)}
	p.observed, _ = status["observedGeneration"].(int64)
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

// policyStateOf is the state of a policy without what it says.
func policyStateOf(o *inventory.Object) policyState {
	p, _ := o.Value.(readPolicy)
	return policyState{about: aboutOf(o), generation: o.Generation, version: o.Version, observed: p.observed, conditions: p.conditions}
}

func (c *Cluster) putPolicy(o *inventory.Object) []manifest.Problem {
	p, _ := o.Value.(readPolicy)
	state := policyStateOf(o)
	state.parsed = p.parsed
	c.mu.Lock()
	c.policies[o.Name] = &state
	delete(c.leaving, o.Name)
	c.mu.Unlock()
	for _, p := range o.Problems {
		c.log.Warn("policy", "name", o.Name, "problem", says(p))
	}
	c.tasks.add(task{about: aboutPolicy, key: keyOf(o.NamespacedName)})
	c.changed()
	return o.Problems
}

// lingering is for how long after the last deletion of a policy the deleted ones
// stay in force. Whoever deletes all of them, or their CRD, has the API delete one
// after the other; the one for every pool must not outlive the stricter ones.
const lingering = 2 * time.Second

func (c *Cluster) dropPolicy(n types.NamespacedName) {
	c.mu.Lock()
	if p := c.policies[n.Name]; p != nil {
		c.leaving[n.Name] = p
		delete(c.policies, n.Name)
	}
	c.left++
	left := c.left
	c.mu.Unlock()
	time.AfterFunc(lingering, func() { c.policiesLeft(left) })
	c.changed()
}

// policiesLeft puts an end to the deleted policies, unless more were deleted since.
func (c *Cluster) policiesLeft(left int) {
	c.mu.Lock()
	if c.left == left {
		clear(c.leaving)
	}
	c.mu.Unlock()
	c.changed()
}

// policiesRead notes that all policies are known.
func (c *Cluster) policiesRead() {
	c.mu.Lock()
	c.started = true
	c.mu.Unlock()
	c.changed()
}

// policiesVanished notes that the cluster does not have the kind: then it is as
// before any were read.
func (c *Cluster) policiesVanished() {
	c.mu.Lock()
	c.started = false
	clear(c.leaving)
	c.mu.Unlock()
	c.changed()
}

func compactName(client.Object) (any, []manifest.Problem) { return nothing{}, nil }

func (c *Cluster) putPool(o *inventory.Object) []manifest.Problem {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.pools == nil {
		c.pools = map[string]bool{}
	}
	c.pools[o.Name] = true
	c.tasks.allPolicies()
	c.tasks.roles()
	return nil
}

func (c *Cluster) dropPool(n types.NamespacedName) {
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.pools, n.Name)
	c.tasks.allPolicies()
	c.tasks.roles()
}

func (c *Cluster) poolsRead() {
	c.tasks.allPolicies()
	c.tasks.roles()
}

// configMap is a ConfigMap's data as far as it is text.
type configMap struct {
	sort string // the value of LabelContent
	data map[string]string
}

func compactConfigMap(o client.Object) (any, []manifest.Problem) {
	m, ok := o.(*corev1.ConfigMap)
	if !ok {
		return nil, []manifest.Problem{{What: fmt.Sprintf("%T is not a ConfigMap", o)}}
	}
	return configMap{sort: m.Labels[LabelContent], data: m.Data}, nil
}

func (c *Cluster) putContent(o *inventory.Object) []manifest.Problem {
	m, ok := o.Value.(configMap)
	if !ok {
		return o.Problems
	}
	at := keyOf(o.NamespacedName)
	c.mu.Lock()
	before := c.content[at]
	c.mu.Unlock()
	if before == nil {
		before = &contentState{}
	}
	next := &contentState{references: map[string][]measuredboot.ReferenceValues{}, roots: map[string][]anchors.Anchor{}, trust: map[string]trust.File{}}
	var problems []manifest.Problem
	for _, name := range slices.Sorted(maps.Keys(m.data)) {
		var found []manifest.Problem
		switch m.sort {
		case ContentReferences:
			next.references[name], found = folder.ParseReferences(name, []byte(m.data[name]))
			if manifest.Failed(found) {
				next.references[name] = before.references[name]
			}
		case ContentRoots:
			next.roots[name], found = folder.ParseAnchors(name, []byte(m.data[name]))
			if manifest.Failed(found) {
				next.roots[name] = before.roots[name]
			}
		default:
			next.trust[name], found = trust.Parse(trust.Section(m.sort), name, []byte(m.data[name]))
			if good, ok := before.trust[name]; ok && good.Section == trust.Section(m.sort) && manifest.Failed(found) {
				next.trust[name] = good
			}
		}
		for _, p := range found {
			if !p.Warning {
				problems = append(problems, manifest.Problem{What: p.Error()})
			}
		}
	}
	if section := trust.Section(m.sort); trust.Sections[section] != nil && len(m.data) == 0 {
		next.trust[""] = trust.File{Section: section, Broken: true}
		problems = append(problems, manifest.Problem{What: "a ConfigMap of anchors without data; nothing of its sort is trusted", Want: "delete it to trust what comes with this version"})
	}
	c.mu.Lock()
	c.content[at] = next
	c.trust = nil
	c.mu.Unlock()
	c.changed()
	return problems
}

func (c *Cluster) dropContent(n types.NamespacedName) {
	c.mu.Lock()
	delete(c.content, keyOf(n))
	c.trust = nil
	c.mu.Unlock()
	c.changed()
}
