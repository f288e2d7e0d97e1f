// SPDX-License-Identifier: Apache-2.0

package measuredboot_test

import (
	"crypto"
	"testing"

	"github.com/google/go-attestation/attest"
	"github.com/google/go-eventlog/extract"
	pb "github.com/google/go-eventlog/proto/state"
	"github.com/google/go-eventlog/register"
	"github.com/google/go-eventlog/tpmeventlog"

	"github.com/mcs-attest/mcs-attest/pkg/eventlog"
	"github.com/mcs-attest/mcs-attest/pkg/eventlog/eventlogtest"
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
