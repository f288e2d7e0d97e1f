// SPDX-License-Identifier: Apache-2.0

// Package restore compares the state before a restore of etcd with that of the backup. The verifier's backend for a
// cluster uses it until an administrator acknowledges the restore.
//
// A backup reverts what was revoked later: a new quarantine, a used grant, a removed enrollment, an invalidated
// provisioning token. Each function returns the stricter of two states:
//
//   - [Latch]: the state that a record must not lose
//   - [Machine] and [Enrollment]: the identities of a machine
//   - [Token]: the provisioning token
//
// The package is pure and has no clock.
package restore

import (
	"slices"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/mcs-attest/mcs-attest/pkg/api/v1alpha1"
	"github.com/mcs-attest/mcs-attest/pkg/machine"
)

// Known has the identities by which a Machine was accepted.
type Known struct {
	EKSHA256, Pools []string
	Deleting        bool
}

// Machine returns a restored Machine, as strict as it was before. Its progress is that of now, because the record has
// the join.
func Machine(before Known, now machine.Machine) machine.Machine {
	now.EKSHA256 = common(before.EKSHA256, now.EKSHA256)
	now.Pools = common(before.Pools, now.Pools)
	now.Deleting = now.Deleting || before.Deleting
	return now
}

// Enrollment returns the spec of a restored enrollment, as strict as it was before. The quarantine is that of now, so
// that an administrator can lift it. The record has the former one.
func Enrollment(before, now v1alpha1.MachineAttestationSpec) v1alpha1.MachineAttestationSpec {
	next := *before.DeepCopy()
	next.EKSHA256 = common(before.EKSHA256, now.EKSHA256)
	next.Quarantined = now.Quarantined
	next.NotAfter = earlier(before.NotAfter, now.NotAfter)
	next.Rehearsal = now.Rehearsal // it grants nothing
	if !SameGrant(before, now) {
		next.Reattest = nil
	}
	return next
}

// Unknown returns the valid part of an enrollment that did not exist before: its quarantine. more reports whether the
// enrollment has other parts.
func Unknown(now v1alpha1.MachineAttestationSpec) (next v1alpha1.MachineAttestationSpec, more bool) {
	next = v1alpha1.MachineAttestationSpec{MachineRef: now.MachineRef, Quarantined: now.Quarantined}
	more = now.MachineRef == nil || len(now.EKSHA256) > 0 || now.ExpectedProviderID != "" || now.Reattest != nil
	return next, more
}

// SameGrant reports whether two enrollments have the same grant, or both none.
func SameGrant(a, b v1alpha1.MachineAttestationSpec) bool {
	if a.Reattest == nil || b.Reattest == nil {
		return a.Reattest == b.Reattest
	}
	return a.Reattest.Until.Unix() == b.Reattest.Until.Unix()
}

// common returns the entries of both lists. If there are none, it returns before, because an empty list can mean that
// there is no restriction.
func common(before, now []string) []string {
	both := slices.DeleteFunc(slices.Clone(now), func(s string) bool { return !slices.Contains(before, s) })
	if len(both) == 0 {
		return before
	}
	return both
}

// earlier returns the earlier of two ends; nil means no end.
func earlier(a, b *metav1.Time) *metav1.Time {
	if a == nil || b != nil && b.Before(a) {
		return b
	}
	return a
}
