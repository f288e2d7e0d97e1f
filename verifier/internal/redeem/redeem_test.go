// SPDX-License-Identifier: Apache-2.0

package redeem_test

import (
	"context"
	"path/filepath"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/mcs-attest/mcs-attest/pkg/api/v1alpha1"
	"github.com/mcs-attest/mcs-attest/pkg/machine"
	"github.com/mcs-attest/mcs-attest/pkg/reason"
	"github.com/mcs-attest/mcs-attest/pkg/record"
	"github.com/mcs-attest/mcs-attest/pkg/token"
	"github.com/mcs-attest/mcs-attest/verifier/internal/redeem"
	"github.com/mcs-attest/mcs-attest/verifier/internal/store"
)

var start = time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)

func index(t *testing.T, spec string) *machine.Index {
	t.Helper()
	in, problems := machine.Parse("m1.yaml", []byte("apiVersion: mcs-attest.dev/v1alpha1\nkind: "+
		"MachineAttestation\nmetadata: {name: m1}\nspec:\n  pool: worker\n  expectedProviderID: aws:///zone/i-0\n"+spec),
		start)
	if len(problems) > 0 {
		t.Fatal(problems)
	}
	ix, _ := machine.NewIndex(in, nil)
	return ix
}

// attested is a redeemer for m1, which has a token with three uses.
func attested(t *testing.T) (*redeem.Redeemer, *store.Store, token.Claims) {
	t.Helper()
	s, err := store.Open(filepath.Join(t.TempDir(), "records.db"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.Close() })
	ix := index(t, "")
	uid := ix.Machines()[0].UID
	err = s.Update(t.Context(), uid, func(*v1alpha1.MachineAttestation) (*v1alpha1.MachineAttestation, error) {
		rec := &v1alpha1.MachineAttestation{}
		rec.Status.MachineUID, rec.Status.Phase = uid, v1alpha1.PhaseAttested
		rec.Status.Token = &v1alpha1.TokenStatus{ID: "token1", Pool: "worker", Expiry: metav1.NewTime(start.Add(time.Hour)),
			MaxUses: 3}
		return rec, nil
	})
	if err != nil {
		t.Fatal(err)
	}
	r := &redeem.Redeemer{Records: s, Machines: func() redeem.Machines { return ix },
		Now: func() time.Time { return start }}
	return r, s, token.Claims{Subject: "default/m1", MachineUID: uid, Pool: "worker", ID: "token1"}
}

func checked(t *testing.T, r *redeem.Redeemer, c token.Claims) error {
	t.Helper()
	_, err := r.Check(t.Context(), c)
	return err
}

// redeemed takes a use whatever the check says: Redeem itself must deny.
func redeemed(t *testing.T, r *redeem.Redeemer, c token.Claims) error {
	t.Helper()
	use, _ := r.Check(t.Context(), c)
	return use.Redeem(t.Context(), nil)
}

func code(err error) reason.Code {
	if err == nil {
		return 0
	}
	return reason.From(err).Code
}

func TestAttack_T45_FiftyConcurrentRequestsTakeNoMoreUsesThanAllowed(t *testing.T) {
	r, _, claims := attested(t)
	var taken, refused atomic.Int32
	var wg sync.WaitGroup
	for range 50 {
		wg.Go(func() {
			switch code(redeemed(t, r, claims)) {
			case 0:
				taken.Add(1)
			case reason.TokenUsedUp:
				refused.Add(1)
			}
		})
	}
	wg.Wait()
	if taken.Load() != 3 || refused.Load() != 47 {
		t.Errorf("%d uses were taken, %d refused", taken.Load(), refused.Load())
	}
}

