// SPDX-License-Identifier: Apache-2.0

package manifests

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"

	"sigs.k8s.io/yaml"
)

// Bundle is the overlay openshift for the Operator Lifecycle Manager (OLM).
type Bundle struct {
	// Files are those of the bundle, by their paths: manifests and metadata.
	Files map[string][]byte
	// Namespace is the namespace into which the bundle is installed, and Remainder has the other objects that
	// it cannot contain: two files for oc apply, before and after OLM installs the bundle. An admission policy
	// in the remainder needs the CRDs of the bundle.
	Namespace, Remainder []byte
}

// MustGather is the image that 'oc adm must-gather' runs.
const MustGather = "mcs-attest-must-gather"

// controller is the Deployment that OLM manages, and its account.
const controller = "mcs-attest-controller"

// supported are the kinds of the overlay that a bundle may contain beside its ClusterServiceVersion:
// https://olm.operatorframework.io/docs/tasks/creating-operator-manifests/#packaging-additional-objects-alongside-an-operator
var supported = []string{
	"ClusterRole", "ClusterRoleBinding", "ConfigMap", "CustomResourceDefinition", "NetworkPolicy", "PodDisruptionBudget",
	"PrometheusRule", "Role", "RoleBinding", "Service", "ServiceAccount", "ServiceMonitor",
}

// Digests are those of the images that a bundle names. MustGather is empty if a release has no image for
// 'oc adm must-gather'.
type Digests struct{ Verifier, MustGather string }

// MakeBundle returns the bundle of a version such as v0.3.0.
func MakeBundle(source, version string, digests Digests) (*Bundle, error) {
	t, err := load(source)
	if err != nil {
		return nil, err
	}
	objects, err := t.render(openshift, nil, nil)
	if err != nil {
		return nil, err
	}
	raw, err := os.ReadFile(filepath.Join(source, "deploy/olm/clusterserviceversion.yaml"))
	if err != nil {
		return nil, err
	}
	m := &service{objects: objects}
	if err := yaml.Unmarshal(raw, &m.csv); err != nil {
		return nil, err
	}
	var image string
	for _, o := range objects {
		for _, c := range o.containers() {
			tagged := text(c["image"])
			image = tagged[:max(strings.LastIndex(tagged, ":"), 0)] + "@" + digests.Verifier
			c["image"] = image
		}
	}
	if err := m.describe(version, image); err != nil {
		return nil, err
	}
	if digests.MustGather != "" {
		m.mustGather(path.Dir(image) + "/" + MustGather + "@" + digests.MustGather)
	}
	if err := m.install(); err != nil {
		return nil, err
	}
	return m.bundle(source)
}

// service makes a ClusterServiceVersion from the objects of an overlay.
type service struct {
	objects []object
	csv     object
	in      []object // what the ClusterServiceVersion expresses
}

// describe sets the version, the image, the CRDs, the example and the namespace.
func (m *service) describe(version, image string) error {
	metadata, spec := m.csv.at("metadata"), m.csv.at("spec")
	metadata["name"] = Name + "." + version
	spec["version"] = strings.TrimPrefix(version, "v")
	spec["relatedImages"] = []any{map[string]any{"name": "verifier", "image": image}}
	annotations := m.csv.at("metadata", "annotations")
	annotations["containerImage"] = image
	var owned []any
	for _, o := range m.objects {
		switch {
		case o.kind() == "Namespace" && o.name() == namespace:
			raw, err := json.Marshal(o)
			if err != nil {
				return err
			}
			// With this the console creates the namespace, with the users that the nftables rules name.
			annotations["operatorframework.io/suggested-namespace-template"] = string(raw)
		case o.kind() == "CustomResourceDefinition":
			versions, _ := o.get("spec", "versions").([]any)
			for _, v := range versions {
				v, ok := v.(map[string]any)
				if !ok {
					return fmt.Errorf("CRD %s has no versions", o.name())
				}
				kind := text(o.get("spec", "names", "kind"))
				owned = append(owned, map[string]any{
					"name": o.name(), "version": v["name"], "kind": kind, "displayName": kind,
					"description": object(v).get("schema", "openAPIV3Schema", "description"),
				})
			}
		}
	}
	m.csv.at("spec", "customresourcedefinitions")["owned"] = owned
	return nil
}

