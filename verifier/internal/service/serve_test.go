// SPDX-License-Identifier: Apache-2.0

package service

import (
	"bytes"
	"context"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/mcs-attest/mcs-attest/pkg/api/v1alpha1"
	"github.com/mcs-attest/mcs-attest/pkg/appraisal"
	"github.com/mcs-attest/mcs-attest/pkg/evidence"
	"github.com/mcs-attest/mcs-attest/pkg/machine"
	"github.com/mcs-attest/mcs-attest/pkg/policy"
	"github.com/mcs-attest/mcs-attest/pkg/reason"
	"github.com/mcs-attest/mcs-attest/pkg/seal"
	mcsattestv1 "github.com/mcs-attest/mcs-attest/proto/mcsattest/v1"
	"github.com/mcs-attest/mcs-attest/proto/mcsattest/v1/mcsattestv1connect"
	"github.com/mcs-attest/mcs-attest/verifier/internal/audit"
	"github.com/mcs-attest/mcs-attest/verifier/internal/listen"
	"github.com/mcs-attest/mcs-attest/verifier/internal/store"
	"github.com/mcs-attest/mcs-attest/verifier/internal/trust"
	"github.com/mcs-attest/mcs-attest/verifier/internal/view"
)

type updated struct {
	Records
	n int
}

func (u *updated) Update(context.Context, string, store.Change) error { u.n++; return nil }

// reportTicket returns keys, and a ticket for a report that they sealed.
func reportTicket(t *testing.T, now time.Time) (keys seal.Ring, ticket string) {
	t.Helper()
	var err error
	keys, err = seal.Ring{}.Rotate(rand.Reader, now, 0, time.Hour)
	if err != nil {
		t.Fatal(err)
	}
	ticket, err = keys.SealTicket(rand.Reader, now, seal.Ticket{ID: "1", MachineUID: "m1", Expiry: now.Add(time.Hour)})
	if err != nil {
		t.Fatal(err)
	}
	return keys, ticket
}

func TestAttack_T61_StrangersWhoWaitForTurnsDoNotDelayAValidTicket(t *testing.T) {
	now := time.Now()
	keys, ticket := reportTicket(t, now)
	source := netip.MustParseAddr("127.0.0.1")
	records, observed := &updated{}, map[bool]int{}
	s := &Service{
		SealKeys: func() seal.Ring { return keys }, Records: records, Audit: audit.New(slog.New(slog.DiscardHandler)),
		Limiter: listen.NewLimiter(100), Source: func(*http.Request) netip.Addr { return source },
		Now:           func() time.Time { return now },
		ObserveTicket: func(valid bool) { observed[valid]++ },
	}
	_, handler := s.Handler()
	s.turns = listen.NewTurns(runtime.GOMAXPROCS(0), time.Millisecond)
	for range runtime.GOMAXPROCS(0) {
		done, err := s.turns.Acquire(t.Context(), source)
		if err != nil {
			t.Fatal(err)
		}
		defer done()
	}
	srv := httptest.NewTLSServer(handler)
	defer srv.Close()
	for shown, want := range map[string]int{ticket: http.StatusOK, "AAAA": http.StatusServiceUnavailable} {
		res, err := srv.Client().Post(srv.URL+mcsattestv1connect.AttestationReportProcedure, "application/json",
			strings.NewReader(`{"ticket":"`+shown+`"}`))
		if err != nil {
			t.Fatal(err)
		}
		text, _ := io.ReadAll(res.Body)
		_ = res.Body.Close()
		if res.StatusCode != want {
			t.Errorf("ticket %.8q: %d %s, want %d (%v for a stranger)", shown, res.StatusCode, text, want, reason.RateLimited)
		}
	}
	if records.n != 1 {
		t.Errorf("%d reports were recorded", records.n)
	}
	// A report whose ticket was not looked at counts as neither.
	if observed[true] != 1 || observed[false] != 0 {
		t.Errorf("observed tickets: %v", observed)
	}
}

// A valid ticket counts as one, also if the report cannot be written.
func TestReport_ObservesTheTicket(t *testing.T) {
	now := time.Now()
	keys, ticket := reportTicket(t, now)
	for shown, want := range map[string]bool{ticket: true, "AAAA": false} {
		var observed []bool
		s := &Service{SealKeys: func() seal.Ring { return keys }, Records: unwritable{},
			ObserveTicket: func(valid bool) { observed = append(observed, valid) }}
		err := s.report(t.Context(), &call{start: now, yield: func() {}}, &mcsattestv1.ReportRequest{Ticket: shown})
		if err == nil || len(observed) != 1 || observed[0] != want {
			t.Errorf("ticket %.8q: observed %v, %v", shown, observed, err)
		}
	}
}

type unwritable struct{ Records }

func (unwritable) Update(context.Context, string, store.Change) error {
	return reason.Deny(reason.StoreUnavailable, "the API does not answer")
}

