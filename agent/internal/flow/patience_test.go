// SPDX-License-Identifier: Apache-2.0

package flow_test

import (
	"context"
	"crypto/x509"
	"fmt"
	"net/http"
	"slices"
	"syscall"
	"testing"
	"time"

	"github.com/mcs-attest/mcs-attest/agent/internal/client"
	"github.com/mcs-attest/mcs-attest/agent/internal/flow"
	"github.com/mcs-attest/mcs-attest/agent/internal/metadata"
	"github.com/mcs-attest/mcs-attest/agent/internal/tpmdev"
	"github.com/mcs-attest/mcs-attest/agent/internal/verifiertest"
	"github.com/mcs-attest/mcs-attest/pkg/evidence"
	"github.com/mcs-attest/mcs-attest/pkg/evidence/tpm2/attester"
	"github.com/mcs-attest/mcs-attest/pkg/transcript"
	mcsattestv1 "github.com/mcs-attest/mcs-attest/proto/mcsattest/v1"
)

// hiccups is a TPM and a cloud. Each tenth request fails.
type hiccups struct {
	flow.TPM
	n int
}

func (h *hiccups) Attest(c attester.Challenge, hash transcript.Hash) (*attester.Evidence, error) {
	if h.n++; h.n%10 == 0 {
		return nil, fmt.Errorf("%w: %w", tpmdev.ErrFailed, syscall.ETIME)
	}
	return h.TPM.Attest(c, hash)
}

func (*hiccups) Offers() []evidence.Kind    { return []evidence.Kind{evidence.AWSIID} }
func (*hiccups) Makes(k evidence.Kind) bool { return k == evidence.AWSIID }

func (h *hiccups) Evidence(_ context.Context, k evidence.Kind, _ evidence.Binding, _ *mcsattestv1.CloudChallenge) (
	*mcsattestv1.CloudEvidence, error) {
	if h.n++; h.n%10 == 0 {
		return nil, &metadata.Fault{Cloud: "AWS", What: "the document", Problem: "no answer in time", Temporary: true}
	}
	return &mcsattestv1.CloudEvidence{Kind: mcsattestv1.EvidenceKind(k), Document: []byte("document")}, nil
}

// A machine that waits for its approval attests for hours. Failures that have nothing to do with each other must not
// end the boot.
func TestRun_CountsOnlyFailuresInARow(t *testing.T) {
	for name, c := range map[string]struct {
		required evidence.Kind
		set      func(*machine)
	}{
		"TPM":              {evidence.TPM2, func(m *machine) { m.flow.TPM = &hiccups{TPM: m.flow.TPM} }},
		"metadata service": {evidence.AWSIID, func(m *machine) { m.flow.Cloud = &hiccups{} }},
	} {
		t.Run(name, func(t *testing.T) {
			m := newMachine(t)
			m.most = 1000
			c.set(m)
			n := 0
			_, err := m.run(started(t, &verifiertest.Verifier{Required: proto(c.required),
				AttestFunc: func(*mcsattestv1.AttestRequest) (*mcsattestv1.AttestResponse, error) {
					if n++; n < 100 {
						return nil, verifiertest.Denial(classNotYet, true)
					}
					return &mcsattestv1.AttestResponse{Token: verifiertest.Token}, nil
				}}))
			if err != nil || n != 100 {
				t.Errorf("after %d answers: %v", n, err)
			}
		})
	}
}

// A gate may reject the token of a verifier that has just replaced its key.
func TestRun_CountsOnlyRejectedTokensInARow(t *testing.T) {
	m := newMachine(t)
	attests, heads := 0, 0
	_, err := m.run(started(t, &verifiertest.Verifier{
		AttestFunc: func(*mcsattestv1.AttestRequest) (*mcsattestv1.AttestResponse, error) {
			if attests++; attests%3 == 0 {
				return nil, verifiertest.Denial(classNotYet, true)
			}
			return nil, nil
		},
		GateFunc: func(w http.ResponseWriter, _ *http.Request) bool {
			if heads++; heads > 6 {
				return false
			}
			w.WriteHeader(http.StatusUnauthorized)
			return true
		},
	}))
	if err != nil || heads != 7 {
		t.Errorf("after %d tokens: %v", heads, err)
	}
}

// A machine whose proxy is not known yet cannot reach the server.
func TestRun_AsksForTheTargetAgainUntilAVerifierAnswers(t *testing.T) {
	t.Run("the server is unreachable", func(t *testing.T) {
		m, calls := newMachine(t), 0
		v := started(t, &verifiertest.Verifier{AttestFunc: aborting(1)})
		m.flow.Dialer = client.NewDialer([]*x509.Certificate{v.Authority})
		target := flow.Target{Origin: v.Origin, Pool: "worker", URL: v.Origin + "/config/worker"}
		unreachable := target
		unreachable.Origin = "https://127.0.0.1:1"
		m.flow.Again = func(context.Context) (flow.Target, bool) {
			calls++
			return target, calls > 2
		}
		_, err := m.flow.Run(t.Context(), unreachable)
		// The pause of the first failure follows again, after the connection that breaks.
		if want := []time.Duration{time.Second, 2 * time.Second, time.Second}; err != nil || calls != 3 ||
			!slices.Equal(m.slept, want) {
			t.Errorf("%v, %d calls, pauses %v\n%s", err, calls, m.slept, m.console.String())
		}
	})
	t.Run("the server has answered", func(t *testing.T) {
		m := newMachine(t)
		m.flow.Again = func(context.Context) (flow.Target, bool) {
			t.Error("it asks for another target")
			return flow.Target{}, false
		}
		if _, err := m.run(started(t, &verifiertest.Verifier{AttestFunc: aborting(2)})); err != nil || len(m.slept) != 2 {
			t.Errorf("%v, pauses %v\n%s", err, m.slept, m.console.String())
		}
	})
}

// aborting breaks the first connections at their Attest.
func aborting(n int) func(*mcsattestv1.AttestRequest) (*mcsattestv1.AttestResponse, error) {
	return func(*mcsattestv1.AttestRequest) (*mcsattestv1.AttestResponse, error) {
		if n--; n >= 0 {
			panic(http.ErrAbortHandler)
		}
		return nil, nil
	}
}
