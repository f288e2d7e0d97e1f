// SPDX-License-Identifier: Apache-2.0

package restore

import (
	"cmp"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/mcs-attest/mcs-attest/pkg/api/v1alpha1"
	"github.com/mcs-attest/mcs-attest/pkg/machine"
	"github.com/mcs-attest/mcs-attest/pkg/record"
)

// The condition of a record whose quarantine no administrator's object requires. Reason is also the reason of the
// conditions of policies and of the AttestationVerifier.
const (
	ConditionQuarantined = "Quarantined"
	Reason               = "EtcdRestored"
)

// Latch is the state that a record must not lose. The zero value is no state.
type Latch struct {
	Quarantined, Joined bool
	Node                string // of the machine, if known
	Certificate         Certificate
	// GrantUsed is the end of the last used grant, and GrantAttestations the number of its uses.
	GrantUsed         time.Time
	GrantAttestations int32
}

// Certificate is what a record says about the machine's certificate.
type Certificate int8

// The states of a certificate; see [v1alpha1.CertificateStatus].
const (
	NoCertificate Certificate = iota
	UnusedCertificate
	UsedCertificate
)

// Empty reports whether a backup could not revoke anything.
func (l Latch) Empty() bool {
	return !l.Quarantined && !l.Joined && l.Certificate != UsedCertificate && l.GrantUsed.IsZero()
}

// Stricter returns the stricter part of each.
func (l Latch) Stricter(other Latch) Latch {
	l.Quarantined = l.Quarantined || other.Quarantined
	l.Joined = l.Joined || other.Joined
	if l.usedLess(other) {
		l.GrantUsed, l.GrantAttestations = other.GrantUsed, other.GrantAttestations
	}
	l.Node = cmp.Or(l.Node, other.Node)
	l.Certificate = max(l.Certificate, other.Certificate)
	return l
}

// Covers reports whether l is at least as strict as other.
func (l Latch) Covers(other Latch) bool {
	unused := l.Certificate == UnusedCertificate && other.Certificate == UsedCertificate
	return (l.Quarantined || !other.Quarantined) && (l.Joined || !other.Joined) && !unused && !l.usedLess(other)
}

// usedLess reports whether other has a later grant, or more uses of the same one.
func (l Latch) usedLess(other Latch) bool {
	return l.GrantUsed.Before(other.GrantUsed) ||
		l.GrantUsed.Equal(other.GrantUsed) && l.GrantAttestations < other.GrantAttestations
}

// Repair returns the record of a Machine with the state that it lost, or nil if it lost nothing. rec was just read, and
// is nil if no record exists.
func Repair(rec *v1alpha1.MachineAttestation, m *machine.Machine, l Latch, now time.Time) *v1alpha1.MachineAttestation {
	next, changed := rec, false
	step := func(to *v1alpha1.MachineAttestation) {
		if to != nil {
			next, changed = to, true
		}
	}
	if l.Quarantined {
		step(record.Quarantine(next, m, true, now))
		// Only the record decides whether an object requires the quarantine, because m may be older than the restore. With
		// such an m, a process may have recorded the quarantine before the repair. If another object requires it, the
		// controller of records ends the condition ([Confirmed]).
		if required := rec != nil && rec.Spec.Quarantined; !required && !Unconfirmed(next) {
			if !changed {
				next, changed = next.DeepCopy(), true
			}
			meta.SetStatusCondition(&next.Status.Conditions, metav1.Condition{
				Type: ConditionQuarantined, Status: metav1.ConditionTrue, Reason: Reason, LastTransitionTime: metav1.NewTime(now),
				Message: "quarantined before etcd was restored, but no object requires it anymore. Set spec.quarantined to true " +
					"to keep it, and later to false to lift it",
			})
		}
	}
	if next == nil && (l.Joined || !l.GrantUsed.IsZero()) {
		next = record.New(m) // the backup is older than the record
	}
	if l.Joined {
		step(record.Joined(next, l.Node, now))
	}
	if l.Certificate == UsedCertificate && next != nil && next.Status.Certificate != nil {
		step(record.CertificateUsed(next, next.Status.Certificate.Node))
	}
	if !l.GrantUsed.IsZero() && used(next).usedLess(l) {
		if !changed {
			next = next.DeepCopy()
		}
		next.Status.GrantUsed, next.Status.GrantAttestations = &metav1.Time{Time: l.GrantUsed}, l.GrantAttestations
		changed = true
	}
	if !changed {
		return nil
	}
	return next
}

func used(rec *v1alpha1.MachineAttestation) (l Latch) {
	if rec.Status.GrantUsed != nil {
		l.GrantUsed, l.GrantAttestations = rec.Status.GrantUsed.Time, rec.Status.GrantAttestations
	}
	return l
}

// Unconfirmed reports whether a record is quarantined only because of its state before a restore.
func Unconfirmed(rec *v1alpha1.MachineAttestation) bool {
	c := meta.FindStatusCondition(rec.Status.Conditions, ConditionQuarantined)
	return c != nil && c.Status == metav1.ConditionTrue && c.Reason == Reason
}

// Confirmed returns the record after an object requires the quarantine again, or nil if nothing changes.
func Confirmed(rec *v1alpha1.MachineAttestation, now time.Time) *v1alpha1.MachineAttestation {
	if rec == nil || !Unconfirmed(rec) {
		return nil
	}
	next := rec.DeepCopy()
	meta.SetStatusCondition(&next.Status.Conditions, metav1.Condition{
		Type: ConditionQuarantined, Status: metav1.ConditionFalse, Reason: "SpecSaysSo",
		LastTransitionTime: metav1.NewTime(now), Message: "spec.quarantined is set again",
	})
	return next
}
