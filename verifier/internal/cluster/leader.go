package cluster

import (
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	kerrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/tools/leaderelection"
	"k8s.io/client-go/tools/leaderelection/resourcelock"
	"k8s.io/client-go/util/flowcontrol"
	"k8s.io/client-go/util/workqueue"

	"github.com/mcs-attest/mcs-attest/pkg/api/v1alpha1"
	"github.com/mcs-attest/mcs-attest/pkg/machine"
	"github.com/mcs-attest/mcs-attest/pkg/pointer"
	"github.com/mcs-attest/mcs-attest/pkg/provisioning"
	"github.com/mcs-attest/mcs-attest/pkg/record"
	"github.com/mcs-attest/mcs-attest/pkg/secret"
	"github.com/mcs-attest/mcs-attest/verifier/internal/keys"
	"github.com/mcs-attest/mcs-attest/verifier/internal/kube/records"
)

// What the holder of the lease does, each step by itself and again whenever it
// may be needed. None of it decides over a machine: a step that comes late, or
// twice, or from two holders at once leaves the same behind.
const (
	aboutMachine  = iota // the record of the UID key.name: created, latched, or deleted
	aboutFault           // an object that cannot be used: condition and Event
	aboutPolicy          // the policy's condition
	aboutUserData        // the pointer config: the provisioning token in it
	aboutToken           // the provisioning token: rotation
	aboutKeys            // token and sealing keys: made, rotated
	aboutGone            // records whose Machine is gone
	aboutClaims          // claims whose Machine is gone
	aboutPending         // machines that waited too long
	aboutStatus          // the AttestationVerifier
	aboutRoles           // Nodes whose role is not that of their pool
)

// task is one of those, about one object where it is about one.
type task struct {
	about int
	kind  string
	key
}

// tasks is the holder's queue; there is none while another replica holds the lease.
type tasks struct {
	c     *Cluster
	limit flowcontrol.RateLimiter

	mu        sync.Mutex
	queue     queue
	holder    string
	writeBack *writeBack
	leftAlone map[key]string // why a pointer config was not changed
	swept     time.Time      // when claims were last looked through
	all       chan struct{}  // capacity 1: look at everything now
}

type queue = workqueue.TypedRateLimitingInterface[task]

func newQueue() queue {
	return workqueue.NewTypedRateLimitingQueue(workqueue.NewTypedItemExponentialFailureRateLimiter[task](500*time.Millisecond, time.Minute))
}

// writeBack is what an administrator's edit of the provisioning token means, for
// the state of its Secret that it was seen in.
type writeBack struct {
	tokens  provisioning.Tokens
	version uint64
}

func (t *tasks) init(c *Cluster) {
	t.c, t.leftAlone, t.all = c, map[key]string{}, make(chan struct{}, 1)
	t.limit = flowcontrol.NewTokenBucketRateLimiter(c.o.WritesPerSecond, int(2*c.o.WritesPerSecond)+1)
}

func (t *tasks) leading() bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.queue != nil
}

// add asks for a task. Many requests for the same one are one.
func (t *tasks) add(all ...task) {
	t.mu.Lock()
	queue := t.queue
	t.mu.Unlock()
	if queue == nil {
		return
	}
	for _, one := range all {
		queue.Add(one)
	}
}

// later is add for what comes in swarms.
func (t *tasks) later(one task, after time.Duration) {
	t.mu.Lock()
	queue := t.queue
	t.mu.Unlock()
	if queue != nil {
		queue.AddAfter(one, after)
	}
}

// lookForGone asks for the records of Machines that are gone; when a Machine is
// deleted its record often goes by itself, by the API server's own clean-up.
func (t *tasks) lookForGone() { t.later(task{about: aboutGone}, time.Second) }

func (t *tasks) roles() { t.later(task{about: aboutRoles}, 200*time.Millisecond) }

func (t *tasks) allPolicies() { t.later(task{about: aboutPolicy}, 100*time.Millisecond) }

