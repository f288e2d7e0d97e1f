// SPDX-License-Identifier: Apache-2.0

// Package approver decides the kubelet's certificate signing requests. The csr
// controller and 'csr explain' use it.
//
// A kubelet makes two requests. With a bootstrap credential it requests its first
// client certificate (signer kubernetes.io/kube-apiserver-client-kubelet). As the node
// that it then is, it requests its serving certificate (kubernetes.io/kubelet-serving).
// [Decide] makes every check of OpenShift's cluster-machine-approver. With attestation
// it also checks that the credential was made for the machine that the request names.
// The package is pure: it reads the cluster through a [Cluster].
//
// The outcomes:
//
//   - Approve: every check passed.
//   - Retry: a fact is missing or could not be read, and may become available.
//   - Refuse: this approver does not approve it. The request stays pending, so that an
//     administrator can decide.
//   - Deny: the credential proves which machine made the request, and the request asks
//     for something that is not that machine's. No other request is denied, because its
//     maker may have nothing to do with this approver.
//   - Ignore: the request is for another signer, from another requester, or decided.
//
// The request's own bytes are untrusted. The API server wrote its creation time and
// who made it (username, groups, extra).
package approver

import (
	"context"
	"crypto/x509"
	"time"

	"github.com/mcs-attest/mcs-attest/pkg/api/v1alpha1"
	"github.com/mcs-attest/mcs-attest/pkg/reason"
)

// Kind is the kind of certificate.
type Kind string

// The kinds. A request for another signer has the empty kind.
const (
	Client  Kind = "Client"
	Serving Kind = "Serving"
)

// Outcome is what the approver does with a request.
type Outcome string

// The outcomes.
const (
	Ignore  Outcome = "Ignore"
	Approve Outcome = "Approve"
	Retry   Outcome = "Retry"
	Refuse  Outcome = "Refuse"
	Deny    Outcome = "Deny"
)

// Result is the result of one check.
type Result string

// The results. A skipped check did not apply or was not needed.
const (
	Passed  Result = "passed"
	Failed  Result = "failed"
	Skipped Result = "skipped"
)

// Check is one line of the explanation.
type Check struct {
	Name   string `json:"name"`
	Result Result `json:"result"`
	// Detail is for administrators; it may contain untrusted text.
	Detail string `json:"detail,omitempty"`
}

// Decision is the outcome for a request, with its reasons.
type Decision struct {
	Kind    Kind
	Outcome Outcome
	// Denial is the reason; nil for Approve and Ignore.
	Denial *reason.Denial
	// Checks are in the order of evaluation. The first failed check decides. An exception
	// are machine, renewal and egress of a serving certificate, of which one must pass.
	Checks []Check
	// Node is the node name that the request has; untrusted.
	Node string
	// Machine is the Machine with the node's name, or nil.
	Machine *Machine
	// RecordUID is the UID of the Machine (or stand-in) whose record has the request's
	// credential, or "".
	RecordUID string
	// CredentialID is the credential that made the request, also if no record has it.
	CredentialID string
	// PublicKeySHA256 is the hash of the request's SubjectPublicKeyInfo, in hexadecimal.
	PublicKeySHA256 string
	// Proven reports that a live credential of the record RecordUID made the request.
	// Only then may the record note a refusal (rule 3 of docs/security-rules.md).
	Proven bool
	// Attested reports that the verifier made the request for a machine that attested its
	// key; see [Name].
	Attested bool
	// Replaces is the key of a first certificate that is on the record but was never
	// approved, or ""; see [record.Reapprove].
	Replaces string
	// Superseded are the approved requests for the same node with other keys, which the verifier made for
	// first boots that were interrupted. Nothing proves that no client uses their certificates.
	Superseded []string
}

// Certificate returns what the record stores of an approval. request is the request's name.
func (d *Decision) Certificate(request string) v1alpha1.CertificateStatus {
	return v1alpha1.CertificateStatus{Node: d.Node, PublicKeySHA256: d.PublicKeySHA256, Request: request,
		CredentialID: d.CredentialID}
}

