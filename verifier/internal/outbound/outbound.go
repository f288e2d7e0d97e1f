// SPDX-License-Identifier: Apache-2.0

// Package outbound limits the calls of the verifier to a provider's API.
//
// The caller of such a call is a machine that has proven nothing yet. No client must be able to make
// the verifier a source of traffic, or use up the account's quota. So:
//
//   - the same question is asked once at a time, and all callers wait for its answer;
//   - an answer may be cached for a time that the question specifies, under its full key;
//   - a denial is cached for some seconds, so that it is not requested repeatedly;
//   - the questions of one source address have a budget per second (see For), so that a source that
//     floods uses only a part of the total;
//   - all questions together have a budget per second. If a budget is used up, the caller gets a
//     temporary denial, and nothing is sent;
//   - each call has a deadline. If its caller gives up, the answer is still used for the next caller.
//
// A call runs in the goroutine of the first caller, which waits until the call ends, at the latest at
// its deadline. So a panic in the client of an API ends that caller's request, as in net/http, and not
// the process. Other callers that wait for the answer get a temporary denial. They may stop waiting at
// any time.
//
// A caller that waits for another's call uses no budget, and is never denied because of the other: both
// budgets are checked before a call can be joined.
//
// A key must contain everything on which the answer depends, including the account. With a shorter key,
// a caller could receive the answer for another one (CVE-2025-11621).
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
	"k8s.io/apimachinery/pkg/util/cache"

	"github.com/mcs-attest/mcs-attest/pkg/reason"
	"github.com/mcs-attest/mcs-attest/verifier/internal/listen"
)

const (
	// callTime is the timeout of a call. The caller's Attest has about 30 seconds in total.
	callTime = 10 * time.Second
	// The time for which a denial is cached: a temporary one, and a permanent one.
	keepTemporary = time.Second
	keepFinal     = 10 * time.Second
	// maxKept is the maximum number of cached answers. Above it, the least recently used one is deleted.
	maxKept = 10_000
	// The budget of one provider. A cluster that grows by 500 machines at one time needs less.
	perSecond = 20
	burst     = 100
	// The budget of one source: a quarter of the total, and a burst of ten seconds.
	perSource   = 5
	sourceBurst = 10 // times perSource
)

// Options are shared by all callers. The zero value is valid.
type Options struct {
	Now func() time.Time
	Log *slog.Logger
	// Called, if set, receives each call that was sent, with provider, operation and outcome ("ok",
	// "denied", "error").
	Called func(provider, operation, outcome string)
	// PerSecond and Burst are the budget. Zero selects the default.
	PerSecond float64
	Burst     int
	// PerSource is the budget of each source per second. The burst is ten times that. Neither is more than half of the
	// budget of all, so that one source leaves the other half to others. Zero selects the default.
	PerSource float64
}

type callerKey struct{}

// caller is the client for which a question is asked.
type caller struct {
	source netip.Addr
	waits  func()
}

// For assigns the questions of ctx to a client of that address. Without a source, only the total budget
// applies. Ask calls waits before it waits for an answer, so that a caller can release a scarce
// resource.
func For(ctx context.Context, source netip.Addr, waits func()) context.Context {
	return context.WithValue(ctx, callerKey{}, caller{source, waits})
}

// Caller sends questions to one provider.
type Caller struct {
	provider string
	o        Options
	budget   *rate.Limiter
	sources  *listen.Limiter

	mu     sync.Mutex
	kept   *cache.LRUExpireCache // of answers
	flight map[string]*flight
}

// flight is an active call. The answer is valid after done is closed.
type flight struct {
	done   chan struct{}
	answer answer
}

type answer struct {
	value any
	err   error
}

type clock func() time.Time

func (c clock) Now() time.Time { return c() }

