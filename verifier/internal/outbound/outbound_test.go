// SPDX-License-Identifier: Apache-2.0

package outbound_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/mcs-attest/mcs-attest/pkg/reason"
	"github.com/mcs-attest/mcs-attest/verifier/internal/outbound"
)

// peer counts how often it is asked, and answers with that number.
type peer struct {
	mu    sync.Mutex
	calls int
	err   error
	delay time.Duration
}

func (p *peer) ask(ctx context.Context) (int, error) {
	p.mu.Lock()
	p.calls++
	n, err, delay := p.calls, p.err, p.delay
	p.mu.Unlock()
	select {
	case <-time.After(delay):
		return n, err
	case <-ctx.Done():
		return 0, ctx.Err()
	}
}

func (p *peer) set(err error, delay time.Duration) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.err, p.delay = err, delay
}

func (p *peer) called(t *testing.T, want int) {
	t.Helper()
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.calls != want {
		t.Errorf("%d calls, want %d", p.calls, want)
	}
}

// get is one question.
func get(t *testing.T, c *outbound.Caller, p *peer, key string, keep time.Duration) (int, error) {
	t.Helper()
	return outbound.Ask(t.Context(), c, "Describe", key, keep, p.ask)
}

func denied(t *testing.T, err error, want reason.Code) {
	t.Helper()
	if d := reason.From(err); d == nil || d.Code != want {
		t.Errorf("got %v, want %v", err, want)
	}
}

func TestGoodAnswer_IsCachedForTheTimeOfTheQuestion(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, p := outbound.New("cloud", outbound.Options{}), &peer{}
		for range 3 {
			if n, err := get(t, c, p, "k", time.Minute); n != 1 || err != nil {
				t.Fatal(n, err)
			}
		}
		time.Sleep(time.Minute)
		if n, err := get(t, c, p, "k", time.Minute); n != 2 || err != nil {
			t.Fatal(n, err)
		}
		// With zero, none is.
		for range 3 {
			get(t, c, p, "other", 0)
		}
		p.called(t, 5)
	})
}

func TestAsk_ComparesTheWholeKey(t *testing.T) {
	c, p := outbound.New("cloud", outbound.Options{}), &peer{}
	keys := []string{"", "a", "b", "a\x00b", "ab", "a\x00", "A", " a"}
	for _, key := range keys {
		get(t, c, p, key, time.Hour)
	}
	// The operation is part of it, and its end is no matter of chance.
	for _, q := range [][2]string{{"Describe2", "a"}, {"Describ", "ea"}, {"Describe\x00", "a"}} {
		outbound.Ask(t.Context(), c, q[0], q[1], time.Hour, p.ask)
	}
	p.called(t, len(keys)+3)
	// And callers of two providers know nothing of each other.
	get(t, outbound.New("cloud", outbound.Options{}), p, "a", time.Hour)
	p.called(t, len(keys)+4)
}

func TestAsk_SharesOneCallAmongEqualQuestions(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, p := outbound.New("cloud", outbound.Options{}), &peer{delay: time.Second}
		var wg sync.WaitGroup
		for range 500 {
			wg.Go(func() {
				if n, err := get(t, c, p, "k", 0); n != 1 || err != nil {
					t.Error(n, err)
				}
			})
		}
		wg.Wait()
		p.called(t, 1)
		get(t, c, p, "k", 0)
		p.called(t, 2)
	})
}

func TestCallerThatGivesUpAffectsNoOther(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, p := outbound.New("cloud", outbound.Options{}), &peer{delay: 3 * time.Second}
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		var wg sync.WaitGroup
		wg.Go(func() {
			start := time.Now()
			_, err := outbound.Ask(ctx, c, "Describe", "k", time.Minute, p.ask)
			denied(t, err, reason.ProviderUnavailable)
			// It makes the call, so it sees it to its end.
			if !errors.Is(err, context.DeadlineExceeded) || time.Since(start) != 3*time.Second {
				t.Error(err, time.Since(start))
			}
		})
		synctest.Wait() // that one asked first
		wg.Go(func() {
			start := time.Now()
			_, err := outbound.Ask(ctx, c, "Describe", "k", time.Minute, p.ask)
			denied(t, err, reason.ProviderUnavailable)
			if !errors.Is(err, context.DeadlineExceeded) || time.Since(start) != time.Second {
				t.Error("one that waits for another's call: ", err, time.Since(start))
			}
		})
		if n, err := get(t, c, p, "k", time.Minute); n != 1 || err != nil {
			t.Error(n, err)
		}
		wg.Wait()
		// The answer was cached for the next caller.
		if n, err := get(t, c, p, "k", time.Minute); n != 1 || err != nil {
			t.Error(n, err)
		}
		p.called(t, 1)
	})
}

