// SPDX-License-Identifier: Apache-2.0

package service

import (
	"bytes"
	"context"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/mcs-attest/mcs-attest/pkg/api/v1alpha1"
	"github.com/mcs-attest/mcs-attest/pkg/appraisal"
	"github.com/mcs-attest/mcs-attest/pkg/evidence"
	"github.com/mcs-attest/mcs-attest/pkg/machine"
	"github.com/mcs-attest/mcs-attest/pkg/policy"
	"github.com/mcs-attest/mcs-attest/pkg/provisioning"
	"github.com/mcs-attest/mcs-attest/pkg/reason"
	"github.com/mcs-attest/mcs-attest/pkg/seal"
	"github.com/mcs-attest/mcs-attest/pkg/token"
	"github.com/mcs-attest/mcs-attest/pkg/transcript"
	mcsattestv1 "github.com/mcs-attest/mcs-attest/proto/mcsattest/v1"
	"github.com/mcs-attest/mcs-attest/proto/mcsattest/v1/mcsattestv1connect"
	"github.com/mcs-attest/mcs-attest/verifier/internal/audit"
	"github.com/mcs-attest/mcs-attest/verifier/internal/listen"
	"github.com/mcs-attest/mcs-attest/verifier/internal/store"
	"github.com/mcs-attest/mcs-attest/verifier/internal/trust"
	"github.com/mcs-attest/mcs-attest/verifier/internal/view"
)

// attesting is a Service behind a front end that ends TLS, and a machine that answers a challenge of it.
type attesting struct {
	*Service
	from      netip.Addr
	challenge seal.Challenge
	request   *mcsattestv1.AttestRequest
}

