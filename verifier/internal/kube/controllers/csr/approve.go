// SPDX-License-Identifier: Apache-2.0

package csr

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"time"

	certificatesv1 "k8s.io/api/certificates/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/mcs-attest/mcs-attest/pkg/api/v1alpha1"
	"github.com/mcs-attest/mcs-attest/pkg/approver"
	"github.com/mcs-attest/mcs-attest/pkg/reason"
	"github.com/mcs-attest/mcs-attest/pkg/record"
	"github.com/mcs-attest/mcs-attest/verifier/internal/audit"
)

// ConditionReason is the reason of the conditions Approved and Denied that the controllers write.
const ConditionReason = "mcs-attest"

// approve approves a request. For a client certificate with attestation, it first writes the
// key to the machine's record.
func (r *reconciler) approve(ctx context.Context, csr *certificatesv1.CertificateSigningRequest, d *approver.Decision,
	now time.Time) error {
	message := "This CSR was approved by mcs-attest: "
	switch {
	case d.Kind == approver.Client && r.rules.Attestation:
		if d.RecordUID == "" || !d.Proven {
			return reason.Deny(reason.CSRCredential, "no proof identifies the machine of the request")
		}
		if d.Replaces != "" {
			if err := r.withdraw(ctx, d, now); err != nil {
				return err
			}
		}
		_, noted := r.superseded.Load(csr.Name)
		first := func(rec *v1alpha1.MachineAttestation) (next *v1alpha1.MachineAttestation, err error) {
			if d.Attested {
				next, err = record.Certify(rec, d.Certificate(csr.Name), now)
			} else {
				next, err = record.Reapprove(rec, d.Replaces, d.Certificate(csr.Name), now)
			}
			// A stolen front may have written the certificate, so this is noted even if it is recorded. It may also have
			// written the note, so that of an earlier attempt is known from memory.
			if err == nil && len(d.Superseded) > 0 && !noted {
				next = record.Superseded(cmp.Or(next, rec), d.Superseded, now)
			}
			return next, err
		}
		if err := r.o.Records.Update(ctx, d.RecordUID, first); err != nil {
			return err
		}
		if len(d.Superseded) > 0 {
			r.superseded.Store(csr.Name, true)
		}
		how := "created the request with its own credential"
		if d.Attested {
			how = "signed the request with the key that it attested"
		}
		message += fmt.Sprintf("%s attested, and %s", subject(d), how)
	default:
		message += "the request matches the kubelet of " + subject(d)
	}
	return r.setCondition(ctx, csr, certificatesv1.CertificateApproved, message, now)
}

func subject(d *approver.Decision) string {
	if d.Machine == nil {
		return "node " + audit.Clean(d.Node)
	}
	return "machine " + d.Machine.String()
}

// setCondition adds a condition to the version of the request that was read. If the request was
// deleted, it does nothing.
func (r *reconciler) setCondition(ctx context.Context, csr *certificatesv1.CertificateSigningRequest,
	condition certificatesv1.RequestConditionType, message string, now time.Time) error {
	csr = csr.DeepCopy()
	csr.Status.Conditions = append(csr.Status.Conditions, certificatesv1.CertificateSigningRequestCondition{
		Type: condition, Status: corev1.ConditionTrue, Reason: ConditionReason, Message: message,
		LastUpdateTime: metav1.NewTime(now),
	})
	name := csr.Name
	if err := client.IgnoreNotFound(r.client.SubResource("approval").Update(ctx, csr)); err != nil {
		return fmt.Errorf("write condition %s of request %s: %w", condition, name, err)
	}
	return nil
}

// withdraw prepares the replacement of the key on a record. It returns an error if a request with
// the old key was approved. It denies the waiting requests with the old key, so that neither another
// replica nor an administrator can approve them later.
func (r *reconciler) withdraw(ctx context.Context, d *approver.Decision, now time.Time) error {
	rec, err := r.reader.RecordByMachine(ctx, d.RecordUID)
	if err != nil {
		return err
	}
	if rec == nil || rec.Status.Certificate == nil || rec.Status.Certificate.PublicKeySHA256 != d.Replaces {
		return nil // the record no longer has the key to replace
	}
	requests, err := r.reader.PinnedRequests(ctx, rec)
	if err != nil {
		return err
	}
	for i := range requests {
		if approved(&requests[i]) != nil {
			return reason.Deny(reason.CSRKeyChanged, "request %s, with the key %s, was approved in the meantime",
				requests[i].Name, d.Replaces)
		}
	}
	const why = "superseded: the machine sent a newer request with another key"
	for i := range requests {
		if approver.FromCSR(&requests[i]).Decided {
			continue
		}
		if err := r.setCondition(ctx, &requests[i], certificatesv1.CertificateDenied, why, now); err != nil {
			return err
		}
	}
	return nil
}

// approvedByOthers handles a request that another approver approved. If a machine's own credential
// made the request, or the verifier for a machine, it becomes the machine's first certificate on its record.
func (r *reconciler) approvedByOthers(ctx context.Context, csr *certificatesv1.CertificateSigningRequest,
	req *approver.Request) (reconcile.Result, error) {
	c := approved(csr)
	if c == nil || c.Reason == ConditionReason || req.Kind != approver.Client {
		return reconcile.Result{}, nil
	}
	uid, issued := r.rules.Issues(req)
	if r.rules.Attestation && (issued || r.rules.Bootstrapper(req.Username)) {
		r.findings.approvedElsewhere(csr.Name, c)
	}
	if req.CredentialID == "" && !issued || req.PublicKeySHA256 == "" {
		return reconcile.Result{}, nil
	}
	ok := issued
	if !issued {
		uid, ok = r.o.Machines.ByCredential(req.CredentialID)
	}
	if !ok {
		r.unknown.Store(csr.Name, req.CredentialID)
		return r.untilKnown(csr.CreationTimestamp.Time), nil
	}
	err := r.o.Records.Update(ctx, uid, func(rec *v1alpha1.MachineAttestation) (*v1alpha1.MachineAttestation, error) {
		c := v1alpha1.CertificateStatus{Node: req.Node(), PublicKeySHA256: req.PublicKeySHA256, Request: csr.Name,
			CredentialID: req.CredentialID}
		if issued {
			return record.Certify(rec, c, r.o.Now())
		}
		return record.Approve(rec, c, r.o.Now())
	})
	var denial *reason.Denial
	switch {
	case err == nil:
		r.o.Log.Info("another approver approved a machine's own certificate signing request",
			"request", csr.Name, "machine_uid", uid, "by", audit.Clean(c.Reason))
	case !errors.As(err, &denial) || denial.Code.Temporary() && denial.Code != reason.Quarantined:
		return reconcile.Result{}, fmt.Errorf("record the approval of request %s by another approver: %w", csr.Name, err)
	case denial.Code == reason.CSRKeyChanged || denial.Code == reason.Quarantined:
		// The verifier cannot revoke the certificate, so it reports it to an administrator.
		r.o.Log.Warn("another approver approved a certificate signing request that the verifier would not approve",
			"request", csr.Name, "machine_uid", uid, "error", err)
		refusal := reason.Wrap(denial.Code, err, "%s was approved by another approver (%s)", csr.Name, audit.Clean(c.Reason))
		r.recordRefusal(ctx, &approver.Decision{Proven: true, RecordUID: uid, Denial: reason.From(refusal)}, r.o.Now())
	}
	return reconcile.Result{}, nil // the machine had already joined, or its credential expired
}
