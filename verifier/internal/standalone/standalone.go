// Package standalone joins a verifier's folder and its database: it makes of
// each snapshot what the service appraises with, and does to the records what a
// change in the folder means for them.
package standalone

import (
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"maps"
	"slices"
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

// Keeper holds the current view.
type Keeper struct {
	records  *store.Store
	log      *slog.Logger
	now      func() time.Time
	snapshot atomic.Pointer[folder.Snapshot]
	view     atomic.Pointer[view.View]

	mu      sync.Mutex
	missing map[string]time.Time // since when a record's Machine is gone, by UID
}

// NewKeeper starts with a first snapshot.
func NewKeeper(ctx context.Context, records *store.Store, s *folder.Snapshot, log *slog.Logger,
	now func() time.Time) *Keeper {
	k := &Keeper{records: records, log: log, now: now, missing: map[string]time.Time{}}
	k.Take(ctx, s)
	return k
}

// View returns what the service appraises with now.
func (k *Keeper) View() *view.View { return k.view.Load() }

// Snapshot is the folder as last read.
func (k *Keeper) Snapshot() *folder.Snapshot { return k.snapshot.Load() }

// Take makes s the current snapshot and brings the records into line with it.
func (k *Keeper) Take(ctx context.Context, s *folder.Snapshot) {
	k.snapshot.Store(s)
	k.view.Store(&view.View{
		Complete: complete(s), Policies: s.Policies, Machines: s.Machines, References: s.ReferenceValues,
		EKRoots: tpm2.Roots{Anchors: s.EKRoots.Roots(), Intermediates: s.EKRoots.Intermediates()}, Trust: s.Trust,
	})
	for _, p := range s.Problems {
		if p.Warning {
			k.log.Warn("file in the folder", "problem", p.Error())
		} else {
			k.log.Error("a file in the folder cannot be used as it stands; its last good state, if there was one, stays in "+
				"force", "problem", p.Error())
		}
	}
	for _, path := range s.Incomplete {
		k.log.Error("broken since the start: nothing in this file is in force, be it a quarantine", "file", path)
	}
	k.Sweep(ctx)
	k.quarantine(ctx, s)
	k.join(ctx, s)
}

// forgetAfter is how long a Machine must be missing before its record goes: a
// volume that is unmounted for a moment, or files that are replaced by deleting
// them first, must not wipe out who has what identity.
const forgetAfter = 10 * time.Minute

// Sweep deletes the records of Machines that have been gone for long enough.
// While some file cannot be read nobody is gone for sure.
func (k *Keeper) Sweep(ctx context.Context) {
	s, now := k.Snapshot(), k.now()
	k.mu.Lock()
	defer k.mu.Unlock()
	if !complete(s) {
		clear(k.missing)
		return
	}
	records, err := k.records.Records(ctx)
	if err != nil {
		k.log.Error("records of deleted Machines stay", "error", err)
		return
	}
	due := map[string]bool{}
	here := map[string]bool{}
	for _, r := range records {
		uid := r.Status.MachineUID
		// A break-glass token has no Machine; its record stays, to be seen.
		if s.Machines.Known(uid) || record.IsBreakGlass(uid) {
			continue
		}
		here[uid] = true
		since, ok := k.missing[uid]
		if !ok {
			k.missing[uid] = now
		} else if now.Sub(since) >= forgetAfter {
			due[uid] = true
		}
	}
	maps.DeleteFunc(k.missing, func(uid string, _ time.Time) bool { return !here[uid] })
	if len(due) == 0 {
		return
	}
	gone, err := k.records.Forget(ctx, func(uid string) bool { return !due[uid] })
	if err != nil {
		k.log.Error("records of deleted Machines stay", "error", err)
		return
	}
	for _, uid := range gone {
		k.log.Info("record deleted with its Machine", "uid", uid)
	}
}

// complete: every file of the folder is in force as it stands.
func complete(s *folder.Snapshot) bool { return len(s.Incomplete) == 0 && !s.Failed() }

// quarantine latches what the folder says of quarantines. One is lifted only by a
// folder that can be read whole.
func (k *Keeper) quarantine(ctx context.Context, s *folder.Snapshot) {
	records, err := k.records.Records(ctx)
	if err != nil {
		k.log.Error("quarantines are not recorded", "error", err)
		return
	}
	latched := map[string]bool{}
	for _, r := range records {
		latched[r.Status.MachineUID] = r.Status.Quarantined
	}
	now := k.now()
	for _, m := range s.Machines.Machines() {
		want := m.Quarantined()
		if want == latched[m.UID] || !want && !complete(s) {
			continue
		}
		err := k.records.Update(ctx, m.UID, func(rec *v1alpha1.MachineAttestation) (*v1alpha1.MachineAttestation, error) {
			return record.Quarantine(rec, m, want, now), nil
		})
		if err != nil {
			k.log.Error("a quarantine is not recorded", "machine", m.String(), "error", err)
		}
	}
}

// join latches the records of Machines that became Nodes.
func (k *Keeper) join(ctx context.Context, s *folder.Snapshot) {
	now := k.now()
	for _, m := range s.Machines.Machines() {
		if !m.Joined() || m.Granted(now) {
			continue
		}
		err := k.records.Update(ctx, m.UID, func(rec *v1alpha1.MachineAttestation) (*v1alpha1.MachineAttestation, error) {
			return record.Joined(rec, m.NodeRef, now), nil
		})
		if err != nil {
			k.log.Error("a joined Machine is not recorded as such", "machine", m.String(), "error", err)
		}
	}
}

// State is what status and explain show.
func (k *Keeper) State(ctx context.Context) (*admin.State, error) {
	return State(ctx, k.Snapshot(), k.records, k.now(), true)
}

// State joins a snapshot and the records. Without records, records is nil.
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
		if out.Pending, err = records.Waiting(ctx, now); err != nil {
			return nil, fmt.Errorf("read who waits: %w", err)
		}
	}
	for _, m := range s.Machines.Machines() {
		entry := admin.About(m)
		if r := byUID[m.UID]; r != nil {
			entry.Record = &r.Status
			entry.Quarantined = entry.Quarantined || r.Status.Quarantined
		}
		out.Machines = append(out.Machines, entry)
	}
	for uid, r := range byUID {
		if record.IsBreakGlass(uid) {
			out.Machines = append(out.Machines, admin.Machine{Name: r.Namespace + "/" + r.Name, UID: uid, Kind: "BreakGlass",
				Pools: []string{r.Status.Pool}, Record: &r.Status})
		}
	}
	slices.SortFunc(out.Machines, func(a, b admin.Machine) int {
		return cmp.Or(cmp.Compare(a.Name, b.Name), cmp.Compare(a.UID, b.UID))
	})
	for _, p := range s.Problems {
		out.Problems = append(out.Problems, p.Error())
	}
	return out, nil
}
