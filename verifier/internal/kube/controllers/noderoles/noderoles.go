// SPDX-License-Identifier: Apache-2.0

// Package noderoles reports Nodes with a control-plane role whose machine belongs to another pool, and
// lists the Nodes that may have such a role. Package noderole in pkg decides; this package writes.
//
// It watches nothing: the inventory requests a reconciliation when Nodes, Machines, records or pools
// change. It writes the condition RoleMismatch of MachineAttestations, and Events with that reason
// about the Node.
//
// Its permissions, in the namespaces of Machines:
//
//	machineattestations           get
//	machineattestations/status    patch
//	events                        create, patch
//
// An Event about a Node is in the namespace default, where it needs create of events.
//
// If it runs twice, nothing changes. If it runs late, the role of a Node is reported late; the
// kubelet's own rights do not depend on the report.
package noderoles

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"time"

	"k8s.io/client-go/util/flowcontrol"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/manager"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/mcs-attest/mcs-attest/pkg/api/v1alpha1"
	"github.com/mcs-attest/mcs-attest/pkg/noderole"
	"github.com/mcs-attest/mcs-attest/pkg/record"
	"github.com/mcs-attest/mcs-attest/verifier/internal/kube"
	"github.com/mcs-attest/mcs-attest/verifier/internal/kube/events"
	"github.com/mcs-attest/mcs-attest/verifier/internal/store"
	"github.com/mcs-attest/mcs-attest/verifier/internal/view"
)

// Inventory is the cached state of the cluster.
type Inventory interface {
	// NodeRoles returns the input of the evaluation, and the UIDs of the records with the condition
	// RoleMismatch. The last result is false while they are not known.
	NodeRoles() (in noderole.Input, reported []string, known bool)
}

// Records reads and writes the records of Machines.
type Records interface {
	Update(ctx context.Context, uid string, change store.Change) error
}

// Options configure a Reconciler. All are required.
type Options struct {
	Log       *slog.Logger
	Now       func() time.Time
	Limit     flowcontrol.RateLimiter // of writes
	Events    events.Sink
	Inventory Inventory
	Records   Records
	Trigger   *kube.Trigger
	// Report receives the number of Nodes with a role that their pool does not have.
	Report func(int)
}

// Reconciler evaluates the roles. Findings and ControlPlaneNodes are safe for concurrent use. They
// return nothing while the controller does not run.
type Reconciler struct {
	o Options

	mu      sync.Mutex
	result  *noderole.Result // nil if not evaluated yet
	partial bool
	ended   bool // this replica no longer leads
}

// New returns a Reconciler.
func New(o Options) *Reconciler { return &Reconciler{o: o} }

// SetupWithManager adds the controller to a manager.
func (r *Reconciler) SetupWithManager(m manager.Manager) error {
	atEnd := func(ctx context.Context) error {
		<-ctx.Done()
		r.setEnded(true)
		r.set(nil, false)
		return nil
	}
	r.setEnded(false)
	if err := m.Add(manager.RunnableFunc(atEnd)); err != nil {
		return err
	}
	return ctrl.NewControllerManagedBy(m).Named("noderoles").WatchesRawSource(r.o.Trigger).
		WithOptions(kube.ControllerOptions()).Complete(r)
}

// setEnded sets whether this replica no longer leads.
func (r *Reconciler) setEnded(ended bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.ended = ended
}

// set stores a result, and returns the previous one.
func (r *Reconciler) set(next *noderole.Result, partial bool) (before noderole.Result) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.result != nil {
		before = *r.result
	}
	if r.ended { // a Reconcile may end later
		next = nil
	}
	n := 0
	if next != nil {
		if partial { // a Node may belong to a Machine that cannot be read
			next.Mismatched = before.Mismatched
		}
		n = len(next.Nodes())
	}
	r.result, r.partial = next, partial
	r.o.Report(n)
	return before
}

// Reconcile evaluates all roles.
func (r *Reconciler) Reconcile(ctx context.Context, _ reconcile.Request) (reconcile.Result, error) {
	in, reported, known := r.o.Inventory.NodeRoles()
	if !known {
		return reconcile.Result{}, nil
	}
	next := noderole.Evaluate(in)
	if next.Omitted > 0 {
		r.o.Log.Warn("too many Nodes may have a control-plane role; some are not listed", "omitted", next.Omitted)
	}
	before := r.set(&next, in.Partial)
	if in.Partial {
		return reconcile.Result{}, nil
	}
	var failed []error // a record that cannot be written must not stop the others
	for uid, m := range next.Mismatched {
		text := fmt.Sprintf("Node %s has a control-plane role, but its machine belongs to pool %s", m.Node, m.Pool)
		if before.Mismatched[uid].Node != m.Node {
			r.o.Log.Error("a Node has a control-plane role that its pool does not have",
				"node", m.Node, "uid", uid, "pool", m.Pool)
			r.o.Events.Emit(events.Event{
				About:   events.Object{APIVersion: "v1", Kind: "Node", Name: m.Node, UID: m.Node}, // as in the kubelet's own Events
				Warning: true, Reason: v1alpha1.ConditionRoleMismatch, Message: text,
			})
		}
		if !slices.Contains(reported, uid) {
			failed = append(failed, r.write(ctx, uid, text))
		}
	}
	for _, uid := range reported {
		if _, is := next.Mismatched[uid]; !is {
			failed = append(failed, r.write(ctx, uid, ""))
		}
	}
	return reconcile.Result{}, errors.Join(failed...)
}

// write sets the condition on a record. An empty text means that there is no mismatch.
func (r *Reconciler) write(ctx context.Context, uid, text string) error {
	if err := r.o.Limit.Wait(ctx); err != nil {
		return err
	}
	return r.o.Records.Update(ctx, uid, func(rec *v1alpha1.MachineAttestation) (*v1alpha1.MachineAttestation, error) {
		return record.RoleMismatch(rec, text, r.o.Now()), nil
	})
}

// Findings returns the Nodes with a role that their pool does not have.
func (r *Reconciler) Findings() []view.Finding {
	r.mu.Lock()
	defer r.mu.Unlock()
	nodes := cmp.Or(r.result, &noderole.Result{}).Nodes()
	if len(nodes) == 0 {
		return nil
	}
	return []view.Finding{{
		Reason: "NodeRoleMismatch",
		Text:   "Nodes have a control-plane role that their pool does not have: " + strings.Join(nodes, ", "),
	}}
}

// ControlPlaneNodes returns the list for a status that contains the names in listed. It returns false
// while the list is not known.
func (r *Reconciler) ControlPlaneNodes(listed []string) ([]string, bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.result == nil {
		return nil, false
	}
	return r.result.Merge(listed, r.partial), true
}
