// SPDX-License-Identifier: Apache-2.0

package deploy

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"time"

	rbac "k8s.io/api/rbac/v1"
	meta "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes"

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

// Without removes a grant's verb from its rule in a cluster with the overlay. restore
// restores it. The API server applies the change within about a second.
func Without(t cluster.TB, c *cluster.Cluster, g Grant) (restore func()) {
	t.Helper()
	client, err := kubernetes.NewForConfig(c.Admin())
	if err != nil {
		t.Fatalf("%v", err)
	}
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	var before []rbac.PolicyRule
	change := func(ctx context.Context, rules func([]rbac.PolicyRule) []rbac.PolicyRule) error {
		if g.roleNamespace == "" {
			role, err := client.RbacV1().ClusterRoles().Get(ctx, g.role, meta.GetOptions{})
			if err != nil {
				return err
			}
			role.Rules = rules(role.Rules)
			_, err = client.RbacV1().ClusterRoles().Update(ctx, role, meta.UpdateOptions{})
			return err
		}
		role, err := client.RbacV1().Roles(g.roleNamespace).Get(ctx, g.role, meta.GetOptions{})
		if err != nil {
			return err
		}
		role.Rules = rules(role.Rules)
		_, err = client.RbacV1().Roles(g.roleNamespace).Update(ctx, role, meta.UpdateOptions{})
		return err
	}
	err = change(ctx, func(rules []rbac.PolicyRule) []rbac.PolicyRule {
		raw, err := json.Marshal(rules)
		if err == nil {
			err = json.Unmarshal(raw, &before)
		}
		if err != nil {
			t.Fatalf("%v", err)
		}
		rules[g.rule].Verbs = slices.DeleteFunc(rules[g.rule].Verbs, func(v string) bool { return v == g.Verb })
		if len(rules[g.rule].Verbs) == 0 {
			rules = slices.Delete(rules, g.rule, g.rule+1)
		}
		return rules
	})
	if err != nil {
		t.Fatalf("remove %s: %v", g, err)
	}
	return func() {
		ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
		defer cancel()
		if err := change(ctx, func([]rbac.PolicyRule) []rbac.PolicyRule { return before }); err != nil {
			panic(fmt.Sprintf("restore %s: %v", g, err))
		}
	}
}
