// SPDX-License-Identifier: Apache-2.0

package flow_test

import (
	"context"
	"crypto/x509"
	"testing"

	"github.com/mcs-attest/mcs-attest/agent/internal/client"
	"github.com/mcs-attest/mcs-attest/agent/internal/console"
	"github.com/mcs-attest/mcs-attest/agent/internal/flow"
	"github.com/mcs-attest/mcs-attest/agent/internal/verifiertest"
	"github.com/mcs-attest/mcs-attest/pkg/evidence/tpm2/attester"
	"github.com/mcs-attest/mcs-attest/pkg/transcript"
	mcsattestv1 "github.com/mcs-attest/mcs-attest/proto/mcsattest/v1"
)

// instantTPM answers immediately, so that only the agent's own time is measured.
type instantTPM struct{}

func (instantTPM) Identity() attester.Identity {
	return attester.Identity{EKPublic: make([]byte, 314), AKPublic: make([]byte, 88), AKName: make([]byte, 34),
		Banks: []uint16{0x000B}}
}

func (instantTPM) Attest(attester.Challenge, transcript.Hash) (*attester.Evidence, error) {
	return &attester.Evidence{Quote: make([]byte, 145), Signature: make([]byte, 72), Activation: make([]byte, 32),
		PCRValues: [][]byte{make([]byte, 32)}}, nil
}

// BenchmarkStartToToken measures everything from the pointer config to the token except TPM
// commands: connections, both calls and the preflight. The budget is 50 ms.
func BenchmarkStartToToken(b *testing.B) {
	v := &verifiertest.Verifier{
		ChallengeFunc: func(req *mcsattestv1.ChallengeRequest) (*mcsattestv1.ChallengeResponse, error) {
			return &mcsattestv1.ChallengeResponse{
				Sealed: make([]byte, 600), Nonce: make([]byte, 32), Binding: mcsattestv1.BindingMode_BINDING_MODE_EXPORTER,
				Required: []mcsattestv1.EvidenceKind{mcsattestv1.EvidenceKind_EVIDENCE_KIND_TPM2},
				Mode:     mcsattestv1.Mode_MODE_ENFORCE,
				Tpm:      &mcsattestv1.TpmChallenge{Bank: 0x000B, Pcrs: []uint32{11}}, Pool: req.GetPool(), Origin: req.GetOrigin(),
			}, nil
		},
		AttestFunc: func(*mcsattestv1.AttestRequest) (*mcsattestv1.AttestResponse, error) {
			return &mcsattestv1.AttestResponse{Token: verifiertest.Token, TokenLifetimeSeconds: 600}, nil
		},
	}
	v.Start(b)
	for b.Loop() {
		f := &flow.Flow{
			Console: &console.Console{}, TPM: instantTPM{}, Claims: func(context.Context) []byte { return []byte("{}") },
			Dialer: client.NewDialer([]*x509.Certificate{v.Authority}),
		}
		if _, err := f.Run(b.Context(),
			flow.Target{Origin: v.Origin, Pool: "worker", URL: v.Origin + "/config/worker"}); err != nil {
			b.Fatal(err)
		}
	}
}
