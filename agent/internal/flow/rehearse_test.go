// SPDX-License-Identifier: Apache-2.0

package flow_test

import (
	"context"
	"crypto/x509"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"

	"github.com/mcs-attest/mcs-attest/agent/internal/client"
	"github.com/mcs-attest/mcs-attest/agent/internal/flow"
	"github.com/mcs-attest/mcs-attest/agent/internal/metadata"
	"github.com/mcs-attest/mcs-attest/agent/internal/tpmdev"
	"github.com/mcs-attest/mcs-attest/agent/internal/verifiertest"
	"github.com/mcs-attest/mcs-attest/pkg/evidence"
	"github.com/mcs-attest/mcs-attest/pkg/evidence/tpm2/attester"
	"github.com/mcs-attest/mcs-attest/pkg/secret"
	"github.com/mcs-attest/mcs-attest/pkg/transcript"
	mcsattestv1 "github.com/mcs-attest/mcs-attest/proto/mcsattest/v1"
)

const rehearsalTicket = "ticket-of-thirty-two-bytes-long."

func (m *machine) rehearse(v *verifiertest.Verifier) (*mcsattestv1.RehearseResponse, error) {
	m.t.Helper()
	m.flow.Dialer = client.NewDialer([]*x509.Certificate{v.Authority})
	return m.flow.Rehearse(m.t.Context(), flow.Target{Origin: v.Origin, Pool: "worker"},
		secret.New([]byte(rehearsalTicket)))
}

// rehearsing returns a started verifier with an open rehearsal.
func rehearsing(t *testing.T, v *verifiertest.Verifier) *verifiertest.Verifier {
	t.Helper()
	v.RehearsalTicket = []byte(rehearsalTicket)
	return started(t, v)
}

func TestRehearse_ProvesTheMachine(t *testing.T) {
	m := newMachine(t)
	v := rehearsing(t, &verifiertest.Verifier{PCRs: []int{0, 1, 2, 3, 4, 5, 6, 7, 11, 12, 13}})
	m.flow.EventLog = func() ([]byte, error) { return []byte("log"), nil }
	res, err := m.rehearse(v)
	ok(t, err)
	if !res.GetPasses() || len(res.GetWarnings()) != 1 || len(m.slept) != 0 {
		t.Errorf("%v after the pauses %v", res, m.slept)
	}
	if n := len(v.Tokens()) + len(v.Claims()); n != 0 {
		t.Errorf("%d requests to the gate and attestations", n)
	}
	if strings.Contains(m.console.String(), rehearsalTicket) {
		t.Errorf("the ticket is on the console:\n%s", m.console.String())
	}
}

// A stolen front relays the challenge of an attestation. The machine signs for a rehearsal, so what it
// returns proves nothing to the verifier of that challenge.
func TestAttack_T74_ARelayedChallengeOfAnAttestation(t *testing.T) {
	for _, relay := range []bool{false, true} {
		t.Run(fmt.Sprintf("relayed %t", relay), func(t *testing.T) {
			m := newMachine(t)
			res, err := m.rehearse(rehearsing(t, &verifiertest.Verifier{Relay: relay}))
			ok(t, err)
			if res.GetPasses() == relay {
				t.Errorf("result %v", res)
			}
		})
	}
}

// The image of a machine can have a provisioning token. It is for a first boot.
func TestAttack_T74_ARehearsalUsesNoProvisioningToken(t *testing.T) {
	m := newMachine(t)
	var got *mcsattestv1.RehearseRequest
	v := rehearsing(t, &verifiertest.Verifier{
		Required: []mcsattestv1.EvidenceKind{mcsattestv1.EvidenceKind_EVIDENCE_KIND_PROVISIONING_TOKEN},
		RehearseFunc: func(r *mcsattestv1.RehearseRequest) (*mcsattestv1.RehearseResponse, error) {
			got = r
			return &mcsattestv1.RehearseResponse{Passes: true}, nil
		},
	})
	m.flow.Dialer = client.NewDialer([]*x509.Certificate{v.Authority})
	_, err := m.flow.Rehearse(t.Context(), flow.Target{Origin: v.Origin, Pool: "worker",
		Provisioning: secret.New([]byte("AAAA-bbb_CCCC-ddd_EEEE-fff_GGGG-hhh_IIII-jjj"))},
		secret.New([]byte(rehearsalTicket)))
	ok(t, err)
	offered := v.Offered()
	if len(offered) != 1 || !slices.Equal(offered[0],
		[]mcsattestv1.EvidenceKind{mcsattestv1.EvidenceKind_EVIDENCE_KIND_TPM2}) {
		t.Errorf("offered %v", offered)
	}
	if len(got.GetSealed()) == 0 {
		t.Errorf("sent %v", got)
	}
}

