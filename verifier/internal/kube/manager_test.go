// SPDX-License-Identifier: Apache-2.0

package kube

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"k8s.io/client-go/rest"
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

// silent is an API server that never answers the first request, and has a Lease without a holder.
type silent struct{ requests atomic.Int32 }

func (s *silent) RoundTrip(r *http.Request) (*http.Response, error) {
	if s.requests.Add(1) == 1 {
		<-r.Context().Done()
		return nil, r.Context().Err()
	}
	return &http.Response{StatusCode: http.StatusOK, Header: http.Header{"Content-Type": {"application/json"}},
		Body: io.NopCloser(strings.NewReader(`{"kind":"Lease","apiVersion":"coordination.k8s.io/v1","metadata":` +
			`{"name":"mcs-attest-verifier"}}`))}, nil
}

func TestManager_LeadsAlthoughARequestGetsNoAnswer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m, err := NewManager(&rest.Config{Host: "https://api.test", Transport: new(silent)},
			Options{Log: slog.New(slog.DiscardHandler), Lease: &Lease{Namespace: "mcs-attest", Identity: "a"}})
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		var wg sync.WaitGroup
		wg.Go(func() { _ = m.Start(ctx) })
		select {
		case <-m.Elected():
		case <-time.After(time.Minute):
			t.Error("it does not lead after a minute")
		}
		cancel()
		wg.Wait()
	})
}
