// SPDX-License-Identifier: Apache-2.0

package csr

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	certificatesv1 "k8s.io/api/certificates/v1"
	kerrors "k8s.io/apimachinery/pkg/api/errors"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/mcs-attest/mcs-attest/pkg/api/v1alpha1"
	"github.com/mcs-attest/mcs-attest/pkg/approver"
	"github.com/mcs-attest/mcs-attest/pkg/reason"
	"github.com/mcs-attest/mcs-attest/pkg/record"
	"github.com/mcs-attest/mcs-attest/verifier/internal/audit"
	"github.com/mcs-attest/mcs-attest/verifier/internal/kube/approval"
)

// reconciler decides requests. It belongs to one manager.
type reconciler struct {
	*Controllers
	client client.Client
	reader *approval.Reader
	index  *index
	wake   chan event.GenericEvent // requests for client certificates that need a decision now

	busy     sync.Map // machines and names of Nodes with a decision in progress
	reported sync.Map // the last outcome in the audit log, by request
	// superseded has the requests whose approval is noted on the record as one that supersedes others.
	superseded sync.Map
	unknown    sync.Map // the credential of each request whose machine is unknown, by request
}

// Reconcile evaluates one request.
func (r *reconciler) Reconcile(ctx context.Context, req reconcile.Request) (reconcile.Result, error) {
	csr := new(certificatesv1.CertificateSigningRequest)
	if err := r.client.Get(ctx, req.NamespacedName, csr); err != nil {
		if kerrors.IsNotFound(err) {
			r.reported.Delete(req.Name)
			r.superseded.Delete(req.Name)
			r.unknown.Delete(req.Name)
		}
		return reconcile.Result{}, client.IgnoreNotFound(err)
	}
	// There is one decision at a time for each node, because its kubelet may be slow, and for each
	// machine, so that one of two requests is the first.
	owner := r.owner(csr)
	if owner != "" {
		if _, busy := r.busy.LoadOrStore(owner, true); busy {
			return reconcile.Result{RequeueAfter: busyPause}, nil
		}
		defer r.busy.Delete(owner)
	}
	csr = new(certificatesv1.CertificateSigningRequest)
	if err := r.reader.Get(ctx, req.NamespacedName, csr); err != nil {
		return reconcile.Result{}, client.IgnoreNotFound(err)
	}
	if !r.ready(req.Name) {
		return reconcile.Result{RequeueAfter: unreadyPauses * r.o.MinPause}, nil
	}
	asked := approver.FromCSR(csr)
	if asked.Decided {
		return r.approvedByOthers(ctx, csr, asked)
	}
	// There is also one for each name of a Node, in case another replica moves the credential to
	// another record. A request of an unknown client does not take part, so that it cannot delay
	// others: it is never approved.
	if owner != "" && asked.Kind == approver.Client {
		name := "name/" + asked.Node()
		if _, busy := r.busy.LoadOrStore(name, true); busy {
			return reconcile.Result{RequeueAfter: busyPause}, nil
		}
		defer r.busy.Delete(name)
	}
	began, now := time.Now(), r.o.Now()
	d := approver.Decide(ctx, asked, r.reader, r.rules, now)
	if err := ctx.Err(); err != nil {
		return reconcile.Result{}, fmt.Errorf("decide certificate signing request %s: %w", req.Name, err)
	}
	if !r.ready(req.Name) { // the inventory may have changed during the decision
		return reconcile.Result{RequeueAfter: unreadyPauses * r.o.MinPause}, nil
	}
	// The inventory may have received or lost the machine's record in the meantime. Then another
	// request of the machine may have been evaluated at the same time.
	if r.owner(csr) != owner || d.RecordUID != "" && ofMachine(d.RecordUID) != owner {
		return reconcile.Result{RequeueAfter: busyPause}, nil
	}
	if owner == "" && d.CredentialID != "" {
		r.unknown.Store(csr.Name, d.CredentialID)
	}
	result, err := r.apply(ctx, csr, d, now)
	r.metrics.duration.WithLabelValues(label(d.Kind)).Observe(time.Since(began).Seconds())
	return result, err
}

