// SPDX-License-Identifier: Apache-2.0

package redeem_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/mcs-attest/mcs-attest/pkg/api/v1alpha1"
	"github.com/mcs-attest/mcs-attest/pkg/reason"
	"github.com/mcs-attest/mcs-attest/pkg/token"
	"github.com/mcs-attest/mcs-attest/verifier/internal/redeem"
	"github.com/mcs-attest/mcs-attest/verifier/internal/store"
)

// memory has the records in memory, so that a test can use the clock of a synctest bubble. The Machine with UID "x" has
// the token "token-x" with three uses.
type memory struct {
	mu      sync.Mutex
	records map[string]*v1alpha1.MachineAttestation
	updates int
	writes  int
	read    func() error          // if set, it is called before the change
	apply   func() (bool, error)  // if set, it decides whether the change is applied, and the answer
	context func(context.Context) // if set, it receives the context of each update
}

func (m *memory) Session(uid string) store.Session { return store.NewSession(m, uid) }

func (m *memory) Record(_ context.Context, uid string) (*v1alpha1.MachineAttestation, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.record(uid), nil
}

func (m *memory) record(uid string) *v1alpha1.MachineAttestation {
	if m.records == nil {
		m.records = map[string]*v1alpha1.MachineAttestation{}
	}
	if m.records[uid] == nil {
		rec := &v1alpha1.MachineAttestation{}
		rec.Status.MachineUID, rec.Status.Phase = uid, v1alpha1.PhaseAttested
		rec.Status.Token = &v1alpha1.TokenStatus{ID: "token-" + uid, Pool: "worker", MaxUses: 3,
			Expiry: metav1.NewTime(start.Add(time.Hour))}
		m.records[uid] = rec
	}
	return m.records[uid]
}

func (m *memory) Update(ctx context.Context, uid string, change store.Change) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.updates++
	if m.context != nil {
		m.context(ctx)
	}
	if m.read != nil {
		if err := m.read(); err != nil {
			return err
		}
	}
	next, err := change(m.record(uid))
	if err != nil {
		return err
	}
	if next != nil {
		m.writes++
	}
	applied := true
	if m.apply != nil {
		applied, err = m.apply()
	}
	if applied && next != nil {
		m.records[uid] = next
	}
	return err
}

// set changes m while returns may be active in the background.
func (m *memory) set(change func()) {
	m.mu.Lock()
	defer m.mu.Unlock()
	change()
}

func (m *memory) uses(uid string) int32 {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.record(uid).Status.Token.Uses
}

func (m *memory) updated() int {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.updates
}

func (m *memory) written() int {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.writes
}

// machines returns the same answer for each Machine.
type machines struct{ err error }

func (m machines) Redeemable(string, string, time.Time) error { return m.err }

func inMemory() (*redeem.Redeemer, *memory, token.Claims) {
	m := &memory{}
	r := &redeem.Redeemer{Records: m, Machines: func() redeem.Machines { return machines{} }, Now: time.Now}
	return r, m, claimsOf("one")
}

func claimsOf(uid string) token.Claims {
	return token.Claims{Subject: "default/" + uid, MachineUID: uid, Pool: "worker", ID: "token-" + uid}
}

var errNoAnswer = reason.Deny(reason.StoreUnavailable, "no answer")

// lose redeems, and loses the answer to the write. The client disconnects, so that no other write is tried.
func lose(t *testing.T, r *redeem.Redeemer, m *memory, c token.Claims) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	m.set(func() { m.apply = func() (bool, error) { cancel(); return true, errNoAnswer } })
	err := redeemedBy(ctx, t, r, c)
	m.set(func() { m.apply = nil })
	if code(err) != reason.StoreUnavailable || !strings.Contains(err.Error(), "no answer") {
		t.Fatalf("without an answer: %v", err)
	}
}

