// Package view is what the verifier's serving path knows at one moment. A backend
// builds views: package standalone from a folder, package cluster from the inventory of a
// cluster. The attestation service and the gate read them.
package view

import (
	"time"

	"github.com/mcs-attest/mcs-attest/pkg/appraisal"
	"github.com/mcs-attest/mcs-attest/pkg/evidence/tpm2"
	"github.com/mcs-attest/mcs-attest/pkg/machine"
	"github.com/mcs-attest/mcs-attest/pkg/measuredboot"
	"github.com/mcs-attest/mcs-attest/pkg/policy"
	"github.com/mcs-attest/mcs-attest/verifier/internal/trust"
)

// View is immutable. Only its Machines, in a cluster, are always the current ones.
type View struct {
	// Complete: everything that an administrator wrote is in force. Otherwise a Machine
	// that is not here may be one that cannot be read.
	Complete bool
	// Stale, if set, is the reason to grant and redeem nothing: a quarantine or a join
	// may have been missed.
	Stale error
	// StaleIn is Stale for the Machines of one namespace.
	StaleIn map[string]error
	// StaleRecord, if set, is Stale for one Machine: its record lost something.
	StaleRecord func(*machine.Machine) error
	Policies    *policy.Set
	Machines    Machines
	References  []measuredboot.ReferenceValues
	EKRoots     tpm2.Roots
	// Trust has the anchors of cloud documents and of certified AKs.
	Trust *trust.Trust
}

// Machines is what the service and the gate ask about Machines: a [machine.Index] of a
// folder, a [machine.Registry] of a cluster.
type Machines interface {
	appraisal.Machines
	Known(uid string) bool
	Redeemable(uid, pool string, now time.Time) error
}

// Finding is what an administrator should check: a reason for a condition, and a text.
type Finding struct{ Reason, Text string }

// Outdated returns why nothing may be granted to a Machine; nil if it may be. While the
// Machine is an object of two namespaces, both count.
func (v *View) Outdated(m *machine.Machine) error {
	for _, m := range []*machine.Machine{m, m.Mirror} {
		if m != nil && v.StaleIn[m.Namespace] != nil {
			return v.StaleIn[m.Namespace]
		}
	}
	if v.Stale == nil && v.StaleRecord != nil {
		return v.StaleRecord(m)
	}
	return v.Stale
}

// Alive reports whether the Machine that holds an identity still exists.
func (v *View) Alive(uid string) bool { return !v.Complete || v.Machines.Known(uid) }
