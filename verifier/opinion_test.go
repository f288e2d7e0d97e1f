// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"crypto"
	"slices"
	"strings"
	"testing"

	attestpb "github.com/google/go-tpm-tools/proto/attest"
	tpmtools "github.com/google/go-tpm-tools/server"
	"google.golang.org/protobuf/proto"

	"github.com/mcs-attest/mcs-attest/pkg/appraisal"
	"github.com/mcs-attest/mcs-attest/pkg/eventlog"
	"github.com/mcs-attest/mcs-attest/pkg/eventlog/eventlogtest"
	"github.com/mcs-attest/mcs-attest/pkg/evidence/tpm2"
	"github.com/mcs-attest/mcs-attest/pkg/evidence/tpm2/attester"
	"github.com/mcs-attest/mcs-attest/pkg/measuredboot"
	"github.com/mcs-attest/mcs-attest/verifier/internal/secondopinion"
)

// saved returns the conversation as the verifier keeps it, read from its file.
func (c *conversation) saved(t *testing.T) *appraisal.Saved {
	t.Helper()
	raw, err := appraisal.Save(appraisal.Context{Challenge: c.challenge}, c.conn, c.evidence, c.now, "1").Encode()
	fatalIf(t, err)
	s, err := appraisal.ParseSaved(raw)
	fatalIf(t, err)
	return s
}

func checkOf(t *testing.T, checks []secondopinion.Check, name string) secondopinion.Check {
	t.Helper()
	i := slices.IndexFunc(checks, func(c secondopinion.Check) bool { return c.Name == name })
	if i < 0 {
		t.Fatalf("no check %q in %+v", name, checks)
	}
	return checks[i]
}

// verdicts returns the verdicts of a check: of the verifier, of go-attestation and of go-tpm-tools.
func verdicts(t *testing.T, checks []secondopinion.Check, name string) [3]secondopinion.Verdict {
	t.Helper()
	c := checkOf(t, checks, name)
	return [3]secondopinion.Verdict{c.Verifier.Verdict, c.GoAttestation.Verdict, c.GoTPMTools.Verdict}
}

var (
	allDenied  = [3]secondopinion.Verdict{secondopinion.Denied, secondopinion.Denied, secondopinion.Denied}
	onlyWeDeny = [3]secondopinion.Verdict{secondopinion.Denied, secondopinion.Accepted, secondopinion.Accepted}
)

func TestSecondOpinion(t *testing.T) {
	boot := eventlogtest.Load(t, eventlogtest.SecureBootUKI)
	c := converse(t, attester.ECCP256, boot.Log)
	ask := func(t *testing.T, change func(c *conversation)) []secondopinion.Check {
		t.Helper()
		changed := *c
		part := *c.evidence.TPM2
		changed.evidence.TPM2 = &part
		change(&changed)
		checks, err := secondopinion.Ask(changed.saved(t))
		fatalIf(t, err)
		return checks
	}
	without := func(pcr uint32) func(*conversation) {
		return func(c *conversation) {
			c.evidence.EventLog = eventlogtest.Edit(t, boot.Log, func(all []eventlogtest.Event) []eventlogtest.Event {
				return slices.DeleteFunc(all, func(e eventlogtest.Event) bool { return e.PCR == pcr })
			})
		}
	}

	t.Run("all agree on an honest boot", func(t *testing.T) {
		for _, check := range ask(t, func(*conversation) {}) {
			if !check.Agree() || check.Verifier.Verdict != secondopinion.Accepted {
				t.Errorf("%+v", check)
			}
		}
	})
	t.Run("all deny a quote of another conversation", func(t *testing.T) {
		checks := ask(t, func(c *conversation) { c.challenge.Pool = "master" })
		if got := verdicts(t, checks, "quote"); got != allDenied {
			t.Errorf("%v", got)
		}
		want := [3]secondopinion.Verdict{secondopinion.NotReached, secondopinion.NotReached, secondopinion.NotReached}
		if got := verdicts(t, checks, "event log"); got != want {
			t.Errorf("after the quote: %v", got)
		}
	})
	t.Run("the libraries do not miss the events of a PCR", func(t *testing.T) {
		checks := ask(t, without(4))
		if got := verdicts(t, checks, "event log"); got != onlyWeDeny {
			t.Errorf("%v", got)
		}
		if checkOf(t, checks, "event log").Laxer == "" {
			t.Error("it does not say why")
		}
	})
	t.Run("the libraries do not check the activation", func(t *testing.T) {
		checks := ask(t, func(c *conversation) { c.evidence.TPM2.Activation = make([]byte, 32) })
		if got := verdicts(t, checks, "quote"); got != onlyWeDeny {
			t.Errorf("%v", got)
		}
	})
	t.Run("a library that panics gives no opinion", func(t *testing.T) {
		checks := ask(t, func(c *conversation) {
			c.evidence.EventLog = eventlogtest.Edit(t, boot.Log, func(all []eventlogtest.Event) []eventlogtest.Event {
				all[0].Type = 0x00000fff // no event type
				return all
			})
		})
		got := verdicts(t, checks, "event log")
		if got[0] != secondopinion.Accepted || got[2] != secondopinion.Failed {
			t.Errorf("%v", got)
		}
	})
}

