// SPDX-License-Identifier: Apache-2.0

package redeem

import (
	"cmp"
	"context"
	"slices"
	"sync"
	"time"

	"github.com/mcs-attest/mcs-attest/pkg/api/v1alpha1"
	"github.com/mcs-attest/mcs-attest/pkg/record"
	"github.com/mcs-attest/mcs-attest/pkg/token"
)

const (
	defaultReturnAfter = 15 * time.Second
	returnTimeout      = 30 * time.Second
	// giveUpAfter is the maximum number of attempts to return uses in the background. A write that is
	// still active after these names an outdated version.
	giveUpAfter = 8
	// maxUnserved is the maximum number of tokens with unserved uses. Only a valid token can have any.
	maxUnserved = 10_000
)

// unserved has the ids of uses whose request was not served, by the id of their token.
type unserved struct {
	mu   sync.Mutex
	uses map[string][]string
}

func (u *unserved) of(tokenID string) []string {
	u.mu.Lock()
	defer u.mu.Unlock()
	return slices.Clone(u.uses[tokenID])
}

// add adds a use, and reports whether the token had none before.
func (u *unserved) add(tokenID, useID string) (first bool) {
	u.mu.Lock()
	defer u.mu.Unlock()
	all, known := u.uses[tokenID]
	if !known && len(u.uses) >= maxUnserved {
		return false
	}
	if u.uses == nil {
		u.uses = map[string][]string{}
	}
	u.uses[tokenID] = append(all, useID)
	return !known
}

// remove deletes ids that can no longer be on the record.
func (u *unserved) remove(tokenID string, ids []string) {
	u.mu.Lock()
	defer u.mu.Unlock()
	left := slices.DeleteFunc(u.uses[tokenID], func(id string) bool { return slices.Contains(ids, id) })
	if len(left) == 0 {
		delete(u.uses, tokenID)
		return
	}
	u.uses[tokenID] = left
}

// markUnserved records that a use was not served, and starts its return.
//
// The client has disconnected, so the return does not end with its request.
func (r *Redeemer) markUnserved(ctx context.Context, c token.Claims, useID string) {
	if !r.unserved.add(c.ID, useID) {
		return
	}
	after := r.ReturnAfter
	after = cmp.Or(after, defaultReturnAfter)
	ctx = context.WithoutCancel(ctx)
	try := 0
	var again func()
	again = func() {
		if try++; r.returnUses(ctx, c) || try == giveUpAfter {
			r.unserved.remove(c.ID, r.unserved.of(c.ID))
			return
		}
		time.AfterFunc(after, again)
	}
	time.AfterFunc(after, again)
}

// returnUses returns the unserved uses of a token, and reports whether it is finished. A use that is
// not on the record yet may still be written.
func (r *Redeemer) returnUses(ctx context.Context, c token.Claims) (done bool) {
	ids := r.unserved.of(c.ID)
	if len(ids) == 0 || !r.Now().Before(c.Expiry) && !c.Expiry.IsZero() {
		return true
	}
	ctx, cancel := context.WithTimeout(ctx, returnTimeout)
	defer cancel()
	found := false
	err := r.Records.Session(c.MachineUID).Update(ctx,
		func(rec *v1alpha1.MachineAttestation) (*v1alpha1.MachineAttestation, error) {
			next := record.Return(rec, c.ID, ids)
			if found = next != rec; !found {
				return nil, nil
			}
			return next, nil
		})
	if err != nil || !found {
		return false
	}
	if r.Log != nil {
		r.Log.Info("returned unserved uses of a token", "token", c.ID, "machine", c.Subject)
	}
	r.unserved.remove(c.ID, ids)
	return len(r.unserved.of(c.ID)) == 0
}
