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
	aboutUserData = iota // the pointer config: the provisioning token in it
	aboutToken           // the provisioning token: rotation
	aboutKeys            // token and sealing keys: made, rotated
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
	queue := newQueue()
	c.tasks.mu.Lock()
	c.tasks.queue = queue
	c.tasks.mu.Unlock()
	c.log.Info("this replica holds the lease", "identity", c.o.Identity)
	var wg sync.WaitGroup
	for range 4 {
		wg.Go(func() { c.workOff(ctx, queue) })
	}
	wg.Go(func() {
		for ctx.Err() == nil {
			c.look()
			pause := time.NewTimer(wait.Jitter(c.o.Pass/2, 1))
			select {
			case <-ctx.Done():
			case <-pause.C:
			case <-c.tasks.all:
			}
			pause.Stop()
		}
	})
	<-ctx.Done()
	c.tasks.mu.Lock()
	c.tasks.queue = nil
	c.tasks.mu.Unlock()
	queue.ShutDown()
	wg.Wait()
	c.log.Info("this replica no longer holds the lease")
	return nil
}

// workOff does the tasks of the queue until it is shut down.
func (c *Cluster) workOff(ctx context.Context, q queue) {
	for {
		one, stop := q.Get()
		if stop {
			return
		}
		if err := c.do(ctx, one); err == nil || ctx.Err() != nil {
			q.Forget(one)
		} else {
			c.log.Warn("the lease's holder could not finish a step; it tries again", "step", steps[one.about], "object", one.key.String(), "error", err)
			q.AddRateLimited(one)
		}
		q.Done(one)
	}
}

var steps = map[int]string{
	aboutUserData: "pointer config", aboutToken: "provisioning token",
	aboutKeys: "keys",
}

// everything asks the holder to look at everything soon. It costs the caller
// nothing, holder or not: who begins to hold the lease looks at everything anyway.
func (c *Cluster) everything() {
	c.Triggers.MachineRecord.EnqueueAll()
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
func (c *Cluster) look() {
	c.tasks.add(task{about: aboutKeys}, task{about: aboutToken})
	c.secrets.mu.Lock()
	defer c.secrets.mu.Unlock()
	for k := range c.secrets.pools {
		c.tasks.add(task{about: aboutUserData, key: k})
	}
}

func (c *Cluster) do(ctx context.Context, t task) error {
	switch t.about {
	case aboutUserData:
		return c.rewrite(ctx, t.key)
	case aboutToken:
		return c.rotateToken(ctx)
	case aboutKeys:
		return c.keepKeys(ctx, false)
	}
	return nil
}

// Leading reports whether this replica holds the lease.
func (c *Cluster) Leading() bool { return c.tasks.leading() }