// enrolled asks for the records of the Machines that an enrolment is for.
func (t *tasks) enrolled(e *machine.Enrolment) {
	ref := e.Spec.MachineRef
	if ref == nil || !t.leading() {
		return
	}
	for _, m := range t.c.registry.ByName(ref.Namespace, ref.Name) {
		t.add(task{about: aboutMachine, key: key{name: m.UID}})
	}
}

// edited keeps what is to be written back into the token's Secret as it is at a
// version; nil: nothing, and nothing of before any more.
func (t *tasks) edited(tokens *provisioning.Tokens, version uint64) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.writeBack = nil
	if tokens != nil {
		t.writeBack = &writeBack{*tokens, version}
	}
}

// written forgets what was written back, unless there is something newer.
func (t *tasks) written(b *writeBack) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.writeBack == b {
		t.writeBack = nil
	}
}

// lead takes part in the election until ctx ends.
func (c *Cluster) lead(ctx context.Context) {
	lock := &resourcelock.LeaseLock{
		LeaseMeta:  metav1.ObjectMeta{Namespace: c.config.Namespace, Name: LeaseName},
		Client:     c.leases,
		LockConfig: resourcelock.ResourceLockConfig{Identity: c.o.Identity},
	}
	elector, err := leaderelection.NewLeaderElector(leaderelection.LeaderElectionConfig{
		Lock: lock, Name: LeaseName, ReleaseOnCancel: true,
		LeaseDuration: c.o.Lease, RenewDeadline: c.o.Lease * 2 / 3, RetryPeriod: c.o.Lease / 8,
		Callbacks: leaderelection.LeaderCallbacks{
			OnStartedLeading: c.work,
			OnStoppedLeading: func() {},
			OnNewLeader: func(identity string) {
				c.tasks.mu.Lock()
				c.tasks.holder = identity
				c.tasks.mu.Unlock()
				c.log.Info("lease", "holder", identity)
			},
		},
	})
	if err != nil {
		c.log.Error("no part in the election: keys, clean-up and conditions are left to other replicas", "error", err)
		return
	}
	for ctx.Err() == nil {
		elector.Run(ctx)
		sleep(ctx, time.Second)
	}
}

// lookForFindings is how often others are asked what they have found.
const lookForFindings = time.Second

// work is the holder's until ctx ends.
func (c *Cluster) work(ctx context.Context) {
	// Each task first goes through the front queue, which makes no call. What takes a
	// right away leaves it by a lane of its own, so that it never waits for the rest.
	front, lanes := newQueue(), [...]queue{laneStop: newQueue(), laneLatch: newQueue(), laneRest: newQueue()}
	c.tasks.mu.Lock()
	c.tasks.queue = front
	c.tasks.mu.Unlock()
	c.log.Info("this replica holds the lease", "identity", c.o.Identity)
	var wg sync.WaitGroup
	wg.Go(func() {
		for {
			one, stop := front.Get()
			if stop {
				return
			}
			lanes[c.lane(one)].Add(one)
			front.Done(one)
		}
	})
	for lane, workers := range [...]int{laneStop: 4, laneLatch: 4, laneRest: 4} {
		for range workers {
			wg.Go(func() { c.workOff(ctx, lanes[lane]) })
		}
	}
	for _, run := range c.o.Lead {
		wg.Go(func() { run(ctx) })
	}
	wg.Go(func() {
		// Nobody tells that others have found something.
		for was := ""; ctx.Err() == nil; sleep(ctx, lookForFindings) {
			if now := fmt.Sprint(c.foundByOthers(), c.conditionsOfOthers()); now != was {
				was = now
				c.tasks.add(task{about: aboutStatus})
			}
		}
	})
	wg.Go(func() {
		for pass := 0; ctx.Err() == nil; pass++ {
			// A look at each Machine costs little, and at all of them not.
			c.look(pass%10 == 0)
			pause := time.NewTimer(wait.Jitter(c.o.Pass/2, 1))
			select {
			case <-ctx.Done():
			case <-pause.C:
			case <-c.tasks.all:
				pass = -1
			}
			pause.Stop()
		}
	})
	<-ctx.Done()
	c.tasks.mu.Lock()
	c.tasks.queue = nil
	c.tasks.mu.Unlock()
	front.ShutDown()
	for _, lane := range lanes {
		lane.ShutDown()
	}
	wg.Wait()
	c.log.Info("this replica no longer holds the lease")
}