func redeemedBy(ctx context.Context, t *testing.T, r *redeem.Redeemer, c token.Claims) error {
	t.Helper()
	use, err := r.Check(t.Context(), c)
	if err != nil {
		t.Fatalf("Check: %v", err)
	}
	return use.Redeem(ctx, nil)
}

// after waits in a bubble.
func after(d time.Duration) {
	time.Sleep(d)
	synctest.Wait()
}

func TestRedeem_ReturnsAnUnservedUseAfter15Seconds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r, m, c := inMemory()
		var log bytes.Buffer
		r.Log = slog.New(slog.NewTextHandler(&log, nil))
		lose(t, r, m, c)
		if m.uses("one") != 1 || m.updated() != 1 {
			t.Fatalf("%d uses, %d updates", m.uses("one"), m.updated())
		}
		m.set(func() {
			m.context = func(ctx context.Context) {
				end, ok := ctx.Deadline()
				if ctx.Err() != nil || !ok || time.Until(end) != 30*time.Second {
					t.Errorf("the return has %v until its deadline: %v", time.Until(end), ctx.Err())
				}
			}
		})
		after(15*time.Second - 1)
		if m.updated() != 1 {
			t.Error("returned too early")
		}
		after(1)
		if m.uses("one") != 0 || m.updated() != 2 {
			t.Errorf("after 15 s: %d uses, %d updates", m.uses("one"), m.updated())
		}
		if err := checked(t, r, c); err != nil {
			t.Error(err)
		}
		if text := log.String(); strings.Count(text, "returned unserved uses of a token") != 1 ||
			!strings.Contains(text, "token=token-one machine=default/one") {
			t.Errorf("the log: %s", text)
		}
		// The next use without an answer has its own 15 seconds.
		after(5 * time.Second)
		m.set(func() { m.context = nil })
		lose(t, r, m, c)
		after(15*time.Second - 1)
		if m.updated() != 3 {
			t.Errorf("%d updates before the next 15 seconds are over", m.updated())
		}
		after(1)
		if m.uses("one") != 0 || m.updated() != 4 {
			t.Errorf("the next use: %d uses, %d updates", m.uses("one"), m.updated())
		}
		after(time.Hour)
		if m.updated() != 4 {
			t.Errorf("%d updates after all uses are returned", m.updated())
		}
	})
}

func TestRedeem_TriesEightTimesToReturnUses(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r, m, c := inMemory()
		r.ReturnAfter = time.Second
		m.set(func() { m.apply = func() (bool, error) { return true, errNoAnswer } })
		if err := redeemedBy(t.Context(), t, r, c); code(err) != reason.StoreUnavailable || m.updated() != 3 {
			t.Fatalf("%d updates: %v", m.updated(), err)
		}
		m.set(func() { m.apply = func() (bool, error) { return false, errNoAnswer } })
		after(7 * time.Second)
		if m.updated() != 3+7 {
			t.Errorf("%d attempts in 7 s", m.updated()-3)
		}
		after(time.Hour)
		if m.updated() != 3+8 {
			t.Errorf("%d attempts", m.updated()-3)
		}
		// The use is now counted.
		m.set(func() { m.apply = nil })
		if err := redeemedBy(t.Context(), t, r, c); err != nil || m.uses("one") != 2 {
			t.Errorf("%d uses: %v", m.uses("one"), err)
		}
	})
}

// The attempts of a use do not end with those of an earlier use of the same token.
func TestRedeem_TriesEightTimesForEachUse(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r, m, c := inMemory()
		r.ReturnAfter = time.Second
		m.set(func() { m.apply = func() (bool, error) { return false, errNoAnswer } })
		if err := redeemedBy(t.Context(), t, r, c); code(err) != reason.StoreUnavailable {
			t.Fatal(err)
		}
		after(7 * time.Second)
		m.set(func() { m.apply = func() (bool, error) { return true, errNoAnswer } })
		if err := redeemedBy(t.Context(), t, r, c); code(err) != reason.StoreUnavailable || m.uses("one") == 0 {
			t.Fatalf("%d uses: %v", m.uses("one"), err)
		}
		m.set(func() { m.apply = func() (bool, error) { return false, errNoAnswer } })
		after(2 * time.Second)
		m.set(func() { m.apply = nil })
		after(time.Minute)
		if m.uses("one") != 0 {
			t.Errorf("%d uses were not returned", m.uses("one"))
		}
	})
}

