// Package outbound bounds what the verifier asks of a provider's API.
//
// A question is asked for a machine that is not believed yet. So that nobody can
// make the verifier a source of traffic, or use up the account's quota:
//
//   - the same question is under way once at a time, and all wait for its answer;
//   - an answer may be kept for a time that the question says, under its whole key;
//   - a no is kept for some seconds, so that it is not asked for again and again;
//   - the questions that one source address causes have a budget by second (For),
//     so that one that floods takes a part of all, and the rest is for the others;
//   - all questions together have a budget by second. Beyond it, or beyond its own,
//     a caller is told to come again, and nothing is sent;
//   - each call has a deadline, and the answer of a call that its caller gave up
//     on still counts for the next.
//
// A call is made in the goroutine of the caller that asked first, who stays until it
// ends, at the latest at its deadline. So a panic in a client of an API ends that
// caller's request, as net/http has it, and not the process; whoever waited for the
// answer as well is told to come again. The others leave when they like to.
//
// Who waits for another's call pays nothing, and is refused nothing for the other's
// sake: both budgets are asked before a call can be waited for.
//
// A key must name everything that the answer depends on, the account included:
// an answer under a shorter key is somebody else's (CVE-2025-11621).
package outbound

import (
	"cmp"
	"context"
	"errors"
	"log/slog"
	"net/netip"
	"sync"
	"time"

	"golang.org/x/time/rate"

	"github.com/mcs-attest/mcs-attest/pkg/reason"
	"github.com/mcs-attest/mcs-attest/verifier/internal/listen"
)

const (
	// callTime bounds one call; the caller's Attest has some 30 seconds in all.
	callTime = 10 * time.Second
	// A no is kept: one that may change soon, or one that is the answer.
	keepTemporary = time.Second
	keepFinal     = 10 * time.Second
	// maxKept bounds the memory for answers; beyond it the oldest half goes.
	maxKept = 10_000
	// The budget of one provider: more than a cluster that grows by 500 at once needs.
	perSecond = 20
	burst     = 100
	// The budget of one source: a quarter of that, and a burst of ten seconds.
	perSource   = 5
	sourceBurst = 10 // times perSource
)

// Options are what every caller shares. The zero value works.
type Options struct {
	Now func() time.Time
	Log *slog.Logger
	// Called counts each call that was sent, by provider, operation and outcome
	// ("ok", "denied", "error").
	Called func(provider, operation, outcome string)
	// PerSecond and Burst are the budget; zero is the default.
	PerSecond float64
	Burst     int
	// PerSource is what each source may have of it by second, and ten times that at
	// once; zero is the default.
	PerSource float64
}

type callerKey struct{}

// caller is for whom a question is asked.
type caller struct {
	source netip.Addr
	waits  func()
}

// For marks the questions of ctx as asked for a caller of that address. Without a
// source they have the budget of all alone. Ask calls waits before it waits for an
// answer; a caller that holds something scarce releases it there.
func For(ctx context.Context, source netip.Addr, waits func()) context.Context {
	return context.WithValue(ctx, callerKey{}, caller{source, waits})
}

// Caller asks one provider.
type Caller struct {
	provider string
	o        Options
	budget   *rate.Limiter
	sources  *listen.Limiter

	mu     sync.Mutex
	kept   map[string]answer
	flight map[string]*flight
}

// flight is a call that is under way. The answer is there when done is closed.
type flight struct {
	done   chan struct{}
	answer answer
}

type answer struct {
	value any
	err   error
	until time.Time
}

// New makes a caller for a provider.
func New(provider string, o Options) *Caller {
	if o.Now == nil {
		o.Now = time.Now
	}
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	o.PerSecond, o.Burst, o.PerSource = cmp.Or(o.PerSecond, perSecond), cmp.Or(o.Burst, burst),
		cmp.Or(o.PerSource, perSource)
	return &Caller{
		provider: provider, o: o,
		budget:  rate.NewLimiter(rate.Limit(o.PerSecond), o.Burst),
		sources: listen.NewLimiterWithBurst(o.PerSource, max(int(sourceBurst*o.PerSource), 1)),
		kept:    map[string]answer{}, flight: map[string]*flight{},
	}
}

