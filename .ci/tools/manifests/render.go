// SPDX-License-Identifier: Apache-2.0

// Package manifests makes the Helm chart and the OLM bundle of a version. Their source is the kustomize tree in
// the folder deploy: no object is written down twice. Command release ships the result, and command charts
// writes it for tests.
package manifests

import (
	"fmt"
	"os"
	"path"
	"path/filepath"

	"sigs.k8s.io/kustomize/api/krusty"
	"sigs.k8s.io/kustomize/api/types"
	"sigs.k8s.io/kustomize/kyaml/filesys"
	"sigs.k8s.io/yaml"
)

// The overlays, which are also the platforms of the chart.
const (
	openshift  = "openshift"
	kubernetes = "kubernetes"
)

// namespace is the only namespace in which the verifier can be installed: its admission policies name it.
const namespace = "mcs-attest"

// object is one object of the API, as JSON has it.
type object map[string]any

func (o object) kind() string { return text(o["kind"]) }

func (o object) name() string { return text(o.get("metadata", "name")) }

func (o object) namespace() string { return text(o.get("metadata", "namespace")) }

// get returns the value at a path, or nil.
func (o object) get(path ...string) (v any) {
	v = map[string]any(o)
	for _, name := range path {
		m, _ := v.(map[string]any)
		v = m[name]
	}
	return v
}

// at returns the map at a path, to write to it. It creates what does not exist.
func (o object) at(path ...string) map[string]any {
	m := map[string]any(o)
	for _, name := range path {
		next, ok := m[name].(map[string]any)
		if !ok {
			next = map[string]any{}
			m[name] = next
		}
		m = next
	}
	return m
}

func text(v any) string {
	s, _ := v.(string)
	return s
}

// tree is a copy of the folder deploy in memory.
type tree struct{ files filesys.FileSystem }

const root = "/deploy"

func load(source string) (tree, error) {
	t := tree{filesys.MakeFsInMemory()}
	dir := filepath.Join(source, "deploy")
	for _, part := range []string{"base", "components", "overlays"} {
		err := filepath.WalkDir(filepath.Join(dir, part), func(file string, d os.DirEntry, err error) error {
			if err != nil || d.IsDir() {
				return err
			}
			raw, err := os.ReadFile(file)
			if err != nil {
				return err
			}
			relative, err := filepath.Rel(dir, file)
			if err != nil {
				return err
			}
			return t.files.WriteFile(path.Join(root, filepath.ToSlash(relative)), raw)
		})
		if err != nil {
			return tree{}, err
		}
	}
	return t, nil
}

// render returns the objects of an overlay with components and patches, given by their paths in deploy.
func (t tree) render(overlay string, components, patches []string) ([]object, error) {
	k := types.Kustomization{Resources: []string{"../overlays/" + overlay}}
	for _, c := range components {
		k.Components = append(k.Components, "../"+c)
	}
	for _, p := range patches {
		k.Patches = append(k.Patches, types.Patch{Path: "../" + p})
	}
	raw, err := yaml.Marshal(k)
	if err != nil {
		return nil, err
	}
	if err := t.files.WriteFile(root+"/rendered/kustomization.yaml", raw); err != nil {
		return nil, err
	}
	options := krusty.MakeDefaultOptions()
	options.LoadRestrictions = types.LoadRestrictionsNone // the patches are in other folders
	resources, err := krusty.MakeKustomizer(options).Run(t.files, root+"/rendered")
	if err != nil {
		return nil, fmt.Errorf("overlay %s with %v: %w", overlay, append(components, patches...), err)
	}
	objects := make([]object, 0, resources.Size())
	for _, r := range resources.Resources() {
		// Through JSON, so that numbers and maps have the types of encoding/json.
		raw, err := r.MarshalJSON()
		if err != nil {
			return nil, err
		}
		var o object
		if err := yaml.Unmarshal(raw, &o); err != nil {
			return nil, err
		}
		objects = append(objects, o)
	}
	return objects, nil
}

// containers returns the containers of a DaemonSet or Deployment.
func (o object) containers() (all []object) {
	list, _ := o.get("spec", "template", "spec", "containers").([]any)
	for _, c := range list {
		if m, ok := c.(map[string]any); ok {
			all = append(all, m)
		}
	}
	return all
}