// appraised is a Service whose machines prove themselves with an instance document.
// verify stands for the work of an appraisal, holder for a read of the API.
func appraised(t *testing.T, verify, holder func()) (post func()) {
	t.Helper()
	now := time.Now()
	keys, err := seal.Ring{}.Rotate(rand.Reader, now, 0, time.Hour)
	if err != nil {
		t.Fatal(err)
	}
	frontEnd := sha256.Sum256([]byte("front end"))
	var p v1alpha1.AttestationPolicy
	p.Name = "workers"
	p.Spec = v1alpha1.AttestationPolicySpec{
		Pools: []string{"worker"}, Evidence: []v1alpha1.EvidenceAlternative{{All: []string{"aws-iid"}}},
		Binding: v1alpha1.BindingTerminated, FrontEndKeys: []string{hex.EncodeToString(frontEnd[:])},
	}
	policies, err := policy.Compile(p)
	if err != nil {
		t.Fatal(err)
	}
	worker, err := policies.For("worker")
	if err != nil {
		t.Fatal(err)
	}
	hash := worker.Hash()
	s := &Service{
		View: func() *view.View {
			return &view.View{Complete: true, Policies: policies, Machines: everyInstance{}, Trust: &trust.Trust{}}
		},
		SealKeys: func() seal.Ring { return keys }, Records: reads{holder: holder},
		Origins: func(string) bool { return true }, Audit: audit.New(slog.New(slog.DiscardHandler)),
		Limiter: listen.NewLimiter(100), Now: func() time.Time { return now },
		Source: func(*http.Request) netip.Addr { return netip.MustParseAddr("192.0.2.1") },
		Clouds: map[evidence.Kind]evidence.Verifier{evidence.AWSIID: documents{verify}},
	}
	_, handler := s.Handler()
	srv := httptest.NewTLSServer(handler)
	t.Cleanup(srv.Close)
	return func() {
		sealed, err := keys.Seal(rand.Reader, now, seal.Challenge{
			Issued: now, Pool: "worker", PolicyHash: hash[:], Binding: appraisal.BindingTerminated,
			Required: []evidence.Kind{evidence.AWSIID},
		})
		if err != nil {
			t.Error(err)
			return
		}
		body, err := proto.Marshal(&mcsattestv1.AttestRequest{
			Sealed: sealed, ServerSpkiSha256: frontEnd[:],
			Cloud: []*mcsattestv1.CloudEvidence{
				{Kind: mcsattestv1.EvidenceKind_EVIDENCE_KIND_AWS_IID, Document: []byte("document")},
			},
		})
		if err != nil {
			t.Error(err)
			return
		}
		res, err := srv.Client().Post(srv.URL+mcsattestv1connect.AttestationAttestProcedure, "application/proto",
			bytes.NewReader(body))
		if err != nil {
			t.Error(err)
			return
		}
		_ = res.Body.Close()
	}
}

type documents struct{ verify func() }

func (d documents) Verify(context.Context, evidence.Document, evidence.Binding, time.Time) (evidence.Claim, error) {
	d.verify()
	return claim{}, nil
}

type claim struct{}

func (claim) Statement() evidence.Statement {
	return evidence.Statement{Kind: evidence.AWSIID, ProviderID: "aws:///a/i-1", InstanceID: "aws:i-1"}
}

func (c claim) Confirm(context.Context, evidence.Candidate) (evidence.Statement, error) {
	return c.Statement(), nil
}

// everyInstance is a Machine for each provider id.
type everyInstance struct{ view.Machines }

func (everyInstance) Match(machine.Identity, machine.Rules) (*machine.Machine, error) {
	return &machine.Machine{Namespace: "default", Name: "m1", UID: "m1", ProviderID: "aws:///a/i-1", Undated: true}, nil
}

func (everyInstance) Named(machine.Identity, machine.Rules) *machine.Machine { return nil }

type reads struct {
	Records
	holder func()
}

func (r reads) Holder(context.Context, string) (string, error) {
	r.holder()
	return "", reason.Deny(reason.StoreUnavailable, "no answer")
}

func TestAttack_T61_AppraisalsOfOneSourceWorkInTurns(t *testing.T) {
	limit := runtime.GOMAXPROCS(0)
	working, finish := make(chan struct{}, 4*limit), make(chan struct{})
	post := appraised(t, func() { working <- struct{}{}; <-finish }, func() {})
	var wg sync.WaitGroup
	for range 4 * limit {
		wg.Go(post)
	}
	for range limit {
		<-working
	}
	time.Sleep(50 * time.Millisecond)
	if more := len(working); more > 0 {
		t.Errorf("%d appraisals run concurrently on %d processors", limit+more, limit)
	}
	close(finish)
	wg.Wait()
}

