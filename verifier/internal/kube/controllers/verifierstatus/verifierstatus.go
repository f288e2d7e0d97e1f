// SPDX-License-Identifier: Apache-2.0

// Package verifierstatus maintains the AttestationVerifier "cluster": its conditions, the holder of the
// lease, the version, and the Nodes that may have a control-plane role.
//
// It watches nothing. Its report is a pure function of the state of the other parts, and some of it
// depends on the time. So Reconcile computes it every second, in memory. It calls the API server only
// if the result differs from the last one. It also does so after the resync interval, because another
// client may have changed the object.
//
// Its permissions:
//
//	attestationverifiers                     create
//	attestationverifiers (cluster)           get
//	attestationverifiers/status (cluster)    update
//
// If it runs twice, the writes conflict, and the later one is repeated. If it runs late, the conditions
// are outdated. No decision depends on them, except that an admission policy reads the list of
// control-plane Nodes.
package verifierstatus

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	kerrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/util/flowcontrol"
	"k8s.io/client-go/util/workqueue"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller"
	"sigs.k8s.io/controller-runtime/pkg/manager"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
	"sigs.k8s.io/controller-runtime/pkg/source"

	"github.com/mcs-attest/mcs-attest/pkg/api/v1alpha1"
	"github.com/mcs-attest/mcs-attest/pkg/restore"
	"github.com/mcs-attest/mcs-attest/verifier/internal/kube/sources"
	"github.com/mcs-attest/mcs-attest/verifier/internal/view"
)

const (
	reasonAsExpected = "AsExpected"
	// maxMessage is the maximum length of a condition's message in the CRD.
	maxMessage = 8 << 10
	// interval is the time between two computations of the status.
	interval = time.Second
	// callTimeout bounds one Reconcile.
	callTimeout = 15 * time.Second
)

// Options configure a Reconciler.
type Options struct {
	Now     func() time.Time        // required
	Limit   flowcontrol.RateLimiter // of writes; required
	Holder  string                  // this replica
	Version string                  // of this program
	// Resync is the time after which the object is read again. Default one minute.
	Resync time.Duration

	// Unavailable returns why no machine can be served. Progressing returns what is in progress. The
	// zero value means nothing.
	Unavailable, Progressing func() view.Finding
	// Findings return the reasons of the condition Degraded, the most severe first.
	Findings []Findings
	// Degraded receives each reason of the condition Degraded when it begins, and when it ends. Default: none.
	Degraded func(reason string, exists bool)
	// Conditions return further conditions.
	Conditions []Condition
	// ControlPlaneNodes returns the list for a status that contains these names. It returns false while
	// the list is not known.
	ControlPlaneNodes func(listed []string) ([]string, bool)
	// Acknowledge receives the annotations in which an administrator acknowledges restores of etcd.
	Acknowledge func(annotations map[string]string)
}

// Findings returns problems for an administrator. The texts must not depend on the time.
type Findings = func() []view.Finding

// Condition returns a condition that another part evaluates. A condition without a type is not written. One
// with a type and without a status is removed.
type Condition = func() metav1.Condition

// Reconciler maintains the AttestationVerifier.
type Reconciler struct {
	o      Options
	reader client.Reader // live
	writer client.Client

	// The fields below belong to Reconcile, which never runs concurrently.

	read time.Time // when the object was last read, if it was up to date
	last status

	mu       sync.Mutex
	ended    bool            // this replica no longer leads
	degraded map[string]bool // the reasons that Degraded received
}

// status is the reported state.
type status struct {
	conditions []metav1.Condition
	nodes      []string
	degraded   map[string]bool // the reasons
}

func (s status) equal(other status) bool {
	return slices.Equal(s.conditions, other.conditions) && slices.Equal(s.nodes, other.nodes)
}

// New returns a Reconciler.
func New(o Options) *Reconciler {
	o.Resync = cmp.Or(o.Resync, time.Minute)
	if o.Degraded == nil {
		o.Degraded = func(string, bool) {}
	}
	return &Reconciler{o: o}
}

// SetupWithManager adds the controller to a manager.
func (r *Reconciler) SetupWithManager(m manager.Manager) error {
	r.reader, r.writer, r.read = m.GetAPIReader(), m.GetClient(), time.Time{}
	r.mu.Lock()
	r.ended = false
	r.mu.Unlock()
	if err := m.Add(manager.RunnableFunc(r.end)); err != nil {
		return err
	}
	one := reconcile.Request{NamespacedName: client.ObjectKey{Name: v1alpha1.VerifierName}}
	start := func(_ context.Context, queue workqueue.TypedRateLimitingInterface[reconcile.Request]) error {
		queue.Add(one)
		return nil
	}
	return ctrl.NewControllerManagedBy(m).Named("verifierstatus").WatchesRawSource(source.Func(start)).
		WithOptions(controller.Options{
			RateLimiter: workqueue.NewTypedItemExponentialFailureRateLimiter[reconcile.Request](
				500*time.Millisecond, 10*time.Second),
			ReconciliationTimeout: callTimeout,
		}).Complete(r)
}

// end ends the reasons when this replica no longer leads. The next leader reports them.
func (r *Reconciler) end(ctx context.Context) error {
	<-ctx.Done()
	r.mu.Lock()
	r.ended = true
	r.mu.Unlock()
	r.report(nil)
	return nil
}

