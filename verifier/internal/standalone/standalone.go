// SPDX-License-Identifier: Apache-2.0

// Package standalone joins a verifier's folder and its database. It makes a view of each snapshot for
// the service, and updates the records after a change in the folder.
package standalone

import (
	"context"
	"fmt"
	"log/slog"
	"maps"
	"sync"
	"sync/atomic"
	"time"

	"github.com/mcs-attest/mcs-attest/pkg/api/v1alpha1"
	"github.com/mcs-attest/mcs-attest/pkg/evidence/tpm2"
	"github.com/mcs-attest/mcs-attest/pkg/record"
	"github.com/mcs-attest/mcs-attest/verifier/internal/admin"
	"github.com/mcs-attest/mcs-attest/verifier/internal/folder"
	"github.com/mcs-attest/mcs-attest/verifier/internal/store"
	"github.com/mcs-attest/mcs-attest/verifier/internal/view"
)

// Keeper has the current view.
type Keeper struct {
	records  *store.Store
	log      *slog.Logger
	now      func() time.Time
	snapshot atomic.Pointer[folder.Snapshot]
	view     atomic.Pointer[view.View]

	mu      sync.Mutex
	missing map[string]time.Time // since when the Machine of a record has been missing, by UID
}

// NewKeeper returns a Keeper with a first snapshot.
func NewKeeper(ctx context.Context, records *store.Store, s *folder.Snapshot, log *slog.Logger,
	now func() time.Time) *Keeper {
	k := &Keeper{records: records, log: log, now: now, missing: map[string]time.Time{}}
	k.Apply(ctx, s)
	return k
}

// View returns the current view.
func (k *Keeper) View() *view.View { return k.view.Load() }

// Snapshot returns the folder as last read.
func (k *Keeper) Snapshot() *folder.Snapshot { return k.snapshot.Load() }

// Apply makes s the current snapshot and updates the records.
func (k *Keeper) Apply(ctx context.Context, s *folder.Snapshot) {
	k.snapshot.Store(s)
	k.view.Store(&view.View{
		Complete: complete(s), Policies: s.Policies, Machines: s.Machines, References: s.ReferenceValues,
		EKRoots: tpm2.Roots{Anchors: s.EKRoots.Roots(), Intermediates: s.EKRoots.Intermediates()}, Trust: s.Trust,
	})
	for _, p := range s.Problems {
		if p.Warning {
			k.log.Warn("file in the folder", "problem", p.Error())
		} else {
			k.log.Error("a file in the folder cannot be used; its last good state, if any, stays in "+
				"force", "problem", p.Error())
		}
	}
	for _, path := range s.Incomplete {
		k.log.Error("a file is broken since the start: nothing in it is in force, not even a quarantine", "file", path)
	}
	k.Sync(ctx)
}

// Sync updates the records by the current snapshot. It must be called now and then, because a record may need an
// update only because time passed, or because the database could not be written before.
func (k *Keeper) Sync(ctx context.Context) {
	k.mu.Lock()
	defer k.mu.Unlock()
	s := k.Snapshot() // with the lock held, so that an older one does not lift a newer one's quarantine
	records, err := k.records.Records(ctx)
	if err != nil {
		k.log.Error("the records were not updated", "error", err)
		return
	}
	k.sweep(ctx, s, records)
	byUID := map[string]*v1alpha1.MachineAttestation{}
	for _, r := range records {
		byUID[r.Status.MachineUID] = r
	}
	k.quarantine(ctx, s, byUID)
	k.join(ctx, s, byUID)
}

// deleteAfter is the time for which a Machine must be missing before its record is deleted. A short
// unmount of a volume, or files that are deleted and then replaced, must not delete the owners of
// identities.
const deleteAfter = 10 * time.Minute

