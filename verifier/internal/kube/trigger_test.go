// SPDX-License-Identifier: Apache-2.0

package kube_test

import (
	"context"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/controller/priorityqueue"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/mcs-attest/mcs-attest/verifier/internal/kube"
)

func request(name string) reconcile.Request {
	return reconcile.Request{NamespacedName: types.NamespacedName{Name: name}}
}

func TestTrigger(t *testing.T) {
	trigger := &kube.Trigger{All: func() []reconcile.Request { return []reconcile.Request{request("all")} }}
	trigger.Enqueue(kube.PriorityChange, request("before the start")) // dropped
	if trigger.Running() {
		t.Error("the trigger is running before its controller starts")
	}
	queue := priorityqueue.New[reconcile.Request]("test")
	ctx, cancel := context.WithCancel(t.Context())
	if err := trigger.Start(ctx, queue); err != nil {
		t.Fatal(err)
	}
	next := func() (string, int) {
		r, priority, _ := queue.GetWithPriority()
		queue.Done(r)
		return r.Name, priority
	}
	if name, priority := next(); name != "all" || priority != kube.PriorityResync {
		t.Errorf("the first is %s with priority %d", name, priority)
	}
	trigger.Enqueue(kube.PriorityChange, request("changed"), request("both"))
	trigger.Enqueue(kube.PriorityRevoke, request("both"))
	trigger.Enqueue(kube.PriorityJoin, request("joined"))
	for deadline := time.Now().Add(time.Minute); queue.Len() < 3 && time.Now().Before(deadline); {
		time.Sleep(time.Millisecond)
	}
	for _, want := range []string{"both", "joined", "changed"} {
		if name, _ := next(); name != want {
			t.Errorf("got %s, want %s", name, want)
		}
	}
	trigger.Priority = func(r reconcile.Request) int {
		if r.Name == "urgent" {
			return kube.PriorityRevoke
		}
		return kube.PriorityResync
	}
	trigger.Enqueue(kube.PriorityChange, request("changed"), request("urgent"))
	trigger.EnqueueAll()
	for deadline := time.Now().Add(time.Minute); queue.Len() < 3 && time.Now().Before(deadline); {
		time.Sleep(time.Millisecond)
	}
	for _, want := range []string{"urgent", "changed", "all"} {
		if name, _ := next(); name != want {
			t.Errorf("with priorities of its own: got %s, want %s", name, want)
		}
	}
	cancel()
	for deadline := time.Now().Add(time.Minute); trigger.Running(); time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatal("the trigger is still running after its controller ended")
		}
	}
	queue.ShutDown()
}
