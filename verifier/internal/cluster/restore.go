package cluster

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"sync"
	"time"

	kerrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/wait"

	"github.com/mcs-attest/mcs-attest/pkg/api/v1alpha1"
	"github.com/mcs-attest/mcs-attest/pkg/machine"
	"github.com/mcs-attest/mcs-attest/pkg/reason"
	"github.com/mcs-attest/mcs-attest/pkg/record"
	"github.com/mcs-attest/mcs-attest/verifier/internal/keys"
	"github.com/mcs-attest/mcs-attest/verifier/internal/kube/inventory"
	"github.com/mcs-attest/mcs-attest/verifier/internal/kube/records"
	"github.com/mcs-attest/mcs-attest/verifier/internal/view"
)

// An etcd that is restored from a backup brings back what had been revoked since:
// a token that was used up, a quarantine that had not been said yet, a grant that
// was consumed, a Machine that had not joined. This file notices it, and takes
// back what it brings back, as far as this process remembers.
//
//	noticed by  a revision, which is etcd's own count, lower than one seen before;
//	            an object that is there in an older state than was seen
//	at once     this replica has no keys: nothing is granted, no token is good,
//	            the provisioning token is as in held.go
//	then        everything is read anew; quarantines, joins and consumed grants
//	            that were remembered are latched again, new keys are made
//	until       an administrator acknowledges it, or the process ends, the
//	            AttestationVerifier is Degraded with reason EtcdRestored; policies,
//	            reference values and trust anchors stay as they were before the
//	            restore, and only the grants of before count
//
// Every replica that remembers does it, holder of the lease or not; the second
// finds it done. A replica that was started afterwards remembers nothing.

// AnnotationRestoreSeen, on the AttestationVerifier, is the time (RFC 3339) at
// which an administrator has dealt with a restore of etcd.
const AnnotationRestoreSeen = "mcs-attest.dev/restore-seen"

// conditionQuarantined marks a record whose quarantine comes from this process's
// memory and is not what any spec says.
const (
	conditionQuarantined = "Quarantined"
	reasonEtcdRestored   = "EtcdRestored"
)

// errRestored ends a watch that would say nothing any more.
var errRestored = errors.New("etcd was restored; watching anew")

// revision is how far etcd has come, by its own count. It is one count for all
// custom resources; the API's own resources may be in another etcd.
type revision struct {
	noticing sync.Mutex // one restore at a time
	probing  sync.Mutex
	probed   time.Time

	mu      sync.Mutex
	highest uint64
	heard   time.Time // when the API last said something by which tokens are known to be current
}

// revisions are the [inventory.Revisions] of a Cluster.
type revisions struct{ c *Cluster }

func (r revisions) Epoch() uint32                     { return r.c.epoch.Load() }
func (r revisions) Saw(epoch uint32, revision uint64) { r.c.saw(epoch, revision) }
func (r revisions) Probe(ctx context.Context) error   { return r.c.probe(ctx) }
func (r revisions) Restored(epoch uint32, why string) { r.c.restored(epoch, why) }

// number is a resourceVersion as etcd's revision; 0 if it is none.
func number(resourceVersion string) uint64 {
	v, err := strconv.ParseUint(resourceVersion, 10, 64)
	if err != nil {
		return 0
	}
	return v
}

func sleep(ctx context.Context, d time.Duration) {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-ctx.Done():
	case <-t.C:
	}
}

// restore is one that was noticed.
type restore struct {
	at  time.Time
	why string
}

// saw notes a revision. One from before the last restore is no measure any more.
func (c *Cluster) saw(epoch uint32, v uint64) {
	c.revision.mu.Lock()
	defer c.revision.mu.Unlock()
	if c.epoch.Load() == epoch {
		c.revision.highest = max(c.revision.highest, v)
	}
}

// probe asks the API how far etcd has come.
func (c *Cluster) probe(ctx context.Context) error {
	r := &c.revision
	r.probing.Lock()
	defer r.probing.Unlock()
	if time.Since(r.probed) < 250*time.Millisecond {
		return nil
	}
	r.mu.Lock()
	before, epoch := r.highest, c.epoch.Load()
	r.mu.Unlock()
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	asked := time.Now()
	// Without a resourceVersion the answer is as of now.
	list, err := c.dynamic.Resource(policiesResource).List(ctx, metav1.ListOptions{Limit: 1})
	if err != nil {
		if inventory.Unavailable(err) || ctx.Err() != nil {
			return fmt.Errorf("how far etcd has come: %w", err)
		}
		return nil // the policies' own watch says what is wrong
	}
	r.probed = time.Now()
	c.hear(asked)
	v := number(list.GetResourceVersion())
	if v != 0 && v < before {
		c.restored(epoch, fmt.Sprintf("it is at revision %d, %d was seen before", v, before))
		return errRestored
	}
	c.saw(epoch, v)
	return nil
}

