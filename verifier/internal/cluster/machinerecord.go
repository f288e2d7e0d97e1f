package cluster

import (
	"context"
	"errors"
	"maps"
	"slices"
	"time"

	"github.com/mcs-attest/mcs-attest/pkg/api/v1alpha1"
	"github.com/mcs-attest/mcs-attest/pkg/machine"
	"github.com/mcs-attest/mcs-attest/pkg/record"
	"github.com/mcs-attest/mcs-attest/pkg/restore"
	"github.com/mcs-attest/mcs-attest/verifier/internal/kube/records"
)

// steps that a record is behind its Machine; see settle.
type behind struct{ missing, quarantine, revoke, release, restate, join, gone bool }

func (b behind) any() bool { return b != behind{} }

// compare says in what the record of a UID is not in line with its Machine.
func (c *Cluster) compare(uid string) (b behind, m *machine.Machine) {
	if record.IsBreakGlass(uid) {
		return b, nil
	}
	m, ok := c.registry.ByUID(uid)
	if !ok {
		b.gone = true
		return b, nil
	}
	l, has := c.latch(records.UID(m)) // one record, where the Machine is in both APIs
	quarantined, joined := m.Quarantined(), m.Joined()
	b.quarantine = quarantined && !l.quarantined
	b.revoke = quarantined && l.quarantined && l.unrevoked && c.o.Revoke != nil
	b.release = !quarantined && l.quarantined && !l.restored
	b.restate = quarantined && l.quarantined && l.restored
	b.join = joined && has && !l.joined && !m.Granted(c.o.Now())
	b.missing = !joined && !has && !m.StandIn && !m.Deleting
	return b, m
}

func (c *Cluster) unsettled(uid string) bool {
	b, _ := c.compare(uid)
	return b.any()
}

// settle brings the record of a UID into line with its Machine. The key's namespace is
// that of a claim's Machine, and "" where it is not needed.
func (c *Cluster) settle(ctx context.Context, k key) error {
	uid := k.name
	b, m := c.compare(uid)
	// What must wait is looked at again once everything was read.
	if (b.gone || b.release || b.restate || b.missing) && !c.settled(k, b, m) {
		return nil
	}
	if b.release && c.mayBeStopped(m) {
		return nil // that one may be what says so
	}
	now := c.o.Now()
	change := func(f func(*v1alpha1.MachineAttestation) *v1alpha1.MachineAttestation) error {
		if !b.quarantine && !b.revoke && !b.join { // what takes a right away does not wait
			c.tasks.limit.Accept()
		}
		return c.records.Update(ctx, uid, func(rec *v1alpha1.MachineAttestation) (*v1alpha1.MachineAttestation, error) { return f(rec), nil })
	}
	switch {
	case b.gone:
		return c.forget(ctx, uid)
	case b.revoke:
		// After the latch, so that it stops the machine's requests also while the
		// Secrets cannot be deleted; and again for what was issued meanwhile.
		if err := c.revoke(ctx, uid); err != nil {
			return err
		}
		return change(record.Revoked)
	case b.quarantine, b.release:
		return change(func(rec *v1alpha1.MachineAttestation) *v1alpha1.MachineAttestation {
			if rec != nil && b.release && restore.Unconfirmed(rec) {
				return nil
			}
			return record.Quarantine(rec, m, b.quarantine, now)
		})
	case b.restate:
		return change(func(rec *v1alpha1.MachineAttestation) *v1alpha1.MachineAttestation {
			return restore.Confirmed(rec, now)
		})
	case b.join:
		return change(func(rec *v1alpha1.MachineAttestation) *v1alpha1.MachineAttestation {
			return record.Joined(rec, m.NodeRef, now)
		})
	case b.missing:
		c.tasks.limit.Accept()
		return c.records.EnsureRecord(ctx, m)
	}
	return nil
}