// sweep deletes the records of Machines that have been missing for long enough. If any file cannot be
// read, it deletes nothing.
func (k *Keeper) sweep(ctx context.Context, s *folder.Snapshot, records []*v1alpha1.MachineAttestation) {
	now := k.now()
	if !complete(s) {
		clear(k.missing)
		return
	}
	due := map[string]bool{}
	here := map[string]bool{}
	for _, r := range records {
		uid := r.Status.MachineUID
		// A break-glass token has no Machine. Its record is kept for administrators.
		if s.Machines.Known(uid) || record.IsBreakGlass(uid) {
			continue
		}
		here[uid] = true
		since, ok := k.missing[uid]
		if !ok {
			k.missing[uid] = now
		} else if now.Sub(since) >= deleteAfter {
			due[uid] = true
		}
	}
	maps.DeleteFunc(k.missing, func(uid string, _ time.Time) bool { return !here[uid] })
	if len(due) == 0 {
		return
	}
	gone, err := k.records.Prune(ctx, func(uid string) bool { return !due[uid] })
	if err != nil {
		k.log.Error("records of deleted Machines were not deleted", "error", err)
		return
	}
	for _, uid := range gone {
		k.log.Info("record deleted with its Machine", "uid", uid)
	}
}

// Forget deletes the record of a machine, and its claims, on behalf of an administrator.
func (k *Keeper) Forget(ctx context.Context, uid string) error {
	deleted, err := k.records.Prune(ctx, func(have string) bool { return have != uid })
	for _, uid := range deleted {
		k.log.Warn("an administrator deleted a record", "uid", uid)
	}
	return err
}

// complete reports whether every file of the folder is in force.
func complete(s *folder.Snapshot) bool { return len(s.Incomplete) == 0 && !s.Failed() }

// quarantine latches the quarantines of the folder. A quarantine is lifted only if the whole folder can
// be read.
func (k *Keeper) quarantine(ctx context.Context, s *folder.Snapshot, records map[string]*v1alpha1.MachineAttestation) {
	now := k.now()
	for _, m := range s.Machines.Machines() {
		want, rec := m.Quarantined(), records[m.UID]
		if want == (rec != nil && rec.Status.Quarantined) || !want && !complete(s) {
			continue
		}
		err := k.records.Update(ctx, m.UID, func(rec *v1alpha1.MachineAttestation) (*v1alpha1.MachineAttestation, error) {
			return record.Quarantine(rec, m, want, now), nil
		})
		if err != nil {
			k.log.Error("a quarantine was not recorded", "machine", m.String(), "error", err)
		}
	}
}

// join latches the records of Machines that have become Nodes.
func (k *Keeper) join(ctx context.Context, s *folder.Snapshot, records map[string]*v1alpha1.MachineAttestation) {
	now := k.now()
	for _, m := range s.Machines.Machines() {
		if !m.Joined() || m.Granted(now) || record.Joined(records[m.UID], m.NodeRef, now) == nil {
			continue
		}
		err := k.records.Update(ctx, m.UID, func(rec *v1alpha1.MachineAttestation) (*v1alpha1.MachineAttestation, error) {
			return record.Joined(rec, m.NodeRef, now), nil
		})
		if err != nil {
			k.log.Error("the join of a Machine was not recorded", "machine", m.String(), "error", err)
		}
	}
}

// State returns the state for the commands status and explain.
func (k *Keeper) State(ctx context.Context) (*admin.State, error) {
	return State(ctx, k.Snapshot(), k.records, k.now(), true)
}

// State joins a snapshot and the records. records may be nil.
func State(ctx context.Context, s *folder.Snapshot, records *store.Store, now time.Time,
	serving bool) (*admin.State, error) {
	out := &admin.State{Time: now.UTC(), Serving: serving}
	byUID := map[string]*v1alpha1.MachineAttestation{}
	if records != nil {
		all, err := records.Records(ctx)
		if err != nil {
			return nil, fmt.Errorf("read records: %w", err)
		}
		for _, r := range all {
			byUID[r.Status.MachineUID] = r
		}
		if out.Pending, err = records.ListPending(ctx, now); err != nil {
			return nil, fmt.Errorf("read the pending machines: %w", err)
		}
	}
	for _, m := range s.Machines.Machines() {
		out.Machines = append(out.Machines, admin.About(m, byUID[m.UID]))
	}
	for uid, r := range byUID {
		if record.IsBreakGlass(uid) {
			out.Machines = append(out.Machines, admin.BreakGlass(r))
		}
	}
	out.Sort()
	for _, p := range s.Problems {
		out.Problems = append(out.Problems, p.Error())
	}
	return out, nil
}
