// SPDX-License-Identifier: Apache-2.0

package deploy

import (
	"slices"
	"strings"

	rbac "k8s.io/api/rbac/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/mcs-attest/mcs-attest/testvm/cluster"
)

// Grant is one verb on one resource that an overlay gives to an account.
type Grant struct {
	Verb, Group, Resource, Subresource string
	// Namespace restricts the grant to a namespace, and Name to an object. Empty means no
	// restriction.
	Namespace, Name string

	role, roleNamespace string // the ClusterRole, or the Role
	rule                int
}

func (g Grant) String() string {
	s := g.Verb + " " + g.Resource
	if g.Subresource != "" {
		s += "/" + g.Subresource
	}
	if g.Group != "" {
		s += "." + g.Group
	}
	if g.Name != "" {
		s += " " + g.Name
	}
	if g.Namespace != "" {
		s += " in " + g.Namespace
	}
	return s
}

// Grants returns everything that an overlay grants to an account of the verifier.
func Grants(t cluster.TB, overlay, account string) (grants []Grant) {
	t.Helper()
	convert := func(o map[string]any, into any) {
		if err := runtime.DefaultUnstructuredConverter.FromUnstructuredWithValidation(o, into, true); err != nil {
			t.Fatalf("%v", err)
		}
	}
	objects := Objects(t, overlay)
	rules := map[[3]string][]rbac.PolicyRule{}
	for _, o := range objects {
		var r struct {
			Rules []rbac.PolicyRule `json:"rules"`
		}
		if kind := o.GetKind(); kind == "Role" || kind == "ClusterRole" {
			convert(map[string]any{"rules": o.Object["rules"]}, &r)
			rules[[3]string{kind, o.GetNamespace(), o.GetName()}] = r.Rules
		}
	}
	for _, o := range objects {
		if kind := o.GetKind(); kind != "RoleBinding" && kind != "ClusterRoleBinding" {
			continue
		}
		var b rbac.RoleBinding
		convert(o.Object, &b)
		if !slices.Contains(b.Subjects, rbac.Subject{Kind: "ServiceAccount", Namespace: Namespace, Name: account}) {
			continue
		}
		at := [3]string{b.RoleRef.Kind, "", b.RoleRef.Name}
		if b.RoleRef.Kind == "Role" {
			at[1] = b.Namespace
		}
		if rules[at] == nil {
			t.Fatalf("%s %s/%s refers to a %s %s that is not in the overlay", o.GetKind(), b.Namespace, b.Name, at[0], at[2])
		}
		for i, rule := range rules[at] {
			names := rule.ResourceNames
			if len(names) == 0 {
				names = []string{""}
			}
			for _, group := range rule.APIGroups {
				for _, resource := range rule.Resources {
					resource, sub, _ := strings.Cut(resource, "/")
					for _, name := range names {
						for _, verb := range rule.Verbs {
							grants = append(grants, Grant{verb, group, resource, sub, b.Namespace, name, at[2], at[1], i})
						}
					}
				}
			}
		}
	}
	if len(grants) == 0 {
		t.Fatalf("overlay %s gives nothing to %s/%s", overlay, Namespace, account)
	}
	return grants
}