func TestRedeem_ChecksTheCurrentStateOfTheMachine(t *testing.T) {
	for _, c := range []struct {
		name   string
		change func(*testing.T, *redeem.Redeemer, *store.Store, *token.Claims)
		want   reason.Code
	}{
		{name: "unchanged"},
		{name: "quarantined since", want: reason.Quarantined,
			change: func(t *testing.T, r *redeem.Redeemer, _ *store.Store, _ *token.Claims) {
				ix := index(t, "  quarantined: true\n")
				r.Machines = func() redeem.Machines { return ix }
			}},
		{name: "a token that another replaced", want: reason.TokenSuperseded,
			change: func(_ *testing.T, _ *redeem.Redeemer, _ *store.Store, c *token.Claims) { c.ID = "token0" }},
		{name: "without the database", want: reason.StoreUnavailable,
			change: func(_ *testing.T, _ *redeem.Redeemer, s *store.Store, _ *token.Claims) { _ = s.Close() }},
	} {
		t.Run(c.name, func(t *testing.T) {
			r, s, claims := attested(t)
			if c.change != nil {
				c.change(t, r, s, &claims)
			}
			if got := code(checked(t, r, claims)); got != c.want {
				t.Errorf("Check: %v, want %v", got, c.want)
			}
			if got := code(redeemed(t, r, claims)); got != c.want {
				t.Errorf("Redeem: %v, want %v", got, c.want)
			}
		})
	}
	// A Machine that is gone, and one of another pool.
	r, _, claims := attested(t)
	other := claims
	other.Pool = "master"
	gone := claims
	gone.MachineUID = "gone"
	if code(redeemed(t, r, other)) == 0 || code(redeemed(t, r, gone)) == 0 {
		t.Error("redeemed")
	}
}

func TestRedeem_CountsABreakGlassTokenWithoutAMachine(t *testing.T) {
	r, _, _ := attested(t)
	claims := token.Claims{
		Subject: "break-glass/ticket-7", MachineUID: record.BreakGlassUID("b1"), ID: "b1", Pool: "worker", IssuedAt: start,
		Expiry: start.Add(time.Minute),
	}
	for range 5 {
		if err := checked(t, r, claims); err != nil {
			t.Fatal("a check counts a use:", err)
		}
	}
	for range 3 {
		if err := redeemed(t, r, claims); err != nil {
			t.Fatal(err)
		}
	}
	if got := code(redeemed(t, r, claims)); got != reason.TokenUsedUp {
		t.Errorf("the fourth use: %v", got)
	}
}

// lossy applies each change and loses the answer while it is bad.
type lossy struct {
	*store.Store
	bad atomic.Bool
}

func (l *lossy) Session(uid string) store.Session { return store.NewSession(l, uid) }

func (l *lossy) Update(ctx context.Context, uid string, change store.Change) error {
	err := l.Store.Update(ctx, uid, change)
	if err == nil && l.bad.Load() {
		return reason.Deny(reason.StoreUnavailable, "no answer")
	}
	return err
}

// usesUp redeems a token of three uses until it is used up.
func usesUp(t *testing.T, r *redeem.Redeemer, s *store.Store, c token.Claims) {
	t.Helper()
	for n := range 3 {
		if err := redeemed(t, r, c); err != nil {
			t.Fatalf("use %d: %v", n+1, err)
		}
		if got := uses(t, s, c); int(got) != n+1 {
			t.Errorf("after %d uses the record has %d", n+1, got)
		}
	}
	if err := redeemed(t, r, c); code(err) != reason.TokenUsedUp {
		t.Errorf("the fourth use: %v", err)
	}
}

func uses(t *testing.T, s *store.Store, c token.Claims) int32 {
	t.Helper()
	rec, err := s.Record(t.Context(), c.MachineUID)
	if err != nil {
		t.Fatal(err)
	}
	return rec.Status.Token.Uses
}

