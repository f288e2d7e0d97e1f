// SPDX-License-Identifier: Apache-2.0

package kube

import (
	"context"
	"sync"

	"sigs.k8s.io/controller-runtime/pkg/manager"
)

// waitingManager is a manager whose Start returns after all runnables have ended. That of controller-runtime does not
// wait for them after it lost its lease. The controllers of a process serve one manager after another, so without
// this two of their workers could run for two managers. No server of HTTP or webhooks and no cluster is added to it:
// controller-runtime knows those by their type.
type waitingManager struct {
	manager.Manager

	mu      sync.Mutex
	ended   bool
	running sync.WaitGroup
}

// Add implements [manager.Manager].
func (m *waitingManager) Add(r manager.Runnable) error {
	return m.Manager.Add(&runnable{Runnable: r, of: m})
}

// Start implements [manager.Manager].
func (m *waitingManager) Start(ctx context.Context) error {
	err := m.Manager.Start(ctx)
	m.mu.Lock()
	m.ended = true
	m.mu.Unlock()
	m.running.Wait()
	return err
}

// begin reports whether a runnable may start. If so, the caller calls running.Done when it has ended.
func (m *waitingManager) begin() bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	if !m.ended {
		m.running.Add(1)
	}
	return !m.ended
}

// runnable is a runnable of a waitingManager.
type runnable struct {
	manager.Runnable
	of *waitingManager
}

// Start implements [manager.Runnable].
func (r *runnable) Start(ctx context.Context) error {
	if !r.of.begin() {
		return nil
	}
	defer r.of.running.Done()
	return r.Runnable.Start(ctx)
}

// NeedLeaderElection implements [manager.LeaderElectionRunnable]. As in controller-runtime, the default is true.
func (r *runnable) NeedLeaderElection() bool {
	elected, ok := r.Runnable.(manager.LeaderElectionRunnable)
	return !ok || elected.NeedLeaderElection()
}