// mustGather names the image that 'oc adm must-gather --all-images' also runs.
func (m *service) mustGather(image string) {
	m.csv.at("metadata", "annotations")["operators.openshift.io/must-gather-image"] = image
	spec := m.csv.at("spec")
	related, _ := spec["relatedImages"].([]any)
	spec["relatedImages"] = append(related, map[string]any{"name": "must-gather", "image": image})
}

// install sets the Deployment and the permissions of its account. A binding counts if the account is its only
// subject. OLM creates the account, the roles and the bindings, under names of its own.
func (m *service) install() error {
	m.csv.at("spec", "install")["strategy"] = "deployment"
	strategy := m.csv.at("spec", "install", "spec")
	permissions, cluster := []any{}, []any{}
	for _, o := range m.objects {
		switch {
		case o.kind() == "Deployment" && o.name() == controller:
			strategy["deployments"] = []any{map[string]any{
				"name": o.name(), "label": o.get("metadata", "labels"), "spec": o["spec"],
			}}
		case o.kind() == "ServiceAccount" && o.name() == controller:
		case o.bindsOnlyTheController():
			role, err := m.role(o)
			if err != nil {
				return err
			}
			rules, _ := role["rules"].([]any)
			if o.kind() == "RoleBinding" {
				permissions = append(permissions, rules...)
			} else {
				cluster = append(cluster, rules...)
			}
			m.in = append(m.in, role)
		default:
			continue
		}
		m.in = append(m.in, o)
	}
	strategy["permissions"] = []any{map[string]any{"serviceAccountName": controller, "rules": permissions}}
	strategy["clusterPermissions"] = []any{map[string]any{"serviceAccountName": controller, "rules": cluster}}
	if strategy["deployments"] == nil {
		return errors.New("no Deployment " + controller)
	}
	return nil
}

// bindsOnlyTheController reports whether the object is a binding that a ClusterServiceVersion can express.
func (o object) bindsOnlyTheController() bool {
	if o.kind() != "ClusterRoleBinding" && (o.kind() != "RoleBinding" || o.namespace() != namespace) {
		return false
	}
	subjects, _ := o["subjects"].([]any)
	return !slices.ContainsFunc(subjects, func(s any) bool {
		subject, _ := s.(map[string]any)
		return subject["kind"] != "ServiceAccount" || subject["name"] != controller || subject["namespace"] != namespace
	})
}

// role returns the role of a binding.
func (m *service) role(binding object) (object, error) {
	kind, name := text(binding.get("roleRef", "kind")), text(binding.get("roleRef", "name"))
	for _, o := range m.objects {
		if o.kind() == kind && o.name() == name &&
			(o.kind() == "ClusterRole" || o.namespace() == binding.namespace()) {
			return o, nil
		}
	}
	return nil, fmt.Errorf("%s %s: no %s %s", binding.kind(), binding.name(), kind, name)
}

// bundle writes the files.
func (m *service) bundle(source string) (*Bundle, error) {
	b := &Bundle{Files: map[string][]byte{}}
	annotations, err := os.ReadFile(filepath.Join(source, "deploy/olm/annotations.yaml"))
	if err != nil {
		return nil, err
	}
	b.Files["metadata/annotations.yaml"] = annotations
	if err := b.add(Name+".clusterserviceversion.yaml", m.csv); err != nil {
		return nil, err
	}
	for _, o := range m.objects {
		if slices.ContainsFunc(m.in, o.is) {
			continue
		}
		// OLM would replace the administrator's configuration by this one at each upgrade.
		own := o.namespace() == "" || o.namespace() == namespace
		if slices.Contains(supported, o.kind()) && own && o.name() != configMap {
			// OLM sets the namespace into which the bundle is installed.
			delete(o.at("metadata"), "namespace")
			if err := b.add(o.file(), o); err != nil {
				return nil, err
			}
			continue
		}
		raw, err := yaml.Marshal(o)
		if err != nil {
			return nil, err
		}
		if o.kind() == "Namespace" {
			b.Namespace = raw
			continue
		}
		b.Remainder = append(append(b.Remainder, "---\n"...), raw...)
	}
	return b, nil
}

func (b *Bundle) add(name string, o object) error {
	raw, err := yaml.Marshal(o)
	b.Files["manifests/"+name] = raw
	return err
}

// is reports whether two objects have the same identity.
func (o object) is(other object) bool {
	return o.kind() == other.kind() && o.name() == other.name() && o.namespace() == other.namespace()
}
