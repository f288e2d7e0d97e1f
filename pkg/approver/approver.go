// Package approver decides the kubelet's certificate signing requests.
//
// A kubelet asks twice: with a bootstrap credential for its first client
// certificate (signer kubernetes.io/kube-apiserver-client-kubelet), and as the
// node that it then is for its serving certificate (kubernetes.io/kubelet-serving).
// [Decide] makes every check of OpenShift's cluster-machine-approver and, with
// attestation, one more: that the credential of the request was made for the very
// machine that the request names. It is pure: what it has to know of the cluster it
// asks a [World].
//
// There are five outcomes, and they are different things:
//
//   - Approve: every check passed.
//   - Retry: not now; what is missing may come, or could not be read.
//   - Refuse: not by us. The request stays pending for a human, who may know more.
//   - Deny: the request proves by its credential which machine made it, and asks for
//     what is not that machine's. The one case in which a request is denied: whoever
//     made any other request may have had nothing to do with us.
//   - Ignore: another signer's, another requester's, or decided.
//
// What is untrusted: all of the request's own bytes. Who made it (username, groups,
// extra) and when was written by the API server.
package approver

import (
	"context"
	"crypto/x509"
	"time"

	"github.com/mcs-attest/mcs-attest/pkg/api/v1alpha1"
	"github.com/mcs-attest/mcs-attest/pkg/reason"
)

// Kind is a sort of certificate.
type Kind string

// The kinds. The empty one is neither.
const (
	Client  Kind = "Client"
	Serving Kind = "Serving"
)

// Outcome is what is to be done with a request.
type Outcome string

// The outcomes.
const (
	Ignore  Outcome = "Ignore"
	Approve Outcome = "Approve"
	Retry   Outcome = "Retry"
	Refuse  Outcome = "Refuse"
	Deny    Outcome = "Deny"
)

// Result of one check.
type Result string

// The results. A check that was skipped did not apply, or was not needed.
const (
	Passed  Result = "passed"
	Failed  Result = "failed"
	Skipped Result = "skipped"
)

// Check is one line of the explanation.
type Check struct {
	Name   string `json:"name"`
	Result Result `json:"result"`
	// Detail is for the operator; it may hold untrusted text.
	Detail string `json:"detail,omitempty"`
}

// Decision is what was decided, and why.
type Decision struct {
	Kind    Kind
	Outcome Outcome
	// Denial is why not; nil with Approve and Ignore.
	Denial *reason.Denial
	// Checks in the order in which they were made. The first that failed decided, but
	// for the three ways to a serving certificate (machine, renewal, egress), of which
	// one is enough.
	Checks []Check
	// Node is the name that the request asks for; untrusted.
	Node string
	// Machine that the node's name leads to; nil while none does.
	Machine *Machine
	// RecordUID is the UID of the Machine (or stand-in) whose record has the
	// request's credential; empty if none has.
	RecordUID string
	// CredentialID is the credential that the request was made with, ours or not.
	CredentialID string
	// PublicKeySHA256 of the request's SubjectPublicKeyInfo, hexadecimal.
	PublicKeySHA256 string
	// Proven: the request was made with a live credential of the record RecordUID.
	// Only then does a refusal belong to that machine (DESIGN, section 19, rule 3).
	Proven bool
	// Replaces is the key of a first certificate that is on the record, and was never
	// approved; see [record.Reapprove]. Empty: there is none.
	Replaces string
}

// Certificate is what a record takes of an approval; request is the request's name.
func (d *Decision) Certificate(request string) v1alpha1.CertificateStatus {
	return v1alpha1.CertificateStatus{Node: d.Node, PublicKeySHA256: d.PublicKeySHA256, Request: request,
		CredentialID: d.CredentialID}
}

// Config is how it is decided. The zero value asks for no attestation and decides
// as the cluster-machine-approver does.
type Config struct {
	// Attestation: a client certificate is for the machine whose record has the
	// credential of the request.
	Attestation bool
	// MaxMachineAge is how long after its creation a Machine may ask for its first
	// client certificate. Default 2 hours.
	MaxMachineAge time.Duration
	// PendingPerMachine is how many requests of one machine, or node, may wait,
	// with attestation. Default 10.
	PendingPerMachine int
	// ServiceAccount is the node bootstrapper, "namespace/name". Default
	// "openshift-machine-config-operator/node-bootstrapper".
	ServiceAccount string
	// BootstrapTokens: requests are made with bootstrap tokens, not with tokens of
	// the service account.
	BootstrapTokens bool
	// BootstrapGroups are the groups of such tokens besides system:bootstrappers.
	BootstrapGroups []string
}