// The lanes of the holder's tasks. Only the last one is bounded by WritesPerSecond.
const (
	laneStop  = iota // an administrator stopped a machine: the latch, and its credentials
	laneLatch        // a machine has joined, or was deleted and has credentials
	laneRest
)

// lane is where a task belongs by what is known now.
func (c *Cluster) lane(t task) int {
	if t.about != aboutMachine {
		return laneRest
	}
	switch b, _ := c.compare(t.name); {
	case b.quarantine || b.revoke:
		return laneStop
	case b.join || b.gone && c.revocable(t.name):
		return laneLatch
	}
	return laneRest
}

// workOff does the tasks of one lane until it is shut down.
func (c *Cluster) workOff(ctx context.Context, lane queue) {
	for {
		one, stop := lane.Get()
		if stop {
			return
		}
		if err := c.do(ctx, one); err == nil || ctx.Err() != nil {
			lane.Forget(one)
		} else {
			c.log.Warn("the lease's holder could not finish a step; it tries again", "step", steps[one.about], "object", one.key.String(), "error", err)
			lane.AddRateLimited(one)
		}
		lane.Done(one)
	}
}

var steps = map[int]string{
	aboutMachine: "record", aboutFault: "unusable object", aboutPolicy: "policy", aboutUserData: "pointer config", aboutToken: "provisioning token",
	aboutKeys: "keys", aboutGone: "records of gone Machines", aboutClaims: "claims of gone Machines", aboutPending: "pending", aboutStatus: "status", aboutRoles: "roles of Nodes",
}

// everything asks the holder to look at everything soon. It costs the caller
// nothing, holder or not: who begins to hold the lease looks at everything anyway.
func (c *Cluster) everything() {
	if !c.tasks.leading() {
		return
	}
	select {
	case c.tasks.all <- struct{}{}:
	default:
	}
}

// look asks for every task: what changed while nobody held the lease, and what time
// alone brings.
func (c *Cluster) look(machines bool) {
	c.tasks.add(task{about: aboutKeys}, task{about: aboutToken}, task{about: aboutPending}, task{about: aboutPolicy}, task{about: aboutGone},
		task{about: aboutClaims}, task{about: aboutRoles}, task{about: aboutStatus})
	if machines {
		for _, uid := range c.registry.UIDs() {
			if c.unsettled(uid) {
				c.tasks.add(task{about: aboutMachine, key: key{name: uid}})
			}
		}
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	for k := range c.faults {
		c.tasks.add(task{about: aboutFault, kind: k.kind, key: k.key})
	}
	c.secrets.mu.Lock()
	defer c.secrets.mu.Unlock()
	for k := range c.secrets.pools {
		c.tasks.add(task{about: aboutUserData, key: k})
	}
}

func (c *Cluster) do(ctx context.Context, t task) error {
	switch t.about {
	case aboutMachine:
		return c.settle(ctx, t.key)
	case aboutFault:
		return c.report(ctx, faultKey{t.kind, t.key})
	case aboutPolicy:
		return c.judge(ctx, t.name)
	case aboutUserData:
		return c.rewrite(ctx, t.key)
	case aboutToken:
		return c.rotateToken(ctx)
	case aboutKeys:
		return c.keepKeys(ctx, false)
	case aboutGone:
		return c.lookForGone()
	case aboutClaims:
		return c.sweepClaims(ctx)
	case aboutPending:
		return c.records.ExpirePending(ctx, c.o.Now())
	case aboutStatus:
		return c.writeStatus(ctx)
	case aboutRoles:
		return c.keepRoles(ctx)
	}
	return nil
}

// latch is what is known of a Machine's record.
func (c *Cluster) latch(uid string) (latch, bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	l, ok := c.latches[uid]
	return l, ok
}

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
			if rec != nil && b.release && heldSinceRestore(rec) {
				return nil
			}
			return record.Quarantine(rec, m, b.quarantine, now)
		})
	case b.restate:
		return change(restated(now))
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