// Ask puts a question, unless its answer is known. Key names the question whole.
// A good answer is kept for keep; zero keeps none. An error of ask that is no
// denial of package reason becomes ProviderUnavailable, and its text is logged.
// Several callers may get one answer: what it points to must not be changed.
// Ask must return when its context ends.
func Ask[T any](ctx context.Context, c *Caller, operation, key string, keep time.Duration,
	ask func(context.Context) (T, error)) (T, error) {
	var none T
	key = operation + "\x00" + key
	if a, ok := c.known(key); ok {
		return as[T](a.value, a.err)
	}
	gone := func() error {
		return reason.Wrap(reason.ProviderUnavailable, context.Cause(ctx), "%s: %s", c.provider, operation)
	}
	if ctx.Err() != nil { // nobody waits for it: nothing is sent
		return none, gone()
	}
	f, mine, err := c.board(ctx, operation, key)
	if err != nil {
		return none, err
	}
	if of, ok := ctx.Value(callerKey{}).(caller); ok {
		of.waits()
	}
	if mine {
		c.fly(ctx, f, operation, key, keep, func(ctx context.Context) (any, error) { return ask(ctx) })
		if ctx.Err() != nil { // the answer is for the others
			return none, gone()
		}
		return as[T](f.answer.value, f.answer.err)
	}
	select {
	case <-ctx.Done():
		return none, gone()
	case <-f.done:
	}
	return as[T](f.answer.value, f.answer.err)
}

// board finds the call that is to be waited for: one that is under way, or else a
// new one, which the caller has to make, if the budgets allow it.
func (c *Caller) board(ctx context.Context, operation, key string) (_ *flight, mine bool, _ error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	now := c.o.Now()
	if f, ok := c.flight[key]; ok {
		return f, false, nil
	}
	// The answer may have come since the caller looked for it.
	if a, ok := c.kept[key]; ok && now.Before(a.until) {
		f := &flight{done: make(chan struct{}), answer: a}
		close(f.done)
		return f, false, nil
	}
	if of, ok := ctx.Value(callerKey{}).(caller); ok && !c.sources.Allow(now, of.source) {
		return nil, false, reason.Deny(reason.ProviderUnavailable, "%s: %s: source %s has used up its budget of calls",
			c.provider, operation, of.source)
	}
	if !c.budget.AllowN(now, 1) {
		return nil, false, reason.Deny(reason.ProviderUnavailable, "%s: %s: the budget of calls is used up", c.provider,
			operation)
	}
	f := &flight{done: make(chan struct{})}
	c.flight[key] = f
	return f, true, nil
}

// fly makes a call, and lands it whatever happens in it.
func (c *Caller) fly(ctx context.Context, f *flight, operation, key string, keep time.Duration,
	ask func(context.Context) (any, error)) {
	f.answer.err = reason.Deny(reason.ProviderUnavailable, "%s: %s: the call broke off", c.provider, operation)
	defer func() {
		c.mu.Lock()
		defer c.mu.Unlock()
		delete(c.flight, key)
		close(f.done)
	}()
	// Not the caller's context: others wait for this answer, too.
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), callTime)
	defer cancel()
	value, err := ask(ctx)
	err = c.settle(operation, key, value, err, keep)
	f.answer = answer{value: value, err: err}
}

// as gives an answer its type. One of another type is of another question under
// the same key, which must not pass for an empty answer.
func as[T any](answer any, err error) (T, error) {
	value, ok := answer.(T)
	if err == nil && !ok {
		err = reason.Deny(reason.Internal, "two questions with one key: %T and %T", answer, value)
	}
	if err != nil {
		var none T
		return none, err
	}
	return value, nil
}

// settle turns an error into a denial, counts, and keeps what may be kept.
func (c *Caller) settle(operation, key string, value any, err error, keep time.Duration) error {
	outcome := "ok"
	if err != nil {
		outcome = "denied"
		var d *reason.Denial
		if !errors.As(err, &d) {
			c.o.Log.Warn("a provider's API failed", "provider", c.provider, "operation", operation, "error", err)
			err = reason.Wrap(reason.ProviderUnavailable, err, "%s: %s", c.provider, operation)
		}
		if d := reason.From(err); d.Code == reason.ProviderUnavailable {
			outcome = "error"
		}
		keep = keepFinal
		if reason.From(err).Code.Info().Temporary {
			keep = keepTemporary
		}
		value = nil
	}
	if c.o.Called != nil {
		c.o.Called(c.provider, operation, outcome)
	}
	if keep <= 0 {
		return err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	now := c.o.Now()
	if len(c.kept) >= maxKept {
		c.shrink(now)
	}
	c.kept[key] = answer{value: value, err: err, until: now.Add(keep)}
	return err
}

func (c *Caller) known(key string) (answer, bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	a, ok := c.kept[key]
	if ok && !c.o.Now().Before(a.until) {
		delete(c.kept, key)
		return answer{}, false
	}
	return a, ok
}

// shrink makes room: what has ended, and, if that is not half, any of the rest.
// Losing an answer costs a call, nothing else.
func (c *Caller) shrink(now time.Time) {
	for key, a := range c.kept {
		if !now.Before(a.until) {
			delete(c.kept, key)
		}
	}
	for key := range c.kept {
		if len(c.kept) <= maxKept/2 {
			return
		}
		delete(c.kept, key)
	}
}
