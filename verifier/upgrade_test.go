// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"net/http"
	"path/filepath"
	"testing"

	"github.com/mcs-attest/mcs-attest/pkg/api/v1alpha1"
)

// T60: the documented upgrade applies the overlay again. The mode that an
// administrator set stays, and a policy that an administrator deleted stays deleted.
func TestAttack_T60_AnUpgradeDoesNotOpenTheGate(t *testing.T) {
	rs := inCluster(t)
	overlay := filepath.Join("..", "deploy", "overlays", "openshift")
	install := func() string {
		rs.cluster.Kubectl(t, "apply", "-k", overlay)
		out, err := rs.cluster.KubectlAs("admin", "", "create", "-f", filepath.Join("..", "deploy", "policies", "audit.yaml"))
		if err != nil {
			return err.Error()
		}
		return out
	}
	// Audit, which is what a new installation has.
	rs.cluster.Kubectl(t, "delete", "attestationpolicies", "--all")
	t.Log(install())
	p := rs.serve(0)
	anonymous := func(pool string) int {
		status, _, err := rs.fetch(t.Context(), p.addr, "/config/"+pool, "")
		if err != nil {
			t.Fatal(err)
		}
		return status
	}
	becomes := func(pool string, want int) {
		t.Helper()
		got := 0
		eventually(t, func() bool { got = anonymous(pool); return got == want },
			func() string { return fmt.Sprintf("/config/%s: %d, want %d", pool, got, want) })
	}
	becomes("worker", http.StatusOK)
	// upgrade applies everything again and waits until the verifier has seen later changes.
	upgrades := 0
	upgrade := func() {
		t.Helper()
		t.Log(install())
		upgrades++
		marker := fmt.Sprintf("marker-%d", upgrades)
		rs.cluster.KubectlApply(t, object(v1alpha1.APIVersion, v1alpha1.KindAttestationPolicy, "", marker,
			map[string]any{"spec": map[string]any{"pools": []any{marker}, "mode": "Audit"}}))
		becomes(marker, http.StatusOK)
	}

	rs.cluster.Kubectl(t, "patch", "attestationpolicy", "audit-everything", "--type=merge", "-p", `{"spec":{"mode":"Enforce"}}`)
	becomes("worker", http.StatusUnauthorized)
	upgrade()
	if got := anonymous("worker"); got != http.StatusUnauthorized {
		t.Errorf("under Enforce, after the upgrade an anonymous request gets %d", got)
	}
	keys := soft(t)
	rs.machine("upgraded", keys.spki)
	if status, _ := p.fetch(p.attests(p.node(keys))); status != http.StatusOK {
		t.Errorf("the attested machine gets %d", status)
	}

	// Without any policy machines wait.
	rs.cluster.Kubectl(t, "delete", "attestationpolicies", "--all")
	becomes("worker", http.StatusServiceUnavailable)
	rs.cluster.Kubectl(t, "apply", "-k", overlay)
	rs.cluster.KubectlApply(t, object(v1alpha1.APIVersion, v1alpha1.KindAttestationPolicy, "", "last",
		map[string]any{"spec": map[string]any{"pools": []any{"last"}, "mode": "Audit"}}))
	becomes("last", http.StatusOK)
	if got := anonymous("worker"); got != http.StatusServiceUnavailable {
		t.Errorf("the policy was deleted, and after the upgrade an anonymous request gets %d", got)
	}
}
