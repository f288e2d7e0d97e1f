// Package restore compares what was in force before a restore of etcd with what the backup has. The verifier's
// backend for a cluster uses it until an administrator acknowledges the restore.
//
// A backup brings back what was revoked since: a quarantine that did not exist yet, a grant that was used, an
// enrollment that was removed, a provisioning token that was voided. Each function returns the stricter of two states:
//
//   - [Latch]: what a record must not lose
//   - [Machine] and [Enrollment]: by what a machine is accepted
//   - [Token]: the provisioning token
//
// The package makes no call and keeps no clock.
package restore

import (
	"slices"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/mcs-attest/mcs-attest/pkg/api/v1alpha1"
	"github.com/mcs-attest/mcs-attest/pkg/machine"
)

// Known is by what a Machine was accepted.
type Known struct {
	EKSHA256, Pools []string
	Deleting        bool
}

// Machine returns a Machine that came back, as strict as it was before. Its progress counts as it is: a join is in
// the record.
func Machine(before Known, now machine.Machine) machine.Machine {
	now.EKSHA256 = common(before.EKSHA256, now.EKSHA256)
	now.Pools = common(before.Pools, now.Pools)
	now.Deleting = now.Deleting || before.Deleting
	return now
}

// Enrollment returns the spec of an enrollment that came back, as strict as it was before. A quarantine counts as it
// is, so that an administrator can lift it: the record has the one of before.
func Enrollment(before, now v1alpha1.MachineAttestationSpec) v1alpha1.MachineAttestationSpec {
	next := *before.DeepCopy()
	next.EKSHA256 = common(before.EKSHA256, now.EKSHA256)
	next.Quarantined = now.Quarantined
	next.NotAfter = earlier(before.NotAfter, now.NotAfter)
	if !SameGrant(before, now) {
		next.Reattest = nil
	}
	return next
}

// Unknown returns what counts of an enrollment that did not exist before: a quarantine. It reports whether the
// enrollment has more than that.
func Unknown(now v1alpha1.MachineAttestationSpec) (next v1alpha1.MachineAttestationSpec, more bool) {
	next = v1alpha1.MachineAttestationSpec{MachineRef: now.MachineRef, Quarantined: now.Quarantined}
	more = now.MachineRef == nil || len(now.EKSHA256) > 0 || now.ExpectedProviderID != "" || now.Reattest != nil
	return next, more
}

// SameGrant reports whether two enrollments have the same grant. None is the same as none.
func SameGrant(a, b v1alpha1.MachineAttestationSpec) bool {
	if a.Reattest == nil || b.Reattest == nil {
		return a.Reattest == b.Reattest
	}
	return a.Reattest.Until.Unix() == b.Reattest.Until.Unix()
}

// common returns what both lists have. It returns the former list if they have nothing in common, since an empty list
// can mean that there is no restriction.
func common(before, now []string) []string {
	both := slices.DeleteFunc(slices.Clone(now), func(s string) bool { return !slices.Contains(before, s) })
	if len(both) == 0 {
		return before
	}
	return both
}

// earlier returns the earlier of two ends; nil is no end.
func earlier(a, b *metav1.Time) *metav1.Time {
	if a == nil || b != nil && b.Before(a) {
		return b
	}
	return a
}
