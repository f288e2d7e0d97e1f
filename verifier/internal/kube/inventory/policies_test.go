// SPDX-License-Identifier: Apache-2.0

package inventory

import (
	"testing"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"

	"github.com/mcs-attest/mcs-attest/pkg/api/v1alpha1"
	"github.com/mcs-attest/mcs-attest/pkg/manifest"
	"github.com/mcs-attest/mcs-attest/verifier/internal/kube/sources"
	"github.com/mcs-attest/mcs-attest/verifier/internal/trust"
)

// policyOf is one AttestationPolicy.
func policyOf(name, pool, mode string) *unstructured.Unstructured {
	return &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": v1alpha1.APIVersion, "kind": v1alpha1.KindAttestationPolicy,
		"metadata": map[string]any{"name": name, "resourceVersion": "1", "generation": int64(1)},
		"spec":     map[string]any{"pools": []any{pool}, "mode": mode},
	}}
}

// lax is the one for every pool, strict that of one pool. By name, and so in a
// list, lax comes first.
func lax() *unstructured.Unstructured    { return policyOf("all", "*", "Audit") }
func strict() *unstructured.Unstructured { return policyOf("strict", "master", "Enforce") }

// inForce builds the view and returns the policy of the pool, or "".
func (c *Inventory) inForce(pool string) string {
	c.build()
	p, err := c.View().Policies.For(pool)
	if err != nil {
		return ""
	}
	return p.Name
}

// undivided fails the test if a view could be built after a policy of a list, or of
// all that go, was taken in and before the rest.
func undivided(t *testing.T, w watched) {
	t.Helper()
	checkBatch := func() {
		if w.c.batch.TryLock() {
			w.c.batch.Unlock()
			t.Error("a view can be built from a part of the policies")
		}
	}
	put, drop := w.Put, w.Drop
	w.Put = func(o *sources.Object) []manifest.Problem {
		defer checkBatch()
		return put(o)
	}
	w.Drop = func(n types.NamespacedName) {
		drop(n)
		checkBatch()
	}
}

func TestNoPolicyIsLessStrictWhilePoliciesAreRead(t *testing.T) {
	c := unconnected(t)
	w := c.watching(t, policyKind, "")
	if got := c.inForce("master"); got != "" {
		t.Fatalf("before anything was read: %q", got)
	}
	// A part of the first list, without any race.
	w.receive(t, lax())
	if got := c.inForce("master"); got != "" {
		t.Errorf("before all were read the pool has %q", got)
	}
	w.list(t, 10, lax(), strict())
	if m, o := c.inForce("master"), c.inForce("other"); m != "strict" || o != "all" {
		t.Fatalf("after it: %q, %q", m, o)
	}

	// A later list has both for the first time.
	c = unconnected(t)
	w = c.watching(t, policyKind, "")
	w.list(t, 10)
	undivided(t, w)
	w.list(t, 20, lax(), strict())
	if got := c.inForce("master"); got != "strict" {
		t.Errorf("the pool has %q", got)
	}
	w.list(t, 30)
}

func TestNoPolicyIsLessStrictWhilePoliciesAreDeleted(t *testing.T) {
	both := func() (*Inventory, watched) {
		c := unconnected(t)
		w := c.watching(t, policyKind, "")
		w.list(t, 10, lax(), strict())
		c.build()
		return c, w
	}
	t.Run("the kind", func(t *testing.T) {
		c, w := both()
		undivided(t, w)
		w.Absent()
		if got := c.inForce("master"); got != "" {
			t.Errorf("the pool has %q", got)
		}
		// It comes back, and the strict one cannot be used: as at a start.
		broken := strict()
		broken.Object["spec"].(map[string]any)["mode"] = "Whatever"
		w.list(t, 30, lax(), broken)
		if got := c.inForce("master"); got != "" {
			t.Errorf("back with a broken one, the pool has %q", got)
		}
		w.list(t, 40, lax(), strict())
		if got := c.inForce("master"); got != "strict" {
			t.Errorf("back, the pool has %q", got)
		}
	})
	t.Run("one after the other", func(t *testing.T) {
		// As the API does when the CRD goes, or all of them are deleted.
		c, w := both()
		for _, u := range []*unstructured.Unstructured{strict(), lax()} {
			w.remove(u)
			if got := c.inForce("master"); got != "strict" {
				t.Errorf("without %s the pool has %q", u.GetName(), got)
			}
			c.expire(c.left - 1) // another was deleted since
		}
		if got := c.inForce("master"); got != "strict" {
			t.Errorf("before it is quiet: %q", got)
		}
		c.expire(c.left)
		if got := c.inForce("master"); got != "" {
			t.Errorf("in the end the pool has %q", got)
		}
	})
	t.Run("only one", func(t *testing.T) {
		c, w := both()
		w.remove(strict())
		c.expire(c.left)
		if got := c.inForce("master"); got != "all" {
			t.Errorf("the pool has %q", got)
		}
	})
	t.Run("recreated", func(t *testing.T) {
		// Under another name it contradicts the one that is about to go.
		c, w := both()
		w.remove(strict())
		w.receive(t, policyOf("another", "master", "Enforce"))
		if got := c.inForce("master"); got != "strict" || len(c.clash) != 0 {
			t.Errorf("first the pool has %q, %v", got, c.clash)
		}
		c.expire(c.left)
		if got := c.inForce("master"); got != "another" {
			t.Errorf("then %q", got)
		}
	})
}

