// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"context"
	"encoding/base64"
	"encoding/hex"
	"fmt"
	"io/fs"
	"net/http"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"connectrpc.com/connect"
	"google.golang.org/protobuf/proto"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/mcs-attest/mcs-attest/pkg/api/v1alpha1"
	"github.com/mcs-attest/mcs-attest/pkg/evidence/tpm2/attester"
	"github.com/mcs-attest/mcs-attest/pkg/evidence/tpm2/attester/swtpmtest"
	"github.com/mcs-attest/mcs-attest/pkg/rehearsal"
	"github.com/mcs-attest/mcs-attest/pkg/transcript"
	mcsattestv1 "github.com/mcs-attest/mcs-attest/proto/mcsattest/v1"
)

// aTicket returns a ticket that differs for each i.
func aTicket(i byte) []byte { return bytes.Repeat([]byte{'t', i}, rehearsal.TicketSize/2) }

// ticketSpec is the field of a MachineAttestation that opens a rehearsal for d.
func (v *verifier) ticketSpec(ticket []byte, d time.Duration) string {
	return fmt.Sprintf("  rehearsal: {ticketSHA256: %q, until: %q}\n", rehearsal.TicketHash(ticket),
		v.now().Add(d).UTC().Format(time.RFC3339))
}

// openRehearsal enrolls a machine for the pool worker, with a ticket.
func (v *verifier) openRehearsal(name string, ticket []byte, eks ...[32]byte) {
	v.t.Helper()
	spec := "  pool: worker\n" + v.ticketSpec(ticket, 10*time.Minute)
	v.change("attestations/"+name+".yaml", enrolment(name, spec, eks...))
}

// askRehearsal calls RehearseChallenge on a new connection.
func (n *node) askRehearsal(ticket []byte) (*mcsattestv1.RehearseChallengeResponse, error) {
	n.t.Helper()
	n.connect()
	req := &mcsattestv1.RehearseChallengeRequest{
		Ticket: ticket, Pool: n.pool, Origin: testOrigin, AgentVersion: "test/1",
		Offered: []mcsattestv1.EvidenceKind{mcsattestv1.EvidenceKind_EVIDENCE_KIND_TPM2},
		Tpm: &mcsattestv1.TpmIdentity{EkPublic: n.id.EKPublic, EkCertificates: n.id.EKCertificates,
			AkPublic: n.id.AKPublic, AkCertificates: n.id.AKCertificates},
	}
	for _, b := range n.id.Banks {
		req.Tpm.Banks = append(req.Tpm.Banks, uint32(b))
	}
	res, err := n.client.RehearseChallenge(n.t.Context(), connect.NewRequest(req))
	if err != nil {
		return nil, err
	}
	return res.Msg, nil
}

// received stores the challenge of a rehearsal for [node.evidence].
func (n *node) received(ch *mcsattestv1.RehearseChallengeResponse) {
	n.challenge = &mcsattestv1.ChallengeResponse{
		Sealed: ch.GetSealed(), Nonce: ch.GetNonce(), Required: ch.GetRequired(), Tpm: ch.GetTpm(), Pool: ch.GetPool(),
		Origin: ch.GetOrigin(),
	}
}

// labeled makes evidence for the last challenge, with the transcript's label of a rehearsal or of an attestation.
func (n *node) labeled(rehearsal bool) *mcsattestv1.AttestRequest {
	n.t.Helper()
	n.changeFields = func(f *transcript.Fields) { f.Rehearsal = rehearsal }
	defer func() { n.changeFields = nil }()
	return n.evidence()
}

func rehearseRequest(ev *mcsattestv1.AttestRequest) *connect.Request[mcsattestv1.RehearseRequest] {
	return connect.NewRequest(&mcsattestv1.RehearseRequest{Sealed: ev.GetSealed(),
		ServerSpkiSha256: ev.GetServerSpkiSha256(), Claims: ev.GetClaims(), Tpm2: ev.GetTpm2()})
}

// rehearse is a whole honest rehearsal.
func (n *node) rehearse(ticket []byte) (*mcsattestv1.RehearseResponse, error) {
	n.t.Helper()
	ch, err := n.askRehearsal(ticket)
	if err != nil {
		return nil, err
	}
	if ch.GetResult() != nil {
		return ch.GetResult(), nil
	}
	n.received(ch)
	res, err := n.client.Rehearse(n.t.Context(), rehearseRequest(n.labeled(true)))
	if err != nil {
		return nil, err
	}
	return res.Msg, nil
}

