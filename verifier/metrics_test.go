// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"

	"connectrpc.com/connect"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/mcs-attest/mcs-attest/pkg/evidence/tpm2/attester/swtpmtest"
	"github.com/mcs-attest/mcs-attest/pkg/reason"
	mcsattestv1 "github.com/mcs-attest/mcs-attest/proto/mcsattest/v1"
	"github.com/mcs-attest/mcs-attest/verifier/internal/trust"
)

// labels has the values that each label of a front may have. docs/operating.md has the labels.
func labels() map[string][]string {
	pools := []string{"", "*", "worker", "master"}
	events := []string{"challenge", "attest", "certify", "fetch", "report"}
	sets := []string{"serving-certificate", "ek-roots"}
	kinds := []string{"machine", "reference-values", "ek-root", "config"}
	for section := range trust.Sections {
		sets, kinds = append(sets, string(section)), append(kinds, string(section))
	}
	reasons := []string{""}
	for _, c := range reason.Codes() {
		reasons = append(reasons, c.String())
	}
	return map[string][]string{
		"mcs_attest_decisions_total event":        events,
		"mcs_attest_decisions_total pool":         pools,
		"mcs_attest_decisions_total outcome":      {"allowed", "denied", "would-deny", "pre-approved"},
		"mcs_attest_decisions_total reason":       reasons,
		"mcs_attest_configs_served_total pool":    pools,
		"mcs_attest_duration_seconds event":       events,
		"mcs_attest_expiry_timestamp_seconds set": sets,
		"mcs_attest_objects kind":                 kinds,
		"mcs_attest_failure_reports_total ticket": {"valid", "invalid"},
		"mcs_attest_configs_served_total credential": {"none", "attestation", "provisioning-token",
			"provisioning-token-previous"},
	}
}

// No value of a label comes from a machine or another caller (status row F3). So new names make no new series.
func TestAttack_T50_NoLabelHasAValueOfACaller(t *testing.T) {
	v := newVerifier(t)
	allowed := labels()
	series := func(marker string) (n int) {
		t.Helper()
		families, err := v.server.Metrics.Registerer().(prometheus.Gatherer).Gather()
		if err != nil {
			t.Fatal(err)
		}
		for _, f := range families {
			if !strings.HasPrefix(f.GetName(), "mcs_attest_") {
				continue // of the Go runtime
			}
			for _, m := range f.GetMetric() {
				n++
				for _, l := range m.GetLabel() {
					values, known := allowed[f.GetName()+" "+l.GetName()]
					if !known || !slices.Contains(values, l.GetValue()) || strings.Contains(l.GetValue(), marker) {
						t.Errorf("%s{%s=%q}", f.GetName(), l.GetName(), l.GetValue())
					}
				}
			}
		}
		return n
	}
	n := newNode(t, v, swtpmtest.Start(t, "sha256"))
	v.enroll("m1", "worker", n.id.EKSPKI)
	if _, err := n.attest(); err != nil {
		t.Fatal("honest:", err)
	}
	hostile := func(marker string, kind int32) {
		t.Helper()
		for _, path := range []string{"/config/" + marker, "/" + marker, "/config/worker?token=" + marker} {
			v.fetch(http.MethodGet, path, marker)
		}
		v.fetch(marker, "/config/worker", "")
		for _, change := range []func(r *mcsattestv1.ChallengeRequest){
			func(r *mcsattestv1.ChallengeRequest) { r.Pool = marker },
			func(r *mcsattestv1.ChallengeRequest) { r.Origin = "https://" + marker + ".test" },
			func(r *mcsattestv1.ChallengeRequest) { r.AgentVersion = marker },
			func(r *mcsattestv1.ChallengeRequest) {
				r.Offered = []mcsattestv1.EvidenceKind{mcsattestv1.EvidenceKind(kind)}
			},
			func(r *mcsattestv1.ChallengeRequest) { r.Tpm.EkPublic = []byte(marker) },
		} {
			n.connect()
			n.changeChallenge = change
			_ = n.ask() // a denial, or a challenge
		}
		v.advance(later)
		n.connect()
		n.changeChallenge = nil
		n.says = fmt.Sprintf(`{"hostname":%q,"providerID":%q}`, marker, "aws:///"+marker)
		if _, err := n.attest(); err != nil {
			t.Fatal("a machine with a strange name:", err)
		}
		n.connect()
		if _, err := n.client.Report(t.Context(), connect.NewRequest(&mcsattestv1.ReportRequest{
			Ticket: marker, Unit: marker, Result: marker, Message: marker, BootId: marker,
		})); err == nil {
			t.Error("a forged ticket was accepted")
		}
	}
	hostile("hostile-0", 1000)
	first := series("hostile")
	for i := range 3 {
		hostile(fmt.Sprintf("hostile-%d", i+1), int32(1001+i))
	}
	if now := series("hostile"); first == 0 || now != first {
		t.Errorf("there were %d series, and are %d after other names", first, now)
	}
}
