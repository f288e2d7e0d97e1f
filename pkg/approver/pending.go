package approver

import (
	"slices"
	"time"

	certificatesv1 "k8s.io/api/certificates/v1"
)

// What the stock approver's limit counts.
const (
	// approvedLately is how long a request counts that another approver approved.
	approvedLately = 30 * time.Second
	// stockMessage is the message of the stock approver's own approvals.
	stockMessage = "This CSR was approved by the Node CSR Approver (cluster-machine-approver)"
	// ownReason is the reason of our own approvals.
	ownReason = "mcs-attest"
)

// Pending returns the time during which a request counts against [Load.Limit] where
// attestation is off; both ends are excluded. It is false for a request that never
// counts. The rules are the stock approver's:
//
//   - only requests of the node bootstrapper, for a client certificate, and of the group
//     system:nodes, for a serving certificate: no other client can use up the limit
//   - from 10 seconds before the request's creation, as clocks differ, to an hour after it
//   - what is not approved counts, denied or not
//   - what was approved counts for 30 seconds more, unless the stock approver approved
//     it, or this one, which is in the stock approver's place
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
