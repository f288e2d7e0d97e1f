// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"connectrpc.com/connect"

	"github.com/mcs-attest/mcs-attest/pkg/api/v1alpha1"
	"github.com/mcs-attest/mcs-attest/pkg/eventlog"
	"github.com/mcs-attest/mcs-attest/pkg/evidence"
	"github.com/mcs-attest/mcs-attest/pkg/evidence/tpm2/softtpmtest"
	"github.com/mcs-attest/mcs-attest/pkg/measuredboot"
	"github.com/mcs-attest/mcs-attest/pkg/rehearsal"
	"github.com/mcs-attest/mcs-attest/pkg/transcript"
	mcsattestv1 "github.com/mcs-attest/mcs-attest/proto/mcsattest/v1"
)

// rehearser is a machine in its real root, with the ticket of an administrator.
type rehearser struct {
	*node
	keys   *softtpmtest.TPM
	ticket []byte
	// label selects the label of the transcript: true is that of a rehearsal.
	label bool
	// omit leaves out the evidence of the TPM.
	omit bool
	res  *mcsattestv1.RehearseChallengeResponse
}

func newRehearser(t *testing.T, v *verifier, ticket byte) *rehearser {
	t.Helper()
	keys, err := softtpmtest.New()
	if err != nil {
		t.Fatal(err)
	}
	bank := uint16(eventlog.SHA256)
	keys.PCRs[11] = eventlog.Extend(bank, make([]byte, 32), measuredboot.CapDigest(bank))
	return &rehearser{node: newNode(t, v, nil), keys: keys, ticket: bytes.Repeat([]byte{ticket}, rehearsal.TicketSize),
		label: true}
}

// permit enrolls a joined Machine with a ticket. Without ek, it has no TPM.
func (v *verifier) permit(name string, ticket []byte, until time.Duration, more string, eks ...[32]byte) {
	v.t.Helper()
	var list []string
	for _, ek := range eks {
		list = append(list, hexOf(ek))
	}
	v.change("machines/"+name+".yaml", fmt.Sprintf(`apiVersion: machine.openshift.io/v1beta1
kind: Machine
metadata: {name: %[1]s, namespace: default, uid: uid-%[1]s, creationTimestamp: "2020-01-01T00:00:00Z",
  labels: {machine.openshift.io/cluster-api-machine-role: worker},
  annotations: {%[2]s: "%[3]s"}}
status: {phase: Running, nodeRef: {kind: Node, name: %[1]s}}
`, name, v1alpha1.AnnotationEKSHA256, strings.Join(list, ",")))
	spec := fmt.Sprintf("  machineRef: {name: %s}\n%s", name, more)
	if ticket != nil {
		spec += fmt.Sprintf("  rehearsal: {ticketSHA256: %s, until: %q}\n", rehearsal.TicketHash(ticket),
			v.now().Add(until).UTC().Format(time.RFC3339))
	}
	v.change("attestations/"+name+".yaml", enrolment(name, spec))
}

// begin calls RehearseChallenge on a new connection.
func (n *rehearser) begin() error {
	n.connect()
	res, err := n.client.RehearseChallenge(n.t.Context(), connect.NewRequest(&mcsattestv1.RehearseChallengeRequest{
		Ticket: n.ticket, Pool: n.pool, Origin: testOrigin, AgentVersion: "test/1",
		Offered: []mcsattestv1.EvidenceKind{mcsattestv1.EvidenceKind_EVIDENCE_KIND_TPM2},
		Tpm: &mcsattestv1.TpmIdentity{EkPublic: n.keys.EKPublic, AkPublic: n.keys.AKPublic,
			Banks: []uint32{uint32(eventlog.SHA256)}},
	}))
	if err != nil {
		return err
	}
	n.res = res.Msg
	return nil
}

// evidence returns the answer to the last challenge.
func (n *rehearser) evidence() *mcsattestv1.RehearseRequest {
	n.t.Helper()
	c, said := n.res, []byte(`{"hostname":"test"}`)
	pcrs := make([]int, 0, len(c.GetTpm().GetPcrs()))
	for _, p := range c.GetTpm().GetPcrs() {
		pcrs = append(pcrs, int(p))
	}
	h := transcript.Fields{
		Rehearsal: n.label, Sealed: c.GetSealed(), Nonce: c.GetNonce(), Binding: "exporter", Exporter: n.channel.exporter,
		ServerSPKI: n.channel.spki, Origin: c.GetOrigin(), Pool: c.GetPool(), Claims: said,
		Required: transcript.Required([]evidence.Kind{evidence.TPM2}, uint16(c.GetTpm().GetBank()), pcrs),
		EKSPKI:   n.keys.EKSPKI[:], AKName: n.keys.AKName,
	}.Hash()
	ev, err := n.keys.Answer(c.GetTpm(), h)
	if err != nil {
		n.t.Fatal(err)
	}
	if n.omit {
		ev = nil
	}
	return &mcsattestv1.RehearseRequest{Sealed: c.GetSealed(), ServerSpkiSha256: n.channel.spki, Claims: said, Tpm2: ev}
}