// withoutRehearsal is the record of a machine without what a rehearsal writes.
func (v *verifier) withoutRehearsal(name string) *v1alpha1.MachineAttestationStatus {
	v.t.Helper()
	rec := v.machine(name).Record.DeepCopy()
	if rec == nil {
		return &v1alpha1.MachineAttestationStatus{}
	}
	rec.Rehearsal = nil
	rec.Conditions = slices.DeleteFunc(rec.Conditions,
		func(c metav1.Condition) bool { return c.Type == v1alpha1.ConditionRehearsed })
	return rec
}

// capAgain caps PCR 11 as the end of the initramfs does, and opens the TPM again.
func (n *node) capAgain(tpm *swtpmtest.TPM) {
	n.t.Helper()
	_ = n.tpm.Close()
	conn := tpm.Dial()
	if err := attester.Cap(conn); err != nil {
		n.t.Fatal(err)
	}
	keys, err := attester.Open(conn, attester.Options{})
	if err != nil {
		n.t.Fatal(err)
	}
	n.t.Cleanup(func() { _ = keys.Close() })
	n.tpm = keys
}

func TestRehearse_AMachineThatFetchedItsConfig(t *testing.T) {
	v, tpm := newVerifier(t), swtpmtest.Start(t, "sha256")
	n := newNode(t, v, tpm)
	v.enroll("m1", "worker", n.id.EKSPKI)
	res, err := n.attest()
	if err != nil {
		t.Fatal("honest:", err)
	}
	if code, _, _ := v.fetch(http.MethodGet, "/config/worker", res.GetToken()); code != http.StatusOK {
		t.Fatalf("fetch: %d", code)
	}
	n.capAgain(tpm)
	v.advance(later)
	before := v.withoutRehearsal("m1")
	v.openRehearsal("m1", aTicket(1), n.id.EKSPKI)
	result, err := n.rehearse(aTicket(1))
	if err != nil {
		t.Fatal("rehearsal:", err)
	}
	if !result.GetPasses() || result.GetReason() != 0 || len(result.GetWarnings()) > v1alpha1.MaxRehearsalWarnings {
		t.Errorf("result %v", result)
	}
	got := v.machine("m1").Record.Rehearsal
	if got == nil || !got.Passed || got.Pool != "worker" || got.TicketSHA256 != rehearsal.TicketHash(aTicket(1)) ||
		got.AgentVersion != "test/1" {
		t.Errorf("recorded %+v", got)
	}
	if after := v.withoutRehearsal("m1"); !reflect.DeepEqual(before, after) {
		t.Errorf("the rehearsal changed the record\n%+v\n%+v", before, after)
	}

	// The policy may require more since then.
	v.policy("  pools: [\"*\"]\n  tpm2: {profile: secure-boot}\n")
	v.openRehearsal("m1", aTicket(2), n.id.EKSPKI)
	result, err = n.rehearse(aTicket(2))
	if err != nil {
		t.Fatal("rehearsal:", err)
	}
	if got := v.machine("m1").Record.Rehearsal; result.GetPasses() || result.GetExplanation() == "" || got.Passed ||
		!strings.HasPrefix(got.Reason, "EventLog") {
		t.Errorf("result %v, recorded %+v", result, got)
	}
}

