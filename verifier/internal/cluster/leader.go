package cluster

import (
	"context"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/util/flowcontrol"
	"k8s.io/client-go/util/workqueue"

	"github.com/mcs-attest/mcs-attest/pkg/provisioning"
)

// What the holder of the lease does, each step by itself and again whenever it
// may be needed. None of it decides over a machine: a step that comes late, or
// twice, or from two holders at once leaves the same behind.
const (
	aboutMachine  = iota // the record of the UID key.name: created, latched, or deleted
	aboutUserData        // the pointer config: the provisioning token in it
	aboutToken           // the provisioning token: rotation
	aboutKeys            // token and sealing keys: made, rotated
	aboutGone            // records whose Machine is gone
	aboutClaims          // claims whose Machine is gone
	aboutPending         // machines that waited too long
)

// task is one of those, about one object where it is about one.
type task struct {
	about int
	key
}

// tasks is the holder's queue; there is none while another replica holds the lease.
type tasks struct {
	c     *Cluster
	limit flowcontrol.RateLimiter

	mu        sync.Mutex
	queue     queue
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

// Work does what no controller does yet, until ctx ends. The controller process runs it while it leads.
func (c *Cluster) Work(ctx context.Context) error {
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
	return nil
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
	aboutMachine: "record", aboutUserData: "pointer config", aboutToken: "provisioning token",
	aboutKeys: "keys", aboutGone: "records of gone Machines", aboutClaims: "claims of gone Machines", aboutPending: "pending",
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
	c.tasks.add(task{about: aboutKeys}, task{about: aboutToken}, task{about: aboutPending}, task{about: aboutGone},
		task{about: aboutClaims})
	if machines {
		for _, uid := range c.registry.UIDs() {
			if c.unsettled(uid) {
				c.tasks.add(task{about: aboutMachine, key: key{name: uid}})
			}
		}
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
	}
	return nil
}

// Leading reports whether this replica holds the lease.
func (c *Cluster) Leading() bool { return c.tasks.leading() }