// Leading reports whether this replica holds the lease.
func (c *Cluster) Leading() bool { return c.tasks.leading() }

// lookForGone finds the records whose Machine is gone.
func (c *Cluster) lookForGone() error {
	if synced, _ := c.Synced(); !synced {
		return nil
	}
	c.mu.Lock()
	uids := slices.Collect(maps.Keys(c.latches))
	c.mu.Unlock()
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

var (
	secretsResource = schema.GroupVersionResource{Version: "v1", Resource: "secrets"}
)

// readSecret reads a Secret live; nil if there is none.
func (c *Cluster) readSecret(ctx context.Context, k key) (*unstructured.Unstructured, map[string][]byte, error) {
	o, err := c.dynamic.Resource(secretsResource).Namespace(k.namespace).Get(ctx, k.name, metav1.GetOptions{})
	if records.Missing(err) {
		return nil, nil, nil
	}
	if err != nil {
		return nil, nil, fmt.Errorf("read Secret %s: %w", k, err)
	}
	var s corev1.Secret
	if err := runtime.DefaultUnstructuredConverter.FromUnstructured(o.Object, &s); err != nil {
		return o, nil, fmt.Errorf("read Secret %s: %w", k, err)
	}
	return o, s.Data, nil
}

// writeSecret replaces some keys of the data that was read; nil deletes one.
// Whoever was faster is right: the watch brings what they wrote.
func (c *Cluster) writeSecret(ctx context.Context, k key, o *unstructured.Unstructured, data map[string][]byte) error {
	secrets := c.dynamic.Resource(secretsResource).Namespace(k.namespace)
	if o == nil {
		o = &unstructured.Unstructured{Object: map[string]any{
			"apiVersion": "v1", "kind": "Secret", "type": string(corev1.SecretTypeOpaque),
			"metadata": map[string]any{"namespace": k.namespace, "name": k.name},
		}}
		setData(o, data)
		_, err := secrets.Create(ctx, o, metav1.CreateOptions{})
		if kerrors.IsAlreadyExists(err) {
			return nil
		}
		return err
	}
	o = o.DeepCopy()
	setData(o, data)
	_, err := secrets.Update(ctx, o, metav1.UpdateOptions{})
	if kerrors.IsConflict(err) {
		return nil
	}
	return err
}

func setData(o *unstructured.Unstructured, data map[string][]byte) {
	encoded, _, err := unstructured.NestedStringMap(o.Object, "data")
	if err != nil || encoded == nil {
		encoded = map[string]string{}
	}
	for name, value := range data {
		if value == nil {
			delete(encoded, name)
		} else {
			encoded[name] = base64.StdEncoding.EncodeToString(value)
		}
	}
	// Every value is a string: nothing to fail.
	_ = unstructured.SetNestedStringMap(o.Object, encoded, "data")
}

// keepKeys makes the keys when there are none, rotates them when it is time, and
// with renew replaces those from before a restore of etcd, which every replica that
// remembers does: the first that writes the Secret has done it for all. One that
// cannot be read is an administrator's to look at: it is not written over.
func (c *Cluster) keepKeys(ctx context.Context, renew bool) error {
	at := key{c.config.Namespace, KeysSecret}
	o, data, err := c.readSecret(ctx, at)
	if err != nil {
		return err
	}
	now := c.o.Now()
	var pair keys.Pair
	if o != nil {
		if pair, err = keys.Parse(data); err != nil {
			return nil // reported by the watch
		}
	}
	publish := time.Duration(0)
	voided := o != nil && c.voided(pair)
	switch {
	case voided && !renew && c.repairing(): // done when the latches are in place
		return nil
	case voided:
		pair = keys.Pair{}
	case o == nil:
	case renew, pair.Rotating(now), !pair.Usable(now), now.Before(pair.Due(now, c.o.KeyRotation)):
		return nil
	default:
		publish = c.o.KeyPublishDelay
	}
	next, err := pair.Rotate(now, publish)
	if err != nil {
		return err
	}
	if data, err = next.Data(); err != nil {
		return err
	}
	c.tasks.limit.Accept()
	if err := c.writeSecret(ctx, at, o, data); err != nil {
		return fmt.Errorf("write the keys: %w", err)
	}
	if renew {
		// Somebody may have been faster; what they wrote must be good, too.
		if _, data, err = c.readSecret(ctx, at); err != nil {
			return err
		}
		if pair, err = keys.Parse(data); err != nil {
			return fmt.Errorf("read the new keys: %w", err)
		}
		if c.voided(pair) {
			return errors.New("the keys are still those from before the restore")
		}
	}
	c.log.Info("new keys", "used_from", now.Add(publish).UTC().Format(time.RFC3339), "first", o == nil)
	return nil
}

// keepSigning sees to it that this replica has keys in use, holder of the lease or not.
func (c *Cluster) keepSigning(ctx context.Context) {
	for ctx.Err() == nil {
		look := time.NewTimer(lookForStale)
		select {
		case <-ctx.Done():
		case <-look.C:
		case <-c.secrets.unusable:
		}
		look.Stop()
		if pair := c.secrets.pair.Load(); len(pair.Tokens.Keys) == 0 || pair.Usable(c.o.Now()) || ctx.Err() != nil {
			continue
		}
		if err := c.bridgeKeys(ctx); err != nil {
			c.log.Error("there is no key in use, and none could be made", "error", err)
		}
	}
}

// bridgeKeys adds keys that are in use now, where all that there are come into use
// later: the clock of the replica that made them is ahead, or this one's is behind.
// Without them this replica would neither sign nor seal until then.
func (c *Cluster) bridgeKeys(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	at := key{c.config.Namespace, KeysSecret}
	o, data, err := c.readSecret(ctx, at)
	if err != nil || o == nil {
		return err
	}
	now := c.o.Now()
	pair, err := keys.Parse(data)
	if err != nil || c.voided(pair) || pair.Usable(now) {
		return nil // reported by the watch, or another replica was faster
	}
	next, err := pair.Bridge(now)
	if err != nil {
		return err
	}
	if data, err = next.Data(); err != nil {
		return err
	}
	if err := c.writeSecret(ctx, at, o, data); err != nil {
		return fmt.Errorf("write the keys: %w", err)
	}
	c.log.Warn("all keys were dated ahead of this replica's clock; new ones are in use until then", "dated", pair.Ahead(now, 0).UTC().Format(time.RFC3339))
	return nil
}

// rotateToken writes back what an administrator's edit of the provisioning token
// means, and rotates it when it is time.
func (c *Cluster) rotateToken(ctx context.Context) error {
	namespace, name, ok := strings.Cut(c.o.ProvisioningToken.Secret, "/")
	if !ok {
		return nil
	}
	at := key{namespace, name}
	if c.holding() {
		return nil // that would make the one that came back the previous one
	}
	t := &c.tasks
	t.mu.Lock()
	back := t.writeBack
	t.mu.Unlock()
	if back == nil && c.o.ProvisioningToken.RotateEvery == 0 {
		return nil
	}
	o, data, err := c.readSecret(ctx, at)
	if err != nil || o == nil {
		return err
	}
	read, err := provisioning.Parse(data)
	if err != nil {
		return nil // reported by the watch
	}
	now, grace := c.o.Now(), time.Duration(c.o.ProvisioningToken.Grace)
	next := read
	switch due, ok := read.Due(o.GetCreationTimestamp().Time, time.Duration(c.o.ProvisioningToken.RotateEvery), grace); {
	case back != nil:
		if number(o.GetResourceVersion()) != back.version || !equal(back.tokens.Current, read.Current) {
			// It was changed again: the watch tells what that means. Perhaps the
			// previous token was taken out of it, which is then no oversight.
			t.written(back)
			return nil
		}
		next = back.tokens
	case ok && !now.Before(due):
		if next, err = read.Rotate(now, randReader, grace); errors.Is(err, provisioning.ErrRotating) {
			return nil
		} else if err != nil {
			return err
		}
	default:
		return nil
	}
	c.tasks.limit.Accept()
	if err := c.writeSecret(ctx, at, o, next.Data()); err != nil {
		return fmt.Errorf("write the provisioning token: %w", err)
	}
	t.written(back)
	c.log.Info("provisioning token", "edited", back != nil, "previous_until", next.PreviousExpires.Format(time.RFC3339))
	return nil
}

func equal(a, b secret.Bytes) bool { return string(a.Expose()) == string(b.Expose()) }

// rewrite puts the current provisioning token into a pointer config that nobody
// else writes.
func (c *Cluster) rewrite(ctx context.Context, k key) error {
	tokens, presence := c.Provisioning().At(c.o.Now())
	if presence != provisioning.Present || tokens.Current.Empty() || len(c.o.Origins) == 0 || strings.HasSuffix(k.name, managedSuffix) {
		c.leave(k, "")
		return nil
	}
	o, data, err := c.readSecret(ctx, k)
	if err != nil || o == nil {
		return err
	}
	owner := pointer.UserData{Name: k.name, Labels: o.GetLabels(), Annotations: o.GetAnnotations()}
	for _, r := range o.GetOwnerReferences() {
		owner.Owners = append(owner.Owners, r.Kind+"/"+r.Name)
	}
	if why := owner.Managed(); why != "" {
		c.leave(k, why)
		return nil
	}
	next, err := pointer.Provision(data["userData"], c.pointerToken(tokens, owner.Annotations[annotationWritten]))
	var left *pointer.LeftAlone
	if errors.As(err, &left) {
		why := left.Why
		if left.NotTaken {
			why = "" // as the policies have it
		}
		c.leave(k, why)
		return nil
	}
	if err != nil {
		return fmt.Errorf("user data %s: %w", k, err)
	}
	id := provisioning.ID(tokens.Current)
	if string(next) == string(data["userData"]) && owner.Annotations[annotationWritten] == id {
		c.leave(k, "")
		return nil
	}
	note(o, annotationWritten, id)
	c.tasks.limit.Accept()
	if err := c.writeSecret(ctx, k, o, map[string][]byte{"userData": next}); kerrors.IsForbidden(err) {
		c.leave(k, "the verifier may not update it; apply deploy/components/user-data")
		return nil // the next pass tries again
	} else if err != nil {
		return fmt.Errorf("user data %s: %w", k, err)
	}
	c.leave(k, "")
	c.log.Info("the pointer config has the current provisioning token", "secret", k.String())
	return nil
}

// leave notes why a pointer config stays as it is; "" if there is no reason.
func (c *Cluster) leave(k key, why string) {
	t := &c.tasks
	t.mu.Lock()
	news := t.leftAlone[k] != why
	if why == "" {
		delete(t.leftAlone, k)
	} else {
		t.leftAlone[k] = why
	}
	t.mu.Unlock()
	if news {
		if why != "" {
			c.log.Warn("a pointer config is left alone and does not get the provisioning token", "secret", k.String(), "why", why)
		}
		t.add(task{about: aboutStatus})
	}
}
