// SPDX-License-Identifier: Apache-2.0

package kube

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"sigs.k8s.io/controller-runtime/pkg/manager"
)

// lostLease is a manager that returns without waiting for its runnables.
type lostLease struct {
	manager.Manager
	runnables []manager.Runnable
}

func (m *lostLease) Add(r manager.Runnable) error {
	m.runnables = append(m.runnables, r)
	return nil
}

var errLost = errors.New("leader election lost")

func (m *lostLease) Start(ctx context.Context) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	for _, r := range m.runnables[:1] { // it loses the lease before it starts the others
		go func() { _ = r.Start(ctx) }()
	}
	time.Sleep(time.Second)
	return errLost
}

func TestManager_WaitsForItsRunnablesAfterALostLease(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		lost := new(lostLease)
		m := &waitingManager{Manager: lost}
		ended, late := false, false
		for _, r := range []manager.RunnableFunc{
			func(ctx context.Context) error { <-ctx.Done(); time.Sleep(time.Minute); ended = true; return nil },
			func(context.Context) error { late = true; return nil },
		} {
			if err := m.Add(r); err != nil {
				t.Fatal(err)
			}
		}
		if err := m.Start(t.Context()); !errors.Is(err, errLost) {
			t.Error(err)
		}
		if !ended {
			t.Error("a runnable outlives its manager")
		}
		if err := lost.runnables[1].Start(t.Context()); err != nil || late {
			t.Errorf("a runnable starts after its manager has ended: %v", err)
		}
	})
}

type everywhere struct{ manager.RunnableFunc }

func (everywhere) NeedLeaderElection() bool { return false }

func TestManager_KeepsWhichRunnablesNeedTheLease(t *testing.T) {
	nothing := manager.RunnableFunc(func(context.Context) error { return nil })
	elected, other := &runnable{Runnable: nothing}, &runnable{Runnable: everywhere{nothing}}
	if !elected.NeedLeaderElection() || other.NeedLeaderElection() {
		t.Error("it differs from controller-runtime")
	}
}
