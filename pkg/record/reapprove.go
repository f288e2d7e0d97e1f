package record

import (
	"time"

	"github.com/mcs-attest/mcs-attest/pkg/api/v1alpha1"
)

// Reapprove is [Approve] where the first certificate never came about: the machine's
// kubelet gave up a request, with the key replaced, between what Approve wrote and
// the approval, and asks again with another key. The caller has made sure that no
// request with the key replaced was approved, or will be. A record with another
// certificate by now, or for another node, is decided by Approve.
func Reapprove(rec *v1alpha1.MachineAttestation, replaced string, c v1alpha1.CertificateStatus,
	now time.Time) (*v1alpha1.MachineAttestation, error) {
	if rec == nil || replaced == "" || replaced == c.PublicKeySHA256 {
		return Approve(rec, c, now)
	}
	if was := rec.Status.Certificate; was == nil || was.PublicKeySHA256 != replaced || was.Node != c.Node {
		return Approve(rec, c, now)
	}
	again := rec.DeepCopy()
	again.Status.Certificate, again.Status.Phase = nil, v1alpha1.PhaseFetched
	return Approve(again, c, now)
}