// New returns a caller for a provider.
func New(provider string, o Options) *Caller {
	if o.Now == nil {
		o.Now = time.Now
	}
	o.Log = cmp.Or(o.Log, slog.New(slog.DiscardHandler))
	o.PerSecond, o.Burst = cmp.Or(o.PerSecond, perSecond), cmp.Or(o.Burst, burst)
	o.PerSource = min(cmp.Or(o.PerSource, perSource), o.PerSecond/2)
	return &Caller{
		provider: provider, o: o,
		budget:  rate.NewLimiter(rate.Limit(o.PerSecond), o.Burst),
		sources: listen.NewLimiterWithBurst(o.PerSource, max(min(int(sourceBurst*o.PerSource), o.Burst/2), 1)),
		kept:    cache.NewLRUExpireCacheWithClock(maxKept, clock(o.Now)), flight: map[string]*flight{},
	}
}

// Ask asks a question, unless its answer is cached. key identifies the question completely. A good
// answer is cached for keep; zero means not at all. If ask returns an error that is not a denial of
// package reason, the result is ProviderUnavailable, and the text is logged. Several callers may
// receive the same answer, so they must not change what it points to. ask must return when its context
// ends.
func Ask[T any](ctx context.Context, c *Caller, operation, key string, keep time.Duration,
	ask func(context.Context) (T, error)) (T, error) {
	var none T
	key = operation + "\x00" + key
	if kept, ok := c.kept.Get(key); ok {
		a := kept.(answer)
		return convert[T](a.value, a.err)
	}
	gone := func() error {
		return reason.Wrap(reason.ProviderUnavailable, context.Cause(ctx), "%s: %s", c.provider, operation)
	}
	if ctx.Err() != nil { // no caller waits for it, so nothing is sent
		return none, gone()
	}
	f, mine, err := c.join(ctx, operation, key)
	if err != nil {
		return none, err
	}
	if of, ok := ctx.Value(callerKey{}).(caller); ok {
		of.waits()
	}
	if mine {
		c.run(ctx, f, operation, key, keep, func(ctx context.Context) (any, error) { return ask(ctx) })
		if ctx.Err() != nil { // other callers use the answer
			return none, gone()
		}
		return convert[T](f.answer.value, f.answer.err)
	}
	select {
	case <-ctx.Done():
		return none, gone()
	case <-f.done:
	}
	return convert[T](f.answer.value, f.answer.err)
}

// join returns the call to wait for: an active one, or a new one if the budgets allow it. The caller
// must make a new one (mine).
func (c *Caller) join(ctx context.Context, operation, key string) (_ *flight, mine bool, _ error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	now := c.o.Now()
	if f, ok := c.flight[key]; ok {
		return f, false, nil
	}
	// The answer may have arrived since the caller checked the cache.
	if kept, ok := c.kept.Get(key); ok {
		f := &flight{done: make(chan struct{}), answer: kept.(answer)}
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

// run makes a call, and completes it even after a panic.
func (c *Caller) run(ctx context.Context, f *flight, operation, key string, keep time.Duration,
	ask func(context.Context) (any, error)) {
	f.answer.err = reason.Deny(reason.ProviderUnavailable, "%s: %s: the call was aborted", c.provider, operation)
	defer func() {
		c.mu.Lock()
		defer c.mu.Unlock()
		delete(c.flight, key)
		close(f.done)
	}()
	// The call does not end with the caller's context, because other callers wait for this answer.
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), callTime)
	defer cancel()
	value, err := ask(ctx)
	err = c.finish(operation, key, value, err, keep)
	f.answer = answer{value: value, err: err}
}

// convert converts an answer to its type. An answer of another type means that two questions have the same
// key. It must not be returned as an empty answer.
func convert[T any](answer any, err error) (T, error) {
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

// finish turns an error into a denial, updates the metrics, and caches the answer if allowed.
func (c *Caller) finish(operation, key string, value any, err error, keep time.Duration) error {
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
	if keep > 0 {
		c.kept.Add(key, answer{value, err}, keep-1) // an entry is valid up to and at its end
	}
	return err
}