func TestRedeem_ReturnsAUseThatIsWrittenLate(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r, m, c := inMemory()
		before, _ := m.Record(t.Context(), "one")
		lose(t, r, m, c)
		late, _ := m.Record(t.Context(), "one")
		m.set(func() { m.records["one"] = before })
		after(20 * time.Second)
		if m.updated() != 2 || m.written() != 1 {
			t.Errorf("before it is written: %d updates, %d writes", m.updated(), m.written())
		}
		m.set(func() { m.records["one"] = late })
		after(10 * time.Second)
		if m.updated() != 3 || m.uses("one") != 0 {
			t.Errorf("after it is written: %d updates, %d uses", m.updated(), m.uses("one"))
		}
	})
}

func TestRedeem_ReturnsNoUseInTheBackgroundWithoutNeed(t *testing.T) {
	for name, c := range map[string]struct {
		expiry time.Duration // 0 is none
		next   bool          // a next request returns the use
		want   int32         // uses at the end
	}{
		"a next request has returned it": {next: true, want: 1},
		"the token has expired":          {expiry: 15 * time.Second, want: 1},
		"the token is still valid":       {expiry: 15*time.Second + 1, want: 0},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				r, m, claims := inMemory()
				if c.expiry > 0 {
					claims.Expiry = time.Now().Add(c.expiry)
				}
				lose(t, r, m, claims)
				if c.next {
					if err := redeemedBy(t.Context(), t, r, claims); err != nil {
						t.Fatal(err)
					}
				}
				updates := m.updated()
				after(time.Minute)
				if got := m.updated() > updates; got != (c.want == 0) || m.uses("one") != c.want {
					t.Errorf("%d updates in the background, %d uses", m.updated()-updates, m.uses("one"))
				}
				// What was not returned is counted.
				if err := redeemedBy(t.Context(), t, r, claims); err != nil || m.uses("one") != c.want+1 {
					t.Errorf("the next use: %d uses, %v", m.uses("one"), err)
				}
			})
		})
	}
}

func TestRedeem_ReturnsUsesOfAtMost10000Tokens(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r, m, _ := inMemory()
		for i := range 10001 {
			lose(t, r, m, claimsOf(fmt.Sprint(i)))
		}
		lose(t, r, m, claimsOf("0")) // one more of a token that is known
		after(15 * time.Second)
		for i := range 10001 {
			if got, want := m.uses(fmt.Sprint(i)), int32(i/10000); got != want {
				t.Fatalf("token %d has %d uses, want %d", i, got, want)
			}
		}
	})
}