// A TPM that does not answer says nothing about a first boot. The verifier would record that its evidence is missing.
func TestRehearse_HasNoResultWithoutAnAnswerOfTheTPM(t *testing.T) {
	m := newMachine(t)
	m.flow.NoTPM, m.flow.TPM = tpmdev.ErrTimeout, nil
	v := rehearsing(t, &verifiertest.Verifier{})
	if res, err := m.rehearse(v); !errors.Is(err, tpmdev.ErrTimeout) || len(v.Offered()) > 0 {
		t.Errorf("%v, %v, offered %v", res, err, v.Offered())
	}
}

// The verifier records what is missing, so the machine sends what it has.
func TestRehearse_SendsIncompleteEvidence(t *testing.T) {
	m := newMachine(t)
	m.flow.NoTPM, m.flow.TPM = errors.New("the machine has no TPM 2.0"), nil
	var got *mcsattestv1.RehearseRequest
	want := &mcsattestv1.RehearseResponse{Reason: mcsattestv1.Reason_REASON_EVIDENCE_MISSING}
	v := rehearsing(t, &verifiertest.Verifier{
		Required: []mcsattestv1.EvidenceKind{mcsattestv1.EvidenceKind_EVIDENCE_KIND_TPM2,
			mcsattestv1.EvidenceKind_EVIDENCE_KIND_AWS_STS, mcsattestv1.EvidenceKind_EVIDENCE_KIND_PROVISIONING_TOKEN},
		RehearseFunc: func(r *mcsattestv1.RehearseRequest) (*mcsattestv1.RehearseResponse, error) {
			got = r
			return want, nil
		},
	})
	res, err := m.rehearse(v)
	ok(t, err)
	if res.GetReason() != want.GetReason() || len(got.GetSealed()) == 0 || len(got.GetClaims()) == 0 ||
		got.GetTpm2() != nil || got.GetCloud() != nil {
		t.Errorf("sent %v, received %v", got, res)
	}
	if out := m.console.String(); !strings.Contains(out, "[tpm2 aws-sts provisioning-token]: the machine has no TPM 2.0") {
		t.Errorf("console:\n%s", out)
	}
}

// faultyCloud has a metadata service that has no evidence for this machine.
type faultyCloud struct{ noCloud }

func (faultyCloud) Makes(kind evidence.Kind) bool { return kind == evidence.AWSSTS }

func (faultyCloud) Evidence(context.Context, evidence.Kind, evidence.Binding, *mcsattestv1.CloudChallenge) (
	*mcsattestv1.CloudEvidence, error) {
	return nil, &metadata.Fault{Problem: "there is none", Hint: "assign a role"}
}

// A first boot would fail for the same reason, so this is a result.
func TestRehearse_LeavesOutEvidenceThatTheCloudDoesNotHave(t *testing.T) {
	m := newMachine(t)
	m.flow.Cloud = faultyCloud{}
	var got *mcsattestv1.RehearseRequest
	v := rehearsing(t, &verifiertest.Verifier{
		Required: []mcsattestv1.EvidenceKind{mcsattestv1.EvidenceKind_EVIDENCE_KIND_TPM2,
			mcsattestv1.EvidenceKind_EVIDENCE_KIND_AWS_STS},
		RehearseFunc: func(r *mcsattestv1.RehearseRequest) (*mcsattestv1.RehearseResponse, error) {
			got = r
			return &mcsattestv1.RehearseResponse{Reason: mcsattestv1.Reason_REASON_EVIDENCE_MISSING}, nil
		},
	})
	res, err := m.rehearse(v)
	ok(t, err)
	if res.GetPasses() || got.GetTpm2() == nil || got.GetCloud() != nil || len(m.slept) != 0 {
		t.Errorf("sent %v, received %v, paused %v", got, res, m.slept)
	}
	if out := m.console.String(); !strings.Contains(out, "[aws-sts]") || !strings.Contains(out, "there is none") ||
		!strings.Contains(out, "hint: assign a role") {
		t.Errorf("console:\n%s", out)
	}
}

func TestRehearse_EndsWithAResultAtTheChallenge(t *testing.T) {
	res, err := newMachine(t).rehearse(rehearsing(t, &verifiertest.Verifier{Mode: mcsattestv1.Mode_MODE_OFF}))
	ok(t, err)
	if !res.GetPasses() || res.GetCorrelationId() != "decade" {
		t.Errorf("result %v", res)
	}
}