// Each caller without a valid ticket gets the same answer, and changes nothing.
func TestAttack_T74_WithoutATicketNothingIsAnsweredOrWritten(t *testing.T) {
	v := newVerifier(t)
	n := newNode(t, v, swtpmtest.Start(t, "sha256"))
	v.openRehearsal("m1", aTicket(1), n.id.EKSPKI)
	if res, err := n.rehearse(aTicket(1)); err != nil || !res.GetPasses() {
		t.Fatalf("honest: %v, %v", res, err)
	}
	record := *v.machine("m1").Record
	var first *mcsattestv1.Denial
	for _, c := range []struct {
		name      string
		presented []byte
		ticket    []byte
		valid     time.Duration
		pool      string
	}{
		{"no ticket", nil, aTicket(2), 10 * time.Minute, "worker"},
		{"another ticket", aTicket(3), aTicket(2), 10 * time.Minute, "worker"},
		{"the hash of the ticket", []byte(rehearsal.TicketHash(aTicket(2))), aTicket(2), 10 * time.Minute, "worker"},
		{"an expired ticket", aTicket(2), aTicket(2), -time.Second, "worker"},
		{"a ticket that is valid too long", aTicket(2), aTicket(2), 2 * time.Hour, "worker"},
		{"a used ticket", aTicket(1), aTicket(1), 10 * time.Minute, "worker"},
		{"no ticket for another pool", nil, aTicket(2), 10 * time.Minute, "master"},
		{"no ticket for an unknown pool", nil, aTicket(2), 10 * time.Minute, "../unknown"},
	} {
		v.change("attestations/m1.yaml", enrolment("m1", "  pool: worker\n"+v.ticketSpec(c.ticket, c.valid), n.id.EKSPKI))
		n.pool = c.pool
		res, err := n.rehearse(c.presented)
		if err == nil {
			t.Errorf("%s: %v", c.name, res)
			continue
		}
		denial := denialOf(t, err)
		denial.CorrelationId = ""
		if first == nil {
			first = denial
		}
		if denial.GetClass() != mcsattestv1.DenialClass_DENIAL_CLASS_CHALLENGE || !proto.Equal(denial, first) {
			t.Errorf("%s: %v, want %v", c.name, denial, first)
		}
		if !reflect.DeepEqual(*v.machine("m1").Record, record) {
			t.Errorf("%s: recorded %+v", c.name, v.machine("m1").Record)
		}
	}
}

func TestAttack_T74_GuessesOfATicketAreLimited(t *testing.T) {
	v := newVerifier(t, func(dir string) {
		put(t, dir, "mcs-attest.yaml", []byte("origins: [\""+testOrigin+"\"]\nrequestsPerSecond: 5\n"))
	})
	v.freeze()
	guess := []byte(fmt.Sprintf(`{"ticket":%q,"pool":"worker","origin":%q}`,
		base64.StdEncoding.EncodeToString(aTicket(1)), testOrigin))
	codes := map[int]int{}
	for range 30 {
		code, _ := v.post(apiPath+"RehearseChallenge", "application/json", guess)
		codes[code]++
	}
	if codes[http.StatusServiceUnavailable] != 20 || codes[http.StatusBadRequest] != 10 { // the burst is 10
		t.Errorf("30 guesses: %v", codes)
	}
}

// The TPM of another Machine gets the result of a TPM that is unknown.
func TestAttack_T74_AnotherTPMLearnsNothing(t *testing.T) {
	v := newVerifier(t)
	a, b := newNode(t, v, swtpmtest.Start(t, "sha256")), newNode(t, v, swtpmtest.Start(t, "sha256"))
	unknown := newNode(t, v, swtpmtest.Start(t, "sha256"))
	v.enroll("m2", "worker", b.id.EKSPKI)
	if _, err := b.attest(); err != nil {
		t.Fatal("honest:", err)
	}
	other := v.machine("m2").Record
	var results []*mcsattestv1.RehearseResponse
	var records []*v1alpha1.RehearsalStatus
	for i, n := range []*node{unknown, b} {
		ticket := aTicket(byte(i))
		v.openRehearsal("m1", ticket, a.id.EKSPKI)
		res, err := n.rehearse(ticket)
		if err != nil {
			t.Fatal(err)
		}
		rec := v.machine("m1").Record.Rehearsal
		rec.Time, rec.TicketSHA256, res.CorrelationId = metav1.Time{}, "", ""
		results, records = append(results, res), append(records, rec)
	}
	// The detail names the EK of the caller, which is its own.
	for i, n := range []*node{unknown, b} {
		results[i].Explanation = strings.ReplaceAll(results[i].GetExplanation(), hexOf(n.id.EKSPKI), "EK")
	}
	if results[0].GetPasses() || !proto.Equal(results[0], results[1]) || !reflect.DeepEqual(records[0], records[1]) {
		t.Errorf("an unknown TPM: %v, %+v\nanother Machine's: %v, %+v", results[0], records[0], results[1], records[1])
	}
	if !reflect.DeepEqual(v.machine("m2").Record, other) {
		t.Error("the record of the other Machine changed")
	}
}

