package restore

import (
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/mcs-attest/mcs-attest/pkg/api/v1alpha1"
	"github.com/mcs-attest/mcs-attest/pkg/machine"
	"github.com/mcs-attest/mcs-attest/pkg/record"
)

// The condition of a record whose quarantine has no object of an administrator as its cause. Reason is also the
// reason of the conditions of policies and of the AttestationVerifier.
const (
	ConditionQuarantined = "Quarantined"
	Reason               = "EtcdRestored"
)

// Latch is what a record must not lose. The zero value is nothing.
type Latch struct {
	Quarantined, Joined bool
	Node                string // that the machine became, if it is known
	// GrantUsed is the end of the last grant that was used, GrantAttestations how often. Zero: none.
	GrantUsed         time.Time
	GrantAttestations int32
}

// Empty reports whether there is nothing that a backup could revoke.
func (l Latch) Empty() bool { return !l.Quarantined && !l.Joined && l.GrantUsed.IsZero() }

// Stricter returns both together, the stricter part of each.
func (l Latch) Stricter(other Latch) Latch {
	l.Quarantined = l.Quarantined || other.Quarantined
	l.Joined = l.Joined || other.Joined
	if l.usedLess(other) {
		l.GrantUsed, l.GrantAttestations = other.GrantUsed, other.GrantAttestations
	}
	if l.Node == "" {
		l.Node = other.Node
	}
	return l
}

// Covers reports whether l is at least as strict as other.
func (l Latch) Covers(other Latch) bool {
	return (l.Quarantined || !other.Quarantined) && (l.Joined || !other.Joined) && !l.usedLess(other)
}

// usedLess reports whether other has a later grant, or more uses of the same one.
func (l Latch) usedLess(other Latch) bool {
	return l.GrantUsed.Before(other.GrantUsed) ||
		l.GrantUsed.Equal(other.GrantUsed) && l.GrantAttestations < other.GrantAttestations
}

// Repair returns the record of a Machine with what it lost; nil if it lost nothing. The record was just read, and rec
// is nil if there is none.
func Repair(rec *v1alpha1.MachineAttestation, m *machine.Machine, l Latch, now time.Time) *v1alpha1.MachineAttestation {
	next, changed := rec, false
	step := func(to *v1alpha1.MachineAttestation) {
		if to != nil {
			next, changed = to, true
		}
	}
	if l.Quarantined {
		step(record.Quarantine(next, m, true, now))
		// Only the record is asked whether an object has the quarantine: m may be from before the restore. If another
		// object has it, the controller of records ends the condition ([Confirmed]).
		if has := rec != nil && rec.Spec.Quarantined; changed && !has {
			meta.SetStatusCondition(&next.Status.Conditions, metav1.Condition{
				Type: ConditionQuarantined, Status: metav1.ConditionTrue, Reason: Reason, LastTransitionTime: metav1.NewTime(now),
				Message: "quarantined before etcd was restored; no object says so any more. Set spec.quarantined to true " +
					"to keep it, and after that to false to lift it",
			})
		}
	}
	if next == nil && (l.Joined || !l.GrantUsed.IsZero()) {
		next = record.New(m) // the backup is from before there was a record
	}
	if l.Joined {
		step(record.Joined(next, l.Node, now))
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

// Unconfirmed reports whether a record is quarantined only because it was before a restore.
func Unconfirmed(rec *v1alpha1.MachineAttestation) bool {
	c := meta.FindStatusCondition(rec.Status.Conditions, ConditionQuarantined)
	return c != nil && c.Status == metav1.ConditionTrue && c.Reason == Reason
}

// Confirmed returns the record after an object has the quarantine again; nil where nothing changes.
func Confirmed(rec *v1alpha1.MachineAttestation, now time.Time) *v1alpha1.MachineAttestation {
	if rec == nil || !Unconfirmed(rec) {
		return nil
	}
	next := rec.DeepCopy()
	meta.SetStatusCondition(&next.Status.Conditions, metav1.Condition{
		Type: ConditionQuarantined, Status: metav1.ConditionFalse, Reason: "SpecSaysSo",
		LastTransitionTime: metav1.NewTime(now), Message: "spec.quarantined counts again",
	})
	return next
}
