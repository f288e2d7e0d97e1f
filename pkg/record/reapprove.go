// SPDX-License-Identifier: Apache-2.0

package record

import (
	"time"

	"github.com/mcs-attest/mcs-attest/pkg/api/v1alpha1"
)

// CertificateUsed records that the Node of the machine's certificate existed. So the certificate was issued, and its
// key cannot be replaced. It returns nil if that is already recorded, or if the certificate is for another Node.
func CertificateUsed(rec *v1alpha1.MachineAttestation, node string) *v1alpha1.MachineAttestation {
	if rec == nil || rec.Status.Certificate == nil || rec.Status.Certificate.Node != node || rec.Status.Certificate.Used {
		return nil
	}
	next := rec.DeepCopy()
	next.Status.Certificate.Used = true
	return next
}

// Reapprove calls [Approve] for a machine whose first certificate was recorded but never
// issued: after the record was written, but before the approval, its kubelet abandoned
// the request with the key replaced, and now requests with another key. The caller must
// ensure that no request with the key replaced was or will be approved. If the record now
// has another certificate, one for another node, or one that was used, Approve decides.
func Reapprove(rec *v1alpha1.MachineAttestation, replaced string, c v1alpha1.CertificateStatus,
	now time.Time) (*v1alpha1.MachineAttestation, error) {
	if rec == nil || replaced == c.PublicKeySHA256 {
		return Approve(rec, c, now)
	}
	if was := rec.Status.Certificate; was == nil || was.Used || was.PublicKeySHA256 != replaced || was.Node != c.Node {
		return Approve(rec, c, now)
	}
	again := rec.DeepCopy()
	again.Status.Certificate, again.Status.Phase = nil, v1alpha1.PhaseFetched
	return Approve(again, c, now)
}
