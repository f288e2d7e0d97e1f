// Package redeem takes a token's uses: it joins what the record says with what
// the Machine is now (DESIGN, section 19, rule 9). Without the record there is
// no redemption.
//
// The record may be slow to write, and the answer to a write may be lost. So each
// use has a random id on the record. A use whose request was not served is unserved:
// its write failed, was not answered, or came after the client left. The next
// request of the token returns the unserved uses that are on the record, in the
// write that takes its own. Without a next request the redeemer returns them by
// itself. A use that was served is never unserved, so no token serves more often
// than its record allows.
package redeem

import (
	"context"
	"crypto/rand"
	"log/slog"
	"time"

	"github.com/mcs-attest/mcs-attest/pkg/api/v1alpha1"
	"github.com/mcs-attest/mcs-attest/pkg/credential"
	"github.com/mcs-attest/mcs-attest/pkg/gate"
	"github.com/mcs-attest/mcs-attest/pkg/reason"
	"github.com/mcs-attest/mcs-attest/pkg/record"
	"github.com/mcs-attest/mcs-attest/pkg/token"
	"github.com/mcs-attest/mcs-attest/verifier/internal/store"
)

// Redeemer is the gate's view of the records. It is safe for concurrent use.
type Redeemer struct {
	Records Records
	// InTrouble, if set, reports whether the records were slow or silent a short time
	// ago. Then a token that is used up waits, since other replicas may return uses.
	InTrouble func() bool
	// Log receives what was returned; nil: nothing is logged.
	Log *slog.Logger
	// ReturnAfter is how long the redeemer leaves unserved uses to the token's next
	// request. Default 15 s.
	ReturnAfter time.Duration

	Machines func() Machines
	Now      func() time.Time
	// Stale, if set, says what has not been heard of for too long; then nothing is
	// redeemed. It may be nil.
	// It is asked for the Machine with this UID.
	Stale func(machineUID string) error
	// Confirm reads the Machine with this UID anew before it is told a final no
	// (DESIGN, section 19, rule 12). Its error is temporary. It may be nil.
	Confirm func(ctx context.Context, uid string) error

	unserved unserved
}

// Machines says what a Machine is now.
type Machines interface {
	Redeemable(uid, pool string, now time.Time) error
}

// Records is the store. Every error is a denial.
type Records interface {
	Session(uid string) store.Session
}

// maxReads bounds how often a request tries to find out whether it took a use.
const maxReads = 3

// redemption is what one request does with one token.
type redemption struct {
	*Redeemer
	claims token.Claims
	record store.Session
}

// Check returns the token's redemption, and an error if it could not be redeemed now.
// It takes no use. In order: the Machine is still one that may have the pool, and the
// record still has this token with a use left.
func (r *Redeemer) Check(ctx context.Context, c token.Claims) (gate.Redemption, error) {
	one := &redemption{r, c, r.Records.Session(c.MachineUID)}
	return one, one.check(ctx)
}

func (r *redemption) check(ctx context.Context) error {
	c := r.claims
	if record.IsBreakGlass(c.MachineUID) {
		return r.usedUp(r.record.Update(ctx, func(rec *v1alpha1.MachineAttestation) (*v1alpha1.MachineAttestation, error) {
			return record.BreakGlass(record.Return(rec, c.ID, r.unserved.of(c.ID)), c, false, r.Now())
		}))
	}
	if err := r.redeemable(ctx, c, r.Now()); err != nil {
		return err
	}
	rec, err := r.record.Record(ctx)
	if err != nil {
		return err
	}
	return r.usedUp(record.Redeemable(record.Return(rec, c.ID, r.unserved.of(c.ID)), c))
}

// Redeem takes one use, or says why not. The check and the change of the record
// are one step: fifty at the same time take no more uses than there are.
//
// Its calls end with ctx: a client that has left takes no use.
func (r *redemption) Redeem(ctx context.Context, own *credential.Credential) error {
	c, now := r.claims, r.Now()
	if !record.IsBreakGlass(c.MachineUID) {
		if err := r.redeemable(ctx, c, now); err != nil {
			return err
		}
	}
	id, tried := rand.Text(), false
	before := r.unserved.of(c.ID)
	take := func(rec *v1alpha1.MachineAttestation) (next *v1alpha1.MachineAttestation, err error) {
		// Whoever has gone while the record was read takes no use.
		if err := ctx.Err(); err != nil {
			return nil, reason.Wrap(reason.StoreUnavailable, err, "the client did not wait")
		}
		if record.HasUse(rec, c.ID, id) {
			return nil, nil // taken by a write that was not answered
		}
		rec = record.Return(rec, c.ID, before)
		if record.IsBreakGlass(c.MachineUID) {
			next, err = record.BreakGlass(rec, c, true, now)
		} else {
			next, err = record.Redeem(rec, c, own, now)
		}
		if err != nil {
			return nil, err
		}
		record.Used(next, id)
		tried = true
		return next, nil
	}
	var err error
	for range maxReads {
		err = r.record.Update(ctx, take)
		// Without an answer it is unknown whether the use was taken: read it back.
		if err == nil || !tried || ctx.Err() != nil || reason.From(err).Code != reason.StoreUnavailable {
			break
		}
	}
	if err == nil && ctx.Err() != nil {
		err = reason.Wrap(reason.StoreUnavailable, ctx.Err(), "the use was taken too late for the client")
	}
	if err == nil {
		// They are off the record, and no write that is still under way can put them
		// there: it names an older version.
		r.unserved.settle(c.ID, before)
		return nil
	}
	if tried {
		r.markUnserved(ctx, c, id)
	}
	return r.usedUp(err)
}

// usedUp makes a denial temporary that other replicas may be about to lift.
func (r *Redeemer) usedUp(err error) error {
	if err == nil || r.InTrouble == nil || reason.From(err).Code != reason.TokenUsedUp || !r.InTrouble() {
		return err
	}
	return reason.Wrap(reason.StoreUnavailable, err,
		"records were slow or silent a short time ago, and uses may be returned")
}

// redeemable judges what the Machine is now.
func (r *Redeemer) redeemable(ctx context.Context, c token.Claims, now time.Time) error {
	if r.Stale != nil {
		if err := r.Stale(c.MachineUID); err != nil {
			return reason.Wrap(reason.StoreUnavailable, err, "what is known is out of date")
		}
	}
	err := r.Machines().Redeemable(c.MachineUID, c.Pool, now)
	if err != nil && r.Confirm != nil && !reason.From(err).Code.Info().Temporary {
		if stale := r.Confirm(ctx, c.MachineUID); stale != nil {
			return stale
		}
	}
	return err
}
