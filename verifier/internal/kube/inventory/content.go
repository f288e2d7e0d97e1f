// SPDX-License-Identifier: Apache-2.0

package inventory

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/mcs-attest/mcs-attest/pkg/anchors"
	"github.com/mcs-attest/mcs-attest/pkg/manifest"
	"github.com/mcs-attest/mcs-attest/pkg/measuredboot"
	"github.com/mcs-attest/mcs-attest/verifier/internal/folder"
	"github.com/mcs-attest/mcs-attest/verifier/internal/trust"
)

// LabelContent, on a ConfigMap of the verifier's namespace, is the kind of its data. Each key is one
// file of that kind. The other values are those of trust.Sections.
const (
	LabelContent      = "mcs-attest.dev/content"
	ContentReferences = "reference-values"
	ContentRoots      = "ek-roots"
)

// contents returns the values of LabelContent that are watched.
func contents() []string {
	all := []string{ContentReferences, ContentRoots}
	for _, s := range slices.Sorted(maps.Keys(trust.Sections)) {
		all = append(all, string(s))
	}
	return all
}

// configMap is the data of a ConfigMap.
type configMap struct {
	sort   string // the value of LabelContent
	data   map[string]string
	binary []string // keys of data that is no text
}

func compactConfigMap(o client.Object) (any, []manifest.Problem) {
	m, ok := o.(*corev1.ConfigMap)
	if !ok {
		return nil, []manifest.Problem{{What: fmt.Sprintf("%T is not a ConfigMap", o)}}
	}
	return configMap{sort: m.Labels[LabelContent], data: m.Data, binary: slices.Sorted(maps.Keys(m.BinaryData))}, nil
}

// contentState is one ConfigMap, with the last good content of each of its keys.
type contentState struct {
	references map[string][]measuredboot.ReferenceValues
	roots      map[string][]anchors.Anchor
	trust      map[string]trust.File
	unread     map[string]bool // keys of reference values without a good content since the start
}

// parseContent parses a ConfigMap. A key that cannot be parsed keeps its previous content. The first list at the start
// has atStart.
func parseContent(m configMap, before contentState, atStart bool) (next contentState, problems []manifest.Problem) {
	next = contentState{
		references: map[string][]measuredboot.ReferenceValues{}, roots: map[string][]anchors.Anchor{},
		trust: map[string]trust.File{}, unread: map[string]bool{},
	}
	keep := func(name string) {
		switch m.sort {
		case ContentReferences:
			next.references[name] = before.references[name]
			next.unread[name] = before.unread[name] ||
				(atStart || before.unread[""]) && before.references[name] == nil
		case ContentRoots:
			next.roots[name] = before.roots[name]
		default:
			if good, ok := before.trust[name]; ok && good.Section == trust.Section(m.sort) {
				next.trust[name] = good
			}
		}
	}
	for _, name := range slices.Sorted(maps.Keys(m.data)) {
		var found []manifest.Problem
		switch m.sort {
		case ContentReferences:
			next.references[name], found = folder.ParseReferences(name, []byte(m.data[name]))
		case ContentRoots:
			next.roots[name], found = folder.ParseAnchors(name, []byte(m.data[name]))
		default:
			next.trust[name], found = trust.Parse(trust.Section(m.sort), name, []byte(m.data[name]))
		}
		if manifest.Failed(found) {
			keep(name)
		}
		for _, p := range found {
			if !p.Warning {
				problems = append(problems, manifest.Problem{What: p.Error()})
			}
		}
	}
	for _, name := range m.binary {
		keep(name)
		problems = append(problems, manifest.Problem{What: name + " is no text",
			Want: "save certificates as PEM, and other files as UTF-8"})
	}
	if m.sort == ContentReferences && len(m.data)+len(m.binary) == 0 {
		for name := range before.references {
			keep(name)
		}
		next.unread[""] = before.unread[""] || atStart
		problems = append(problems, manifest.Problem{What: "the ConfigMap of reference values has no data",
			Want: "delete it if its content must no longer be in force"})
	}
	if section := trust.Section(m.sort); trust.Sections[section] != nil && len(m.data) == 0 {
		next.trust[""] = trust.File{Section: section, Broken: true}
		problems = append(problems, manifest.Problem{
			What: "the ConfigMap of anchors has no data, so no anchor of its kind is trusted",
			Want: "delete it to trust the built-in anchors",
		})
	}
	return next, problems
}

// content has the ConfigMaps with reference values and anchors.
type content map[key]contentState

// sorted returns the ConfigMaps, sorted by name.
func (c content) sorted() (all []contentState) {
	for _, k := range slices.SortedFunc(maps.Keys(c), compareKeys) {
		all = append(all, c[k])
	}
	return all
}

// inOrder returns the values of a map, sorted by key.
func inOrder[V any](m map[string]V) (all []V) {
	for _, name := range slices.Sorted(maps.Keys(m)) {
		all = append(all, m[name])
	}
	return all
}

// references joins the reference values.
func (c content) references() (all []measuredboot.ReferenceValues) {
	for _, s := range c.sorted() {
		all = append(all, slices.Concat(inOrder(s.references)...)...)
	}
	return all
}

// unread returns a file of reference values that could not be read since the start, or "".
func (c content) unread() string {
	for _, at := range slices.SortedFunc(maps.Keys(c), compareKeys) {
		for _, name := range slices.Sorted(maps.Keys(c[at].unread)) {
			if c[at].unread[name] {
				return strings.TrimPrefix(fmt.Sprintf("%s in the ConfigMap %s", name, at.name), " in ")
			}
		}
	}
	return ""
}

// roots joins the roots of the manufacturers.
func (c content) roots() *anchors.Set {
	var all [][]anchors.Anchor
	for _, s := range c.sorted() {
		all = append(all, inOrder(s.roots)...)
	}
	return anchors.NewSet(all...)
}

// trusted joins the anchors of cloud documents and of certified AKs.
func (c content) trusted() (*trust.Trust, []manifest.Problem) {
	var files []trust.File
	for _, s := range c.sorted() {
		files = append(files, inOrder(s.trust)...)
	}
	return trust.New(files...)
}
