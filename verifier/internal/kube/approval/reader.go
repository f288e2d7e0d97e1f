// SPDX-License-Identifier: Apache-2.0

// Package approval reads the facts for a decision about a kubelet's certificate signing request. Package
// pkg/approver makes the decision. The csr controller and the command "csr explain" use this package.
//
// Each answer is a live read. Cached state ([Directory], [Options].Waiting) only says where to read, and how many
// requests wait. So a decision costs the same in a cluster of any size, and an approval never rests on stale data.
// There are two exceptions: each approval lists all MachineAttestations, and the approval of a first client
// certificate also lists all requests.
//
// Permissions: get of certificatesigningrequests, nodes, Machines, MachineAttestations, the ConfigMaps of the
// configuration, the stock approver's Deployments, networks, hostsubnets and namespaces; list of
// certificatesigningrequests and MachineAttestations.
//
// The content of requests and the status of Nodes are untrusted.
package approval

import (
	"context"
	"errors"
	"fmt"
	"net"
	"slices"
	"time"

	configv1 "github.com/openshift/api/config/v1"
	networkv1 "github.com/openshift/api/network/v1"
	"golang.org/x/sync/semaphore"
	certificatesv1 "k8s.io/api/certificates/v1"
	corev1 "k8s.io/api/core/v1"
	kerrors "k8s.io/apimachinery/pkg/api/errors"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/mcs-attest/mcs-attest/pkg/api/v1alpha1"
	"github.com/mcs-attest/mcs-attest/pkg/approver"
	"github.com/mcs-attest/mcs-attest/pkg/machine"
	"github.com/mcs-attest/mcs-attest/pkg/reason"
	"github.com/mcs-attest/mcs-attest/pkg/record"
	"github.com/mcs-attest/mcs-attest/verifier/internal/config"
)

// Directory finds Machines and records. It may be stale, because the Reader reads each object again.
type Directory interface {
	// ByInternalDNS returns the Machines with that name among their InternalDNS addresses. ByNode returns the
	// Machines with that Node in their nodeRef.
	ByInternalDNS(name string) []machine.Ref
	ByNode(node string) []machine.Ref
	// ByCredential returns the UID of the Machine whose record has the bootstrap credential.
	ByCredential(id string) (uid string, ok bool)
	// Counts returns the numbers of Machines and Nodes.
	Counts() (machines, nodes int)
}

// Records returns the current record of a Machine, or nil if it has none.
type Records interface {
	Record(ctx context.Context, uid string) (*v1alpha1.MachineAttestation, error)
}

// Options configure a [Reader].
type Options struct {
	Client client.Reader // without a cache
	// Config must be complete, as package config returns it.
	Config config.Approver
	Rules  approver.Config
	// Namespaces of Machines and of the MachineAttestations that stand in for one; "*" is
	// every namespace.
	Namespaces []string
	Namespace  string // the verifier's own, one of them
	Machines   Directory
	Records    Records
	// Waiting returns the requests with one key of [approver.Config.IndexKeys]. The Reader does not change them.
	Waiting func(ctx context.Context, key string) ([]*certificatesv1.CertificateSigningRequest, error)
	Now     func() time.Time
	// Dial connects to a kubelet. If nil, the Reader connects to any address except those of this host.
	Dial func(ctx context.Context, network, address string) (net.Conn, error)
}

// Rules returns the approver's rules from a configuration. own is nil if machines have no credentials of their own.
// namespace is the verifier's own.
func Rules(c config.Approver, own *config.Credential, namespace string) approver.Config {
	rules := approver.Config{
		Attestation: c.Attestation != config.AttestationOff, MaxMachineAge: time.Duration(c.MaxMachineAge),
		PendingPerMachine: c.PendingPerMachine,
	}
	if own != nil {
		rules.ServiceAccount, rules.BootstrapGroups = own.ServiceAccount, own.Groups
		rules.BootstrapTokens = own.Kind == config.BootstrapToken
		if own.Certificates() {
			rules.Issuer = "system:serviceaccount:" + namespace + ":" + config.ControllerAccount
		}
	}
	return rules
}

// Reader implements [approver.Cluster].
type Reader struct {
	switches
	o           Options
	quarantines quarantines
	counted     counted
}

var _ approver.Cluster = (*Reader)(nil)

// NewReader returns a reader. It makes no call. Every call of the reader ends with its context, except one that lists
// the quarantines for others as well. That one ends after listTimeout.
func NewReader(o Options) *Reader {
	o.Namespaces = slices.Compact(slices.Sorted(slices.Values(o.Namespaces)))
	if slices.Contains(o.Namespaces, "*") || slices.Contains(o.Namespaces, "") {
		o.Namespaces = []string{""}
	}
	if o.Now == nil {
		o.Now = time.Now
	}
	if o.Dial == nil {
		o.Dial = dialKubelet
	}
	return &Reader{
		o:        o,
		switches: switches{live{o.Client}, o.Config, o.Rules.Attestation},

		quarantines: quarantines{busy: semaphore.NewWeighted(1)}, counted: counted{busy: semaphore.NewWeighted(1)},
	}
}

// Node implements [approver.Cluster].
func (r *Reader) Node(ctx context.Context, name string) (bool, error) {
	return r.get(ctx, "", name, new(corev1.Node))
}

// RecordByCredential implements [approver.Cluster].
func (r *Reader) RecordByCredential(ctx context.Context, id string) (*v1alpha1.MachineAttestation, error) {
	uid, ok := r.o.Machines.ByCredential(id)
	if !ok {
		return nil, nil
	}
	return r.RecordByMachine(ctx, uid)
}

