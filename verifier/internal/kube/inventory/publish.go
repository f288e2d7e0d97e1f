// SPDX-License-Identifier: Apache-2.0

package inventory

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/mcs-attest/mcs-attest/pkg/machine"
	"github.com/mcs-attest/mcs-attest/verifier/internal/kube/records"
	"github.com/mcs-attest/mcs-attest/verifier/internal/kube/sources"
	"github.com/mcs-attest/mcs-attest/verifier/internal/view"
)

// publish builds the view after changes and calls Changed, which it also does each minute. It combines changes in quick
// succession.
func (c *Inventory) publish(ctx context.Context) {
	check := time.NewTicker(staleInterval)
	defer check.Stop()
	measure := time.NewTicker(time.Minute)
	defer measure.Stop()
	for was, synced := false, false; ; {
		select {
		case <-ctx.Done():
			return
		case <-check.C:
			c.checkStale(time.Now())
		case <-measure.C:
			c.o.Changed()
		case <-c.dirty:
			c.build()
			now := c.View().Complete
			read, _ := c.Synced()
			if now && !was || read && !synced {
				// These depend on the view. The policies decide which pointer configs have the
				// provisioning token.
				c.Triggers.MachineRecord.EnqueueAll()
				c.Triggers.PointerConfigs.EnqueueAll()
				c.rolesChanged()
			}
			was, synced = now, read
			c.o.Changed()
			sources.Sleep(ctx, 50*time.Millisecond)
		}
	}
}

// staleInterval is the interval of the checks for outdated state, for which there is no event.
const staleInterval = 5 * time.Second

// checkStale requests a new view if any state became outdated, or is current again.
func (c *Inventory) checkStale(now time.Time) {
	in, all := c.watches.Outdated(now)
	if w := c.View(); fmt.Sprint(all, in) != fmt.Sprint(w.Stale, w.StaleIn) {
		c.changed()
	}
}

// changed records a change.
func (c *Inventory) changed() {
	select {
	case c.dirty <- struct{}{}:
	default:
	}
}

// build builds the view of the current state.
func (c *Inventory) build() {
	c.batch.Lock()
	defer c.batch.Unlock()
	w := &view.View{Complete: c.complete(), Machines: c.registry}
	w.StaleRecord = func(m *machine.Machine) error { return c.guard.Outdated(records.UID(m)) }
	w.StaleIn, w.Stale = c.watches.Outdated(time.Now())
	roots := c.fill(w)
	if !c.guard.View(w) {
		c.roots.Store(roots)
	}
	c.view.Store(w)
}

// complete reports whether everything that an administrator wrote about Machines is in force. An object
// that was never readable may be a missing Machine, or a quarantine.
func (c *Inventory) complete() bool {
	return c.watches.Complete() && !c.unreadable(machineAPIKind, clusterAPIKind, hostKind, attestationKind)
}

// View returns the current view of the service.
func (c *Inventory) View() *view.View { return c.view.Load() }

// Synced reports whether every source that serving needs was read and is not forbidden, and lists those
// for which this is false. A forbidden namespace of Machines does not affect the others.
func (c *Inventory) Synced() (bool, []string) { return c.watches.Synced() }

// Ready returns why a controller cannot make a decision, or nil. Something was not read or is too old,
// or the repair after a restore of etcd has not tried each record. For one record, see
// [Inventory.Unrepaired].
func (c *Inventory) Ready() error {
	if synced, missing := c.Synced(); !synced {
		return errors.New(sources.Truncate(strings.Join(missing, "; ")))
	}
	if err := c.View().Stale; err != nil {
		return err
	}
	if !c.guard.Rekeyed() {
		return errors.New("the state from before the restore of etcd is being set again")
	}
	return nil
}

// Outdated returns why nothing may be granted to the Machine with this UID now, or nil if it may be.
func (c *Inventory) Outdated(uid string) error {
	w := c.View()
	if w.Stale != nil {
		return w.Stale
	}
	m, ok := c.registry.ByUID(uid)
	if !ok && len(w.StaleIn) == 0 {
		return cmp.Or(c.guard.Outdated(uid), c.neverUsable(uid))
	}
	if !ok { // it may be in a namespace that cannot be read
		return w.StaleIn[slices.Sorted(maps.Keys(w.StaleIn))[0]]
	}
	return w.Outdated(m)
}

// Unrepaired returns an error while the record of a Machine lacks a state that a restore of etcd
// removed.
func (c *Inventory) Unrepaired(uid string) error { return c.guard.Outdated(c.RecordUID(uid)) }