func TestNothingIsSentForACallerThatDisconnected(t *testing.T) {
	c, p := outbound.New("cloud", outbound.Options{}), &peer{}
	ctx, cancel := context.WithCancelCause(t.Context())
	cancel(errors.New("hung up"))
	_, err := outbound.Ask(ctx, c, "Describe", "k", 0, p.ask)
	denied(t, err, reason.ProviderUnavailable)
	if !strings.Contains(err.Error(), "hung up") {
		t.Error(err)
	}
	p.called(t, 0)
}

func TestEachCallHasADeadline(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, p := outbound.New("cloud", outbound.Options{}), &peer{delay: time.Hour}
		start := time.Now()
		_, err := get(t, c, p, "k", 0)
		denied(t, err, reason.ProviderUnavailable)
		if d := time.Since(start); d != 10*time.Second {
			t.Errorf("after %s", d)
		}
	})
}

func TestDenial_IsCachedForSeconds(t *testing.T) {
	for name, c := range map[string]struct {
		err  error
		want reason.Code
		keep time.Duration
	}{
		"final":     {reason.Deny(reason.InstanceUnacceptable, "two"), reason.InstanceUnacceptable, 10 * time.Second},
		"not yet":   {reason.Deny(reason.InstanceNotFound, "none"), reason.InstanceNotFound, time.Second},
		"a failure": {errors.New("connection reset"), reason.ProviderUnavailable, time.Second},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				caller, p := outbound.New("cloud", outbound.Options{}), &peer{err: c.err}
				for range 5 {
					n, err := get(t, caller, p, "k", time.Hour)
					denied(t, err, c.want)
					if n != 0 {
						t.Errorf("an answer beside the error: %d", n)
					}
				}
				p.called(t, 1)
				// It is no answer to another question.
				p.set(nil, 0)
				if _, err := get(t, caller, p, "other", 0); err != nil {
					t.Error(err)
				}
				time.Sleep(c.keep - 1)
				_, err := get(t, caller, p, "k", time.Hour)
				denied(t, err, c.want)
				time.Sleep(time.Nanosecond)
				if _, err := get(t, caller, p, "k", time.Hour); err != nil {
					t.Errorf("after %s: %v", c.keep, err)
				}
			})
		})
	}
}

func TestAllCalls_HaveABudget(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, p := outbound.New("cloud", outbound.Options{PerSecond: 2, Burst: 10}), &peer{}
		refused := 0
		for n := range 100 {
			if _, err := get(t, c, p, fmt.Sprint(n), time.Minute); err != nil {
				denied(t, err, reason.ProviderUnavailable)
				refused++
			}
		}
		if refused != 90 {
			t.Errorf("%d refused", refused)
		}
		p.called(t, 10)
		// A cached answer costs nothing, and a refusal is not cached.
		if n, err := get(t, c, p, "3", time.Minute); n != 4 || err != nil {
			t.Error(n, err)
		}
		time.Sleep(time.Second)
		for _, key := range []string{"50", "51"} {
			if _, err := get(t, c, p, key, time.Minute); err != nil {
				t.Error(err)
			}
		}
		_, err := get(t, c, p, "52", time.Minute)
		denied(t, err, reason.ProviderUnavailable)
		p.called(t, 12)
	})
}

