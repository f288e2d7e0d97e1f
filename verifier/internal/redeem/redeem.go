// Package redeem takes a token's uses: it joins what the record says with what
// the Machine is now (DESIGN, section 19, rule 9). Without the record there is
// no redemption.
package redeem

import (
	"context"
	"time"

	"github.com/mcs-attest/mcs-attest/pkg/api/v1alpha1"
	"github.com/mcs-attest/mcs-attest/pkg/credential"
	"github.com/mcs-attest/mcs-attest/pkg/reason"
	"github.com/mcs-attest/mcs-attest/pkg/record"
	"github.com/mcs-attest/mcs-attest/pkg/token"
	"github.com/mcs-attest/mcs-attest/verifier/internal/store"
)

// Redeemer is the gate's view of the records.
type Redeemer struct {
	Records  Records
	Machines func() Machines
	Now      func() time.Time
	// Stale, if set, says what has not been heard of for too long; then nothing is
	// redeemed. It may be nil.
	// It is asked for the Machine with this UID.
	Stale func(machineUID string) error
	// Confirm reads the Machine with this UID anew before it is told a final no
	// (DESIGN, section 19, rule 12). Its error is temporary. It may be nil.
	Confirm func(uid string) error
}

// Machines says what a Machine is now.
type Machines interface {
	Redeemable(uid, pool string, now time.Time) error
}

// Records is the store. Every error is a denial.
type Records interface {
	Record(uid string) (*v1alpha1.MachineAttestation, error)
	Update(uid string, change store.Change) error
}

// Check says whether the token could be redeemed now; it takes no use. In order:
// the Machine is still one that may have the pool, and the record still has this
// token with a use left.
func (r Redeemer) Check(_ context.Context, c token.Claims) error {
	if record.IsBreakGlass(c.MachineUID) {
		return r.breakGlass(c, false)
	}
	if err := r.redeemable(c, r.Now()); err != nil {
		return err
	}
	rec, err := r.Records.Record(c.MachineUID)
	if err != nil {
		return err
	}
	return record.Redeemable(rec, c)
}

// Redeem takes one use, or says why not. The check and the change of the record
// are one step: fifty at the same time take no more uses than there are.
func (r Redeemer) Redeem(ctx context.Context, c token.Claims, own *credential.Credential) error {
	if record.IsBreakGlass(c.MachineUID) {
		return r.breakGlass(c, true)
	}
	now := r.Now()
	if err := r.redeemable(c, now); err != nil {
		return err
	}
	return r.Records.Update(c.MachineUID, func(rec *v1alpha1.MachineAttestation) (*v1alpha1.MachineAttestation, error) {
		// Whoever has gone while the record was read takes no use.
		if err := ctx.Err(); err != nil {
			return nil, reason.Wrap(reason.StoreUnavailable, err, "the client did not wait")
		}
		return record.Redeem(rec, c, own, now)
	})
}

// redeemable judges what the Machine is now.
func (r Redeemer) redeemable(c token.Claims, now time.Time) error {
	if r.Stale != nil {
		if err := r.Stale(c.MachineUID); err != nil {
			return reason.Wrap(reason.StoreUnavailable, err, "what is known is out of date")
		}
	}
	err := r.Machines().Redeemable(c.MachineUID, c.Pool, now)
	if err != nil && r.Confirm != nil && !reason.From(err).Code.Info().Temporary {
		if stale := r.Confirm(c.MachineUID); stale != nil {
			return stale
		}
	}
	return err
}

func (r Redeemer) breakGlass(c token.Claims, take bool) error {
	return r.Records.Update(c.MachineUID, func(rec *v1alpha1.MachineAttestation) (*v1alpha1.MachineAttestation, error) {
		return record.BreakGlass(rec, c, take, r.Now())
	})
}
