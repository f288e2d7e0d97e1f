// SPDX-License-Identifier: Apache-2.0

// Package secondopinion has google/go-attestation and google/go-tpm-tools verify saved TPM evidence, and compares them
// with this verifier check by check. An administrator asks for it before overruling a denial.
//
// The package decides nothing. Only commands import it: a program that serves machines must not depend on what these
// libraries accept. docs/evidence/tpm2.md lists where they are laxer, and tests hold that list.
//
// A library verifies only the TPM's part: the AK, the quote, the event log, and the state of Secure Boot. It has no
// activation, no endorsement, no Machines, no policy and no reference values.
//
// The evidence is untrusted. Both libraries panic on some malformed logs; a panic becomes the verdict [Failed].
package secondopinion

import (
	"errors"
	"fmt"
	"slices"

	"github.com/mcs-attest/mcs-attest/pkg/appraisal"
	"github.com/mcs-attest/mcs-attest/pkg/evidence/tpm2"
	"github.com/mcs-attest/mcs-attest/pkg/measuredboot"
	"github.com/mcs-attest/mcs-attest/pkg/seal"
	"github.com/mcs-attest/mcs-attest/pkg/transcript"
)

// Verdict is the result of one check.
type Verdict string

// The verdicts.
const (
	Accepted Verdict = "accepted"
	Denied   Verdict = "denied"
	// NotReached means that an earlier check of the same program did not pass.
	NotReached Verdict = "not reached"
	// Failed means that the library panicked.
	Failed Verdict = "failed"
)

// Result is what one program says in one check.
type Result struct {
	Verdict Verdict `json:"verdict"`
	Detail  string  `json:"detail,omitempty"` // of a verdict that is not Accepted
}

// Check is one check, as each program makes it.
type Check struct {
	Name          string `json:"check"`
	Verifier      Result `json:"verifier"`
	GoAttestation Result `json:"goAttestation"`
	GoTPMTools    Result `json:"goTPMTools"`
	// Laxer is why a library accepts here what this verifier denies; else empty.
	Laxer string `json:"laxer,omitempty"`
	// Stricter reports that a library denies what this verifier accepts.
	Stricter bool `json:"stricter,omitempty"`
}

// Agree reports whether all three have the same verdict.
func (c Check) Agree() bool {
	return c.Verifier.Verdict == c.GoAttestation.Verdict && c.Verifier.Verdict == c.GoTPMTools.Verdict
}

// ErrNoTPM means that the evidence has no quote.
var ErrNoTPM = errors.New("the machine did not attest with its TPM, and the libraries read no other evidence")

// evidence is the TPM's part of a saved call.
type evidence struct {
	challenge  seal.Challenge
	tpm        *tpm2.Evidence
	log        []byte // of the firmware, as the machine sent it
	transcript transcript.Hash
	values     map[int][]byte // by PCR, as the machine sent them
}

func read(s *appraisal.Saved) (*evidence, error) {
	challenge, ev, err := s.Replay()
	if err != nil {
		return nil, err
	}
	if ev.TPM2 == nil {
		return nil, ErrNoTPM
	}
	e := &evidence{challenge: challenge, tpm: ev.TPM2, log: ev.EventLog, values: map[int][]byte{}}
	for i, pcr := range challenge.PCRs {
		if i < len(ev.TPM2.PCRValues) {
			e.values[pcr] = ev.TPM2.PCRValues[i]
		}
	}
	if e.transcript, err = s.Transcript(); err != nil {
		return nil, err
	}
	return e, nil
}

// step is one check of one program.
type step func() error

// laxer has for each check why a library can accept what this verifier denies.
var laxer = []struct{ check, why string }{
	{"AK", "the libraries read the key, and do not check its attributes, its size, or the bytes after it"},
	{"quote", "the libraries check neither the activation, nor the AK's hierarchy, nor which PCRs were requested"},
	{"event log", "the libraries do not require events for each quoted PCR"},
	{"Secure Boot", "the libraries accept other variables, and any authority instead of one of db"},
}

// Ask returns the checks, in order. The last two are made only if PCR 7 was quoted.
func Ask(s *appraisal.Saved) ([]Check, error) {
	e, err := read(s)
	if err != nil {
		return nil, err
	}
	programs := [3][]step{e.verifier(s), e.goAttestation(), e.goTPMTools()}
	checks := laxer
	if !slices.Contains(e.challenge.PCRs, 7) {
		checks = checks[:2]
	}
	var all []Check
	var stopped [3]bool
	for i, c := range checks {
		var r [3]Result
		for p, steps := range programs {
			if stopped[p] {
				r[p] = Result{Verdict: NotReached}
				continue
			}
			r[p] = run(steps[i])
			stopped[p] = r[p].Verdict != Accepted
		}
		check := Check{Name: c.check, Verifier: r[0], GoAttestation: r[1], GoTPMTools: r[2]}
		for _, library := range r[1:] {
			switch {
			case check.Verifier.Verdict == Denied && library.Verdict == Accepted:
				check.Laxer = c.why
			case check.Verifier.Verdict == Accepted && library.Verdict == Denied:
				check.Stricter = true
			}
		}
		all = append(all, check)
	}
	return all, nil
}

// run makes a check. A panic of a library ends only the check.
func run(check step) (r Result) {
	defer func() {
		if p := recover(); p != nil {
			r = Result{Failed, fmt.Sprintf("the library panicked: %v", p)}
		}
	}()
	if err := check(); err != nil {
		return Result{Denied, err.Error()}
	}
	return Result{Verdict: Accepted}
}

// verifier makes this verifier's own checks.
func (e *evidence) verifier(s *appraisal.Saved) []step {
	return []step{
		func() error { _, err := tpm2.ParseAK(e.challenge.AKPublic); return err },
		func() error { _, _, err := s.Quote(); return err },
		func() error { return measuredboot.Explains(e.challenge.Bank, e.values, e.log) },
		func() error { return measuredboot.UsesSecureBoot(e.challenge.Bank, e.values, e.log) },
	}
}