func newAttesting(t *testing.T, required evidence.Kind) *attesting {
	t.Helper()
	now, frontEnd := time.Now(), sha256.Sum256([]byte("front end"))
	keys, err := seal.Ring{}.Rotate(rand.Reader, now, 0, time.Hour)
	if err != nil {
		t.Fatal(err)
	}
	var p v1alpha1.AttestationPolicy
	p.Name = "workers"
	p.Spec = v1alpha1.AttestationPolicySpec{
		Pools: []string{"worker"}, Evidence: []v1alpha1.EvidenceAlternative{{All: []string{required.String()}}},
		ProvisioningTokenAlone: required == evidence.ProvisioningToken,
		Binding:                v1alpha1.BindingTerminated, FrontEndKeys: []string{hex.EncodeToString(frontEnd[:])},
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
	x := &attesting{from: netip.MustParseAddr("192.0.2.1"), challenge: seal.Challenge{
		Issued: now, Pool: "worker", PolicyHash: hash[:], Binding: appraisal.BindingTerminated,
		Required: []evidence.Kind{required},
	}}
	sealed, err := keys.Seal(rand.Reader, now, x.challenge)
	if err != nil {
		t.Fatal(err)
	}
	x.request = &mcsattestv1.AttestRequest{Sealed: sealed, ServerSpkiSha256: frontEnd[:]}
	x.Service = &Service{
		View: func() *view.View {
			return &view.View{Complete: true, Policies: policies, Machines: everyInstance{}, Trust: &trust.Trust{}}
		},
		SealKeys: func() seal.Ring { return keys }, Origins: func(string) bool { return true },
		Audit: audit.New(slog.New(slog.DiscardHandler)), Now: func() time.Time { return now },
	}
	x.Handler()
	return x
}

func (x *attesting) attest(t *testing.T) (*call, error) {
	t.Helper()
	c := &call{start: x.Now(), yield: func() {}, source: x.from}
	_, err := x.Service.attest(t.Context(), c, x.request)
	return c, err
}

// noted counts the denials on the record of a machine that never attested.
type noted struct {
	Records
	n int
}

func (*noted) Holder(context.Context, string) (string, error) { return "", nil }

func (n *noted) Update(context.Context, string, store.Change) error { n.n++; return nil }

// instance is a document about an instance.
type instance struct{ bound bool }

func (i instance) Verify(context.Context, evidence.Document, evidence.Binding, time.Time) (evidence.Claim, error) {
	return i, nil
}

func (i instance) Statement() evidence.Statement {
	return evidence.Statement{Kind: evidence.AWSIID, ProviderID: "aws:///a/i-1", InstanceID: "aws:i-1", Bound: i.bound}
}

func (i instance) Confirm(context.Context, evidence.Candidate) (evidence.Statement, error) {
	return i.Statement(), nil
}

// A neighbor's copy of a document changes no record of the machine, also if what it lacks is only noticed after the
// appraisal.
func TestAttack_T05_ACopyWithoutAKeyLeavesNoTrace(t *testing.T) {
	for name, bound := range map[string]bool{"a document that is bound to the exchange": true, "a copy": false} {
		records := &noted{}
		x := newAttesting(t, evidence.AWSIID)
		x.Records, x.NodeCertificate = records, mcsattestv1.NodeCertificate_NODE_CERTIFICATE_REQUIRED
		x.Clouds = map[evidence.Kind]evidence.Verifier{evidence.AWSIID: instance{bound}}
		x.request.Cloud = []*mcsattestv1.CloudEvidence{
			{Kind: mcsattestv1.EvidenceKind_EVIDENCE_KIND_AWS_IID, Document: []byte("document")},
		}
		c, err := x.attest(t)
		explained := strings.Contains(err.Error(), "attested no key")
		if code := reason.From(err).Code; code != reason.EvidenceMissing || explained != bound {
			t.Errorf("%s: %v", name, err)
		}
		if c.proven != bound || records.n != map[bool]int{true: 1}[bound] {
			t.Errorf("%s: proven %v, %d writes", name, c.proven, records.n)
		}
	}
}

// joinedInstance is a Machine that joined.
type joinedInstance struct{ everyInstance }

func (joinedInstance) Match(machine.Identity, machine.Rules) (*machine.Machine, error) {
	return nil, reason.Deny(reason.MachineJoined, "joined")
}

func (joinedInstance) Named(machine.Identity, machine.Rules) *machine.Machine {
	return &machine.Machine{Namespace: "ns", Name: "m", UID: "u"}
}

// A node that joined can attest again and again, each time on a new connection, so that no limit of its address counts.
// Each denial reads the Machine and its record.
func TestAttack_T61_DenialsOfOneMachineAreLimited(t *testing.T) {
	for _, bound := range []bool{true, false} {
		records, reads, kept := &noted{}, 0, 0
		x := newAttesting(t, evidence.AWSIID)
		x.Keep = func(*appraisal.Saved) { kept++ }
		policies := x.View().Policies
		x.View = func() *view.View {
			return &view.View{Complete: true, Policies: policies, Machines: joinedInstance{}, Trust: &trust.Trust{}}
		}
		x.Records, x.Confirm = records, func(context.Context, *machine.Machine) error { reads++; return nil }
		x.Clouds = map[evidence.Kind]evidence.Verifier{evidence.AWSIID: instance{bound}}
		x.request.Cloud = []*mcsattestv1.CloudEvidence{
			{Kind: mcsattestv1.EvidenceKind_EVIDENCE_KIND_AWS_IID, Document: []byte("document")},
		}
		const calls, allowed = 50, 10
		for i := range calls {
			c, err := x.attest(t)
			want := reason.MachineJoined
			if i >= allowed {
				want = reason.RateLimited
			}
			if code := reason.From(err).Code; code != want || c.proven != (bound && i < allowed) {
				t.Fatalf("bound %v, call %d: proven %v, %v", bound, i, c.proven, err)
			}
		}
		if wrote := map[bool]int{true: allowed}[bound]; reads != allowed || records.n != wrote {
			t.Errorf("bound %v: %d reads of the Machine, %d updates of its record", bound, reads, records.n)
		} else if kept != wrote {
			t.Errorf("bound %v: the evidence of %d calls was kept", bound, kept)
		}
	}
}

// tooSoon is a record whose last attestation was a moment ago.
type tooSoon struct{ noted }

func (s *tooSoon) Attest(context.Context, string, []string, func(string) bool, store.Change) error {
	s.n++
	return reason.Deny(reason.RateLimited, "a moment ago")
}

// A machine, or a container on it, can attest again and again, each time on a new connection. Each call reads its
// record. A copy of a document does not limit the machine itself.
func TestAttack_T61_AttestationsOfOneMachineAreLimited(t *testing.T) {
	const calls, allowed = 50, 10
	records, kept := &tooSoon{}, 0
	x := newAttesting(t, evidence.AWSIID)
	x.Records, x.Keep = records, func(*appraisal.Saved) { kept++ }
	tokens, err := token.KeySet{}.Rotate(x.Now(), rand.Reader, 0)
	if err != nil {
		t.Fatal(err)
	}
	x.Issuer, x.TokenKeys = "https://verifier", func() token.KeySet { return tokens }
	x.request.Cloud = []*mcsattestv1.CloudEvidence{
		{Kind: mcsattestv1.EvidenceKind_EVIDENCE_KIND_AWS_IID, Document: []byte("document")},
	}
	for _, bound := range []bool{false, true, true} {
		x.from = x.from.Next() // another address has a limit of its own
		x.Clouds = map[evidence.Kind]evidence.Verifier{evidence.AWSIID: instance{bound}}
		records.n, kept = 0, 0
		proven := 0
		for range calls {
			c, err := x.attest(t)
			if reason.From(err).Code != reason.RateLimited {
				t.Fatal(err)
			}
			if c.proven {
				proven++
			}
			if bound && c.machine != "default/m1" {
				t.Fatalf("the line names Machine %q", c.machine)
			}
		}
		want := map[bool][3]int{true: {allowed, allowed, allowed}, false: {calls, 0, allowed}}[bound]
		if got := [3]int{records.n, proven, kept}; got != want {
			t.Errorf("bound %v: reads of the record, lines without a limit, kept evidence: %v, want %v", bound, got, want)
		}
	}
}

// reading counts the reads of claims.
type reading struct {
	noted
	claims int
}

func (r *reading) Holder(context.Context, string) (string, error) { r.claims++; return "", nil }

// A machine can attest again and again, each time on a new connection, and a caller can claim to be it. Each call reads
// a claim from the API server before it is denied.
func TestAttack_T49_ReadsOfClaimsHaveABudget(t *testing.T) {
	const budget = 20
	x, records := newAttesting(t, evidence.AWSIID), &reading{}
	x.Records = records
	read := func(from netip.Addr, id v1alpha1.RecordedIdentity) error {
		_, err := x.recorded(t.Context(), &call{start: x.Now(), source: from}, id)
		return err
	}
	for name, id := range map[string]v1alpha1.RecordedIdentity{"EK": {EKSHA256: "e"}, "AK": {AKSHA256: "a"}} {
		records.claims = 0
		var err error
		for range 100 {
			err = read(x.from, id)
		}
		if records.claims != budget || reason.From(err) == nil || reason.From(err).Code != reason.RateLimited {
			t.Errorf("%s: %d reads of claims, %v", name, records.claims, err)
		}
		if err := read(x.from.Next(), id); err != nil || records.claims != budget+1 {
			t.Errorf("%s, from another address: %d reads, %v", name, records.claims, err)
		}
	}
	if err := read(x.from, v1alpha1.RecordedIdentity{EKSHA256: "another"}); err != nil {
		t.Errorf("another TPM at the address: %v", err)
	}
	// A copy of a document does not limit the machine itself.
	records.claims = 0
	for range 100 {
		if err := read(x.from, v1alpha1.RecordedIdentity{InstanceID: "i"}); err != nil {
			t.Fatal(err)
		}
	}
	if records.claims != 100 {
		t.Errorf("a document: %d reads", records.claims)
	}
}

// holding is a store in which the Machine "other" has the identity of each machine.
type holding struct{ noted }

func (*holding) Attest(_ context.Context, _ string, _ []string, alive func(string) bool, _ store.Change) error {
	if alive("other") {
		return reason.Deny(reason.IdentityConflict, "other")
	}
	return reason.Deny(reason.Internal, "written")
}

// knowing knows one Machine more.
type knowing struct {
	everyInstance
	uid string
}

func (k knowing) Known(uid string) bool { return uid == k.uid }

// A file that cannot be read may have the Machine that holds an identity. A conflict is permanent, and it is not
// known yet whether there is one.
func TestAttest_AConflictWithAMachineInAFileThatCannotBeReadIsTemporary(t *testing.T) {
	tokens, err := token.KeySet{}.Rotate(time.Now(), rand.Reader, 0)
	if err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct {
		complete bool
		known    string
		want     reason.Code
		noted    int
	}{
		"it exists":                            {true, "other", reason.IdentityConflict, 1},
		"it exists, and a file cannot be read": {false, "other", reason.IdentityConflict, 1},
		"it may be in the file":                {false, "", reason.StoreUnavailable, 0},
		"it was deleted":                       {true, "", reason.Internal, 1},
	} {
		x, records := newAttesting(t, evidence.AWSIID), &holding{}
		policies := x.View().Policies
		x.View = func() *view.View {
			return &view.View{Complete: c.complete, Policies: policies, Machines: knowing{uid: c.known}, Trust: &trust.Trust{}}
		}
		x.Records, x.Issuer, x.TokenKeys = records, "https://verifier", func() token.KeySet { return tokens }
		x.Clouds = map[evidence.Kind]evidence.Verifier{evidence.AWSIID: instance{bound: true}}
		x.request.Cloud = []*mcsattestv1.CloudEvidence{
			{Kind: mcsattestv1.EvidenceKind_EVIDENCE_KIND_AWS_IID, Document: []byte("document")},
		}
		_, err := x.attest(t)
		if d := reason.From(err); d == nil || d.Code != c.want || records.n != c.noted {
			t.Errorf("%s: %v, %d denials on the record", name, err, records.n)
		}
	}
}

// A machine whose namespace cannot be read is denied before its record is. A copy of its document causes no line
// without a limit.
func TestAttack_T49_ACopyHasABudgetOfLinesWhileTheStateIsOutdated(t *testing.T) {
	for _, bound := range []bool{true, false} {
		x := newAttesting(t, evidence.AWSIID)
		policies := x.View().Policies
		x.View = func() *view.View {
			return &view.View{Complete: true, Policies: policies, Machines: everyInstance{}, Trust: &trust.Trust{},
				StaleIn: map[string]error{"default": errors.New("no answer")}}
		}
		x.Records = &noted{}
		x.Clouds = map[evidence.Kind]evidence.Verifier{evidence.AWSIID: instance{bound}}
		x.request.Cloud = []*mcsattestv1.CloudEvidence{
			{Kind: mcsattestv1.EvidenceKind_EVIDENCE_KIND_AWS_IID, Document: []byte("document")},
		}
		c, err := x.attest(t)
		if reason.From(err) == nil || reason.From(err).Code != reason.StoreUnavailable || c.proven != bound {
			t.Errorf("bound %v: proven %v, %v", bound, c.proven, err)
		}
	}
}

// Any caller that reads the shared token from the user data can attest with it without end.
func TestAttack_T49_LinesAboutTheProvisioningTokenHaveABudget(t *testing.T) {
	x := newAttesting(t, evidence.ProvisioningToken)
	x.present(current)
	x.Provisioning = func() provisioning.View { return tokenView(x.Now(), current) }
	if c, err := x.attest(t); err != nil || c.proven {
		t.Errorf("proven %v, %v", c.proven, err)
	}
}

// present adds the machine's proof that it has a provisioning token.
func (x *attesting) present(token string) {
	h := transcript.Fields{
		Sealed: x.request.GetSealed(), ServerSPKI: x.request.GetServerSpkiSha256(), Binding: x.challenge.Binding,
		Pool: x.challenge.Pool, Required: transcript.Required(x.challenge.Required, 0, nil),
	}.Hash()
	x.request.ProvisioningToken = transcript.ProvisioningToken([]byte(token), h)
}

// tokenView is the state after a read of a token.
func tokenView(now time.Time, token string) provisioning.View {
	v, _ := provisioning.View{}.Read(now, map[string][]byte{provisioning.KeyToken: []byte(token)}, time.Hour)
	return v
}

// Two provisioning tokens: 32 bytes in base64.
const (
	former  = "dGhlIGZvcm1lciB0b2tlbiBvZiB0aGlydHktdHdvIGI="
	current = "dGhlIHByZXNlbnQgdG9rZW4gb2YgdGhpcnR5LXR3byA="
)

// A machine with only the provisioning token gets no certificate, so its idle connection gives way to another client.
func TestAttack_T61_TheProvisioningTokenKeepsNoConnectionOpen(t *testing.T) {
	x := newAttesting(t, evidence.ProvisioningToken)
	x.present(current)
	x.Provisioning = func() provisioning.View { return tokenView(x.Now(), current) }
	x.Source = func(*http.Request) netip.Addr { return netip.MustParseAddr("192.0.2.1") }
	x.Limiter = listen.NewLimiter(100)
	body, err := proto.Marshal(x.request)
	if err != nil {
		t.Fatal(err)
	}
	srv := httptest.NewUnstartedServer(nil)
	_, srv.Config.Handler = x.Handler()
	srv.Listener = listen.Limit(srv.Listener, 1, nil)
	listen.Track(srv.Config)
	srv.StartTLS()
	defer srv.Close()
	attest := func() error {
		c := &http.Client{Transport: srv.Client().Transport.(*http.Transport).Clone()}
		res, err := c.Post(srv.URL+mcsattestv1connect.AttestationAttestProcedure, "application/proto",
			bytes.NewReader(body))
		if err != nil {
			return err
		}
		defer res.Body.Close()
		if text, _ := io.ReadAll(res.Body); res.StatusCode != http.StatusOK {
			t.Fatalf("status %d: %s", res.StatusCode, text)
		}
		return nil
	}
	if err := attest(); err != nil {
		t.Fatal(err)
	}
	// The server notices a little later that the first connection is idle.
	for end := time.Now().Add(2 * time.Minute); ; time.Sleep(10 * time.Millisecond) {
		err := attest()
		if err == nil {
			return
		}
		if time.Now().After(end) {
			t.Fatalf("another client found no place: %v", err)
		}
	}
}

// The cached token changes between the appraisal and the read that precedes a permanent denial.
func TestAttest_ATokenThatChangesDuringTheAppraisalIsCompared(t *testing.T) {
	x := newAttesting(t, evidence.ProvisioningToken)
	now := x.Now()
	for name, c := range map[string]struct {
		cached []provisioning.View // one after the other
		live   provisioning.View
		want   reason.Code
	}{
		"a change that the cache receives later": {
			[]provisioning.View{tokenView(now, former)}, tokenView(now, current), 0},
		"a change that the cache receives meanwhile": {
			[]provisioning.View{tokenView(now, former), tokenView(now, current)}, tokenView(now, current), 0},
		"no change": {
			[]provisioning.View{tokenView(now, former)}, tokenView(now, former), reason.ProvisioningTokenInvalid},
		"the token was deleted": {
			[]provisioning.View{tokenView(now, former)}, provisioning.View{}.Gone(now), reason.StoreUnavailable},
		"the token is held after a restore": {
			[]provisioning.View{tokenView(now, former)}, provisioning.View{}, reason.StoreUnavailable},
	} {
		t.Run(name, func(t *testing.T) {
			x.present(current)
			reads := 0
			x.Provisioning = func() provisioning.View {
				v := c.cached[min(reads, len(c.cached)-1)]
				reads++
				return v
			}
			x.ConfirmProvisioning = func(context.Context) (provisioning.View, error) { return c.live, nil }
			_, err := x.attest(t)
			if d := reason.From(err); d == nil && c.want != 0 || d != nil && d.Code != c.want {
				t.Errorf("%v, want %v", err, c.want)
			}
		})
	}
}
