// SPDX-License-Identifier: Apache-2.0

package deploy

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"time"

	rbac "k8s.io/api/rbac/v1"
	meta "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"github.com/mcs-attest/mcs-attest/testvm/cluster"
)

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
