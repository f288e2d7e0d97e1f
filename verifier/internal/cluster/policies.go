package cluster

import (
	"cmp"
	"encoding/json"
	"maps"
	"slices"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/mcs-attest/mcs-attest/pkg/anchors"
	"github.com/mcs-attest/mcs-attest/pkg/api/v1alpha1"
	"github.com/mcs-attest/mcs-attest/pkg/manifest"
	"github.com/mcs-attest/mcs-attest/pkg/measuredboot"
	"github.com/mcs-attest/mcs-attest/pkg/policy"
	"github.com/mcs-attest/mcs-attest/verifier/internal/folder"
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

// compactPolicy reads a policy by the parser that reads files of them.
func compactPolicy(u *unstructured.Unstructured) (any, []manifest.Problem) {
	own := maps.Clone(u.Object)
	delete(own, "status") // ours, perhaps a newer version's
	raw, err := json.Marshal(own)
	if err != nil {
		return nil, []manifest.Problem{{What: err.Error()}}
	}
	parsed, problems := policy.Parse(policyFile+u.GetName(), raw)
	if len(parsed) == 0 {
		return nil, orProblem(problems, "no policy")
	}
	return parsed, problems
}

func (c *Cluster) putPolicy(i *item) []manifest.Problem {
	parsed, _ := i.value.([]policy.Parsed)
	c.mu.Lock()
	c.policies[i.name] = &policyState{about: i.about, generation: i.at, version: i.version, observed: i.observed, conditions: i.conditions, parsed: parsed}
	delete(c.leaving, i.name)
	c.mu.Unlock()
	for _, p := range i.problems {
		c.log.Warn("policy", "name", i.name, "problem", says(p))
	}
	c.tasks.add(task{about: aboutPolicy, key: i.key})
	c.changed()
	return i.problems
}

// lingering is for how long after the last deletion of a policy the deleted ones
// stay in force. Whoever deletes all of them, or their CRD, has the API delete one
// after the other; the one for every pool must not outlive the stricter ones.
const lingering = 2 * time.Second

func (c *Cluster) dropPolicy(k key) {
	c.mu.Lock()
	if p := c.policies[k.name]; p != nil {
		c.leaving[k.name] = p
		delete(c.policies, k.name)
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

func compactName(*unstructured.Unstructured) (any, []manifest.Problem) { return nothing{}, nil }

func (c *Cluster) putPool(i *item) []manifest.Problem {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.pools == nil {
		c.pools = map[string]bool{}
	}
	c.pools[i.name] = true
	c.tasks.allPolicies()
	c.tasks.roles()
	return nil
}

func (c *Cluster) dropPool(k key) {
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.pools, k.name)
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

func compactConfigMap(u *unstructured.Unstructured) (any, []manifest.Problem) {
	data, _, err := unstructured.NestedStringMap(u.Object, "data")
	if err != nil {
		return nil, []manifest.Problem{{What: err.Error()}}
	}
	return configMap{sort: u.GetLabels()[LabelContent], data: data}, nil
}

func (c *Cluster) putContent(i *item) []manifest.Problem {
	m, ok := i.value.(configMap)
	if !ok {
		return i.problems
	}
	c.mu.Lock()
	before := c.content[i.key]
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
	c.content[i.key] = next
	c.trust = nil
	c.mu.Unlock()
	c.changed()
	return problems
}

func (c *Cluster) dropContent(k key) {
	c.mu.Lock()
	delete(c.content, k)
	c.trust = nil
	c.mu.Unlock()
	c.changed()
}