// Config configures the decisions. The zero value requires no attestation and decides
// like the cluster-machine-approver.
type Config struct {
	// Attestation requires that the record of the named machine has the credential of a
	// request for a client certificate.
	Attestation bool
	// MaxMachineAge is how long after a Machine's creation its first client certificate
	// may be requested. The default is 2 hours.
	MaxMachineAge time.Duration
	// PendingPerMachine is the number of requests of one machine, or node, that may be
	// pending with attestation. The default is 10.
	PendingPerMachine int
	// ServiceAccount is the node bootstrapper, as "namespace/name". The default is
	// "openshift-machine-config-operator/node-bootstrapper".
	ServiceAccount string
	// Issuer is the user that makes requests for machines that attested their kubelet's key,
	// or "". It is the verifier's controller. Only with attestation.
	Issuer string
	// BootstrapTokens means that bootstrap tokens make the requests, instead of tokens of
	// the service account.
	BootstrapTokens bool
	// BootstrapGroups are the groups of such tokens in addition to system:bootstrappers.
	BootstrapGroups []string
}

// Cluster reads the facts that decisions depend on. All methods read live, because
// approvals depend on them. After an error the request is decided again later.
type Cluster interface {
	// Node reports whether a Node of this name exists.
	Node(ctx context.Context, name string) (bool, error)
	// MachinesByInternalDNS returns the Machines of every API with this InternalDNS
	// address (ignoring case and a trailing dot), and the stand-ins of this name.
	MachinesByInternalDNS(ctx context.Context, name string) ([]Machine, error)
	// MachinesByNode returns the Machines of every API whose status.nodeRef is this Node,
	// and the stand-ins of this name.
	MachinesByNode(ctx context.Context, node string) ([]Machine, error)
	// RecordByCredential returns the record that has this credential, or nil.
	RecordByCredential(ctx context.Context, id string) (*v1alpha1.MachineAttestation, error)
	// MachineOf returns the Machine, or stand-in, of a record, or nil if it was deleted.
	MachineOf(ctx context.Context, rec *v1alpha1.MachineAttestation) (*Machine, error)
	// RecordByMachine returns the record of the Machine with this UID, or nil.
	RecordByMachine(ctx context.Context, uid string) (*v1alpha1.MachineAttestation, error)
	// ServingCertificate returns the certificate that the node's kubelet presents now,
	// unverified, and the authorities that must have signed it. If the kubelet does not
	// answer or its authorities are unknown, it returns nil and an error with the cause,
	// which by itself does not lead to a retry.
	ServingCertificate(ctx context.Context, node string) (*Presented, error)
	// Egress returns the egress addresses of the node, or nil if the network is not
	// OpenShiftSDN.
	Egress(ctx context.Context, node string) (*Egress, error)
	// Disabled reports whether an administrator disabled the approval of client
	// certificates.
	Disabled(ctx context.Context) (bool, error)
	// Load counts the pending requests. rec is the record whose credential made the
	// request; it is nil for a serving certificate and without attestation.
	Load(ctx context.Context, r *Request, rec *v1alpha1.MachineAttestation) (Load, error)
	// Newer returns later requests for client certificates that the record's credentials
	// made, newest first. If there are too many, it returns only the first ones.
	Newer(ctx context.Context, r *Request, rec *v1alpha1.MachineAttestation) ([]*Request, error)
	// Quarantines returns the MachineAttestations of all namespaces that quarantine a
	// machine, including those that the verifier has not recorded yet. It fails if it
	// cannot read one of the given namespaces or the verifier's own. It omits any other
	// namespace that the verifier may not read.
	Quarantines(ctx context.Context, namespaces []string) ([]v1alpha1.MachineAttestation, error)
	// Pinned returns the requests with the key of the record's certificate: the approved
	// ones, and those that its credentials made.
	Pinned(ctx context.Context, rec *v1alpha1.MachineAttestation) ([]*Request, error)
	// Issued returns the approved requests for a client certificate of this node. Kubernetes deletes an approved
	// request after an hour.
	Issued(ctx context.Context, node string) ([]*Request, error)
}

// Presented is a serving certificate that a kubelet presented in a TLS handshake.
type Presented struct {
	Certificate *x509.Certificate
	Roots       *x509.CertPool
}

// Egress has the egress addresses that a HostSubnet assigns to a node.
type Egress struct {
	IPs   []string
	CIDRs []string
}

// Window is how long a request counts as pending.
const Window = time.Hour

// Load is the number of pending requests and the size of the cluster.
type Load struct {
	Machines, Nodes int
	// Pending is the number of requests that count toward the limit of all machines, see
	// [Config.Pending]. With attestation these are the undecided requests for the two
	// signers, not older than [Window], that no recorded credential made.
	Pending int
	// Own is the number of requests of the same machine, or of the same node for a serving
	// certificate, that are not older than this one. Older ones do not count, because a
	// kubelet that makes a new request has abandoned them.
	Own int
}

// Limit returns the number of requests that may be pending without attestation.
func (l Load) Limit() int { return max(l.Machines, l.Nodes) + 100 }
