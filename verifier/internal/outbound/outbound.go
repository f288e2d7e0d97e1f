// Package outbound bounds what the verifier asks of a provider's API.
//
// A question is asked for a machine that is not believed yet. So that nobody can
// make the verifier a source of traffic, or use up the account's quota:
//
//   - the same question is under way once at a time, and all wait for its answer;
//   - an answer may be kept for a time that the question says, under its whole key;
//   - a no is kept for some seconds, so that it is not asked for again and again;
//   - all questions together have a budget by second. Beyond it a caller is told
//     to come again, and nothing is sent;
//   - each call has a deadline, and the answer of a call that its caller gave up
//     on still counts for the next.
//
// A key must name everything that the answer depends on, the account included:
// an answer under a shorter key is somebody else's (CVE-2025-11621).
package outbound

import (
	"cmp"
	"context"
	"errors"
	"log/slog"
	"sync"
	"time"

	"golang.org/x/sync/singleflight"
	"golang.org/x/time/rate"

	"github.com/mcs-attest/mcs-attest/pkg/reason"
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
}

// Caller asks one provider.
type Caller struct {
	provider string
	o        Options
	budget   *rate.Limiter
	flight   singleflight.Group

	mu   sync.Mutex
	kept map[string]answer
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
	o.PerSecond, o.Burst = cmp.Or(o.PerSecond, perSecond), cmp.Or(o.Burst, burst)
	return &Caller{provider: provider, o: o, budget: rate.NewLimiter(rate.Limit(o.PerSecond), o.Burst), kept: map[string]answer{}}
}

// Ask puts a question, unless its answer is known. Key names the question whole.
// A good answer is kept for keep; zero keeps none. An error of ask that is no
// denial of package reason becomes ProviderUnavailable, and its text is logged.
// Several callers may get one answer: what it points to must not be changed.
// Ask must return when its context ends.
func Ask[T any](ctx context.Context, c *Caller, operation, key string, keep time.Duration, ask func(context.Context) (T, error)) (T, error) {
	var none T
	key = operation + "\x00" + key
	if a, ok := c.known(key); ok {
		return as[T](a.value, a.err)
	}
	if ctx.Err() != nil { // nobody waits for it: nothing is sent
		return none, reason.Wrap(reason.ProviderUnavailable, context.Cause(ctx), "%s: %s", c.provider, operation)
	}
	result := c.flight.DoChan(key, func() (any, error) {
		// The answer may have come between the look above and this one's turn.
		if a, ok := c.known(key); ok {
			return a.value, a.err
		}
		if !c.budget.AllowN(c.o.Now(), 1) {
			return none, reason.Deny(reason.ProviderUnavailable, "%s: %s: the budget of calls is used up", c.provider, operation)
		}
		// Not the caller's context: others wait for this answer, too.
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), callTime)
		defer cancel()
		value, err := ask(ctx)
		return value, c.settle(operation, key, value, err, keep)
	})
	select {
	case <-ctx.Done():
		return none, reason.Wrap(reason.ProviderUnavailable, context.Cause(ctx), "%s: %s", c.provider, operation)
	case r := <-result:
		return as[T](r.Val, r.Err)
	}
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