// referencesOf is a ConfigMap of reference values.
func referencesOf(data map[string]any) *unstructured.Unstructured {
	return &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": "v1", "kind": "ConfigMap", "data": data,
		"metadata": map[string]any{"name": "refs", "namespace": "own", "resourceVersion": "1",
			"labels": map[string]any{LabelContent: ContentReferences}},
	}}
}

// Without this document a policy for all documents would accept boots that it denies with it.
func TestInventory_ReferenceValuesBrokenAtTheStartDoNotFailOpen(t *testing.T) {
	const good = "apiVersion: mcs-attest.dev/v1alpha1\nkind: ReferenceValues\nmetadata: {name: a}\n"
	for name, c := range map[string]struct {
		lists  []map[string]any // nil: the ConfigMap does not exist
		unread string
	}{
		"good":                        {[]map[string]any{{"a.yaml": good}}, ""},
		"broken at the start":         {[]map[string]any{{"a.yaml": "["}}, "a.yaml in the ConfigMap refs"},
		"empty at the start":          {[]map[string]any{{"a.yaml": ""}}, "a.yaml in the ConfigMap refs"},
		"broken twice":                {[]map[string]any{{"a.yaml": "["}, {"a.yaml": "{"}}, "a.yaml in the ConfigMap refs"},
		"fixed":                       {[]map[string]any{{"a.yaml": "["}, {"a.yaml": good}}, ""},
		"fixed and broken":            {[]map[string]any{{"a.yaml": "["}, {"a.yaml": good}, {"a.yaml": "["}}, ""},
		"broken later":                {[]map[string]any{{"a.yaml": good}, {"a.yaml": "["}}, ""},
		"deleted":                     {[]map[string]any{{"a.yaml": "["}, nil}, ""},
		"a key that is deleted":       {[]map[string]any{{"a.yaml": "["}, {}}, ""},
		"a new key that is broken":    {[]map[string]any{{"a.yaml": good}, {"a.yaml": good, "b.yaml": "["}}, ""},
		"a new object that is broken": {[]map[string]any{nil, {"a.yaml": "["}}, ""},
	} {
		t.Run(name, func(t *testing.T) {
			inventory := unconnected(t)
			inventory.watching(t, policyKind, "").list(t, 10, lax(), strict())
			w := inventory.watching(t, configMapKind, "own")
			for i, data := range c.lists {
				var objects []*unstructured.Unstructured
				if data != nil {
					objects = append(objects, referencesOf(data))
				}
				w.list(t, uint64(10+i), objects...)
			}
			inventory.build()
			for _, pool := range []string{"master", "other"} {
				if p, err := inventory.View().Policies.For(pool); err != nil || p.UnreadReferences != c.unread {
					t.Errorf("pool %s: %q, %v", pool, p.UnreadReferences, err)
				}
			}
		})
	}
}

func TestInventory_WatchesTheAnchorsOfEverySection(t *testing.T) {
	w := unconnected(t).watching(t, configMapKind, "own")
	selector, err := labels.Parse(w.Selector)
	if err != nil {
		t.Fatal(err)
	}
	for s := range trust.Sections {
		if !selector.Matches(labels.Set{LabelContent: string(s)}) {
			t.Errorf("a ConfigMap of %s is not watched", s)
		}
	}
}