func TestRedeem_TriesAgainOnlyWithoutAnAnswer(t *testing.T) {
	denied := reason.Deny(reason.Quarantined, "the machine")
	for name, c := range map[string]struct {
		change  func(m *memory, cancel func())
		want    string // of the error
		updates int
		uses    int32
		returns bool // in the background
	}{
		"a read that failed": {func(m *memory, _ func()) { m.read = func() error { return errNoAnswer } },
			"no answer", 1, 0, false},
		"a client that disconnects during the read": {func(m *memory, cancel func()) {
			m.read = func() error { cancel(); return nil }
		}, "the client disconnected", 1, 0, false},
		"a client that disconnects during the write": {func(m *memory, cancel func()) {
			m.apply = func() (bool, error) { cancel(); return true, nil }
		}, "the use was taken too late for the client", 1, 1, true},
		"a denial after a write without an answer": {func(m *memory, _ func()) {
			m.apply = func() (bool, error) {
				m.read = func() error { return denied }
				return true, errNoAnswer
			}
		}, "the machine", 2, 1, true},
		"no use left": {func(m *memory, _ func()) { m.records["one"].Status.Token.Uses = 3 },
			"was used 3 times", 1, 3, false},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				r, m, claims := inMemory()
				ctx, cancel := context.WithCancel(t.Context())
				defer cancel()
				use, err := r.Check(ctx, claims)
				if err != nil {
					t.Fatal(err)
				}
				c.change(m, cancel)
				err = use.Redeem(ctx, nil)
				if err == nil || !strings.Contains(err.Error(), c.want) {
					t.Errorf("got %v, want an error with %q", err, c.want)
				}
				if m.updated() != c.updates || m.uses("one") != c.uses {
					t.Errorf("%d updates, %d uses", m.updated(), m.uses("one"))
				}
				m.set(func() { m.read, m.apply = nil, nil })
				after(time.Minute)
				if got := m.updated() > c.updates; got != c.returns {
					t.Errorf("%d updates in the background", m.updated()-c.updates)
				}
			})
		})
	}
}

func TestCheck_DeniesAUsedUpTokenOnlyTemporarilyWhileRecordsFail(t *testing.T) {
	for name, c := range map[string]struct {
		failing bool
		uses    int32
		id      string
		want    reason.Code
	}{
		"used up":              {false, 3, "token-one", reason.TokenUsedUp},
		"used up, and failing": {true, 3, "token-one", reason.StoreUnavailable},
		"a use left":           {true, 2, "token-one", 0},
		"another token":        {true, 3, "token-two", reason.TokenSuperseded},
	} {
		r, m, claims := inMemory()
		r.Failing, claims.ID = func() bool { return c.failing }, c.id
		rec, _ := m.Record(t.Context(), "one")
		rec.Status.Token.Uses = c.uses
		if err := checked(t, r, claims); code(err) != c.want {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestCheck_ConfirmsOnlyPermanentDenials(t *testing.T) {
	stale := reason.Deny(reason.StoreUnavailable, "another read")
	for name, c := range map[string]struct {
		denial, stale error
		confirmed     bool
		want          reason.Code
	}{
		"redeemable":                        {nil, nil, false, 0},
		"a temporary denial":                {errNoAnswer, nil, false, reason.StoreUnavailable},
		"a Machine that may come later":     {reason.Deny(reason.MachineNotFound, "m"), stale, false, reason.MachineNotFound},
		"a denial that is confirmed":        {reason.Deny(reason.MachineJoined, "m"), nil, true, reason.MachineJoined},
		"a denial that cannot be confirmed": {reason.Deny(reason.MachineJoined, "m"), stale, true, reason.StoreUnavailable},
	} {
		r, _, claims := inMemory()
		r.Machines = func() redeem.Machines { return machines{c.denial} }
		confirmed := ""
		r.Confirm = func(_ context.Context, uid string) error { confirmed = uid; return c.stale }
		if err := checked(t, r, claims); code(err) != c.want {
			t.Errorf("%s: %v", name, err)
		}
		if (confirmed == "one") != c.confirmed {
			t.Errorf("%s: confirmed %q", name, confirmed)
		}
	}
}

func TestCheck_DeniesWithStateThatIsOutOfDate(t *testing.T) {
	r, _, claims := inMemory()
	var stale error
	r.Stale = func(uid string) error {
		if uid != "one" {
			t.Errorf("asked about %q", uid)
		}
		return stale
	}
	if err := checked(t, r, claims); err != nil {
		t.Errorf("up to date: %v", err)
	}
	stale = errors.New("a watch that is late")
	err := checked(t, r, claims)
	if code(err) != reason.StoreUnavailable || !strings.Contains(err.Error(), "the cached state is out of date") {
		t.Errorf("out of date: %v", err)
	}
}
