// SPDX-License-Identifier: Apache-2.0

package eventlog_test

import (
	"bytes"
	"crypto"
	"slices"
	"testing"

	"github.com/google/go-attestation/attest"
	"github.com/google/go-eventlog/register"
	"github.com/google/go-eventlog/tcg"
	"github.com/google/go-eventlog/testdata"

	"github.com/mcs-attest/mcs-attest/pkg/eventlog"
	"github.com/mcs-attest/mcs-attest/pkg/eventlog/eventlogtest"
)

// The oracles only receive valid logs here, and logs from which whole events were removed. Both
// have inputs that end the process.

// byGoAttestation returns go-attestation's verdict on a log for these PCR values.
func byGoAttestation(raw []byte, pcrs map[int][]byte) error {
	log, err := attest.ParseEventLog(raw)
	if err != nil {
		return err
	}
	var list []attest.PCR
	for i, v := range pcrs {
		list = append(list, attest.PCR{Index: i, Digest: v, DigestAlg: crypto.SHA256})
	}
	_, err = log.Verify(list)
	return err
}

// byGoEventlog returns go-eventlog's verdict.
func byGoEventlog(raw []byte, pcrs map[int][]byte) error {
	var list []register.MR
	for i, v := range pcrs {
		list = append(list, register.PCR{Index: i, Digest: v, DigestAlg: crypto.SHA256})
	}
	_, err := tcg.ParseAndReplay(raw, list, tcg.ParseOpts{AllowPadding: false})
	return err
}

// byUs reports whether this package's replay gives all of these PCR values.
func byUs(t *testing.T, raw []byte, pcrs map[int][]byte) bool {
	t.Helper()
	log, err := eventlog.Parse(raw, eventlog.SHA256)
	if err != nil {
		t.Log(err)
		return false
	}
	got := log.Replay()
	for i, v := range pcrs {
		if !bytes.Equal(got.Value(i), v) {
			t.Logf("PCR %d", i)
			return false
		}
	}
	return true
}

var firmwarePCRs = []int{0, 1, 2, 3, 4, 5, 6, 7}

func TestOraclesAgreeOnCapturedBoots(t *testing.T) {
	for _, name := range eventlogtest.Names(t) {
		t.Run(name, func(t *testing.T) {
			c := eventlogtest.Load(t, name)
			pcrs := c.PCRs("sha256", firmwarePCRs...)
			if !byUs(t, c.Log, pcrs) {
				t.Error("this package rejects it")
			}
			if err := byGoAttestation(c.Log, pcrs); err != nil {
				t.Errorf("go-attestation: %v", err)
			}
			if err := byGoEventlog(c.Log, pcrs); err != nil {
				t.Errorf("go-eventlog: %v", err)
			}
			for i := range pcrs {
				pcrs[i][0] ^= 1
				if byUs(t, c.Log, pcrs) || byGoAttestation(c.Log, pcrs) == nil || byGoEventlog(c.Log, pcrs) == nil {
					t.Errorf("a wrong PCR %d was accepted by one of the three", i)
				}
				pcrs[i][0] ^= 1
			}
		})
	}
}

// realLogs are logs of real machines from go-eventlog. Their PCR values are not recorded, so this
// package's replay is compared with those of both oracles.
var realLogs = map[string][]byte{
	"arch-linux-workstation":     testdata.ArchLinuxWorkstationEventLog,
	"rhel8-uefi":                 testdata.Rhel8EventLog,
	"ubuntu-1804-amd-sev":        testdata.Ubuntu1804AmdSevEventLog,
	"ubuntu-2104-no-dbx":         testdata.Ubuntu2104NoDbxEventLog,
	"ubuntu-2104-no-secure-boot": testdata.Ubuntu2104NoSecureBootEventLog,
	"ubuntu-2404-amd-sevsnp":     testdata.Ubuntu2404AmdSevSnpEventLog,
	"ubuntu-2404-intel-tdx":      testdata.Ubuntu2404IntelTdxA4HighGpu8GEventLog,
	"cos-85-amd-sev":             testdata.Cos85AmdSevEventLog,
	"cos-125-intel-tdx":          testdata.Cos125IntelTdxSecureBootA4HighGpu8GEventLog,
	"gdc-host":                   testdata.GdcHost,
	"glinux-alex":                testdata.GlinuxAlexEventLog,
}

func TestOraclesReplayRealMachinesLogsToTheSameValues(t *testing.T) {
	for name, raw := range realLogs {
		t.Run(name, func(t *testing.T) {
			log, err := eventlog.Parse(raw, eventlog.SHA256)
			if err != nil {
				t.Fatal(err)
			}
			pcrs := map[int][]byte{}
			replayed := log.Replay()
			for _, i := range firmwarePCRs {
				pcrs[i] = replayed.Value(i)
			}
			if err := byGoAttestation(raw, pcrs); err != nil {
				t.Errorf("go-attestation: %v", err)
			}
			if err := byGoEventlog(raw, pcrs); err != nil {
				t.Errorf("go-eventlog: %v", err)
			}
		})
	}
}

func TestParse_RejectsATPM12Log(t *testing.T) {
	if _, err := eventlog.Parse(testdata.Debian10EventLog, eventlog.SHA256); err == nil {
		t.Error("a log with only SHA-1 was accepted")
	}
}

// TestOracles_AcceptALogThatOmitsAPCR documents why neither library decides here (attack T26):
// they do not require events for a quoted PCR.
func TestOracles_AcceptALogThatOmitsAPCR(t *testing.T) {
	c := eventlogtest.Load(t, eventlogtest.SecureBootUKI)
	pcrs := c.PCRs("sha256", firmwarePCRs...)
	for _, left := range []uint32{4, 7} {
		raw := eventlogtest.Edit(t, c.Log, func(e []eventlogtest.Event) []eventlogtest.Event {
			return slices.DeleteFunc(e, func(e eventlogtest.Event) bool { return e.PCR == left })
		})
		if byUs(t, raw, pcrs) {
			t.Errorf("we accept a log without PCR %d", left)
		}
		if err := byGoAttestation(raw, pcrs); err != nil {
			t.Errorf("go-attestation now rejects a log without PCR %d: %v", left, err)
		}
		if err := byGoEventlog(raw, pcrs); err != nil {
			t.Errorf("go-eventlog now rejects a log without PCR %d: %v", left, err)
		}
	}
	header, _ := eventlogtest.Split(t, c.Log)
	if byUs(t, header, pcrs) {
		t.Error("we accept a log without events")
	}
	if err := byGoEventlog(header, pcrs); err != nil {
		t.Errorf("go-eventlog now rejects a log without events: %v", err)
	}
}