// rehearse is a whole rehearsal.
func (n *rehearser) rehearse() (*mcsattestv1.RehearseResponse, error) {
	if err := n.begin(); err != nil || n.res.GetResult() != nil {
		return n.res.GetResult(), err
	}
	return n.finish()
}

func (n *rehearser) finish() (*mcsattestv1.RehearseResponse, error) {
	res, err := n.client.Rehearse(n.t.Context(), connect.NewRequest(n.evidence()))
	if err != nil {
		return nil, err
	}
	return res.Msg, nil
}

// record returns the record of a Machine, or nil.
func (v *verifier) record(uid string) *v1alpha1.MachineAttestation {
	v.t.Helper()
	rec, err := v.server.Records().Session(uid).Record(v.t.Context())
	if err != nil {
		v.t.Fatal(err)
	}
	return rec
}

func TestRehearse_AJoinedMachine(t *testing.T) {
	v := newVerifier(t)
	n := newRehearser(t, v, 1)
	v.permit("w0", n.ticket, time.Minute, "", n.keys.EKSPKI)
	res, err := n.rehearse()
	if err != nil || !res.GetPasses() || res.GetReason() != 0 || len(res.GetWarnings()) > 0 {
		t.Fatalf("%v, %v", res, err)
	}
	got := v.record("uid-w0").Status
	if r := got.Rehearsal; r == nil || !r.Passed || r.Pool != "worker" || r.AgentVersion != "test/1" ||
		r.TicketSHA256 != rehearsal.TicketHash(n.ticket) {
		t.Errorf("recorded %+v", r)
	}
	rec := newResponse()
	v.server.Metrics.Handler().ServeHTTP(rec, mustRequest(t, "/metrics"))
	want := `mcs_attest_rehearsals_total{pool="*",reason="",result="would-pass"} 1`
	if !strings.Contains(rec.body.String(), want) {
		t.Errorf("no metric %s", want)
	}
	// The machine has joined, so the same evidence in an attestation is denied.
	if n.label = false; n.attestation() == nil {
		t.Error("a joined machine attested")
	}
	v.wantReason("MachineJoined")
}

// attestation is a whole attestation of the same machine, before the cap.
func (n *rehearser) attestation() error {
	n.connect()
	capped := n.keys.PCRs[11]
	defer func() { n.keys.PCRs[11] = capped }()
	n.keys.PCRs[11] = make([]byte, 32)
	ch, err := n.client.Challenge(n.t.Context(), connect.NewRequest(&mcsattestv1.ChallengeRequest{
		Pool: n.pool, Origin: testOrigin, Offered: []mcsattestv1.EvidenceKind{mcsattestv1.EvidenceKind_EVIDENCE_KIND_TPM2},
		Tpm: &mcsattestv1.TpmIdentity{EkPublic: n.keys.EKPublic, AkPublic: n.keys.AKPublic,
			Banks: []uint32{uint32(eventlog.SHA256)}},
	}))
	if err != nil {
		return err
	}
	c := ch.Msg
	n.res = &mcsattestv1.RehearseChallengeResponse{Sealed: c.GetSealed(), Nonce: c.GetNonce(), Tpm: c.GetTpm(),
		Pool: c.GetPool(), Origin: c.GetOrigin()}
	return n.attestWith(n.evidence())
}

// attestWith calls Attest with evidence of a rehearsal.
func (n *rehearser) attestWith(ev *mcsattestv1.RehearseRequest) error {
	_, err := n.client.Attest(n.t.Context(), connect.NewRequest(&mcsattestv1.AttestRequest{Sealed: ev.GetSealed(),
		ServerSpkiSha256: ev.GetServerSpkiSha256(), Claims: ev.GetClaims(), Tpm2: ev.GetTpm2()}))
	return err
}