func TestAsk_ReportsThatItsCallerWaits(t *testing.T) {
	c, waits := outbound.New("cloud", outbound.Options{}), 0
	ctx := outbound.For(t.Context(), netip.MustParseAddr("192.0.2.1"), func() { waits++ })
	for range 2 {
		_, err := outbound.Ask(ctx, c, "Describe", "key", time.Minute, func(context.Context) (int, error) {
			if waits != 1 {
				t.Errorf("the caller was notified %d times before the call", waits)
			}
			return 1, nil
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	if waits != 1 {
		t.Errorf("%d waits for one call and one answer that is known", waits)
	}
}

// One that presents copies of others' documents, each of which costs a call.
func TestAttack_T51_ASourceThatFloodsUsesOnlyItsOwnShare(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, p := outbound.New("cloud", outbound.Options{}), &peer{}
		flood, honest := netip.MustParseAddr("192.0.2.1"), netip.MustParseAddr("2001:db8::")
		from := func(source netip.Addr, key string) error {
			_, err := outbound.Ask(outbound.For(t.Context(), source, func() {}), c, "Describe", key, time.Minute, p.ask)
			return err
		}
		if err := from(honest, "honest"); err != nil {
			t.Fatal(err)
		}
		refused := 0
		for n := range 1000 {
			if err := from(flood, fmt.Sprint(n)); err != nil {
				denied(t, err, reason.ProviderUnavailable)
				if !strings.Contains(err.Error(), "source 192.0.2.1") {
					t.Error(err)
				}
				refused++
			}
		}
		if refused != 950 {
			t.Errorf("%d refused", refused)
		}
		p.called(t, 1+50)
		// The others have theirs, and so have questions that no machine causes.
		for n := range 20 {
			if err := from(honest, fmt.Sprint("honest", n)); err != nil {
				t.Error(err)
			}
		}
		if _, err := get(t, c, p, "own", 0); err != nil {
			t.Error(err)
		}
		// A cached answer costs a source nothing. A refusal of its own is not cached, and
		// affects no other caller.
		if err := from(flood, "honest"); err != nil {
			t.Error(err)
		}
		if err := from(honest, "999"); err != nil {
			t.Error(err)
		}
		// For as long as the flood lasts, it is five calls a second.
		for range 10 {
			time.Sleep(time.Second)
			passed := 0
			for n := range 100 {
				if from(flood, fmt.Sprint(time.Now(), n)) == nil {
					passed++
				}
			}
			if passed != 5 {
				t.Errorf("%d calls in a second", passed)
			}
		}
	})
}

// An administrator who raises the share of one address, because many machines have it, leaves half of all to others.
func TestAttack_T51_ALargeShareLeavesHalfToOthers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, p := outbound.New("cloud", outbound.Options{PerSource: 50}), &peer{}
		from := func(source, key string) error {
			ctx := outbound.For(t.Context(), netip.MustParseAddr(source), func() {})
			_, err := outbound.Ask(ctx, c, "Describe", key, time.Minute, p.ask)
			return err
		}
		for second := range 60 {
			for n := range 100 {
				_ = from("192.0.2.1", fmt.Sprint(second, n)) // as much as it may
			}
			if err := from("192.0.2.2", fmt.Sprint("honest", second)); err != nil {
				t.Fatalf("second %d: %v", second, err)
			}
			time.Sleep(time.Second)
		}
	})
}

// A source without a budget may still wait for another's call, and its denial
// does not deny other callers with the same question.
func TestDenialOfOneSource_DoesNotAffectAnother(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, p := outbound.New("cloud", outbound.Options{PerSource: 0.1}), &peer{delay: time.Second}
		one, two := outbound.For(t.Context(), netip.MustParseAddr("192.0.2.1"), func() {}),
			outbound.For(t.Context(), netip.MustParseAddr("192.0.2.2"), func() {})
		if _, err := outbound.Ask(one, c, "Describe", "a", 0, p.ask); err != nil {
			t.Fatal(err)
		}
		_, err := outbound.Ask(one, c, "Describe", "b", time.Minute, p.ask)
		denied(t, err, reason.ProviderUnavailable)
		var wg sync.WaitGroup
		for _, ctx := range []context.Context{two, one} {
			wg.Go(func() {
				if n, err := outbound.Ask(ctx, c, "Describe", "b", time.Minute, p.ask); n != 2 || err != nil {
					t.Error(n, err)
				}
			})
			synctest.Wait()
		}
		wg.Wait()
		p.called(t, 2)
	})
}