func TestAppraisalThatWaitsForTheAPI_HoldsNoTurn(t *testing.T) {
	all := 4 * runtime.GOMAXPROCS(0)
	waiting, answer := make(chan struct{}, all), make(chan struct{})
	post := appraised(t, func() {}, func() { waiting <- struct{}{}; <-answer })
	var wg sync.WaitGroup
	for range all {
		wg.Go(post)
	}
	for range all {
		select {
		case <-waiting:
		case <-time.After(time.Minute):
			t.Error("the others have no turn")
		}
	}
	close(answer)
	wg.Wait()
}

// denials keeps the context of each write.
type denials struct {
	Records
	alive bool
}

func (d *denials) Update(ctx context.Context, _ string, _ store.Change) error {
	_, bounded := ctx.Deadline()
	d.alive = ctx.Err() == nil && bounded
	return nil
}

// An attacker who hangs up after a denial does not keep it off the record.
func TestAttest_RecordsADenialThoughTheClientHangsUp(t *testing.T) {
	records := &denials{}
	s := &Service{Records: records}
	ctx, hangUp := context.WithCancel(t.Context())
	hangUp()
	denial := reason.Deny(reason.IdentityConflict, "another EK")
	err := s.noteDenial(ctx, &call{}, &machine.Machine{UID: "u"}, denial)
	if reason.From(err).Code != reason.IdentityConflict || !records.alive {
		t.Errorf("%v, written %v", err, records.alive)
	}
}

// refused is a denial of a caller that proved to be a Machine.
type refused struct {
	error
	about *appraisal.Refusal
}

func (r refused) Unwrap() []error { return []error{r.about, r.error} }

// Nor does one who hangs up before it is confirmed.
func TestAttest_ConfirmsADenialThoughTheClientHangsUp(t *testing.T) {
	records := &denials{}
	s := &Service{Records: records, Confirm: func(ctx context.Context, _ *machine.Machine) error {
		if _, bounded := ctx.Deadline(); !bounded {
			t.Error("the confirmation may take any time")
		}
		if err := ctx.Err(); err != nil {
			return reason.Wrap(reason.StoreUnavailable, err, "no answer")
		}
		return nil
	}}
	s.Handler()
	ctx, hangUp := context.WithCancel(t.Context())
	hangUp()
	m := &machine.Machine{UID: "u"}
	denial := refused{reason.Deny(reason.MachineJoined, "it has joined"), &appraisal.Refusal{Machine: m}}
	err := s.denied(ctx, &call{}, denial, appraisal.Evidence{})
	if reason.From(err).Code != reason.MachineJoined || !records.alive {
		t.Errorf("%v, written %v", err, records.alive)
	}
}

// grants are Records whose Attest ends with its context.
type grants struct {
	Records
	during func() // while a write is under way
	begun  bool
}

func (g *grants) Attest(ctx context.Context, _ string, _ []string, _ func(string) bool, _ store.Change) error {
	g.begun = true
	g.during()
	if _, bounded := ctx.Deadline(); !bounded || ctx.Err() != nil {
		return reason.Deny(reason.StoreUnavailable, "bounded: %v; %v", bounded, ctx.Err())
	}
	return nil
}

// An attestation is several writes. A client that hangs up does not end it between two.
func TestAttest_AnAttestationThatHasBegunIsFinished(t *testing.T) {
	now := time.Now()
	keys, err := seal.Ring{}.Rotate(rand.Reader, now, 0, time.Hour)
	if err != nil {
		t.Fatal(err)
	}
	ctx, hangUp := context.WithCancel(t.Context())
	records := &grants{during: hangUp}
	s := &Service{Records: records, SealKeys: func() seal.Ring { return keys }}
	sealed, err := keys.Seal(rand.Reader, now, seal.Challenge{})
	if err != nil {
		t.Fatal(err)
	}
	grant := func() error {
		_, err := s.grant(ctx, &call{start: now}, &view.View{}, policy.Policy{Mode: v1alpha1.ModeAudit},
			seal.Challenge{}, sealed, &appraisal.Verdict{Machine: &machine.Machine{UID: "u"}})
		return err
	}
	if err := grant(); err != nil || !records.begun {
		t.Errorf("%v; begun %v", err, records.begun)
	}
	// A client that disconnected before starts none.
	records.begun = false
	if err := grant(); reason.From(err) == nil || reason.From(err).Code != reason.StoreUnavailable || records.begun {
		t.Errorf("%v; begun %v", err, records.begun)
	}
	// T58: a restore of etcd is noticed meanwhile. The records may have forgotten that the challenge was used.
	ctx, records.during = t.Context(), func() { keys = seal.Ring{} }
	if err := grant(); reason.From(err) == nil || reason.From(err).Code != reason.ChallengeKeyUnknown || !records.begun {
		t.Errorf("with a challenge that is void: %v; begun %v", err, records.begun)
	}
}
