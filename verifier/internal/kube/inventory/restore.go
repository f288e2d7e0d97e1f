// SPDX-License-Identifier: Apache-2.0

package inventory

import (
	"context"
	"time"

	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/manager"

	"github.com/mcs-attest/mcs-attest/pkg/api/v1alpha1"
	"github.com/mcs-attest/mcs-attest/pkg/machine"
	rule "github.com/mcs-attest/mcs-attest/pkg/restore"
	"github.com/mcs-attest/mcs-attest/verifier/internal/kube/records"
	"github.com/mcs-attest/mcs-attest/verifier/internal/kube/restore"
	"github.com/mcs-attest/mcs-attest/verifier/internal/store"
)

// newGuard creates the detector and the guard for a restore of etcd.
func (c *Inventory) newGuard(api client.Reader) {
	c.guard = restore.New(restore.Options{
		Log: c.log, Now: func() time.Time { return c.o.Now() }, API: api, Probe: c.o.Probe,
		Repairs:    c.o.RenewKeys != nil,
		TokenInUse: func() bool { return c.TokenInUse() }, ProvisioningSecret: c.o.ProvisioningToken.Secret,
		Remember: c.remember, Void: func() { c.Void() },
		Reset: func() { c.watches.Reset() },
		Reread: func() {
			c.watches.Restart()
			c.changed()
		},
	})
	c.repair = &restore.Reconciler{
		Guard: c.guard, Patience: c.o.Pass, Ready: c.repairable, Changed: c.changed,
		Machine: func(uid string) (*machine.Machine, string) {
			m, ok := c.registry.ByUID(uid)
			if !ok {
				return nil, ""
			}
			return m, records.UID(m)
		},
		Latch: func(uid string) rule.Latch {
			l, _ := c.latch(uid)
			return l.remembered()
		},
		Update: func(ctx context.Context, uid string, change store.Change) error {
			return c.records.Update(ctx, uid, change)
		},
		RenewKeys: func(ctx context.Context) error { return c.o.RenewKeys(ctx) },
	}
}

// remember returns what is in force now. It is called after a restore was detected, before any restored
// state is applied.
func (c *Inventory) remember() restore.Memory {
	c.build() // with everything that was applied before the restore
	m := restore.Memory{Latches: map[string]rule.Latch{}}
	if c.machinesRead() {
		m.Machines, m.Enrollments = map[string]rule.Known{}, map[string]v1alpha1.MachineAttestationSpec{}
		c.registry.Each(func(one machine.Machine) {
			m.Machines[one.UID] = rule.Known{EKSHA256: one.EKSHA256, Pools: one.Pools, Deleting: one.Deleting}
		}, func(e *machine.Enrollment) { m.Enrollments[string(e.UID)] = e.Spec })
	}
	now := c.o.Now()
	if c.wereListed() {
		m.View = c.view.Load()
	}
	c.Machines.mu.Lock()
	for uid, l := range c.latches {
		if latch := l.remembered(); !latch.Empty() {
			m.Latches[uid] = latch
		}
	}
	c.Machines.mu.Unlock()
	for _, one := range c.registry.All().Machines() {
		uid := records.UID(one)
		l := rule.Latch{Quarantined: one.Quarantined(), Joined: one.Joined() && !one.Granted(now), Node: one.NodeRef}
		if l = m.Latches[uid].Stricter(l); !l.Empty() {
			m.Latches[uid] = l
		}
	}
	m.Token, _, _ = c.Token()
	m.Keys = c.KeyIDs()
	return m
}

// machinesRead reports whether Machines and enrollments were read since the last restore. A source that
// currently fails counts as read. A forbidden namespace has no known ones.
func (c *Inventory) machinesRead() bool {
	for _, w := range c.watches.Sources() {
		switch w.Kind.String() {
		case machineAPIKind.String(), clusterAPIKind.String(), hostKind.String(), attestationKind.String():
			if s, _ := w.Status(); s.Unsynced && !w.Forbidden() {
				return false
			}
		}
	}
	return true
}

// remembered returns the state that a record must not lose in a restore of etcd.
func (l latch) remembered() rule.Latch {
	r := rule.Latch{Quarantined: l.quarantined, Joined: l.joined}
	switch {
	case l.used:
		r.Certificate = rule.UsedCertificate
	case l.node != "":
		r.Certificate = rule.UnusedCertificate
	}
	if l.grant != nil {
		r.GrantUsed, r.GrantAttestations = l.grant.until, l.grant.count
	}
	return r
}

// recorded reports to the guard what a record has. While a Machine or an enrollment of before the restore may be known,
// no object of an administrator counts.
func (c *Inventory) recorded(uid string, l latch) {
	var by restore.Demand
	if c.guard.Unacknowledged() && c.machinesRead() {
		if m, ok := c.registry.ByUID(uid); ok {
			by = restore.Demand{Quarantined: m.Quarantined(), Granted: m.Granted(c.o.Now())}
		}
	}
	c.guard.Recorded(uid, l.remembered(), by)
}

// repairable reports whether Machines and records were read again after a restore.
func (c *Inventory) repairable(patience bool) bool {
	for _, w := range c.watches.Sources() {
		switch w.Kind.String() {
		case machineAPIKind.String(), clusterAPIKind.String(), attestationKind.String():
			if s, wrong := w.Status(); wrong && s.Unsynced && (patience || !s.Forbidden) {
				return false
			}
		}
	}
	return true
}

// SetupWithManager adds the controller that repairs the records after a restore of etcd.
func (c *Inventory) SetupWithManager(m manager.Manager) error { return c.repair.SetupWithManager(m) }
