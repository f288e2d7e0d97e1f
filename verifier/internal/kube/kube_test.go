// SPDX-License-Identifier: Apache-2.0

package kube_test

import (
	"context"
	"log/slog"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/manager"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/mcs-attest/mcs-attest/pkg/api/v1alpha1"
	"github.com/mcs-attest/mcs-attest/testvm/cluster"
	"github.com/mcs-attest/mcs-attest/verifier/internal/kube"
)

// After its context ends, a manager can be followed by another one with the same controllers: a replica may acquire
// the lease many times.
func TestManager_RunsAgainWithTheSameControllers(t *testing.T) {
	c := cluster.StartShared(t)
	c.InstallOwn(t)
	for round := range 2 {
		seen := make(chan string, 100)
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan struct{})
		go func() {
			defer close(ended)
			kube.RunManager(ctx, slog.New(slog.DiscardHandler), func() (manager.Manager, error) {
				m, err := kube.NewManager(c.Admin(), kube.Options{Log: slog.New(slog.DiscardHandler)})
				if err != nil {
					return nil, err
				}
				return m, ctrl.NewControllerManagedBy(m).Named("policies").For(&v1alpha1.AttestationPolicy{}).
					Complete(reconcile.Func(func(ctx context.Context, r reconcile.Request) (reconcile.Result, error) {
						var p v1alpha1.AttestationPolicy
						if err := m.GetClient().Get(ctx, r.NamespacedName, &p); err != nil {
							return reconcile.Result{}, client.IgnoreNotFound(err)
						}
						if err := m.GetClient().Get(ctx, r.NamespacedName, &corev1.Node{}); err == nil {
							t.Error("a read of a kind that is not watched started a watch")
						}
						seen <- p.Name
						return reconcile.Result{}, nil
					}))
			})
		}()
		if round == 0 {
			api, err := client.New(c.Admin(), client.Options{Scheme: scheme(t)})
			if err != nil {
				t.Fatal(err)
			}
			policy := &v1alpha1.AttestationPolicy{ObjectMeta: metav1.ObjectMeta{Name: "manager-test"},
				Spec: v1alpha1.AttestationPolicySpec{Pools: []string{"worker"}}}
			if err := api.Create(t.Context(), policy); err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { _ = api.Delete(context.Background(), policy) })
		}
		timeout := time.After(2 * time.Minute)
		for found := false; !found; {
			select {
			case name := <-seen:
				found = name == "manager-test"
			case <-timeout:
				t.Fatalf("round %d: the controller does not see the policy", round)
			}
		}
		cancel()
		<-ended
	}
}

func scheme(t *testing.T) *runtime.Scheme {
	t.Helper()
	s, err := kube.Scheme()
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func TestControllerOptions_RetryWithinAMinute(t *testing.T) {
	o := kube.ControllerOptions()
	if o.ReconciliationTimeout == 0 || o.ReconciliationTimeout > time.Minute {
		t.Errorf("a reconciliation may take %v", o.ReconciliationTimeout)
	}
	for range 100 {
		if pause := o.RateLimiter.When(reconcile.Request{}); pause > time.Minute {
			t.Fatalf("it waits for %v", pause)
		}
	}
}