// settled reports whether enough was read to change the record of a UID by what is not
// said any more. A namespace that may not be read stops what is about its own Machines.
func (c *Cluster) settled(k key, b behind, m *machine.Machine) bool {
	if synced, _ := c.Synced(); !synced {
		return false
	}
	if c.inventory.Complete() {
		return true
	}
	namespace := k.namespace
	if m != nil {
		namespace = records.Namespace(m)
	} else if l, ok := c.latch(k.name); ok {
		namespace = l.namespace
	}
	for _, w := range c.inventory.Sources() {
		s, _ := w.Status()
		switch {
		case !w.Forbidden():
		case namespace == "" || w.Namespace == namespace:
			return false
		case b.release && s.Unsynced && w.Resource == attestationKind.Resource:
			return false // an object there may say so, and was never read
		}
	}
	return true
}

// forget deletes what is left of a Machine that is gone; the API has the last word.
func (c *Cluster) forget(ctx context.Context, uid string) error {
	l, has := c.latch(uid)
	if !c.revocable(uid) {
		c.tasks.limit.Accept()
	}
	var err error
	if has {
		err = c.records.Delete(ctx, uid, l.namespace)
	} else if err = c.records.ReleaseClaims(ctx, uid); err == nil && c.o.Revoke != nil {
		// The API server's own clean-up was faster with the record.
		if err = c.o.Revoke(ctx, uid, c.orphans(uid, false)); err == nil {
			c.orphans(uid, true)
		}
	}
	if errors.Is(err, records.ErrMachineThere) {
		return nil // the watch will see it, too
	}
	if err == nil && has {
		c.log.Info("record deleted with its Machine", "uid", uid)
	}
	return err
}

// revocable reports whether a Machine that was deleted has credentials to revoke.
func (c *Cluster) revocable(uid string) bool {
	l, _ := c.latch(uid)
	return c.o.Revoke != nil && (l.unrevoked || len(c.orphans(uid, false)) > 0)
}

// revoke takes back the bootstrap credentials of a Machine. Those on its record are
// there before they are served, so none is missed.
func (c *Cluster) revoke(ctx context.Context, uid string) error {
	if c.o.Revoke == nil || record.IsBreakGlass(uid) {
		return nil
	}
	rec, err := c.records.Record(ctx, uid)
	if err != nil {
		return err
	}
	var all []v1alpha1.CredentialStatus
	if rec != nil {
		all = rec.Status.Credentials
	}
	return c.o.Revoke(ctx, uid, all)
}

// lookForGone finds the records whose Machine is gone.
func (c *Cluster) lookForGone() error {
	if synced, _ := c.Synced(); !synced {
		return nil
	}
	c.Machines.mu.Lock()
	uids := slices.Collect(maps.Keys(c.latches))
	c.Machines.mu.Unlock()
	for _, uid := range uids {
		if !c.registry.Known(uid) && !record.IsBreakGlass(uid) {
			c.tasks.add(task{about: aboutMachine, key: key{name: uid}})
		}
	}
	return nil
}

// claimsEvery is how often all claims are looked through. One that nobody needs
// does no harm: it is released when somebody else shows the identity.
const claimsEvery = time.Hour

// sweepClaims finds the claims whose Machine was deleted and left no record.
func (c *Cluster) sweepClaims(ctx context.Context) error {
	t := &c.tasks
	t.mu.Lock()
	due := time.Since(t.swept) >= claimsEvery
	t.mu.Unlock()
	if synced, _ := c.Synced(); !due || !synced {
		return nil
	}
	gone := map[key]bool{} // by the Machine's namespace and UID
	err := c.records.EachClaim(ctx, func(claim v1alpha1.IdentityClaimSpec) {
		if uid := claim.MachineUID; uid != "" && !c.registry.Known(uid) && !record.IsBreakGlass(uid) {
			gone[key{claim.MachineRef.Namespace, uid}] = true
		}
	})
	if err != nil {
		return err
	}
	for k := range gone {
		t.add(task{about: aboutMachine, key: k})
	}
	t.mu.Lock()
	t.swept = time.Now()
	t.mu.Unlock()
	return nil
}