// RecordByMachine implements [approver.Cluster].
func (r *Reader) RecordByMachine(ctx context.Context, uid string) (*v1alpha1.MachineAttestation, error) {
	rec, err := r.o.Records.Record(ctx, uid)
	if d, ok := errors.AsType[*reason.Denial](err); ok && d.Code == reason.MachineNotFound {
		return nil, nil // without its Machine there is no record
	}
	return rec, err
}

// Egress implements [approver.Cluster].
func (r *Reader) Egress(ctx context.Context, node string) (*approver.Egress, error) {
	var network configv1.Network
	if ok, err := r.get(ctx, "", "cluster", &network); !ok || network.Status.NetworkType != "OpenShiftSDN" {
		return nil, err
	}
	var subnet networkv1.HostSubnet
	if ok, err := r.get(ctx, "", node, &subnet); !ok {
		return nil, err
	}
	e := new(approver.Egress)
	for _, ip := range subnet.EgressIPs {
		e.IPs = append(e.IPs, string(ip))
	}
	for _, cidr := range subnet.EgressCIDRs {
		e.CIDRs = append(e.CIDRs, string(cidr))
	}
	return e, nil
}

// Load implements [approver.Cluster].
func (r *Reader) Load(ctx context.Context, req *approver.Request, rec *v1alpha1.MachineAttestation) (
	l approver.Load, err error,
) {
	l.Machines, l.Nodes = r.o.Machines.Counts()
	if !r.o.Rules.Attestation {
		l.Pending, err = r.counted.get(ctx, func() (int, error) { return r.Pending(ctx) })
		return l, err
	}
	own, err := r.own(ctx, req, rec)
	l.Own = req.Own(own, r.o.Now())
	return l, err
}

// own returns the waiting requests of the machine or node that made the request.
func (r *Reader) own(ctx context.Context, req *approver.Request, rec *v1alpha1.MachineAttestation) (
	all []*certificatesv1.CertificateSigningRequest, err error,
) {
	for _, key := range req.OwnKeys(rec) {
		found, err := r.o.Waiting(ctx, key)
		if err != nil {
			return nil, err
		}
		all = append(all, found...)
	}
	return all, nil
}

// Pending returns the count for [approver.Load].Pending.
func (r *Reader) Pending(ctx context.Context) (int, error) {
	all, err := r.o.Waiting(ctx, approver.KeyCounted)
	recorded := func(id string) bool {
		_, ok := r.o.Machines.ByCredential(id)
		return ok
	}
	return r.o.Rules.CountPending(all, recorded, r.o.Now()), err
}

// maxNewer is the maximum number of one machine's requests that are read to find the latest.
const maxNewer = 10

// Newer implements [approver.Cluster].
func (r *Reader) Newer(ctx context.Context, req *approver.Request, rec *v1alpha1.MachineAttestation) (
	newer []*approver.Request, err error,
) {
	own, err := r.own(ctx, req, rec)
	if err != nil {
		return nil, err
	}
	for _, name := range req.Newer(own, maxNewer) {
		var csr certificatesv1.CertificateSigningRequest
		switch err := r.Get(ctx, client.ObjectKey{Name: name}, &csr); { // which may have any name
		case err == nil:
			newer = append(newer, approver.FromCSR(&csr))
		case !kerrors.IsNotFound(err):
			return nil, fmt.Errorf("read CertificateSigningRequest %s: %w", name, err)
		}
	}
	return newer, nil
}

// Pinned implements [approver.Cluster].
func (r *Reader) Pinned(ctx context.Context, rec *v1alpha1.MachineAttestation) (all []*approver.Request, err error) {
	requests, err := r.PinnedRequests(ctx, rec)
	for i := range requests {
		all = append(all, approver.FromCSR(&requests[i]))
	}
	return all, err
}

// Issued implements [approver.Cluster]. It lists all requests, at each approval of a first client certificate.
func (r *Reader) Issued(ctx context.Context, node string) (all []*approver.Request, err error) {
	err = r.clientRequests(ctx, func(_ *certificatesv1.CertificateSigningRequest, req *approver.Request) {
		if req.Approved && req.Node() == node {
			all = append(all, req)
		}
	})
	return all, err
}

// PinnedRequests returns the requests with the pinned key that were approved or that the machine's credentials made. It
// lists all requests, because any of them may have that key. It is needed only for a machine that requested
// certificates for two keys.
func (r *Reader) PinnedRequests(ctx context.Context, rec *v1alpha1.MachineAttestation) (
	all []certificatesv1.CertificateSigningRequest, err error,
) {
	if rec == nil || rec.Status.Certificate == nil {
		return nil, nil
	}
	key, now := rec.Status.Certificate.PublicKeySHA256, r.o.Now()
	err = r.clientRequests(ctx, func(csr *certificatesv1.CertificateSigningRequest, req *approver.Request) {
		if req.PublicKeySHA256 != key {
			return
		}
		if _, ours := record.Credential(rec, req.CredentialID, now); req.Approved || ours {
			all = append(all, *csr)
		}
	})
	return all, err
}

// clientRequests lists all requests for client certificates of kubelets.
func (r *Reader) clientRequests(ctx context.Context,
	each func(*certificatesv1.CertificateSigningRequest, *approver.Request)) error {
	kubelets := client.MatchingFields{"spec.signerName": certificatesv1.KubeAPIServerClientKubeletSignerName}
	return eachPage(ctx, r, newRequests, func(page *certificatesv1.CertificateSigningRequestList) error {
		for i := range page.Items {
			if req := approver.FromCSR(&page.Items[i]); req.Kind == approver.Client {
				each(&page.Items[i], req)
			}
		}
		return nil
	}, kubelets)
}
