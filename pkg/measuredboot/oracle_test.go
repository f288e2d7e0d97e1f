// SPDX-License-Identifier: Apache-2.0

package measuredboot_test

import (
	"crypto"
	"encoding/hex"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/google/go-attestation/attest"
	"github.com/google/go-eventlog/extract"
	pb "github.com/google/go-eventlog/proto/state"
	"github.com/google/go-eventlog/register"
	"github.com/google/go-eventlog/tpmeventlog"
	"sigs.k8s.io/yaml"

	"github.com/mcs-attest/mcs-attest/pkg/eventlog"
	"github.com/mcs-attest/mcs-attest/pkg/eventlog/eventlogtest"
	"github.com/mcs-attest/mcs-attest/pkg/measuredboot"
)

// The oracles receive only captured boots, and captured boots with a changed label. Both libraries
// have inputs that end the process, so they are not fuzzed.

// byGoAttestation returns go-attestation's reading of PCR 7.
func byGoAttestation(b boot) (*attest.SecurebootState, error) {
	log, err := attest.ParseEventLog(b.log)
	if err != nil {
		return nil, err
	}
	var pcrs []attest.PCR
	for _, i := range secureBootPCRs {
		pcrs = append(pcrs, attest.PCR{Index: i, Digest: b.quoted[i], DigestAlg: crypto.SHA256})
	}
	events, err := log.Verify(pcrs)
	if err != nil {
		return nil, err
	}
	return attest.ParseSecurebootState(events)
}

// byGoEventlog returns go-eventlog's reading of the whole log.
func byGoEventlog(b boot) (*pb.FirmwareLogState, error) {
	bank := register.PCRBank{TCGHashAlgo: pb.HashAlgo_SHA256}
	for _, i := range secureBootPCRs {
		bank.PCRs = append(bank.PCRs, register.PCR{Index: i, Digest: b.quoted[i], DigestAlg: crypto.SHA256})
	}
	return tpmeventlog.ReplayAndExtract(b.log, bank, extract.Opts{AllowEFIAppBeforeCallingEvent: true})
}

func TestOraclesAgreeOnSecureBoot(t *testing.T) {
	for name, on := range map[string]bool{
		eventlogtest.SecureBootUKI:       true,
		eventlogtest.SecureBootUKI4Banks: true,
		eventlogtest.Debian13UKI:         true,
		eventlogtest.UKI:                 false,
		eventlogtest.UKICmdlineOverride:  false,
	} {
		b := captured(t, name)
		b.refs = append(b.refs, references(t, eventlogtest.Debian13UKI))
		if _, err := b.appraise(); (err == nil) != on {
			t.Errorf("%s: this package returned %v", name, err)
		}
		if s, err := byGoAttestation(b); err != nil || s.Enabled != on {
			t.Errorf("%s: go-attestation returns %+v, %v", name, s, err)
		}
		if s, err := byGoEventlog(b); err != nil || s.GetSecureBoot().GetEnabled() != on {
			t.Errorf("%s: go-eventlog returns %v, %v", name, s.GetSecureBoot(), err)
		}
	}
}

func TestOraclesAgreeThatSecureBootWasNotUsed(t *testing.T) {
	b := captured(t, eventlogtest.UnsignedKernel)
	b.refs = nil
	if _, err := b.appraise(); err == nil {
		t.Error("we accept it")
	}
	if s, err := byGoAttestation(b); err == nil {
		t.Errorf("go-attestation returns %+v", s)
	}
	if s, err := byGoEventlog(b); err == nil {
		t.Errorf("go-eventlog returns %v", s.GetSecureBoot())
	}
}

// TestOraclesTrustTheTypeOfAnApplication documents attack T27: if its images are relabeled, a boot
// has no applications, so all of them are allowed.
func TestOraclesTrustTheTypeOfAnApplication(t *testing.T) {
	b := captured(t, eventlogtest.SecureBootUKI)
	honest, err := byGoEventlog(b)
	if err != nil || len(honest.GetEfi().GetApps()) != 1 {
		t.Fatalf("go-eventlog finds %v, %v", honest.GetEfi(), err)
	}
	relabeled := b.claimed(t, func(e events) events {
		for i := range e {
			if e[i].Type == eventlog.EFIBootServicesApplication {
				e[i].Type = eventlog.IPL
			}
		}
		return e
	})
	if s, err := byGoEventlog(relabeled); err != nil || len(s.GetEfi().GetApps()) != 0 {
		t.Errorf("go-eventlog now finds %v, %v", s.GetEfi(), err)
	}
	if r := passes(t, relabeled); len(r.Applications) != 1 {
		t.Errorf("we find %d", len(r.Applications))
	}
}

// tpm2_eventlog of tpm2-tools reads the same texts, digests and PCR values from the captured log as the
// reference values have, which were computed from the files.
func TestOraclesAgreeOnShimAndGRUB(t *testing.T) {
	c := eventlogtest.Load(t, eventlogtest.ShimGRUB)
	path := filepath.Join(t.TempDir(), "log")
	if err := os.WriteFile(path, c.Log, 0o600); err != nil {
		t.Fatal(err)
	}
	out, err := exec.Command("tpm2_eventlog", path).Output()
	if err != nil {
		t.Fatal(err)
	}
	var log struct {
		Events []struct {
			PCRIndex  int
			EventType string
			Digests   []struct{ AlgorithmId, Digest string }
			Event     any
		} `json:"events"`
		PCRs map[string]map[string]string `json:"pcrs"`
	}
	if err := yaml.Unmarshal(out, &log); err != nil {
		t.Fatal(err)
	}
	for pcr, value := range log.PCRs["sha256"] {
		i, err := strconv.Atoi(pcr)
		if want := "0x" + hex.EncodeToString(c.PCR("sha256", i)); err != nil || value != want {
			t.Errorf("PCR %s: tpm2_eventlog replays %s, the TPM had %s", pcr, value, want)
		}
	}
	r := references(t, eventlogtest.ShimGRUB)
	known := map[int][]measuredboot.Component{
		4: r.Applications, 9: slices.Concat(r.Files, r.Loads), 14: r.MOK,
	}
	seen := map[int]int{}
	for _, e := range log.Events {
		text, isText := e.Event.(map[string]any)
		switch {
		case e.PCRIndex == 4 && e.EventType != "EV_EFI_BOOT_SERVICES_APPLICATION":
		case e.PCRIndex == 8 && isText:
			label, text, _ := strings.Cut(strings.TrimSuffix(strings.Trim(text["String"].(string), `"`), `\0`), ": ")
			list := r.Commands
			if label == "kernel_cmdline" {
				list = r.CommandLines
			}
			if !slices.ContainsFunc(list, func(w measuredboot.Words) bool { return w.Match(text) }) {
				t.Errorf("%s %q is not in the reference values", label, text)
			}
			seen[8]++
		case known[e.PCRIndex] != nil:
			if !slices.ContainsFunc(known[e.PCRIndex], func(c measuredboot.Component) bool {
				return e.Digests[0].Digest == hex.EncodeToString(c.SHA256)
			}) {
				t.Errorf("PCR %d: %s is not in the reference values", e.PCRIndex, e.Digests[0].Digest)
			}
			seen[e.PCRIndex]++
		}
	}
	if want := map[int]int{4: 4, 8: 12, 9: 3, 14: 3}; !maps.Equal(seen, want) {
		t.Errorf("compared %v events, expected %v", seen, want)
	}
}
