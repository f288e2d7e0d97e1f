// SPDX-License-Identifier: Apache-2.0

// Package view is the state on which the verifier decides at one time. A backend builds views: package
// standalone from a folder, package inventory from a cluster. The attestation service and the gate read
// them.
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

// View is immutable. There is one exception: in a cluster, Machines always has the current ones.
type View struct {
	// Complete means that everything that an administrator wrote is in force. Otherwise, a Machine that
	// is not found may be one that cannot be read.
	Complete bool
	// Stale, if set, is the reason why nothing may be granted or redeemed: a quarantine or a join may
	// have been missed.
	Stale error
	// StaleIn has the reason for the Machines of a namespace, by namespace.
	StaleIn map[string]error
	// StaleRecord, if set, returns the reason for one Machine, whose record lost some state.
	StaleRecord func(*machine.Machine) error
	Policies    *policy.Set
	Machines    Machines
	References  []measuredboot.ReferenceValues
	EKRoots     tpm2.Roots
	// Trust has the anchors of cloud documents and of certified AKs.
	Trust *trust.Trust
}

// Machines finds Machines for the service and the gate: a [machine.Index] of a folder, or a
// [machine.Registry] of a cluster.
type Machines interface {
	appraisal.Machines
	Known(uid string) bool
	Redeemable(uid, pool string, now time.Time) error
	ByTicket(ticketSHA256 string, now time.Time) *machine.Machine
}

// Finding is a problem that an administrator should check: the reason of a condition, and a text.
type Finding struct{ Reason, Text string }

// Outdated returns why nothing may be granted to a Machine, or nil if it may be. If the Machine is an
// object in two namespaces, both count.
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