// brokenTPM fails its first quotes.
type brokenTPM struct {
	flow.TPM
	failures int
}

func (b *brokenTPM) Attest(ch attester.Challenge, h transcript.Hash) (*attester.Evidence, error) {
	if b.failures--; b.failures >= 0 {
		return nil, errors.New("the driver failed")
	}
	return b.TPM.Attest(ch, h)
}

// noCloud has a metadata service that does not answer.
type noCloud struct{ flow.Cloud }

func (noCloud) Offers() []evidence.Kind  { return []evidence.Kind{evidence.AWSSTS} }
func (noCloud) Makes(evidence.Kind) bool { return true }
func (noCloud) Evidence(context.Context, evidence.Kind, evidence.Binding, *mcsattestv1.CloudChallenge) (
	*mcsattestv1.CloudEvidence, error) {
	return nil, &metadata.Fault{Temporary: true, Problem: "no answer"}
}

func TestRehearse_RetriesOnlyTemporaryFailures(t *testing.T) {
	deny := func(temporary bool) func(*mcsattestv1.RehearseRequest) (*mcsattestv1.RehearseResponse, error) {
		return func(*mcsattestv1.RehearseRequest) (*mcsattestv1.RehearseResponse, error) {
			return nil, verifiertest.Denial(classNotYet, temporary)
		}
	}
	for _, c := range []struct {
		name   string
		v      *verifiertest.Verifier
		change func(*machine)
		want   string // "" for a result
		pauses int
	}{
		{"a temporary denial", &verifiertest.Verifier{RehearseFunc: deny(true)}, nil, "class not-yet", 3},
		{"a final denial", &verifiertest.Verifier{RehearseFunc: deny(false)}, nil, "class not-yet", 0},
		{"a server in trouble", &verifiertest.Verifier{Front: func(w http.ResponseWriter, _ *http.Request) bool {
			w.WriteHeader(http.StatusBadGateway)
			return true
		}}, nil, "HTTP status 502", 3},
		{"no verifier", &verifiertest.Verifier{Front: func(w http.ResponseWriter, _ *http.Request) bool {
			w.WriteHeader(http.StatusNotFound)
			return true
		}}, nil, client.ErrNotVerifier.Error(), 0},
		{"a challenge for another pool", &verifiertest.Verifier{Change: func(ch *mcsattestv1.ChallengeResponse) {
			ch.Pool = "master"
		}}, nil, `answered for pool "master"`, 0},
		{"a kind that is required twice", &verifiertest.Verifier{Required: []mcsattestv1.EvidenceKind{1, 1}}, nil,
			"more than once", 0},
		{"a TPM that fails twice", &verifiertest.Verifier{},
			func(m *machine) { m.flow.TPM = &brokenTPM{m.flow.TPM, 2} }, "", 2},
		{"a metadata service that does not answer", &verifiertest.Verifier{Required: []mcsattestv1.EvidenceKind{3}},
			func(m *machine) { m.flow.Cloud = noCloud{} }, "no answer", 3},
	} {
		t.Run(c.name, func(t *testing.T) {
			m := newMachine(t)
			if c.change != nil {
				c.change(m)
			}
			res, err := m.rehearse(rehearsing(t, c.v))
			if c.want == "" && (err != nil || !res.GetPasses()) ||
				c.want != "" && (err == nil || !strings.Contains(err.Error(), c.want)) {
				t.Errorf("result %v, error %v", res, err)
			}
			if len(m.slept) != c.pauses {
				t.Errorf("paused %v, want %d pauses", m.slept, c.pauses)
			}
		})
	}
}

func TestRehearse_EndsWithItsContext(t *testing.T) {
	m := newMachine(t)
	v := rehearsing(t, &verifiertest.Verifier{Front: func(w http.ResponseWriter, _ *http.Request) bool {
		w.WriteHeader(http.StatusBadGateway)
		return true
	}})
	ctx, cancel := context.WithCancel(t.Context())
	m.onSleep = cancel
	m.flow.Dialer = client.NewDialer([]*x509.Certificate{v.Authority})
	_, err := m.flow.Rehearse(ctx, flow.Target{Origin: v.Origin, Pool: "worker"}, secret.New([]byte(rehearsalTicket)))
	if !errors.Is(err, context.Canceled) || len(m.slept) != 1 {
		t.Errorf("error %v after the pauses %v", err, m.slept)
	}
}
