// SPDX-License-Identifier: Apache-2.0

// Package redeem redeems tokens. It checks the record and the current state of the Machine, and takes
// one use of the token (rule 9 of docs/security-rules.md). Without the record, nothing is redeemed.
//
// A write of the record may be slow, and its answer may be lost. So each use has a random id on the
// record. A use is unserved if its request was not served: the write failed, was not answered, or ended
// after the client disconnected. The next request with the token returns the unserved uses on the
// record, in the write that takes its own use. Without a next request, the redeemer returns them in the
// background. A use that was served is never returned, so no token serves more often than its record
// allows. A restore of etcd may bring back uses that were served; the read or the write of the record shows
// it, see [store.ErrRestored].
package redeem

import (
	"context"
	"crypto/rand"
	"errors"
	"log/slog"
	"slices"
	"time"

	"github.com/mcs-attest/mcs-attest/pkg/api/v1alpha1"
	"github.com/mcs-attest/mcs-attest/pkg/credential"
	"github.com/mcs-attest/mcs-attest/pkg/gate"
	"github.com/mcs-attest/mcs-attest/pkg/reason"
	"github.com/mcs-attest/mcs-attest/pkg/record"
	"github.com/mcs-attest/mcs-attest/pkg/token"
	"github.com/mcs-attest/mcs-attest/verifier/internal/store"
)

// Redeemer gives the gate access to the records. It is safe for concurrent use.
type Redeemer struct {
	Records Records
	// Failing, if set, reports whether the records were recently slow or did not answer. Then a
	// used-up token is denied only temporarily, because other replicas may return uses.
	Failing func() bool
	// Log receives the uses that were returned. If nil, nothing is logged.
	Log *slog.Logger
	// ReturnAfter is the time before the redeemer returns unserved uses in the background. Default 15
	// s.
	ReturnAfter time.Duration

	Machines func() Machines
	Now      func() time.Time
	// Stale, if set, returns why the cached state of this Machine is out of date. Then nothing is
	// redeemed.
	Stale func(machineUID string) error
	// Confirm, if set, reads the Machine again before a permanent denial (rule 12 of
	// docs/security-rules.md). Its error is temporary.
	Confirm func(ctx context.Context, uid string) error

	unserved unserved
}

// Machines returns the current state of Machines.
type Machines interface {
	Redeemable(uid, pool string, now time.Time) error
}

// Records is the store. Every error is a denial.
type Records interface {
	Session(uid string) store.Session
}

// maxTries is the maximum number of tries of a request to take a use. Only a write without an answer is tried again.
const maxTries = 3

// redemption is the redemption of one token for one request.
type redemption struct {
	*Redeemer
	claims token.Claims
	record store.Session
}

// Check returns the redemption of a token, and an error if the token could not be redeemed now. It
// takes no use. It checks first that the Machine may still have the pool, and then that the record
// still has this token with a use left.
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
	if err := r.Redeemable(ctx, c.MachineUID, c.Pool); err != nil {
		return err
	}
	rec, err := r.record.Record(ctx)
	if err != nil {
		return err
	}
	return r.usedUp(record.Redeemable(record.Return(rec, c.ID, r.unserved.of(c.ID)), c))
}

// Redeem takes one use, or returns a denial. The check and the change of the record are atomic:
// concurrent requests take no more uses than there are.
//
// Its calls end with ctx, so a client that has disconnected takes no use.
func (r *redemption) Redeem(ctx context.Context, own *credential.Credential) error {
	c, now := r.claims, r.Now()
	if !record.IsBreakGlass(c.MachineUID) {
		if err := r.Redeemable(ctx, c.MachineUID, c.Pool); err != nil {
			return err
		}
	}
	before := r.unserved.of(c.ID)
	var taken []string // the ids of the uses that this request may have taken
	var err error
	for range maxTries {
		id, written := rand.Text(), false
		err = r.record.Update(ctx, func(rec *v1alpha1.MachineAttestation) (next *v1alpha1.MachineAttestation, err error) {
			// A client that disconnected during the read takes no use.
			if err := ctx.Err(); err != nil {
				return nil, reason.Wrap(reason.StoreUnavailable, err, "the client disconnected")
			}
			// The record may have this id already: the API client sends a write again that it believes to be lost.
			rec = record.Return(rec, c.ID, slices.Concat(before, taken, []string{id}))
			if next, err = r.take(rec, own, id, now); err == nil {
				written = true
			}
			return next, err
		})
		if written {
			taken = append(taken, id)
		}
		// Without an answer it is unknown whether the use was taken. The next try returns it and takes another one, because
		// only the answer to its write reliably tells whether etcd was restored.
		if err == nil || len(taken) == 0 || ctx.Err() != nil || errors.Is(err, store.ErrRestored) ||
			reason.From(err).Code != reason.StoreUnavailable {
			break
		}
	}
	if err == nil && ctx.Err() != nil {
		err = reason.Wrap(reason.StoreUnavailable, ctx.Err(), "the use was taken too late for the client")
	}
	if err == nil {
		// These uses are no longer on the record. No active write can add them again, because it names
		// an older version.
		r.unserved.remove(c.ID, before)
		return nil
	}
	for _, id := range taken {
		r.markUnserved(ctx, c, id)
	}
	return r.usedUp(err)
}

// take takes a use with an id.
func (r *redemption) take(rec *v1alpha1.MachineAttestation, own *credential.Credential, id string,
	now time.Time) (next *v1alpha1.MachineAttestation, err error) {
	if record.IsBreakGlass(r.claims.MachineUID) {
		next, err = record.BreakGlass(rec, r.claims, true, now)
	} else {
		next, err = record.Redeem(rec, r.claims, own, now)
	}
	if err != nil {
		return nil, err
	}
	record.Used(next, id)
	return next, nil
}

// usedUp makes a denial temporary if other replicas may soon return uses.
func (r *Redeemer) usedUp(err error) error {
	if err == nil || r.Failing == nil || reason.From(err).Code != reason.TokenUsedUp || !r.Failing() {
		return err
	}
	return reason.Wrap(reason.StoreUnavailable, err,
		"the records were recently slow or unavailable, and uses may be returned")
}

// Redeemable checks that the Machine may have a config of the pool now. It reads no record.
func (r *Redeemer) Redeemable(ctx context.Context, machineUID, pool string) error {
	if r.Stale != nil {
		if err := r.Stale(machineUID); err != nil {
			return reason.Wrap(reason.StoreUnavailable, err, "the cached state is out of date")
		}
	}
	err := r.Machines().Redeemable(machineUID, pool, r.Now())
	if err != nil && r.Confirm != nil && !reason.From(err).Code.Info().Temporary {
		if stale := r.Confirm(ctx, machineUID); stale != nil {
			return stale
		}
	}
	return err
}