// Every reason is a result on the record, and an administrator can tell them apart.
func TestRehearse_WouldFail(t *testing.T) {
	for name, c := range map[string]struct {
		change func(v *verifier, n *rehearser)
		want   mcsattestv1.Reason
	}{
		"the TPM was replaced": {func(v *verifier, n *rehearser) {
			v.permit("w0", n.ticket, time.Minute, "", [32]byte{1})
		}, mcsattestv1.Reason_REASON_EK_NOT_ENROLLED},
		"the Machine has another pool": {func(_ *verifier, n *rehearser) { n.pool = "master" },
			mcsattestv1.Reason_REASON_MACHINE_POOL},
		"the machine is quarantined": {func(v *verifier, n *rehearser) {
			v.permit("w0", n.ticket, time.Minute, "  quarantined: true\n", n.keys.EKSPKI)
		}, mcsattestv1.Reason_REASON_QUARANTINED},
		"PCR 11 has any other value": {func(_ *verifier, n *rehearser) { n.keys.PCRs[11] = bytes.Repeat([]byte{1}, 32) },
			mcsattestv1.Reason_REASON_MEASURED_BOOT},
		"no TPM was offered": {func(_ *verifier, n *rehearser) { n.keys.EKPublic = nil },
			mcsattestv1.Reason_REASON_EK_UNACCEPTABLE},
		"the evidence is incomplete": {func(_ *verifier, n *rehearser) { n.omit = true },
			mcsattestv1.Reason_REASON_EVIDENCE_MISSING},
	} {
		t.Run(name, func(t *testing.T) {
			v := newVerifier(t)
			n := newRehearser(t, v, 1)
			v.permit("w0", n.ticket, time.Minute, "", n.keys.EKSPKI)
			c.change(v, n)
			res, err := n.rehearse()
			if err != nil || res.GetPasses() || res.GetReason() != c.want || res.GetExplanation() == "" {
				t.Fatalf("%v, %v", res, err)
			}
			s := v.record("uid-w0").Status
			if s.Rehearsal == nil || s.Rehearsal.Passed || s.Rehearsal.Reason == "" || len(s.Conditions) != 1 ||
				s.Conditions[0].Reason != s.Rehearsal.Reason {
				t.Errorf("recorded %+v", s)
			}
		})
	}
}

// Evidence and challenges of rehearsals and attestations do not mix at the service either.
func TestAttack_T74_NoAttestationByARehearsal(t *testing.T) {
	v := newVerifier(t)
	n := newRehearser(t, v, 1)
	v.permit("w0", n.ticket, time.Minute, "", n.keys.EKSPKI)
	for _, label := range []bool{true, false} {
		n.label = label
		if err := n.begin(); err != nil {
			t.Fatal(err)
		}
		v.reasons()
		if err := n.attestWith(n.evidence()); err == nil {
			t.Fatal("a rehearsal's challenge attested")
		}
		v.wantReason("ChallengeKeyUnknown")
	}
	// The label of an attestation is no evidence in a rehearsal.
	if err := n.begin(); err != nil {
		t.Fatal(err)
	}
	res, err := n.finish()
	if err != nil || res.GetPasses() || res.GetReason() != mcsattestv1.Reason_REASON_ACTIVATION_INVALID {
		t.Errorf("%v, %v", res, err)
	}
}

// The caller chooses the pool. One whose policy requires no attestation does not turn a failure into a pass.
func TestAttack_T74_AnotherPoolIsNoPass(t *testing.T) {
	v := newVerifier(t)
	n := newRehearser(t, v, 1)
	v.permit("w0", n.ticket, time.Minute, "", [32]byte{1})
	v.policy("  mode: \"Off\"\n")
	n.pool = "master"
	res, err := n.rehearse()
	if err != nil || res.GetPasses() || res.GetReason() != mcsattestv1.Reason_REASON_MACHINE_POOL {
		t.Errorf("%v, %v", res, err)
	}
}

// A challenge admits only the connection that received it: from elsewhere it does not pass the source's limit.
func TestAttack_T74_AForwardedChallengeIsLimited(t *testing.T) {
	v := newVerifier(t, func(dir string) {
		put(t, dir, "mcs-attest.yaml", []byte("origins: [\""+testOrigin+"\"]\nrequestsPerSecond: 1\n"))
	})
	v.freeze()
	n, other := newRehearser(t, v, 1), newRehearser(t, v, 2)
	v.permit("w0", n.ticket, time.Minute, "", n.keys.EKSPKI)
	if err := n.begin(); err != nil {
		t.Fatal(err)
	}
	ev := connect.NewRequest(n.evidence())
	for range 1000 {
		_ = other.begin() // it has no ticket
		if slices.Contains(v.reasons(), "RateLimited") {
			break
		}
	}
	other.connect()
	if _, err := other.client.Rehearse(t.Context(), ev); err == nil {
		t.Error("a result for another connection")
	}
	v.wantReason("RateLimited")
	if res, err := n.client.Rehearse(t.Context(), ev); err != nil || !res.Msg.GetPasses() {
		t.Errorf("the connection of the challenge: %v, %v", res, err)
	}
}

// A withdrawn ticket ends a rehearsal that has begun.
func TestAttack_T74_AWithdrawnTicketHasNoResult(t *testing.T) {
	v := newVerifier(t)
	n := newRehearser(t, v, 1)
	v.permit("w0", n.ticket, time.Minute, "", n.keys.EKSPKI)
	if err := n.begin(); err != nil {
		t.Fatal(err)
	}
	v.permit("w0", nil, 0, "", n.keys.EKSPKI)
	if res, err := n.finish(); err == nil {
		t.Errorf("a result: %v", res)
	}
	v.wantReason("ChallengeInvalid")
	if rec := v.record("uid-w0"); rec != nil {
		t.Errorf("recorded %+v", rec.Status)
	}
}
