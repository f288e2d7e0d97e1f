// SPDX-License-Identifier: Apache-2.0

package inventory

import (
	"encoding/base64"
	"testing"
	"unicode/utf8"

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

// referencesOf is a ConfigMap of reference values. Like kubectl, it has what is no text in binaryData.
func referencesOf(files map[string]string) *unstructured.Unstructured {
	data, binary := map[string]any{}, map[string]any{}
	for name, content := range files {
		if utf8.ValidString(content) {
			data[name] = content
		} else {
			binary[name] = base64.StdEncoding.EncodeToString([]byte(content))
		}
	}
	return &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": "v1", "kind": "ConfigMap", "data": data, "binaryData": binary,
		"metadata": map[string]any{"name": "refs", "namespace": "own", "resourceVersion": "1",
			"labels": map[string]any{LabelContent: ContentReferences}},
	}}
}

// Without a document, a policy for all documents can accept boots that it denies with it.
func TestInventory_ReferenceValuesThatCannotBeReadDoNotFailOpen(t *testing.T) {
	const good = "apiVersion: mcs-attest.dev/v1alpha1\nkind: ReferenceValues\nmetadata: {name: a}\n"
	a := func(content string) map[string]string { return map[string]string{"a": content} }
	for name, c := range map[string]struct {
		lists     []map[string]string // nil: the ConfigMap does not exist
		documents int
		problem   bool
		unread    string
	}{
		"none":                   {[]map[string]string{nil}, 0, false, ""},
		"good":                   {[]map[string]string{a(good)}, 1, false, ""},
		"broken at the start":    {[]map[string]string{a("[")}, 0, true, "a in the ConfigMap refs"},
		"empty at the start":     {[]map[string]string{a("")}, 0, true, "a in the ConfigMap refs"},
		"no text at the start":   {[]map[string]string{a("\xff")}, 0, true, "a in the ConfigMap refs"},
		"without a key":          {[]map[string]string{{}}, 0, true, "the ConfigMap refs"},
		"without a key, twice":   {[]map[string]string{{}, {}}, 0, true, "the ConfigMap refs"},
		"filled with a mistake":  {[]map[string]string{{}, a("[")}, 0, true, "a in the ConfigMap refs"},
		"broken twice":           {[]map[string]string{a("["), a("{")}, 0, true, "a in the ConfigMap refs"},
		"fixed":                  {[]map[string]string{a("["), a(good)}, 1, false, ""},
		"fixed and broken":       {[]map[string]string{a("["), a(good), a("[")}, 1, true, ""},
		"broken later":           {[]map[string]string{a(good), a("[")}, 1, true, ""},
		"no text later":          {[]map[string]string{a(good), a("\xff")}, 1, true, ""},
		"emptied":                {[]map[string]string{a(good), {}}, 1, true, ""},
		"emptied twice":          {[]map[string]string{a(good), {}, {}}, 1, true, ""},
		"emptied and fixed":      {[]map[string]string{{}, a(good)}, 1, false, ""},
		"deleted":                {[]map[string]string{a("["), nil}, 0, false, ""},
		"a key is deleted":       {[]map[string]string{{"a": "[", "b": good}, {"b": good}}, 1, false, ""},
		"a new key is broken":    {[]map[string]string{a(good), {"a": good, "b": "["}}, 1, true, ""},
		"a new object is broken": {[]map[string]string{nil, a("[")}, 0, true, ""},
	} {
		t.Run(name, func(t *testing.T) {
			inventory := unconnected(t)
			inventory.watching(t, policyKind, "").list(t, 10, lax(), strict())
			w := inventory.watching(t, configMapKind, "own")
			inventory.build()
			if p, err := inventory.View().Policies.For("other"); err != nil || p.UnreadReferences == "" {
				t.Errorf("before the ConfigMaps were read: %q, %v", p.UnreadReferences, err)
			}
			for i, files := range c.lists {
				var objects []*unstructured.Unstructured
				if files != nil {
					objects = append(objects, referencesOf(files))
				}
				w.list(t, uint64(10+i), objects...)
			}
			inventory.build()
			if n := len(inventory.View().References); n != c.documents || len(inventory.Problems()) > 0 != c.problem {
				t.Errorf("%d documents, problems %v", n, inventory.Problems())
			}
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
