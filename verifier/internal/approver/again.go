package approver

import (
	"context"
	"fmt"
	"time"

	certificatesv1 "k8s.io/api/certificates/v1"
	kerrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/mcs-attest/mcs-attest/pkg/api/v1alpha1"
	"github.com/mcs-attest/mcs-attest/pkg/approver"
	"github.com/mcs-attest/mcs-attest/pkg/reason"
	"github.com/mcs-attest/mcs-attest/pkg/record"
)

// mostNewer is how many requests of one machine are read to find its latest one.
const mostNewer = 10

// Newer implements [approver.World].
func (w *World) Newer(ctx context.Context, r *approver.Request, uid string) (newer []*approver.Request, err error) {
	for _, name := range w.o.waiting.newer(r, uid, mostNewer) {
		call, cancel := context.WithTimeout(ctx, w.o.Timeout)
		csr, err := w.o.Client.CertificatesV1().CertificateSigningRequests().Get(call, name, metav1.GetOptions{})
		cancel()
		if kerrors.IsNotFound(err) {
			continue
		}
		if err != nil {
			return nil, wrap(err, "read certificate signing request %s", name)
		}
		newer = append(newer, approver.FromCSR(csr))
	}
	return newer, nil
}

// Pinned implements [approver.World].
func (w *World) Pinned(ctx context.Context, rec *v1alpha1.MachineAttestation) (all []*approver.Request, err error) {
	requests, err := w.pinned(ctx, rec)
	for i := range requests {
		all = append(all, approver.FromCSR(&requests[i]))
	}
	return all, err
}

// pinned looks through all requests: a key may come with any of them. It is asked for
// where a machine asks with two keys, and not else.
func (w *World) pinned(ctx context.Context, rec *v1alpha1.MachineAttestation) (all []certificatesv1.CertificateSigningRequest, err error) {
	if rec == nil || rec.Status.Certificate == nil {
		return nil, nil
	}
	key, now := rec.Status.Certificate.PublicKeySHA256, w.o.Now()
	for o := (metav1.ListOptions{Limit: 500, FieldSelector: "spec.signerName=" + certificatesv1.KubeAPIServerClientKubeletSignerName}); ; {
		call, cancel := context.WithTimeout(ctx, w.o.Timeout)
		page, err := w.o.Client.CertificatesV1().CertificateSigningRequests().List(call, o)
		cancel()
		if err != nil {
			return nil, fmt.Errorf("list certificate signing requests: %w", err)
		}
		for i := range page.Items {
			csr := &page.Items[i]
			if approval(csr) == nil {
				id := csr.Spec.Username // a bootstrap token's
				if ids := csr.Spec.Extra[credentialExtra]; len(ids) > 0 {
					id = ids[0]
				}
				if _, ours := record.Credential(rec, id, now); decided(csr) || !ours {
					continue
				}
			}
			if approver.FromCSR(csr).PublicKeySHA256 == key {
				all = append(all, *csr)
			}
		}
		if o.Continue = page.Continue; o.Continue == "" {
			return all, nil
		}
	}
}

// withdraw makes sure, before the key on a record is replaced, that no request with it
// has been approved, and that none will be: those that wait are denied, which nobody
// waits for, and which neither another replica nor a person can then approve by
// mistake.
func (a *Approver) withdraw(ctx context.Context, d *approver.Decision, now time.Time) error {
	rec, err := a.world.record(ctx, d.RecordUID)
	if err != nil {
		return err
	}
	if rec == nil || rec.Status.Certificate == nil || rec.Status.Certificate.PublicKeySHA256 != d.Replaces {
		return nil // it is not what is replaced
	}
	requests, err := a.world.pinned(ctx, rec)
	if err != nil {
		return err
	}
	for i := range requests {
		if approval(&requests[i]) != nil {
			return reason.Deny(reason.CSRKeyChanged, "request %s, with the key %s, has been approved meanwhile", requests[i].Name, d.Replaces)
		}
	}
	for i := range requests {
		if err := a.decideIt(ctx, &requests[i], certificatesv1.CertificateDenied, "superseded: the machine has asked again since, with another key", now); err != nil {
			return err
		}
	}
	return nil
}