// owner returns a key for the machine that made a request, or for the node if the request is for a
// serving certificate. It returns "" if the machine is unknown. It does not read the request's
// content, which the cache omits.
func (r *reconciler) owner(csr *certificatesv1.CertificateSigningRequest) string {
	req := approver.FromCSR(csr)
	if req.Kind == approver.Serving {
		return "node/" + req.Username
	}
	if uid, ok := r.rules.Issues(req); ok {
		return ofMachine(uid)
	}
	if uid, ok := r.o.Machines.ByCredential(req.CredentialID); ok && req.CredentialID != "" {
		return ofMachine(uid)
	}
	return ""
}

func ofMachine(uid string) string { return "machine/" + uid }

func (r *reconciler) ready(request string) bool {
	if r.o.Ready == nil {
		return true
	}
	err := r.o.Ready()
	if err != nil {
		r.o.Log.Debug("a certificate signing request cannot be decided yet", "request", request, "error", err)
	}
	return err == nil
}

// again returns the pause before a request is evaluated again. It grows with the request's age.
func (r *reconciler) again(created time.Time) reconcile.Result {
	age := r.o.Now().Sub(created)
	if age > approver.Window {
		return reconcile.Result{RequeueAfter: oldPause}
	}
	return reconcile.Result{RequeueAfter: min(max(age/2, r.o.MinPause), maxPause)}
}

// apply performs the consequences of a decision.
func (r *reconciler) apply(ctx context.Context, csr *certificatesv1.CertificateSigningRequest, d *approver.Decision,
	now time.Time) (result reconcile.Result, err error) {
	created := csr.CreationTimestamp.Time
	if d.Outcome == approver.Approve {
		if err := r.approve(ctx, csr, d, now); err != nil {
			notApproved(d, err)
		}
	}
	switch d.Outcome {
	case approver.Retry:
		result = r.again(created)
	case approver.Refuse:
		if !r.recordRefusal(ctx, d, now) {
			result = r.again(created)
		}
		if d.Denial.Code == reason.CSRCredential && !d.Proven && d.CredentialID != "" {
			result = r.untilKnown(created)
		}
		if d.Attested { // the machine waits
			result = r.again(created)
		}
	case approver.Deny:
		r.recordRefusal(ctx, d, now)
		err = r.setCondition(ctx, csr, certificatesv1.CertificateDenied, audit.Clean(d.Denial.Error()), now)
	}
	r.report(ctx, csr, d)
	return result, err
}

// untilKnown returns when a request is evaluated again whose credential is on no record. A credential is on its record
// before a machine receives it. But the inventory may not have the record yet, or may miss it for a moment. So a young
// request is evaluated soon. The clock of the API server may differ, so scan triggers any other one when its machine is
// known.
func (r *reconciler) untilKnown(created time.Time) reconcile.Result {
	if r.o.Now().Sub(created) < young {
		return r.again(created)
	}
	return reconcile.Result{RequeueAfter: oldPause}
}

// notApproved changes the decision d after its approval failed with err: to Retry, or
// to Refuse if err is a permanent denial.
func notApproved(d *approver.Decision, err error) {
	var denial *reason.Denial
	if !errors.As(err, &denial) {
		denial = reason.From(reason.Wrap(reason.StoreUnavailable, err, "approve"))
	}
	d.Denial, d.Outcome = denial, approver.Retry
	if !denial.Code.Temporary() {
		d.Outcome = approver.Refuse
	}
}

// recordRefusal writes a refusal to the record of the machine that made the request, which emits an
// Event. Without proof of that machine, it writes nothing. It returns false if a later write may succeed.
func (r *reconciler) recordRefusal(ctx context.Context, d *approver.Decision, now time.Time) bool {
	if !d.Proven || d.RecordUID == "" || d.Denial == nil || !r.writes.Allow(time.Now(), d.RecordUID) {
		return true
	}
	refused := func(rec *v1alpha1.MachineAttestation) (*v1alpha1.MachineAttestation, error) {
		return record.Refused(rec, d.Denial, now), nil
	}
	err := r.o.Records.Update(ctx, d.RecordUID, refused)
	if err != nil {
		r.o.Log.Debug("a refused certificate signing request was not recorded", "machine_uid", d.RecordUID, "error", err)
	}
	return err == nil || !reason.From(err).Code.Temporary()
}