// T69: a use whose write was not answered served no client. The next request has
// it, and the token still serves only as often as its record allows.
func TestAttack_T69_AUseWithoutAnAnswerIsNotCounted(t *testing.T) {
	r, s, c := attested(t)
	l := &lossy{Store: s}
	r.Records = l
	for range 5 { // more often than there are uses
		l.bad.Store(true)
		if err := redeemed(t, r, c); code(err) != reason.StoreUnavailable {
			t.Fatalf("without an answer: %v", err)
		}
		l.bad.Store(false)
		if err := checked(t, r, c); err != nil {
			t.Errorf("after a use without an answer: %v", err)
		}
	}
	usesUp(t, r, s, c)
	// Another replica may be about to return uses.
	r.Failing = func() bool { return true }
	if err := checked(t, r, c); code(err) != reason.StoreUnavailable {
		t.Errorf("used up, while the records are silent: %v", err)
	}
}

// restored applies each change, and then returns one of the answers.
type restored struct {
	*store.Store
	answers []error
}

func (f *restored) Session(uid string) store.Session { return store.NewSession(f, uid) }

func (f *restored) Update(ctx context.Context, uid string, change store.Change) error {
	err := f.Store.Update(ctx, uid, change)
	if err == nil && len(f.answers) > 0 {
		err, f.answers = f.answers[0], f.answers[1:]
	}
	return err
}

// T58: a restore of etcd may bring back uses that were taken. A request whose write shows the restore is not served.
// One that has no answer to its write is not served without the answer to another one.
func TestAttack_T58_AUseInARestoredStoreIsNotServed(t *testing.T) {
	back := reason.Wrap(reason.StoreUnavailable, store.ErrRestored, "write")
	lost := reason.Deny(reason.StoreUnavailable, "no answer")
	for name, c := range map[string]struct {
		answers []error
		served  bool
	}{
		"a restore":                         {[]error{back}, false},
		"no answer, and then a restore":     {[]error{lost, back}, false},
		"no answer, and then an answer":     {[]error{lost, nil}, true},
		"no answer, three times":            {[]error{lost, lost, lost}, false},
		"no answer twice, then an answer":   {[]error{lost, lost, nil}, true},
		"no answer twice, then a restore":   {[]error{lost, lost, back}, false},
		"an answer, and a restore after it": {[]error{nil, back}, true},
	} {
		t.Run(name, func(t *testing.T) {
			r, s, claims := attested(t)
			f := &restored{Store: s, answers: slices.Clone(c.answers)}
			r.Records = f
			err := redeemed(t, r, claims)
			if (err == nil) != c.served || err != nil && code(err) != reason.StoreUnavailable {
				t.Errorf("%v", err)
			}
			f.answers = nil
			for n := range 4 { // a request that was not served took no use
				left := 3
				if c.served {
					left--
				}
				if err := redeemed(t, r, claims); (err == nil) != (n < left) {
					t.Errorf("%d more: %v", n+1, err)
				}
			}
		})
	}
}

// twice applies a change, and calls it again as after a conflict: the API client sent a write again that was applied.
type twice struct{ *store.Store }

func (f twice) Session(uid string) store.Session { return store.NewSession(f, uid) }

func (f twice) Update(ctx context.Context, uid string, change store.Change) error {
	if err := f.Store.Update(ctx, uid, change); err != nil {
		return err
	}
	return f.Store.Update(ctx, uid, change)
}

func TestRedeem_AWriteThatWasSentTwiceIsOneUse(t *testing.T) {
	r, s, c := attested(t)
	r.Records = twice{s}
	usesUp(t, r, s, c)
}

// Without a next request the use is returned all the same, for other replicas.
func TestRedeem_ReturnsAnUnservedUseInTheBackground(t *testing.T) {
	r, s, c := attested(t)
	l := &lossy{Store: s}
	r.Records, r.ReturnAfter = l, 10*time.Millisecond
	l.bad.Store(true)
	if err := redeemed(t, r, c); err == nil {
		t.Fatal("an answer")
	}
	l.bad.Store(false)
	for deadline := time.Now().Add(time.Minute); uses(t, s, c) != 0; time.Sleep(5 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("%d uses are still taken", uses(t, s, c))
		}
	}
}
