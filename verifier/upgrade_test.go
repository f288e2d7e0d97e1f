// SPDX-License-Identifier: Apache-2.0

package main

import (
	"crypto/x509"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"testing"
	"time"

	"github.com/mcs-attest/mcs-attest/pkg/api/v1alpha1"
	"github.com/mcs-attest/mcs-attest/testvm/binaries"
	"github.com/mcs-attest/mcs-attest/verifier/internal/config"
	"github.com/mcs-attest/mcs-attest/verifier/internal/standalone"
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

// The folder of the version before is served by this version, by the one before, and by this one again, as
// docs/operating.md says. What one has granted the other redeems. Records and keys stay.
func TestFolder_TwoVersionsInTurn(t *testing.T) {
	before, err := binaries.Before(t.Logf)
	if err != nil {
		t.Fatal(err)
	}
	p := newProcess(t)
	now := p.program
	p.v.dir = t.TempDir()
	if out, err := exec.Command(before.Verifier, "init", p.v.dir, "--origin", testOrigin).CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	ca, err := os.ReadFile(filepath.Join(p.v.dir, "tls", "ca.crt"))
	p.v.roots = x509.NewCertPool()
	if err != nil || !p.v.roots.AppendCertsFromPEM(ca) {
		t.Fatal("no CA", err)
	}
	p.v.write("mcs-attest.yaml", "origins: [\""+testOrigin+"\"]\nrequestsPerSecond: 10000\n")
	p.v.write("configs/worker.ign", fullConfig)
	keys := map[string]*softKeys{"m1": soft(t), "m2": soft(t)}
	for name, k := range keys {
		p.v.write("attestations/"+name+".yaml", enrolment(name, "  pool: worker\n", k.spki))
	}

	run := func(program string) {
		t.Helper()
		if p.cmd != nil {
			p.stopGently()
		}
		p.program = program
		p.start()
	}
	attests := func(name string) string {
		t.Helper()
		n := &loadNode{addr: p.v.addr, origin: testOrigin, roots: p.v.roots, pool: "worker", keys: keys[name]}
		token := ""
		eventually(t, func() bool { // two tokens of a machine are some seconds apart
			token, _, err = n.attest(t.Context())
			return err == nil
		}, func() string { return fmt.Sprintf("%s does not get in: %v\n%s", name, err, p.log) })
		return token
	}
	fetches := func(token string) {
		t.Helper()
		if status, _, body := p.v.fetch(http.MethodGet, "/config/worker", token); status != http.StatusOK ||
			body != fullConfig {
			t.Errorf("the gate answers %d %s", status, body)
		}
	}
	record := func(name string) v1alpha1.MachineAttestationStatus {
		t.Helper()
		c, err := config.Load(filepath.Join(p.v.dir, "mcs-attest.yaml"))
		if err != nil {
			t.Fatal(err)
		}
		s, err := standalone.OfflineState(c, time.Now())
		if err != nil {
			t.Fatal(err)
		}
		for _, m := range s.Machines {
			if m.Name == "default/"+name && m.Record != nil {
				return *m.Record
			}
		}
		t.Fatalf("no record of %s", name)
		return v1alpha1.MachineAttestationStatus{}
	}

	run(before.Verifier)
	token := attests("m1")
	run(now)
	fetches(token)
	attests("m2")
	p.stopGently()
	first := record("m2")
	if first.TPM == nil || first.Identity.EKSHA256 == "" {
		t.Fatalf("recorded by this version: %+v", first)
	}
	p.start()
	token = attests("m2")

	run(before.Verifier)
	fetches(token)
	fetches(attests("m1"))
	token = attests("m2")

	run(now)
	fetches(token)
	p.stopGently()
	r := record("m2")
	if r.Phase != v1alpha1.PhaseFetched || r.Identity.EKSHA256 != first.Identity.EKSHA256 ||
		len(r.History) <= len(first.History) || !reflect.DeepEqual(r.History[0], first.History[0]) {
		t.Errorf("the record was %+v and is %+v", first, r)
	}
	// A version that does not know the counters drops them from what it writes. They start again.
	p.start()
	attests("m2")
	p.stopGently()
	if r := record("m2"); r.TPM == nil {
		t.Errorf("no counters after the upgrade: %+v", r)
	}
}
