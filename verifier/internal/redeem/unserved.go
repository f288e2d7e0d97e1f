// SPDX-License-Identifier: Apache-2.0

package redeem

import (
	"cmp"
	"context"
	"maps"
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
	// giveUpAfter is the maximum number of attempts to return a use in the background. A write that is
	// still active after these names an outdated version.
	giveUpAfter = 8
	// maxUnserved is the maximum number of tokens with unserved uses. Only a valid token can have any.
	maxUnserved = 10_000
)

// unserved has the ids of uses whose request was not served, by the id of their token, and the number of attempts to
// return each.
type unserved struct {
	mu   sync.Mutex
	uses map[string]map[string]int
}

func (u *unserved) of(tokenID string) []string {
	u.mu.Lock()
	defer u.mu.Unlock()
	return slices.Sorted(maps.Keys(u.uses[tokenID]))
}

// add adds a use, and reports whether the token had none before.
func (u *unserved) add(tokenID, useID string) (first bool) {
	u.mu.Lock()
	defer u.mu.Unlock()
	_, known := u.uses[tokenID]
	if !known && len(u.uses) >= maxUnserved {
		return false
	}
	if u.uses == nil {
		u.uses = map[string]map[string]int{}
	}
	if !known {
		u.uses[tokenID] = map[string]int{}
	}
	u.uses[tokenID][useID] = 0
	return !known
}

// remove deletes ids that can no longer be on the record.
func (u *unserved) remove(tokenID string, ids []string) {
	u.mu.Lock()
	defer u.mu.Unlock()
	maps.DeleteFunc(u.uses[tokenID], func(id string, _ int) bool { return slices.Contains(ids, id) })
	if len(u.uses[tokenID]) == 0 {
		delete(u.uses, tokenID)
	}
}

// tried counts an attempt to return the uses of a token. It deletes those with too many attempts, and reports whether
// any is left.
func (u *unserved) tried(tokenID string) (left bool) {
	u.mu.Lock()
	defer u.mu.Unlock()
	all := u.uses[tokenID]
	for id := range all {
		if all[id]++; all[id] >= giveUpAfter {
			delete(all, id)
		}
	}
	if len(all) == 0 {
		delete(u.uses, tokenID)
	}
	return len(all) > 0
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
	var again func()
	again = func() {
		if !r.returnUses(ctx, c) && r.unserved.tried(c.ID) {
			time.AfterFunc(after, again)
		}
	}
	time.AfterFunc(after, again)
}

// returnUses returns unserved uses of a token, and reports whether the token has no others. A use that is
// not on the record yet may still be written.
func (r *Redeemer) returnUses(ctx context.Context, c token.Claims) (done bool) {
	ids := r.unserved.of(c.ID)
	if len(ids) == 0 {
		return true
	}
	if !r.Now().Before(c.Expiry) && !c.Expiry.IsZero() {
		r.unserved.remove(c.ID, ids)
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
