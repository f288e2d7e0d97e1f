// SPDX-License-Identifier: Apache-2.0

package secondopinion

import (
	"crypto"
	"errors"
	"fmt"

	"github.com/google/go-attestation/attest"
	attestpb "github.com/google/go-tpm-tools/proto/attest"
	"github.com/google/go-tpm-tools/quote"
	"github.com/google/go-tpm-tools/server"
	legacy "github.com/google/go-tpm/legacy/tpm2"

	"github.com/mcs-attest/mcs-attest/pkg/eventlog"
	"github.com/mcs-attest/mcs-attest/pkg/transcript"
)

var errSecureBootOff = errors.New("the log says that Secure Boot is off")

// goAttestation has go-attestation make the checks of [laxer].
func (e *evidence) goAttestation() []step {
	var (
		ak     *attest.AKPublic
		events []attest.Event
	)
	return []step{
		func() (err error) {
			ak, err = attest.ParseAKPublic(e.challenge.AKPublic)
			return err
		},
		func() error {
			pcrs, err := e.attestPCRs()
			if err != nil {
				return err
			}
			q := attest.Quote{Quote: e.tpm.Quote, Signature: e.tpm.Signature}
			return ak.VerifyAll([]attest.Quote{q}, pcrs, e.transcript[:])
		},
		func() error {
			log, err := attest.ParseEventLog(e.wholeLog())
			if err != nil {
				return err
			}
			pcrs, err := e.attestPCRs()
			if err != nil {
				return err
			}
			events, err = log.Verify(pcrs)
			return err
		},
		func() error {
			state, err := attest.ParseSecurebootState(events)
			if err != nil {
				return err
			}
			if !state.Enabled {
				return errSecureBootOff
			}
			return nil
		},
	}
}

func (e *evidence) attestPCRs() ([]attest.PCR, error) {
	hash, err := bankHash(e.challenge.Bank)
	if err != nil {
		return nil, err
	}
	var all []attest.PCR
	for _, pcr := range e.challenge.PCRs {
		all = append(all, attest.PCR{Index: pcr, Digest: e.values[pcr], DigestAlg: hash})
	}
	return all, nil
}

// goTPMTools has go-tpm-tools make the checks of [laxer]. It reads the AK and verifies the quote again together with
// the log.
func (e *evidence) goTPMTools() []step {
	var (
		ak    crypto.PublicKey
		state *attestpb.MachineState
	)
	a := e.attestation()
	return []step{
		func() error {
			public, err := legacy.DecodePublic(a.GetAkPub())
			if err != nil {
				return err
			}
			ak, err = public.Key()
			return err
		},
		func() error { return quote.Verify(a.GetQuotes()[0], ak, e.transcript[:]) },
		func() (err error) {
			state, err = server.VerifyAttestation(a, server.VerifyOpts{
				Nonce: e.transcript[:], TrustedAKs: []crypto.PublicKey{ak},
				// Firmware that starts drivers or tools before the boot option is ordinary.
				AllowEFIAppBeforeCallingEvent: true,
			})
			return err
		},
		func() error {
			if !state.GetSecureBoot().GetEnabled() {
				return errSecureBootOff
			}
			return nil
		},
	}
}

func bankHash(bank uint16) (crypto.Hash, error) {
	switch bank {
	case eventlog.SHA256:
		return crypto.SHA256, nil
	case eventlog.SHA384:
		return crypto.SHA384, nil
	}
	return 0, fmt.Errorf("bank %s is not supported", transcript.BankName(bank))
}
