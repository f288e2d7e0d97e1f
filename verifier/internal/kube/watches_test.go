// SPDX-License-Identifier: Apache-2.0

package kube_test

import (
	"bytes"
	"context"
	"fmt"
	"log/slog"
	"sync/atomic"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/utils/ptr"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/mcs-attest/mcs-attest/testvm/cluster"
	"github.com/mcs-attest/mcs-attest/verifier/internal/kube"
)

const widgetCRD = `apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata: {name: widgets.watches.test}
spec:
  group: watches.test
  scope: Cluster
  names: {kind: Widget, plural: widgets, singular: widget}
  versions:
  - name: v1
    served: true
    storage: true
    schema: {openAPIV3Schema: {type: object, x-kubernetes-preserve-unknown-fields: true}}
`

// writer receives the lines of a log.
type writer func([]byte)

func (w writer) Write(p []byte) (int, error) {
	w(p)
	return len(p), nil
}

// A kind that the cluster does not serve yet is watched as soon as the cluster serves it, without a restart.
func TestWatches_StartWhenTheClusterServesTheKind(t *testing.T) {
	c := cluster.StartShared(t)
	widget := &unstructured.Unstructured{}
	widget.SetGroupVersionKind(schema.GroupVersionKind{Group: "watches.test", Version: "v1", Kind: "Widget"})
	kind := &kube.Kind{Name: "widgets", Object: widget, Only: client.ObjectKey{Name: "one"}}
	var failures, skipped atomic.Int64
	log := slog.New(slog.NewTextHandler(writer(func(line []byte) {
		if bytes.Contains(line, []byte("a watch ended")) {
			failures.Add(1)
		}
	}), &slog.HandlerOptions{Level: slog.LevelDebug}))
	now := func() time.Time { return time.Now().Add(time.Duration(skipped.Load())) }
	w := &kube.Watches{
		Log: log, Now: now, Handler: &handler.EnqueueRequestForObject{}, Kinds: []*kube.Kind{kind},
		Interval: 100 * time.Millisecond,
	}
	m, err := kube.NewManager(c.Admin(), kube.Options{Log: log})
	if err != nil {
		t.Fatal(err)
	}
	if err := w.SetManager(m); err != nil {
		t.Fatal(err)
	}
	seen := make(chan string, 100)
	err = ctrl.NewControllerManagedBy(m).Named("widgets").WatchesRawSource(w).
		WithOptions(controller.Options{NeedLeaderElection: ptr.To(false)}).
		Complete(reconcile.Func(func(_ context.Context, r reconcile.Request) (reconcile.Result, error) {
			seen <- r.Name
			return reconcile.Result{}, nil
		}))
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- m.Start(ctx) }()
	defer func() {
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	}()
	eventually := func(what string, check func() bool) {
		t.Helper()
		for end := time.Now().Add(2 * time.Minute); !check(); time.Sleep(50 * time.Millisecond) {
			if time.Now().After(end) {
				t.Fatalf("%s: unserved %t, synced %t, %v", what, kind.Unserved(now()), w.Synced(), w.Problems())
			}
		}
	}
	eventually("before", func() bool { return kind.Unserved(now()) && w.Synced() && len(w.Problems()) == 0 })

	c.KubectlApply(t, widgetCRD)
	c.Kubectl(t, "wait", "--for=condition=Established", "customresourcedefinition/widgets.watches.test", "--timeout=10m")
	eventually("served", func() bool { return !kind.Unserved(now()) && w.Synced() })
	for _, name := range []string{"other", "one"} {
		c.KubectlApply(t, fmt.Sprintf("apiVersion: watches.test/v1\nkind: Widget\nmetadata: {name: %s}\n", name))
	}
	select {
	case name := <-seen:
		if name != "one" {
			t.Errorf("the controller receives %s", name)
		}
	case <-time.After(2 * time.Minute):
		t.Fatal("the controller does not receive the object")
	}
	got := widget.DeepCopy()
	if err := kind.Get(ctx, client.ObjectKey{Name: "one"}, got); err != nil {
		t.Error(err)
	}
	c.Kubectl(t, "delete", "customresourcedefinition/widgets.watches.test")
	before := failures.Load()
	eventually("not found", func() bool { return failures.Load() > before })
	if kind.Unserved(now()) || !w.Synced() {
		t.Error("after one answer the kind counts as unserved")
	}
	skipped.Store(int64(61 * time.Second))
	eventually("deleted", func() bool { return kind.Unserved(now()) && w.Synced() })
}
