// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/mcs-attest/mcs-attest/pkg/eventlog/eventlogtest"
	"github.com/mcs-attest/mcs-attest/pkg/evidence/tpm2/attester/swtpmtest"
)

// refvals runs the command and returns its output.
func refvals(t *testing.T, args ...string) (string, error) {
	t.Helper()
	var out, errs bytes.Buffer
	cmd := command(append([]string{"refvals"}, args...)...)
	cmd.SetOut(&out)
	cmd.SetErr(&errs)
	err := cmd.ExecuteContext(t.Context())
	return out.String(), err
}

// A fleet begins with the profile strict: the first machine's saved evidence becomes its firmware set. Each boot is a
// captured one, measured into a software TPM.
func TestStrict_FirmwareIsAcceptedAsASet(t *testing.T) {
	image, err := os.ReadFile("../pkg/measuredboot/testdata/" + eventlogtest.SecureBootUKI + ".json")
	if err != nil {
		t.Fatal(err)
	}
	v := newVerifier(t)
	v.change("reference-values/image.yaml", string(image))
	v.policy("  tpm2: {profile: strict}\n")
	tpm := swtpmtest.Start(t, "sha256")
	boots := func(capture string) *node {
		t.Helper()
		tpm.Reboot()
		log := eventlogtest.Load(t, capture).Log
		measure(t, tpm.Dial(), log)
		n := newNode(t, v, tpm)
		n.log = log
		v.advance(later)
		return n
	}
	n := boots(eventlogtest.SecureBootUKI4Banks)
	v.enroll("m1", "worker", n.id.EKSPKI)
	if _, err := n.attest(); err == nil {
		t.Fatal("accepted without a firmware set")
	}
	v.wantReason("MeasuredBoot")

	// The verifier kept the evidence of the denied boot.
	kept, err := filepath.Glob(filepath.Join(v.dir, "state", "evidence", "*.json"))
	if err != nil || len(kept) != 1 {
		t.Fatalf("kept %v, %v", kept, err)
	}
	set, err := refvals(t, "firmware", "--evidence", kept[0], "--name", "ovmf-2022.11")
	if err != nil {
		t.Fatal(err)
	}
	if strings.Contains(set, "Boot0001") || !strings.Contains(set, "event: EV_S_CRTM_VERSION") {
		t.Errorf("got\n%s", set)
	}
	v.change("reference-values/ovmf-2022.11.yaml", set)
	v.advance(later)
	if _, err := n.again(); err != nil {
		t.Fatal(err)
	}
	summary := v.machine("m1").Record.Evidence[0].Summary
	if summary["profile"] != "strict" || summary["firmware"] != "ovmf-2022.11" ||
		summary["image"] != eventlogtest.SecureBootUKI {
		t.Errorf("recorded %v", summary)
	}

	// A firmware update, with its set beside the old one, and without it.
	update := boots(eventlogtest.SecureBootUKI)
	if _, err := update.attest(); err == nil {
		t.Fatal("another firmware was accepted")
	}
	v.wantReason("MeasuredBoot")
	if h := v.machine("m1").Record.History; !strings.Contains(h[len(h)-1].Message,
		"PCR 0, event 2 (EV_EFI_PLATFORM_FIRMWARE_BLOB)") ||
		!strings.Contains(h[len(h)-1].Message, "of the firmware set ovmf-2022.11") {
		t.Errorf("history %+v", h)
	}
	log := filepath.Join(t.TempDir(), "log")
	if err := os.WriteFile(log, update.log, 0o600); err != nil {
		t.Fatal(err)
	}
	newer, err := refvals(t, "firmware", "--log", log, "--name", "ovmf-2022.11-smm")
	if err != nil {
		t.Fatal(err)
	}
	v.change("reference-values/ovmf-2022.11-smm.yaml", newer)
	v.advance(later)
	if _, err := update.again(); err != nil {
		t.Fatal("with both sets:", err)
	}
	// When the update is complete, the old set is removed, and a downgrade is denied.
	if err := v.remove("reference-values/ovmf-2022.11.yaml"); err != nil {
		t.Fatal(err)
	}
	if _, err := boots(eventlogtest.SecureBootUKI4Banks).attest(); err == nil {
		t.Fatal("a downgrade was accepted")
	}
	v.wantReason("MeasuredBoot")
}

func TestRefvalsFirmware_NeedsAQuoteOfTheFirmwaresPCRs(t *testing.T) {
	v := newVerifier(t)
	n := newNode(t, v, swtpmtest.Start(t, "sha256"))
	v.enroll("m1", "worker", n.id.EKSPKI)
	if _, err := n.attest(); err != nil {
		t.Fatal(err)
	}
	kept, err := filepath.Glob(filepath.Join(v.dir, "state", "evidence", "*.json"))
	if err != nil || len(kept) != 1 {
		t.Fatalf("kept %v, %v", kept, err)
	}
	if _, err := refvals(t, "firmware", "--evidence", kept[0], "--name", "x"); err == nil ||
		!strings.Contains(err.Error(), "PCR 0") {
		t.Errorf("got %v", err)
	}
	raw, err := os.ReadFile(kept[0])
	if err != nil {
		t.Fatal(err)
	}
	forged := filepath.Join(t.TempDir(), "forged.json")
	at := bytes.Index(raw, []byte(`"signature": "`)) + len(`"signature": "`) + 40
	other := byte('A') // it stays base64
	if raw[at] == other {
		other = 'B'
	}
	raw[at] = other
	if err := os.WriteFile(forged, raw, 0o600); err != nil {
		t.Fatal(err)
	}
	if out, err := refvals(t, "firmware", "--evidence", forged, "--name", "x"); err == nil || out != "" ||
		!strings.Contains(err.Error(), "QuoteInvalid") {
		t.Errorf("got %q, %v", out, err)
	}
}