// report passes on the reasons that begin and end.
func (r *Reconciler) report(next map[string]bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.ended { // a Reconcile may end later
		next = nil
	}
	for reason := range r.degraded {
		if !next[reason] {
			r.o.Degraded(reason, false)
		}
	}
	for reason := range next {
		if !r.degraded[reason] {
			r.o.Degraded(reason, true)
		}
	}
	r.degraded = next
}

// Reconcile writes the status if it changed, and requeues itself.
func (r *Reconciler) Reconcile(ctx context.Context, _ reconcile.Request) (reconcile.Result, error) {
	if err := r.reconcile(ctx); err != nil {
		return reconcile.Result{}, fmt.Errorf("AttestationVerifier %s: %w", v1alpha1.VerifierName, err)
	}
	return reconcile.Result{RequeueAfter: interval}, nil
}

func (r *Reconciler) reconcile(ctx context.Context) error {
	now := r.o.Now()
	current := r.status(r.last.nodes)
	r.report(current.degraded) // also while the API does not answer
	if !r.read.IsZero() && now.Sub(r.read) < r.o.Resync && current.equal(r.last) {
		return nil
	}
	v, err := r.get(ctx)
	if err != nil {
		return err
	}
	r.o.Acknowledge(v.Annotations)
	next := r.status(v.Status.ControlPlaneNodes)
	if r.apply(v, next, now) {
		r.read = time.Time{} // until the write succeeds
		if err := r.o.Limit.Wait(ctx); err != nil {
			return err
		}
		if err := r.writer.Status().Update(ctx, v); kerrors.IsConflict(err) {
			return nil // the object is read again
		} else if err != nil {
			return err
		}
	}
	r.read, r.last = now, next
	return nil
}

// get reads the object. It creates the object if it does not exist.
func (r *Reconciler) get(ctx context.Context) (*v1alpha1.AttestationVerifier, error) {
	v := &v1alpha1.AttestationVerifier{}
	err := r.reader.Get(ctx, client.ObjectKey{Name: v1alpha1.VerifierName}, v)
	if !kerrors.IsNotFound(err) {
		return v, err
	}
	if err := r.o.Limit.Wait(ctx); err != nil {
		return nil, err
	}
	v = &v1alpha1.AttestationVerifier{ObjectMeta: metav1.ObjectMeta{Name: v1alpha1.VerifierName}}
	return v, r.writer.Create(ctx, v)
}

// apply changes the status of the object, and reports whether anything changed.
func (r *Reconciler) apply(v *v1alpha1.AttestationVerifier, next status, now time.Time) bool {
	s := &v.Status
	changed := s.Holder != r.o.Holder || r.o.Version != "" && s.Version != r.o.Version ||
		!slices.Equal(s.ControlPlaneNodes, next.nodes)
	s.Holder, s.Version, s.ControlPlaneNodes = r.o.Holder, cmp.Or(r.o.Version, s.Version), next.nodes
	for _, c := range next.conditions {
		if c.Status == "" {
			changed = meta.RemoveStatusCondition(&s.Conditions, c.Type) || changed
			continue
		}
		c.LastTransitionTime = metav1.NewTime(now.UTC().Truncate(time.Second))
		changed = meta.SetStatusCondition(&s.Conditions, c) || changed
	}
	return changed
}

// status computes the report for a status that contains these Nodes.
func (r *Reconciler) status(listed []string) status {
	s := status{nodes: listed, degraded: map[string]bool{}}
	if nodes, known := r.o.ControlPlaneNodes(listed); known {
		s.nodes = nodes
	}
	var degraded, holdUpgrade view.Finding
	var texts []string
	for _, find := range r.o.Findings {
		for _, f := range find() {
			degraded.Reason = cmp.Or(degraded.Reason, f.Reason)
			s.degraded[f.Reason] = true
			texts = append(texts, sources.Truncate(f.Text))
			if f.Reason == restore.Reason {
				holdUpgrade = f
			}
		}
	}
	degraded.Text = strings.Join(texts, "\n")
	unavailable := r.o.Unavailable()
	if unavailable != (view.Finding{}) {
		holdUpgrade = unavailable
	}
	yes, no := metav1.ConditionTrue, metav1.ConditionFalse
	s.conditions = []metav1.Condition{
		condition(v1alpha1.ConditionAvailable, unavailable, no, yes, "machines can attest"),
		condition(v1alpha1.ConditionProgressing, r.o.Progressing(), yes, no, "nothing is in progress"),
		condition(v1alpha1.ConditionDegraded, degraded, yes, no, "the verifier has no problems"),
		condition(v1alpha1.ConditionUpgradeable, holdUpgrade, no, yes, "the cluster may be upgraded"),
	}
	for _, of := range r.o.Conditions {
		if c := of(); c.Type != "" {
			c.Message = truncate(c.Message)
			s.conditions = append(s.conditions, c)
		}
	}
	return s
}

// condition returns a condition with the status found if there is a finding, else with the status fine
// and the text.
func condition(kind string, f view.Finding, found, fine metav1.ConditionStatus, text string) metav1.Condition {
	if f == (view.Finding{}) {
		return metav1.Condition{Type: kind, Status: fine, Reason: reasonAsExpected, Message: text}
	}
	return metav1.Condition{Type: kind, Status: found, Reason: f.Reason, Message: truncate(f.Text)}
}

func truncate(s string) string {
	if len(s) > maxMessage {
		return strings.ToValidUTF8(s[:maxMessage], "")
	}
	return s
}