// Without Secure Boot, all three read from the log that it is off.
func TestSecondOpinion_SecureBootIsOff(t *testing.T) {
	c := converse(t, attester.ECCP256, eventlogtest.Load(t, eventlogtest.UKI).Log)
	checks, err := secondopinion.Ask(c.saved(t))
	fatalIf(t, err)
	if got := verdicts(t, checks, "Secure Boot"); got != allDenied {
		t.Errorf("%v: %+v", got, checks)
	}
}

// go-tpm-tools verifies what was exported with the transcript as nonce, and denies it with another nonce.
func TestExport_GoTPMToolsVerifiesIt(t *testing.T) {
	log := eventlogtest.Load(t, eventlogtest.SecureBootUKI).Log
	for name, measured := range map[string][]byte{
		"a boot without phases":       log,
		"a boot with systemd's phase": phased(t, log),
	} {
		t.Run(name, func(t *testing.T) {
			c := converse(t, attester.ECCP256, measured)
			c.evidence.EventLog = log // the firmware's log does not have the phase
			raw, nonce, err := secondopinion.Export(c.saved(t))
			fatalIf(t, err)
			if nonce != c.hash {
				t.Errorf("nonce %x, the transcript is %x", nonce, c.hash)
			}
			a := &attestpb.Attestation{}
			fatalIf(t, proto.Unmarshal(raw, a))
			ak, err := tpm2.ParseAK(a.GetAkPub())
			fatalIf(t, err)
			opts := tpmtools.VerifyOpts{Nonce: nonce[:], TrustedAKs: []crypto.PublicKey{ak.PublicKey()},
				AllowEFIAppBeforeCallingEvent: true}
			state, err := tpmtools.VerifyAttestation(a, opts)
			if err != nil || !state.GetSecureBoot().GetEnabled() {
				t.Errorf("go-tpm-tools: %v, %v", state.GetSecureBoot(), err)
			}
			opts.Nonce = bytes.Repeat([]byte{1}, 32)
			if _, err := tpmtools.VerifyAttestation(a, opts); err == nil || !strings.Contains(err.Error(), "extraData") {
				t.Errorf("with another nonce: %v", err)
			}
		})
	}
}

// phased returns a log with the phase that systemd measures in the initramfs.
func phased(t *testing.T, log []byte) []byte {
	t.Helper()
	return eventlogtest.Edit(t, log, func(all []eventlogtest.Event) []eventlogtest.Event {
		return append(all, eventlogtest.New(all[len(all)-1], 11, eventlog.IPL, []byte(measuredboot.EnterInitrd)))
	})
}

func TestSecondOpinion_NeedsATPM(t *testing.T) {
	c := converse(t, attester.ECCP256, eventlogtest.Load(t, eventlogtest.UKI).Log)
	c.evidence.TPM2 = nil
	if _, err := secondopinion.Ask(c.saved(t)); err == nil {
		t.Error("an opinion without evidence")
	}
	if _, _, err := secondopinion.Export(c.saved(t)); err == nil {
		t.Error("exported without evidence")
	}
}
