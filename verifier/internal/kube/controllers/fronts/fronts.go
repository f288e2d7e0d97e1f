// SPDX-License-Identifier: Apache-2.0

// Package fronts reports whether any process that serves machines is ready. The leading controller knows what such a
// process needs, but not whether one runs.
//
// It reads the status of the DaemonSet every 15 seconds and writes nothing. Package verifierstatus writes what it
// found. Its permission, in the verifier's own namespace:
//
//	daemonsets (mcs-attest-verifier)    get
//
// If it runs twice, nothing changes. If it runs late, or cannot read, the last observation remains.
package fronts

import (
	"context"
	"fmt"
	"log/slog"
	"sync/atomic"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	kerrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/kubernetes"
	"sigs.k8s.io/controller-runtime/pkg/manager"

	"github.com/mcs-attest/mcs-attest/verifier/internal/view"
)

const (
	// daemonSet is the name in deploy/base.
	daemonSet = "mcs-attest-verifier"
	interval  = 15 * time.Second
	timeout   = 10 * time.Second
)

// Options configure a Reader. All are required.
type Options struct {
	Client    kubernetes.Interface
	Namespace string
	Log       *slog.Logger
}

// Reader reads the DaemonSet. It is safe for concurrent use.
type Reader struct {
	o    Options
	last atomic.Pointer[view.Finding]
}

// New returns a Reader that has read nothing.
func New(o Options) *Reader {
	r := &Reader{o: o}
	r.last.Store(&view.Finding{})
	return r
}

// SetupWithManager adds the reader to a manager.
func (r *Reader) SetupWithManager(m manager.Manager) error { return m.Add(r) }

// Start implements manager.Runnable.
func (r *Reader) Start(ctx context.Context) error {
	wait.UntilWithContext(ctx, r.read, interval)
	return nil
}

// Unavailable returns that no process is ready, or the zero value. It is also zero if there is no DaemonSet: then the
// processes were started in another way.
func (r *Reader) Unavailable() view.Finding { return *r.last.Load() }

func (r *Reader) read(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	set, err := r.o.Client.AppsV1().DaemonSets(r.o.Namespace).Get(ctx, daemonSet, metav1.GetOptions{})
	switch {
	case kerrors.IsNotFound(err):
		r.last.Store(&view.Finding{})
	case err != nil:
		r.o.Log.Debug("the DaemonSet cannot be read", "namespace", r.o.Namespace, "name", daemonSet, "error", err)
	default:
		found := finding(set)
		r.last.Store(&found)
	}
}

func finding(set *appsv1.DaemonSet) view.Finding {
	s := set.Status
	if s.NumberReady > 0 || s.ObservedGeneration == 0 { // or no controller has counted
		return view.Finding{}
	}
	return view.Finding{Reason: "NoneReady", Text: fmt.Sprintf("DaemonSet %s/%s has no ready pod, of %d; see "+
		"docs/alerts.md, McsAttestNoneReady", set.Namespace, set.Name, s.DesiredNumberScheduled)}
}