// A panic in a client ends the request that it is in: net/http catches it there.
// In another goroutine it would end the process.
func TestPanic_EndsOnlyTheRequestOfItsCaller(t *testing.T) {
	c := outbound.New("cloud", outbound.Options{})
	asked, release := make(chan struct{}), make(chan struct{})
	server := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_, err := outbound.Ask(r.Context(), c, "Describe", "k", time.Hour, func(context.Context) (int, error) {
			close(asked)
			<-release
			var none *http.Request
			return len(none.Method), nil
		})
		t.Errorf("it went on: %v", err)
	}))
	server.Config.ErrorLog = slog.NewLogLogger(slog.DiscardHandler, slog.LevelError)
	server.Start()
	defer server.Close()
	var wg sync.WaitGroup
	wg.Go(func() {
		if res, err := http.Get(server.URL); err == nil {
			res.Body.Close()
			t.Errorf("answered %s", res.Status)
		}
	})
	<-asked
	// Another waits for the same answer.
	ctx := &waiting{Context: t.Context(), waits: make(chan struct{})}
	wg.Go(func() {
		_, err := outbound.Ask(ctx, c, "Describe", "k", time.Hour,
			func(context.Context) (int, error) { return 0, errors.New("it asked itself") })
		denied(t, err, reason.ProviderUnavailable)
		if !strings.Contains(err.Error(), "was aborted") {
			t.Error(err)
		}
	})
	<-ctx.waits
	close(release)
	wg.Wait()
	// The next caller asks again: nothing was cached, and nothing hangs.
	if n, err := get(t, c, &peer{}, "k", time.Hour); n != 1 || err != nil {
		t.Error(n, err)
	}
}

// waiting reports when another caller starts to wait.
type waiting struct {
	context.Context
	once  sync.Once
	waits chan struct{}
}

func (w *waiting) Done() <-chan struct{} {
	w.once.Do(func() { close(w.waits) })
	return w.Context.Done()
}

func TestNew_ZeroOptionsAllowCalls(t *testing.T) {
	for name, o := range map[string]outbound.Options{"zero": {}, "only a rate": {PerSecond: 1},
		"only a burst": {Burst: 1}, "only a source's share": {PerSource: 0.001}} {
		if _, err := get(t, outbound.New("cloud", o), &peer{}, "k", 0); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestAsk_LogsFailuresAndCountsDenials(t *testing.T) {
	synctest.Test(t, func(t *testing.T) { // a temporary failure is kept for a second
		var log bytes.Buffer
		counted := map[string]int{}
		c := outbound.New("cloud", outbound.Options{
			Log:    slog.New(slog.NewTextHandler(&log, nil)),
			Called: func(provider, operation, outcome string) { counted[provider+" "+operation+" "+outcome]++ },
		})
		for key, err := range map[string]error{"a": nil, "b": errors.New("connection reset"),
			"c": reason.Deny(reason.InstanceNotFound, "none"),
			"d": fmt.Errorf("wrapped: %w", reason.Deny(reason.InstanceUnacceptable, "two")),
			"e": reason.Deny(reason.ProviderUnavailable, "says so")} {
			get(t, c, &peer{err: err}, key, time.Hour)
			get(t, c, &peer{err: err}, key, time.Hour) // kept: not counted again
		}
		if counted["cloud Describe ok"] != 1 || counted["cloud Describe denied"] != 2 ||
			counted["cloud Describe error"] != 2 || len(counted) != 3 {
			t.Errorf("%v", counted)
		}
		if n := strings.Count(log.String(), "a provider's API failed"); n != 1 ||
			!strings.Contains(log.String(), "connection reset") {
			t.Errorf("%s", &log)
		}
	})
}

// An answer of another type would be an empty one that looks good.
func TestTwoQuestionsWithOneKeyAreNoAnswer(t *testing.T) {
	c, p := outbound.New("cloud", outbound.Options{}), &peer{}
	if _, err := get(t, c, p, "k", time.Hour); err != nil {
		t.Fatal(err)
	}
	s, err := outbound.Ask(t.Context(), c, "Describe", "k", time.Hour,
		func(context.Context) (string, error) { return "x", nil })
	if s != "" {
		t.Errorf("%q", s)
	}
	denied(t, err, reason.Internal)
}

func TestMemoryIsBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, p := outbound.New("cloud", outbound.Options{PerSecond: 1e9, Burst: 1e9}), &peer{}
		most := 0
		for n := range 35_000 {
			get(t, c, p, fmt.Sprint(n), time.Hour)
			if n%1000 == 999 {
				most = max(most, c.Kept())
			}
		}
		if most > 10_000 {
			t.Errorf("%d answers kept", most)
		}
		// What has ended goes first.
		time.Sleep(time.Hour)
		for n := range 10_000 {
			get(t, c, p, fmt.Sprint("new", n), time.Hour)
		}
		p.called(t, 45_000)
		for n := range 10_000 {
			get(t, c, p, fmt.Sprint("new", n), time.Hour)
		}
		p.called(t, 45_000)
	})
}