func TestAttack_T74_AFloodWithOneTicketHasOneResult(t *testing.T) {
	v, tpm := newVerifier(t), swtpmtest.Start(t, "sha256")
	const many = 8
	first := newNode(t, v, tpm)
	v.openRehearsal("m1", aTicket(1), first.id.EKSPKI)
	var send []func() (*connect.Response[mcsattestv1.RehearseResponse], error)
	for range many {
		n := &node{t: t, v: v, pool: "worker", tpm: first.tpm, id: first.id}
		ch, err := n.askRehearsal(aTicket(1))
		if err != nil {
			t.Fatal(err)
		}
		n.received(ch)
		req := rehearseRequest(n.labeled(true))
		send = append(send, func() (*connect.Response[mcsattestv1.RehearseResponse], error) {
			return n.client.Rehearse(context.Background(), req)
		})
	}
	var results atomic.Int32
	var wait sync.WaitGroup
	for _, f := range send {
		wait.Go(func() {
			switch res, err := f(); {
			case err == nil && res.Msg.GetPasses():
				results.Add(1)
			case err == nil:
				t.Errorf("another result: %v", res.Msg)
			}
		})
	}
	wait.Wait()
	if n := results.Load(); n != 1 {
		t.Errorf("%d of %d rehearsals with one ticket have a result", n, many)
	}
}

// A sealed challenge of a rehearsal is of no use for an attestation, and the other way round.
func TestAttack_T74_ARehearsalsSealOpensNoAttestation(t *testing.T) {
	v := newVerifier(t)
	n := newNode(t, v, swtpmtest.Start(t, "sha256"))
	v.openRehearsal("m1", aTicket(1), n.id.EKSPKI)
	for _, label := range []bool{false, true} {
		ch, err := n.askRehearsal(aTicket(1))
		if err != nil {
			t.Fatal(err)
		}
		n.received(ch)
		if res, err := n.client.Attest(t.Context(), connect.NewRequest(n.labeled(label))); err == nil {
			t.Errorf("Attest accepts the challenge of a rehearsal (label %t): %v", label, res.Msg)
		}
	}
	for _, label := range []bool{false, true} {
		n.connect()
		if err := n.ask(); err != nil {
			t.Fatal(err)
		}
		if res, err := n.client.Rehearse(t.Context(), rehearseRequest(n.labeled(label))); err == nil {
			t.Errorf("Rehearse accepts the challenge of an attestation (label %t): %v", label, res.Msg)
		}
	}
	if rec := v.machine("m1").Record; rec != nil {
		t.Errorf("recorded %+v", rec)
	}
	// The ticket is still valid.
	if res, err := n.rehearse(aTicket(1)); err != nil || !res.GetPasses() {
		t.Errorf("an honest rehearsal afterwards: %v, %v", res, err)
	}
}

func TestAttack_T74_QuarantinedWouldFail(t *testing.T) {
	v := newVerifier(t)
	n := newNode(t, v, swtpmtest.Start(t, "sha256"))
	v.change("attestations/m1.yaml", enrolment("m1", "  pool: worker\n  quarantined: true\n"+
		v.ticketSpec(aTicket(1), 10*time.Minute), n.id.EKSPKI))
	res, err := n.rehearse(aTicket(1))
	if err != nil {
		t.Fatal(err)
	}
	if res.GetPasses() || res.GetReason() != mcsattestv1.Reason_REASON_QUARANTINED {
		t.Errorf("a quarantined machine: %v", res)
	}
}

// Neither a valid nor an invalid ticket is in the log, or in a file.
func TestAttack_T74_TheTicketIsInNoLog(t *testing.T) {
	v := newVerifier(t)
	n := newNode(t, v, swtpmtest.Start(t, "sha256"))
	v.openRehearsal("m1", aTicket(1), n.id.EKSPKI)
	if res, err := n.rehearse(aTicket(1)); err != nil || !res.GetPasses() {
		t.Fatalf("honest: %v, %v", res, err)
	}
	if _, err := n.rehearse(aTicket(2)); err == nil {
		t.Fatal("another ticket is valid")
	}
	for _, ticket := range [][]byte{aTicket(1), aTicket(2)} {
		for _, form := range []string{string(ticket), base64.StdEncoding.EncodeToString(ticket),
			base64.RawURLEncoding.EncodeToString(ticket), hex.EncodeToString(ticket)} {
			if strings.Contains(v.log.everything(), form) {
				t.Errorf("the log contains %q", form)
			}
			err := filepath.WalkDir(v.dir, func(path string, d fs.DirEntry, err error) error {
				if err != nil || !d.Type().IsRegular() {
					return err
				}
				raw, err := os.ReadFile(path)
				if bytes.Contains(raw, []byte(form)) {
					t.Errorf("%s contains %q", path, form)
				}
				return err
			})
			if err != nil {
				t.Fatal(err)
			}
		}
	}
}
