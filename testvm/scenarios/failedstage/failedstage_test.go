// SPDX-License-Identifier: Apache-2.0

// Package failedstage lets a later Ignition stage fail. Ignition then prints its whole config to
// the console. By then the token must have been removed from it, and the verifier must receive the
// cause.
package failedstage

import (
	"strings"
	"testing"

	"github.com/mcs-attest/mcs-attest/testvm/rig"
)

func TestAttack_T46_FailedStageReportsAndLeavesNoToken(t *testing.T) {
	r := rig.New(t)
	v := r.Verifier(rig.VerifierConfig{})
	// /etc/passwd is a file, so nothing can be written below it.
	v.Write("configs/worker.ign", rig.ConfigWith(map[string]string{"/etc/passwd/impossible": "x"}))
	tpm := r.NewTPM()
	v.Enroll("worker-0", "worker", tpm)
	node := r.Boot(rig.VM{TPM: tpm, Pointer: v.Pointer("worker")})
	node.WantEmergency()

	// There was a token, and it worked.
	v.WantAudit("fetch", "allowed", "")
	if !strings.Contains(node.Journal(), "impossible") {
		t.Error("the journal does not hold the failing stage")
	}
	node.WantNoTokensLeft()

	v.WantAudit("report", "allowed", "")
	rec := v.WantRecord("worker-0", "Fetched")
	if report := rec.Record.Report; report == nil || report.Unit != "ignition-files.service" ||
		!strings.Contains(report.Message, "impossible") {
		t.Errorf("the record's report is %+v", report)
	}
	for _, where := range []string{v.Run("status"), v.Run("explain", "worker-0"), v.Log()} {
		if rig.HasToken(where) {
			t.Error("the verifier's own output holds a token")
		}
	}
	if !strings.Contains(v.Run("explain", "worker-0"), "ignition-files.service") {
		t.Error("explain does not name the failed stage")
	}
	if node.PCR11() == "" || strings.Trim(node.PCR11(), "0") == "" {
		t.Errorf("PCR 11 is %q where a shell would start", node.PCR11())
	}
}