// World is what there is to know of the cluster. Every answer is of now (a live
// read), since approvals rest on it. An error means that it could not be found out:
// the request is tried again.
type World interface {
	// Node reports whether there is a Node of this name.
	Node(ctx context.Context, name string) (bool, error)
	// MachinesByInternalDNS are the Machines of every API that have this name among
	// their InternalDNS addresses (without regard to case and a dot at the end), and
	// the MachineAttestations that stand in for a Machine and are called so.
	MachinesByInternalDNS(ctx context.Context, name string) ([]Machine, error)
	// MachinesByNode are the Machines of every API whose status.nodeRef is this
	// Node, and the stand-ins that are called so.
	MachinesByNode(ctx context.Context, node string) ([]Machine, error)
	// RecordByCredential is the record that has this credential; nil if none has.
	RecordByCredential(ctx context.Context, id string) (*v1alpha1.MachineAttestation, error)
	// MachineOf is the Machine, or stand-in, of a record; nil if it is gone.
	MachineOf(ctx context.Context, rec *v1alpha1.MachineAttestation) (*Machine, error)
	// RecordByMachine is the record of the Machine with this UID; nil if it has none.
	RecordByMachine(ctx context.Context, uid string) (*v1alpha1.MachineAttestation, error)
	// ServingCertificate is what the node's kubelet presents now, unverified, and the
	// authorities that it must lead to. nil if there is none to be had, because the
	// kubelet does not answer or its authorities are not known; the error says why,
	// and is no reason to try again by itself.
	ServingCertificate(ctx context.Context, node string) (*Presented, error)
	// Egress is what the network may give the node besides its own addresses; nil
	// where the network is not OpenShiftSDN.
	Egress(ctx context.Context, node string) (*Egress, error)
	// Disabled reports whether an administrator has switched the approval of client
	// certificates off.
	Disabled(ctx context.Context) (bool, error)
	// Load counts the requests that wait. rec is the record whose credential made the
	// request; nil for a serving certificate, and without attestation.
	Load(ctx context.Context, r *Request, rec *v1alpha1.MachineAttestation) (Load, error)
	// Newer returns requests for client certificates after r that the record's credentials
	// made, the newest first. Where there are many, it returns the first of them.
	Newer(ctx context.Context, r *Request, rec *v1alpha1.MachineAttestation) ([]*Request, error)
	// Quarantines are the MachineAttestations of every namespace that quarantine a
	// machine. What an administrator wrote before the call is among them, also where
	// the verifier has not recorded it yet. It is an error if one of the given
	// namespaces, or the verifier's own, cannot be read; another that the verifier may
	// not read is left out.
	Quarantines(ctx context.Context, namespaces []string) ([]v1alpha1.MachineAttestation, error)
	// Pinned are the requests with the key of the record's certificate: those that
	// were approved, and of those that wait the ones made with its credentials.
	Pinned(ctx context.Context, rec *v1alpha1.MachineAttestation) ([]*Request, error)
	// Issued are the requests for a client certificate of this node that were approved. Kubernetes deletes an
	// approved request after an hour.
	Issued(ctx context.Context, node string) ([]*Request, error)
}

// Presented is a kubelet's serving certificate as a connection showed it.
type Presented struct {
	Certificate *x509.Certificate
	Roots       *x509.CertPool
}

// Egress is what a HostSubnet gives a node.
type Egress struct {
	IPs   []string
	CIDRs []string
}

// Window is how long a request counts as one that waits.
const Window = time.Hour

// Load is what waits.
type Load struct {
	Machines, Nodes int
	// Pending are the requests that count now; see [Config.Pending]. With attestation,
	// they are the undecided requests for the two signers, not older than [Window], that
	// no credential of ours made.
	Pending int
	// Own are those made with credentials of the same machine, or for a serving
	// certificate by the same node, this one and newer: whoever asks again is not
	// held up by what it does not wait for any more.
	Own int
}

// Limit is how many may be pending.
func (l Load) Limit() int { return max(l.Machines, l.Nodes) + 100 }