// watchRevision probes now and then: a watch that is open says nothing of it.
func (c *Cluster) watchRevision(ctx context.Context) {
	last, pause := time.Now(), wait.Jitter(c.o.Probe/2, 1)
	for ctx.Err() == nil {
		sleep(ctx, min(pause, wait.Jitter(tokenProbe/2, 1)))
		if time.Since(last) < pause && !c.tokenInUse() && !c.unacknowledged() {
			continue
		}
		last, pause = time.Now(), wait.Jitter(c.o.Probe/2, 1)
		c.readAcknowledgement(ctx)
		if err := c.probe(ctx); err != nil && ctx.Err() == nil {
			c.log.Debug("probe", "error", err)
		}
	}
}

// hold is what stays in force after a restore until an administrator acknowledges it.
// A backup may hold a laxer policy, a root that was distrusted since, or a grant that
// was withdrawn since.
type hold struct {
	at     time.Time           // of the last restore
	view   *view.View          // of before the first restore that is not acknowledged
	grants map[types.UID]int64 // the end of each grant of before, by its MachineAttestation
}

// holdWorld begins to hold. Before the policies were read there is nothing to hold.
func (c *Cluster) holdWorld(now time.Time) {
	c.build() // with everything that was taken in before the restore
	grants := map[types.UID]int64{}
	for _, m := range c.registry.All().Machines() {
		if e := m.Enrolment; e != nil && e.Spec.Reattest != nil {
			grants[e.UID] = e.Spec.Reattest.Until.Unix()
		}
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	switch {
	case c.hold != nil:
		c.hold = &hold{now, c.hold.view, c.hold.grants}
	case c.started:
		c.hold = &hold{now, c.view.Load(), grants}
	}
}

// release ends the hold if it is not younger than the acknowledgement. Everything is
// read again, since grants were left out of what was read.
func (c *Cluster) release(acknowledged time.Time) {
	c.mu.Lock()
	h := c.hold
	if h == nil || h.at.After(acknowledged) {
		c.mu.Unlock()
		return
	}
	c.hold = nil
	c.mu.Unlock()
	c.log.Info("the restore of etcd is acknowledged: policies, anchors, reference values and grants count as they are")
	c.inventory.Restart()
	c.changed()
}

// withheld reports whether the grant in a MachineAttestation does not count: a
// restore brought it back, or it was made before the restore was acknowledged.
func (c *Cluster) withheld(a *v1alpha1.MachineAttestation) bool {
	if a == nil || a.Spec.Reattest == nil {
		return false
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.hold != nil && c.hold.grants[a.UID] != a.Spec.Reattest.Until.Unix()
}

// unacknowledged reports whether something waits for an acknowledgement.
func (c *Cluster) unacknowledged() bool {
	c.mu.Lock()
	held := c.hold != nil
	c.mu.Unlock()
	return held || c.holding()
}

// restored takes note of a restore that was noticed by what was known since the
// one that is epoch. It is called before anything of the restored state is taken
// in. Whoever notices it second has nothing to add: what was known is remembered.
func (c *Cluster) restored(epoch uint32, why string) {
	c.revision.noticing.Lock()
	defer c.revision.noticing.Unlock()
	if c.epoch.Load() != epoch {
		return
	}
	now := c.o.Now()
	c.holdWorld(now)
	remembered := map[string]memory{}
	for _, m := range c.registry.All().Machines() {
		uid := records.UID(m)
		l, _ := c.latch(uid)
		l.quarantined = l.quarantined || m.Quarantined()
		l.joined = l.joined || m.Joined() && !m.Granted(now)
		if l.revoked() {
			remembered[uid] = memory{l, m.NodeRef}
		}
	}
	c.Machines.mu.Lock()
	for uid, l := range c.latches {
		if _, ok := remembered[uid]; !ok && l.revoked() {
			remembered[uid] = memory{latch: l}
		}
	}
	c.Machines.mu.Unlock()
	c.mu.Lock()
	// What an earlier restore left to be done is still to be done; the map may be
	// in use, so it is another one.
	for uid, m := range c.remembered {
		remembered[uid] = m.with(remembered[uid])
	}
	c.remembered = remembered
	c.restores = append(c.restores, restore{now, why})
	c.mu.Unlock()

	s := &c.secrets
	s.mu.Lock()
	maps.Copy(s.void, s.seen)
	s.renewed = now.Add(-keys.ClockSkew).Truncate(time.Second)
	s.pair.Store(&keys.Pair{})
	if c.o.ProvisioningToken.Secret != "" {
		s.holdToken(epoch+1, now)
	}
	s.mu.Unlock()

	c.revision.mu.Lock()
	c.revision.highest = 0
	c.epoch.Add(1)
	c.revision.mu.Unlock()
	c.inventory.Reset()
	c.log.Error("etcd went back to an earlier time: all keys are void, what was revoked is revoked again, and policies stay as they were until an administrator acknowledges the restore", "why", why, "remembered", len(remembered))
	c.inventory.Restart()
	c.changed()
}

// revoked reports whether the latch holds something that must not be lifted by a
// backup.
func (l latch) revoked() bool {
	return l.quarantined || l.joined || l.grant != nil
}

// repairing reports whether something remembered is still to be latched, or keys
// are still to be made.
func (c *Cluster) repairing() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.remembered != nil
}

// voided reports whether one of the keys is from before a restore: it was there
// then, or was made then. A backup also holds keys that had been replaced since,
// and that this process has never seen; a replica that was faster has made new ones
// after it, and those are good.
func (c *Cluster) voided(pair keys.Pair) bool {
	c.secrets.mu.Lock()
	defer c.secrets.mu.Unlock()
	return c.secrets.voided(pair)
}

// voided is called with the lock held.
func (s *secrets) voided(pair keys.Pair) bool {
	return slices.ContainsFunc(pair.IDs(), func(id string) bool { return s.void[id] }) || !s.renewed.IsZero() && pair.MadeBefore(s.renewed)
}

// repair does after a restore what has to be done.
func (c *Cluster) repair(ctx context.Context) {
	again := wait.Backoff{Duration: 100 * time.Millisecond, Factor: 2, Jitter: 1, Steps: 7, Cap: 5 * time.Second}
	pause := again
	for ctx.Err() == nil {
		if !c.repairing() || !c.repairable() {
			sleep(ctx, c.o.Pass/100+50*time.Millisecond)
			continue
		}
		if err := c.takeBack(ctx); err != nil {
			c.log.Error("after the restore of etcd not everything could be set again; it is tried again, and what needs it is not granted meanwhile", "error", err)
			sleep(ctx, pause.Step())
			continue
		}
		pause = again
	}
}

// repairable reports whether Machines and records were read anew. What stays
// forbidden to be read is not waited for: one namespace would keep all others
// without keys.
func (c *Cluster) repairable() bool {
	c.mu.Lock()
	n := len(c.restores)
	// An API server that has just started refuses for a moment what it will allow.
	patient := n > 0 && c.o.Now().Sub(c.restores[n-1].at) < c.o.Pass
	c.mu.Unlock()
	for _, w := range c.inventory.Sources() {
		switch w.Kind.String() {
		case machineAPIKind.String(), clusterAPIKind.String(), attestationKind.String():
			if s, wrong := w.Status(); wrong && s.Unsynced && (patient || !s.Forbidden) {
				return false
			}
		}
	}
	return true
}

// takeBack latches again what is remembered; then it sees to new keys. Where the
// verifier may not write, nobody can attest either: that is remembered until it may.
func (c *Cluster) takeBack(ctx context.Context) error {
	c.mu.Lock()
	remembered := c.remembered
	epoch := c.epoch.Load()
	c.mu.Unlock()
	forbidden := map[string]memory{}
	var why error
	for uid, l := range remembered {
		if ctx.Err() != nil {
			return ctx.Err()
		}
		m, ok := c.registry.ByUID(uid)
		if !ok || records.UID(m) != uid {
			continue // nobody can attest as a Machine that is not there
		}
		if now, has := c.latch(uid); has && now.covers(l.latch) {
			continue
		}
		c.tasks.limit.Accept()
		err := c.records.Update(ctx, uid, func(rec *v1alpha1.MachineAttestation) (*v1alpha1.MachineAttestation, error) {
			return relatch(rec, m, l, c.o.Now()), nil
		})
		switch {
		case kerrors.IsForbidden(err):
			forbidden[uid], why = l, err
		case err != nil && reason.From(err).Code != reason.MachineNotFound:
			return err
		}
	}
	if err := c.keepKeys(ctx, true); err != nil {
		return err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	switch {
	case c.epoch.Load() != epoch: // it went back once more
	case why != nil:
		c.remembered = forbidden
		return fmt.Errorf("%d Machines: %w", len(forbidden), why)
	default:
		c.remembered = nil
		c.log.Info("what was revoked before the restore of etcd is revoked again", "machines", len(remembered))
	}
	c.changed()
	return nil
}

// memory is a latch as it was before a restore.
type memory struct {
	latch
	node string // that the Machine had become, if that is known
}

// with is both together, of each the stronger part.
func (m memory) with(other memory) memory {
	m.quarantined = m.quarantined || other.quarantined
	m.joined = m.joined || other.joined
	if m.grant == nil || other.grant != nil && m.grant.before(*other.grant) {
		m.grant = other.grant
	}
	if m.node == "" {
		m.node = other.node
	}
	return m
}

// before reports whether g was used less than other, or is an earlier one.
func (g grant) before(other grant) bool {
	return g.until.Before(other.until) || g.until.Equal(other.until) && g.count < other.count
}

// covers reports whether a record holds at least what is remembered.
func (l latch) covers(r latch) bool {
	return (l.quarantined || !r.quarantined) && (l.joined || !r.joined) && (r.grant == nil || l.grant != nil && !l.grant.before(*r.grant))
}

// relatch is the record with what is remembered of it; nil if it has all of it.
func relatch(rec *v1alpha1.MachineAttestation, m *machine.Machine, r memory, now time.Time) *v1alpha1.MachineAttestation {
	next, changed := rec, false
	step := func(to *v1alpha1.MachineAttestation) {
		if to != nil {
			next, changed = to, true
		}
	}
	if r.quarantined {
		step(record.Quarantine(next, m, true, now))
		// Whether an object says so is asked of the record alone, which was just read:
		// what was watched may still be from before the restore. If another object does
		// say so, the holder of the lease will see it ([restated]).
		if says := rec != nil && rec.Spec.Quarantined; changed && !says {
			meta.SetStatusCondition(&next.Status.Conditions, metav1.Condition{
				Type: conditionQuarantined, Status: metav1.ConditionTrue, Reason: reasonEtcdRestored, LastTransitionTime: metav1.NewTime(now),
				Message: "quarantined before etcd was restored; no object says so any more. Set spec.quarantined to true to keep it, and after that to false to lift it",
			})
		}
	}
	if next == nil && (r.joined || r.grant != nil) {
		next = record.New(m) // the backup is from before there was a record
	}
	if r.joined {
		step(record.Joined(next, r.node, now))
	}
	if r.grant != nil {
		var has grant
		if used := next.Status.GrantUsed; used != nil {
			has = grant{used.Time, next.Status.GrantAttestations}
		}
		if has.before(*r.grant) {
			if !changed {
				next = next.DeepCopy()
			}
			next.Status.GrantUsed, next.Status.GrantAttestations = &metav1.Time{Time: r.grant.until}, r.grant.count
			changed = true
		}
	}
	if !changed {
		return nil
	}
	return next
}

// heldSinceRestore reports whether the quarantine comes from memory alone.
func heldSinceRestore(rec *v1alpha1.MachineAttestation) bool {
	c := meta.FindStatusCondition(rec.Status.Conditions, conditionQuarantined)
	return c != nil && c.Status == metav1.ConditionTrue && c.Reason == reasonEtcdRestored
}

// restated notes that an object says so again: from here on the spec counts.
func restated(now time.Time) func(*v1alpha1.MachineAttestation) *v1alpha1.MachineAttestation {
	return func(rec *v1alpha1.MachineAttestation) *v1alpha1.MachineAttestation {
		if rec == nil || !heldSinceRestore(rec) {
			return nil
		}
		next := rec.DeepCopy()
		meta.SetStatusCondition(&next.Status.Conditions, metav1.Condition{
			Type: conditionQuarantined, Status: metav1.ConditionFalse, Reason: "SpecSaysSo", LastTransitionTime: metav1.NewTime(now), Message: "spec.quarantined counts again",
		})
		return next
	}
}
