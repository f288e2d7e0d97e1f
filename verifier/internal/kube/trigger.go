// SPDX-License-Identifier: Apache-2.0

package kube

import (
	"context"
	"errors"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/controller/priorityqueue"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
)

// The priorities of a request in the queue of a controller. The queue serves a higher number first, so that a
// revocation never waits for bookkeeping.
const (
	PriorityRevoke = 20 // an administrator stopped a machine: the record, and its credentials
	PriorityJoin   = 10 // a machine has joined, or was deleted and has credentials
	PriorityChange = 0
	PriorityResync = handler.LowPriority
)

// Trigger is a source of one controller. Code that is not a watch, such as the inventory, uses it to request the
// reconciliation of an object. A Trigger drops requests while the controller does not run, because a controller
// reconciles everything when it starts. It is safe for concurrent use.
type Trigger struct {
	// All, if set, returns what to reconcile when the controller starts and after each Interval.
	All func() []reconcile.Request
	// Interval gets a jitter of up to the same length. If zero, All is called only at the start.
	Interval time.Duration
	// Priority, if set, returns the least priority of a request. It runs in the goroutine of the caller.
	Priority func(reconcile.Request) int

	mu    sync.Mutex
	queue priorityqueue.PriorityQueue[reconcile.Request]
}

// Every returns a trigger for a controller without objects. It requests a reconciliation at the start and after each
// interval.
func Every(interval time.Duration) *Trigger {
	return &Trigger{Interval: interval, All: func() []reconcile.Request { return []reconcile.Request{Request("all")} }}
}

// Request returns the request with a name and without a namespace. The controllers of records use UIDs.
func Request(name string) reconcile.Request {
	return reconcile.Request{NamespacedName: types.NamespacedName{Name: name}}
}

// String implements fmt.Stringer, for the log of the controller.
func (t *Trigger) String() string { return "trigger" }

// Start implements source.Source.
func (t *Trigger) Start(ctx context.Context, queue requests) error {
	q, ok := queue.(priorityqueue.PriorityQueue[reconcile.Request])
	if !ok {
		return errNoPriorities
	}
	t.mu.Lock()
	t.queue = q
	t.mu.Unlock()
	go func() {
		defer func() {
			t.mu.Lock()
			defer t.mu.Unlock()
			if t.queue == q {
				t.queue = nil
			}
		}()
		for {
			t.EnqueueAll()
			var again <-chan time.Time
			if t.Interval > 0 {
				again = time.After(wait.Jitter(t.Interval/2, 1))
			}
			select {
			case <-ctx.Done():
				return
			case <-again:
			}
		}
	}()
	return nil
}

// Enqueue requests reconciliations. Several requests for one object become one, with the highest priority.
func (t *Trigger) Enqueue(priority int, all ...reconcile.Request) {
	t.EnqueueAfter(0, priority, all...)
}

// EnqueueAfter is Enqueue after a pause. It combines requests that arrive in quick succession.
func (t *Trigger) EnqueueAfter(pause time.Duration, priority int, all ...reconcile.Request) {
	t.mu.Lock()
	queue := t.queue
	t.mu.Unlock()
	if queue == nil {
		return
	}
	if t.Priority == nil {
		queue.AddWithOpts(priorityqueue.AddOpts{After: pause, Priority: ptr.To(priority)}, all...)
		return
	}
	for _, one := range all {
		queue.AddWithOpts(priorityqueue.AddOpts{After: pause, Priority: ptr.To(max(priority, t.Priority(one)))}, one)
	}
}

// EnqueueAll requests a reconciliation of everything that All returns.
func (t *Trigger) EnqueueAll() {
	if t.Running() && t.All != nil {
		t.Enqueue(PriorityResync, t.All()...)
	}
}

// Running reports whether the controller runs, which means that its manager leads.
func (t *Trigger) Running() bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.queue != nil
}

var errNoPriorities = errors.New("the controller's queue does not support priorities")
