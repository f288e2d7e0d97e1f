// SPDX-License-Identifier: Apache-2.0

package approver

import (
	"slices"
	"time"

	certificatesv1 "k8s.io/api/certificates/v1"
)

// Constants of the stock approver's limit.
const (
	// approvedLately is how long a request counts after another approver approved it.
	approvedLately = 30 * time.Second
	// stockMessage is the message of the stock approver's own approvals.
	stockMessage = "This CSR was approved by the Node CSR Approver (cluster-machine-approver)"
	// ownReason is the reason in this approver's approvals.
	ownReason = "mcs-attest"
)

// Pending returns the interval, exclusive at both ends, in which a request counts toward
// [Load.Limit] without attestation. It returns false if the request never counts. The
// rules are those of the stock approver:
//
//   - only requests of the node bootstrapper for a client certificate, and of the group
//     system:nodes for a serving certificate, so that no other client uses up the limit
//   - from 10 seconds before its creation, because clocks differ, to an hour after it
//   - a request that is not approved counts, even if it is denied
//   - an approved request counts for 30 more seconds, unless the stock approver or this
//     one approved it
func (c Config) Pending(in *certificatesv1.CertificateSigningRequest) (from, until time.Time, ok bool) {
	switch in.Spec.SignerName {
	case certificatesv1.KubeAPIServerClientKubeletSignerName:
		ok = c.Bootstrapper(in.Spec.Username)
	case certificatesv1.KubeletServingSignerName:
		ok = slices.Contains(in.Spec.Groups, nodesGroup)
	}
	if !ok {
		return from, until, false
	}
	created := in.CreationTimestamp.Time
	from, until = created.Add(-clockSkew), created.Add(Window)
	for _, condition := range in.Status.Conditions {
		if condition.Type != certificatesv1.CertificateApproved {
			continue
		}
		if condition.Message == stockMessage || condition.Reason == ownReason {
			return from, until, false
		}
		at := condition.LastTransitionTime.Time
		if f := at.Add(-clockSkew); f.After(from) {
			from = f
		}
		if u := at.Add(approvedLately); u.Before(until) {
			until = u
		}
		break
	}
	return from, until, from.Before(until)
}
