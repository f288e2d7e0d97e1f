// SPDX-License-Identifier: Apache-2.0

package approver

import (
	"context"
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/rsa"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"math/big"
	"net"
	"net/url"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	certificatesv1 "k8s.io/api/certificates/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/mcs-attest/mcs-attest/pkg/api/v1alpha1"
	"github.com/mcs-attest/mcs-attest/pkg/reason"
)

var (
	now     = time.Date(2026, 11, 21, 12, 0, 0, 0, time.UTC)
	ecKey   = sync.OnceValue(func() crypto.Signer { return must(ecdsa.GenerateKey(elliptic.P256(), rand.Reader)) })
	otherEC = sync.OnceValue(func() crypto.Signer { return must(ecdsa.GenerateKey(elliptic.P256(), rand.Reader)) })
	rsaKey  = sync.OnceValue(func() crypto.Signer { return must(rsa.GenerateKey(rand.Reader, 2048)) })
)

func must[T any](v T, err error) T {
	if err != nil {
		panic(err) // the test's own input
	}
	return v
}

// fakeCluster is a cluster as a struct; errors are by method name.
type fakeCluster struct {
	nodes     []string
	machines  []Machine
	records   []*v1alpha1.MachineAttestation
	presented *Presented
	egress    *Egress
	disabled  bool
	load      Load
	gone      []Machine // of records, but not in an index
	newer     []*Request
	pinned    []*Request
	// quarantines are administrators' objects that are not on the records yet.
	quarantines []v1alpha1.MachineAttestation
	issued      []*Request
	fail        map[string]error
	asked       []string
	// namespaces are those in which quarantines were searched. stale is returned in place of a
	// machine's record.
	namespaces []string
	stale      *v1alpha1.MachineAttestation
}

func (w *fakeCluster) ask(what string) error {
	w.asked = append(w.asked, what)
	return w.fail[what]
}

func (w *fakeCluster) Node(_ context.Context, name string) (bool, error) {
	return slices.Contains(w.nodes, name), w.ask("Node")
}

func (w *fakeCluster) MachinesByInternalDNS(_ context.Context, _ string) ([]Machine, error) {
	return w.machines, w.ask("MachinesByInternalDNS")
}

func (w *fakeCluster) MachinesByNode(_ context.Context, _ string) ([]Machine, error) {
	return w.machines, w.ask("MachinesByNode")
}

func (w *fakeCluster) RecordByCredential(_ context.Context, id string) (*v1alpha1.MachineAttestation, error) {
	for _, r := range w.records {
		for _, c := range r.Status.Credentials {
			if c.ID == id {
				return r, w.ask("RecordByCredential")
			}
		}
	}
	return nil, w.ask("RecordByCredential")
}

func (w *fakeCluster) RecordByMachine(_ context.Context, uid string) (*v1alpha1.MachineAttestation, error) {
	if w.stale != nil {
		return w.stale, w.ask("RecordByMachine")
	}
	for _, r := range w.records {
		if r.Status.MachineUID == uid {
			return r, w.ask("RecordByMachine")
		}
	}
	return nil, w.ask("RecordByMachine")
}

func (w *fakeCluster) Quarantines(_ context.Context, namespaces []string) ([]v1alpha1.MachineAttestation, error) {
	w.namespaces = namespaces
	return w.quarantines, w.ask("Quarantines")
}

func (w *fakeCluster) ServingCertificate(context.Context, string) (*Presented, error) {
	return w.presented, w.ask("ServingCertificate")
}
func (w *fakeCluster) Egress(context.Context, string) (*Egress, error) {
	return w.egress, w.ask("Egress")
}
func (w *fakeCluster) Disabled(context.Context) (bool, error) { return w.disabled, w.ask("Disabled") }
func (w *fakeCluster) Load(context.Context, *Request, *v1alpha1.MachineAttestation) (Load, error) {
	return w.load, w.ask("Load")
}

func (w *fakeCluster) MachineOf(_ context.Context, rec *v1alpha1.MachineAttestation) (*Machine, error) {
	for _, m := range slices.Concat(w.machines, w.gone) {
		if m.UID != "" && m.UID == rec.Status.MachineUID {
			return &m, w.ask("MachineOf")
		}
	}
	return nil, w.ask("MachineOf")
}

func (w *fakeCluster) Newer(context.Context, *Request, *v1alpha1.MachineAttestation) ([]*Request, error) {
	return w.newer, w.ask("Newer")
}

func (w *fakeCluster) Pinned(context.Context, *v1alpha1.MachineAttestation) ([]*Request, error) {
	return w.pinned, w.ask("Pinned")
}

func (w *fakeCluster) Issued(context.Context, string) ([]*Request, error) {
	return w.issued, w.ask("Issued")
}

// input is a request and the cluster in which it is made.
type input struct {
	template x509.CertificateRequest
	key      crypto.Signer
	csr      certificatesv1.CertificateSigningRequest
	fake     *fakeCluster
	config   Config
	// others are also pending.
	others []certificatesv1.CertificateSigningRequest
}

// address sets the addresses of the request and of its Machine.
func (in *input) address(asked, has string) {
	in.fake.machines[0].Addresses[1].Address = has
	in.template.IPAddresses = []net.IP{net.ParseIP(asked)}
}

func (in *input) decide() *Decision {
	if in.csr.Spec.Request == nil {
		in.csr.Spec.Request = requestPEM(&in.template, in.key)
	}
	cluster := *in.fake
	for i := range in.others {
		if from, until, ok := in.config.Pending(&in.others[i]); ok && now.After(from) && now.Before(until) {
			cluster.load.Pending++
		}
	}
	d := Decide(context.Background(), FromCSR(&in.csr), &cluster, in.config, now)
	in.fake.asked, in.fake.namespaces = cluster.asked, cluster.namespaces
	return d
}

func requestPEM(template *x509.CertificateRequest, key crypto.Signer) []byte {
	return pem.EncodeToMemory(&pem.Block{Type: requestBlock,
		Bytes: must(x509.CreateCertificateRequest(rand.Reader, template, key))})
}

const (
	credentialA = "JTI=11111111-2222-3333-4444-555555555555"
	uidA        = "aaaaaaaa-0000-0000-0000-000000000001"
	uidB        = "bbbbbbbb-0000-0000-0000-000000000002"
)

func bootstrapperGroups() []string {
	return []string{"system:serviceaccounts", "system:serviceaccounts:openshift-machine-config-operator",
		"system:authenticated"}
}

// honest returns the first request of the machine worker-0, which attested.
func honest() *input {
	in := stockClient()
	in.config.Attestation = true
	in.csr.Spec.Extra = map[string]certificatesv1.ExtraValue{extraCredentialID: {credentialA}}
	in.fake.records = []*v1alpha1.MachineAttestation{recordOf("worker-0", uidA, credentialA)}
	return in
}

// stockClient returns the same request without attestation.
func stockClient() *input {
	return &input{
		template: x509.CertificateRequest{Subject: pkix.Name{Organization: []string{"system:nodes"},
			CommonName: "system:node:worker-0"}},
		key: ecKey(),
		csr: certificatesv1.CertificateSigningRequest{
			ObjectMeta: metav1.ObjectMeta{Name: "csr-abcde", CreationTimestamp: metav1.NewTime(now.Add(-time.Minute))},
			Spec: certificatesv1.CertificateSigningRequestSpec{
				SignerName: certificatesv1.KubeAPIServerClientKubeletSignerName,
				Username:   "system:serviceaccount:openshift-machine-config-operator:node-bootstrapper",
				Groups:     bootstrapperGroups(),
				Usages:     []certificatesv1.KeyUsage{certificatesv1.UsageDigitalSignature, certificatesv1.UsageClientAuth},
			},
		},
		fake: &fakeCluster{
			machines: []Machine{machineOf("worker-0", uidA), machineOf("worker-1", uidB)},
			load:     Load{Machines: 2, Nodes: 1, Pending: 1, Own: 1},
		},
	}
}

func machineOf(name, uid string) Machine {
	return Machine{
		APIVersion: "machine.openshift.io/v1beta1", Kind: "Machine", Namespace: "openshift-machine-api", Name: name, UID: uid,
		Created: now.Add(-20 * time.Minute), Authority: "MachineAPI",
		Addresses: []corev1.NodeAddress{{Type: corev1.NodeInternalDNS, Address: name},
			{Type: corev1.NodeInternalIP, Address: "10.0.0.5"}},
	}
}

func recordOf(name, uid, credentialID string) *v1alpha1.MachineAttestation {
	rec := &v1alpha1.MachineAttestation{ObjectMeta: metav1.ObjectMeta{Namespace: "openshift-machine-api", Name: name}}
	rec.Status.MachineUID, rec.Status.Phase = uid, v1alpha1.PhaseFetched
	rec.Status.Credentials = []v1alpha1.CredentialStatus{{ID: credentialID,
		Issued: metav1.NewTime(now.Add(-10 * time.Minute)), Expiry: metav1.NewTime(now.Add(4 * time.Hour))}}
	return rec
}

// serving returns a node's first request for a serving certificate.
func serving() *input {
	in := stockClient()
	in.template.Subject.CommonName = "system:node:worker-0"
	in.template.DNSNames, in.template.IPAddresses = []string{"worker-0"}, []net.IP{net.IPv4(10, 0, 0, 5)}
	in.csr.Spec.SignerName = certificatesv1.KubeletServingSignerName
	in.csr.Spec.Username, in.csr.Spec.Groups = "system:node:worker-0", []string{"system:nodes", "system:authenticated"}
	in.csr.Spec.Usages = []certificatesv1.KeyUsage{certificatesv1.UsageDigitalSignature, certificatesv1.UsageServerAuth}
	in.fake.nodes = []string{"worker-0"}
	in.fake.machines[0].NodeRef = "worker-0"
	return in
}

// authority signs serving certificates.
func authority(t testing.TB) (*x509.Certificate, crypto.Signer) {
	t.Helper()
	ca := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "kubelets"}, IsCA: true, BasicConstraintsValid: true,
		NotBefore: now.Add(-time.Hour), NotAfter: now.Add(time.Hour), KeyUsage: x509.KeyUsageCertSign,
	}
	der, err := x509.CreateCertificate(rand.Reader, ca, ca, rsaKey().Public(), rsaKey())
	if err != nil {
		t.Fatal(err)
	}
	return must(x509.ParseCertificate(der)), rsaKey()
}

// present returns what a kubelet with the names of template presents.
func present(t testing.TB, template x509.CertificateRequest, change func(*x509.Certificate)) *Presented {
	t.Helper()
	ca, key := authority(t)
	leaf := &x509.Certificate{
		SerialNumber: big.NewInt(2), Subject: template.Subject, DNSNames: template.DNSNames,
		IPAddresses: template.IPAddresses,
		NotBefore:   now.Add(-time.Hour), NotAfter: now.Add(time.Hour),
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
	}
	if change != nil {
		change(leaf)
	}
	der, err := x509.CreateCertificate(rand.Reader, leaf, ca, otherEC().Public(), key)
	if err != nil {
		t.Fatal(err)
	}
	roots := x509.NewCertPool()
	roots.AddCert(ca)
	return &Presented{Certificate: must(x509.ParseCertificate(der)), Roots: roots}
}

// want checks an outcome and its reason.
func want(t *testing.T, d *Decision, outcome Outcome, code reason.Code) {
	t.Helper()
	if d.Outcome != outcome || (code == 0) != (d.Denial == nil) || d.Denial != nil && d.Denial.Code != code {
		t.Errorf("%s, %v; expected %s, %v\n%v", d.Outcome, d.Denial, outcome, code, d.Checks)
	}
	if d.Outcome == Deny && !d.Proven {
		t.Error("denied although nothing proves whose it is")
	}
	if len(d.Checks) == 0 {
		t.Error("no check explains the decision")
	}
}

func TestBind_AcceptsTheHonestMachine(t *testing.T) {
	in := honest()
	d := in.decide()
	want(t, d, Approve, 0)
	if !d.Proven || d.RecordUID != uidA || d.CredentialID != credentialA || d.Node != "worker-0" || d.Machine == nil ||
		d.Machine.UID != uidA {
		t.Errorf("%+v", d)
	}
	c := d.Certificate("csr-abcde")
	if c.Node != "worker-0" || c.CredentialID != credentialA || len(c.PublicKeySHA256) != 64 {
		t.Errorf("%+v", c)
	}
	var names []string
	for _, c := range d.Checks {
		if c.Result != Passed || c.Detail == "" {
			t.Errorf("%+v", c)
		}
		names = append(names, c.Name)
	}
	if got := strings.Join(names, " "); got != "signer requester request credential limit quarantine groups content "+
		"switch owner node machine joined age newest key enrollments" {
		t.Errorf("the checks are %s", got)
	}
}

// Each check fails by itself. Status rows D1 to D7, D10, D11, D14 and D15.
func TestClient(t *testing.T) {
	for name, c := range map[string]struct {
		change  func(*input)
		outcome Outcome
		code    reason.Code
	}{
		"an RSA key and key encipherment": {func(in *input) {
			in.key = rsaKey()
			in.csr.Spec.Usages = append(in.csr.Spec.Usages, certificatesv1.UsageKeyEncipherment)
		}, Approve, 0},
		"another signer": {func(in *input) { in.csr.Spec.SignerName = "kubernetes.io/kube-apiserver-client" }, Ignore, 0},
		"another requester": {func(in *input) {
			in.csr.Spec.Username = "system:serviceaccount:default:node-bootstrapper"
		}, Ignore, 0},
		"a node that renews its own": {func(in *input) { in.csr.Spec.Username = "system:node:worker-0" }, Ignore, 0},
		"a request that is approved": {func(in *input) { in.condition(certificatesv1.CertificateApproved) }, Ignore, 0},
		"a request that is denied":   {func(in *input) { in.condition(certificatesv1.CertificateDenied) }, Ignore, 0},
		"a request that failed":      {func(in *input) { in.condition(certificatesv1.CertificateFailed) }, Ignore, 0},
		"a group too many": {func(in *input) {
			in.csr.Spec.Groups = append(in.csr.Spec.Groups, "system:masters")
		}, Refuse, reason.CSRRequester},
		"a group too few": {func(in *input) { in.csr.Spec.Groups = in.csr.Spec.Groups[:2] }, Refuse, reason.CSRRequester},
		"no credential":   {func(in *input) { in.csr.Spec.Extra = nil }, Refuse, reason.CSRCredential},
		"two credentials": {func(in *input) { in.credential(credentialA, credentialA) }, Refuse,
			reason.CSRCredential},
		"a credential of no record": {func(in *input) { in.credential("JTI=shared") }, Refuse, reason.CSRCredential},
		"a credential that has ended": {func(in *input) { in.own().Expiry = metav1.NewTime(now) }, Refuse,
			reason.CSRCredential},
		"a quarantine in the spec": {func(in *input) { in.fake.records[0].Spec.Quarantined = true }, Retry,
			reason.Quarantined},
		"a quarantine in the status": {func(in *input) { in.fake.records[0].Status.Quarantined = true }, Retry,
			reason.Quarantined},
		"approvals switched off": {func(in *input) { in.fake.disabled = true }, Retry, reason.CSRDisabled},
		"a Node of that name":    {func(in *input) { in.fake.nodes = []string{"worker-0"} }, Refuse, reason.CSRNodeExists},
		"no Machine of that name (yet)": {func(in *input) { in.fake.machines = in.fake.machines[1:] }, Retry,
			reason.MachineNotFound},
		"an index that is out of date": {func(in *input) { in.fake.machines[0].Addresses[0].Address = "worker-9" },
			Retry, reason.MachineNotFound},
		"the name as an ExternalDNS": {func(in *input) {
			in.fake.machines[0].Addresses[0].Type = corev1.NodeExternalDNS
		}, Retry, reason.MachineNotFound},
		"two Machines of that name": {func(in *input) { in.fake.machines[1] = machineOf("worker-0", uidB) }, Retry,
			reason.MachineAmbiguous},
		"an address in upper case": {func(in *input) { in.fake.machines[0].Addresses[0].Address = "WORKER-0" }, Approve, 0},
		"an address that ends in a dot": {func(in *input) { in.fake.machines[0].Addresses[0].Address = "worker-0." },
			Approve, 0},
		"a Machine with a Node": {func(in *input) { in.fake.machines[0].NodeRef = "other" }, Refuse, reason.MachineJoined},
		"a Machine that is deleted": {func(in *input) { in.fake.machines[0].Deleting = true }, Refuse,
			reason.MachineDeleting},
		"10 s before the Machine":   {func(in *input) { in.madeAfter(-10 * time.Second) }, Refuse, reason.MachineTooOld},
		"9 s before the Machine":    {func(in *input) { in.madeAfter(-9 * time.Second) }, Approve, 0},
		"1:59:59 after the Machine": {func(in *input) { in.madeAfter(2*time.Hour - time.Second) }, Approve, 0},
		"2:00:00 after the Machine": {func(in *input) { in.madeAfter(2 * time.Hour) }, Refuse, reason.MachineTooOld},
		"a longer age that was allowed": {func(in *input) {
			in.madeAfter(2 * time.Hour)
			in.config.MaxMachineAge = 3 * time.Hour
		}, Approve, 0},
		"the key that was attested": {func(in *input) { in.fake.records[0].Status.CSRKeySHA256 = in.sum() }, Approve, 0},
		"another key than was attested": {func(in *input) {
			in.fake.records[0].Status.CSRKeySHA256 = strings.Repeat("ab", 32)
		}, Refuse, reason.CSRKeyChanged},
		"the key that was approved": {func(in *input) { in.approved(in.sum(), "worker-0") }, Approve, 0},
		"another key than was approved": {func(in *input) { in.approved(strings.Repeat("ab", 32), "worker-0") }, Refuse,
			reason.CSRKeyChanged},
		"another name than was approved": {func(in *input) { in.approved(in.sum(), "worker-7") }, Refuse,
			reason.CSRKeyChanged},
		"a record that joined otherwise": {func(in *input) { in.fake.records[0].Status.Phase = v1alpha1.PhaseJoined },
			Refuse, reason.MachineJoined},
		"10 requests of this machine": {func(in *input) { in.fake.load.Own = 10 }, Approve, 0},
		"11 requests of this machine": {func(in *input) { in.fake.load.Own = 11 }, Retry, reason.CSRLimit},
		"a flood by others":           {func(in *input) { in.fake.load.Pending = 1 << 20 }, Approve, 0},
		"no Node to be read":          {func(in *input) { in.fails("Node") }, Retry, reason.StoreUnavailable},
		"no Machine to be read": {func(in *input) { in.fails("MachinesByInternalDNS") },
			Retry, reason.StoreUnavailable},
		"no record to be read":        {func(in *input) { in.fails("RecordByCredential") }, Retry, reason.StoreUnavailable},
		"no switch to be read":        {func(in *input) { in.fails("Disabled") }, Retry, reason.StoreUnavailable},
		"no quarantine to be read":    {func(in *input) { in.fails("Quarantines") }, Retry, reason.StoreUnavailable},
		"no newer request to be read": {func(in *input) { in.fails("Newer") }, Retry, reason.StoreUnavailable},
		"nothing to be counted":       {func(in *input) { in.fails("Load") }, Retry, reason.StoreUnavailable},
	} {
		t.Run(name, func(t *testing.T) {
			in := honest()
			c.change(in)
			want(t, in.decide(), c.outcome, c.code)
		})
	}
}

// Status row D18, in addition to the vectors: without attestation, its facts do not matter.
func TestClientWithoutAttestation(t *testing.T) {
	for name, c := range map[string]struct {
		change  func(*input)
		outcome Outcome
		code    reason.Code
	}{
		"no credential":                {func(*input) {}, Approve, 0},
		"102 requests of 2 machines":   {func(in *input) { in.fake.load.Pending = 102 }, Approve, 0},
		"103 requests of 2 machines":   {func(in *input) { in.fake.load.Pending = 103 }, Retry, reason.CSRLimit},
		"103 requests and 3 Nodes":     {func(in *input) { in.fake.load.Pending, in.fake.load.Nodes = 103, 3 }, Approve, 0},
		"many requests of one machine": {func(in *input) { in.fake.load.Own = 50 }, Approve, 0},
		"a Machine that is deleted":    {func(in *input) { in.fake.machines[0].Deleting = true }, Approve, 0},
	} {
		t.Run(name, func(t *testing.T) {
			in := stockClient()
			c.change(in)
			d := in.decide()
			want(t, d, c.outcome, c.code)
			if d.Proven || slices.ContainsFunc(in.fake.asked, func(what string) bool {
				return slices.Contains([]string{"RecordByCredential", "Newer", "Pinned", "Issued", "Quarantines"}, what)
			}) {
				t.Errorf("something is proven, or was read: %q", in.fake.asked)
			}
			if c := d.Checks[3]; c != (Check{"credential", Skipped, "attestation is off"}) {
				t.Errorf("%+v", c)
			}
		})
	}
}

// Clusters whose kubelets use bootstrap tokens.
func TestBootstrapToken(t *testing.T) {
	made := func() *input {
		in := honest()
		in.config.BootstrapTokens, in.config.BootstrapGroups = true, []string{"system:bootstrappers:mcs-attest"}
		in.csr.Spec.Extra, in.csr.Spec.Username = nil, "system:bootstrap:abcdef"
		in.csr.Spec.Groups = []string{"system:bootstrappers", "system:bootstrappers:mcs-attest", "system:authenticated"}
		in.own().ID = "system:bootstrap:abcdef"
		return in
	}
	want(t, made().decide(), Approve, 0)
	in := made()
	in.csr.Spec.Username = "system:bootstrap:ffffff"
	want(t, in.decide(), Refuse, reason.CSRCredential)
	in = made()
	in.csr.Spec.Username = bootstrapPrefix
	want(t, in.decide(), Ignore, 0)
	in = made()
	in.csr.Spec.Username = honest().csr.Spec.Username
	want(t, in.decide(), Ignore, 0)
	in = made()
	in.csr.Spec.Groups = in.csr.Spec.Groups[1:]
	want(t, in.decide(), Refuse, reason.CSRRequester)
	// Two credentials are ambiguous, so the user does not count, either.
	in = made()
	in.credential("a", "b")
	want(t, in.decide(), Refuse, reason.CSRCredential)
	// The user of another authenticator does not count as a token's.
	in = honest()
	in.csr.Spec.Extra = nil
	want(t, in.decide(), Refuse, reason.CSRCredential)
}

// Status row D17: enrolled hosts without a Machine.
func TestStandIn(t *testing.T) {
	made := func() *input {
		in := honest()
		m, err := MachineFromObject(map[string]any{
			"apiVersion": v1alpha1.APIVersion, "kind": v1alpha1.KindMachineAttestation,
			"metadata": map[string]any{"name": "worker-0", "namespace": "mcs-attest", "uid": uidA,
				"creationTimestamp": "2026-01-01T00:00:00Z",
				"annotations":       map[string]any{AnnotationAddresses: "10.0.0.5, worker-0.example.com"}},
			"spec": map[string]any{"pool": "worker"},
		})
		if err != nil {
			t.Fatal(err)
		}
		in.fake.machines = []Machine{*m}
		return in
	}
	d := made().decide()
	want(t, d, Approve, 0)
	if !slices.Contains(d.Checks, Check{"age", Skipped, "a stand-in has none"}) {
		t.Errorf("%+v", d.Checks)
	}
	in := made()
	in.fake.machines[0].Name = "worker-1"
	want(t, in.decide(), Retry, reason.MachineNotFound)
	// A name in the annotation is not the machine's name.
	in = made()
	in.template.Subject.CommonName = "system:node:worker-0.example.com"
	want(t, in.decide(), Retry, reason.MachineNotFound)
	in = made()
	in.fake.machines[0].UID = uidB
	want(t, in.decide(), Retry, reason.MachineNotFound)
	in.fake.gone = []Machine{machineOf("worker-9", uidA)}
	if d = in.decide(); d.Machine == nil || d.Machine.UID != uidB {
		t.Errorf("it requests the name of %+v", d.Machine)
	}
	want(t, d, Deny, reason.CSROtherMachine)
	// The name of a Machine is known when it has one, and that of a stand-in always.
	in.fake.gone[0].Addresses = in.fake.gone[0].Addresses[1:]
	want(t, in.decide(), Retry, reason.MachineNotFound)
	in.fake.gone[0].StandIn = true
	want(t, in.decide(), Deny, reason.CSROtherMachine)
	in = made()
	in.fake.machines = append(in.fake.machines, machineOf("worker-0", uidB))
	want(t, in.decide(), Retry, reason.MachineAmbiguous)

	s := serving()
	s.fake.machines = made().fake.machines
	s.template.DNSNames = []string{"worker-0", "worker-0.example.com"}
	want(t, s.decide(), Approve, 0)
	s = serving()
	s.fake.machines = made().fake.machines
	s.template.IPAddresses = []net.IP{net.IPv4(10, 0, 0, 6)}
	want(t, s.decide(), Retry, reason.CSRAddress)
}

// Status row D16: one machine with two objects while a cluster migrates to Cluster API.
func TestMirroredMachines(t *testing.T) {
	made := func() *input {
		in := honest()
		mirror := machineOf("worker-0", uidB)
		mirror.APIVersion, mirror.Namespace, mirror.Authority = "cluster.x-k8s.io/v1beta2", "openshift-cluster-api", ""
		in.fake.machines = []Machine{machineOf("worker-0", uidA), mirror}
		for i := range in.fake.machines {
			in.fake.machines[i].ProviderID = "aws:///eu-west-1a/i-0123"
		}
		return in
	}
	for name, c := range map[string]struct {
		change  func(*input)
		outcome Outcome
		code    reason.Code
	}{
		"the Machine API's counts":   {func(*input) {}, Approve, 0},
		"Cluster API's counts":       {func(in *input) { in.fake.machines[0].Authority = "ClusterAPI" }, Approve, 0},
		"the record is of the other": {func(in *input) { in.fake.records[0].Status.MachineUID = uidB }, Approve, 0},
		"in the middle of the move": {func(in *input) { in.fake.machines[0].Authority = "Migrating" }, Retry,
			reason.MachineAmbiguous},
		"two instances": {func(in *input) { in.fake.machines[1].ProviderID += "4" }, Retry, reason.MachineAmbiguous},
		"no instance": {func(in *input) {
			in.fake.machines[0].ProviderID, in.fake.machines[1].ProviderID = "", ""
		}, Retry, reason.MachineAmbiguous},
		"two of one API": {func(in *input) {
			in.fake.machines[1].APIVersion = in.fake.machines[0].APIVersion
		}, Retry, reason.MachineAmbiguous},
		"two of Cluster API": {func(in *input) {
			in.fake.machines[0].APIVersion = in.fake.machines[1].APIVersion
		}, Retry, reason.MachineAmbiguous},
		"two, and a third one": {func(in *input) {
			third := in.fake.machines[1]
			third.UID = "third"
			in.fake.machines = append(in.fake.machines, third)
		}, Retry, reason.MachineAmbiguous},
		"the Machine API's is being deleted": {func(in *input) { in.fake.machines[0].Deleting = true }, Refuse,
			reason.MachineDeleting},
		"the other instance has another name": {func(in *input) {
			in.fake.machines[0].Addresses[0].Address = "worker-00"
			in.fake.machines[1].ProviderID += "4"
			in.recordProvider()
		}, Deny, reason.CSROtherMachine},
		"the other is being deleted": {func(in *input) { in.fake.machines[1].Deleting = true }, Refuse,
			reason.MachineDeleting},
		"the other has joined": {func(in *input) { in.fake.machines[1].NodeRef = "worker-0" }, Refuse, reason.MachineJoined},
		"the other is old, this one a copy": {func(in *input) { in.fake.machines[1].Created = now.Add(-72 * time.Hour) },
			Refuse, reason.MachineTooOld},
		"the other has addresses, and the record is of the one that has none": {func(in *input) {
			in.fake.machines[0].Addresses = nil
			in.recordProvider()
		}, Retry, reason.MachineNotFound},
		"the other has another name": {func(in *input) {
			in.fake.machines[0].Addresses[0].Address = "worker-00"
			in.recordProvider()
		}, Refuse, reason.CSROtherMachine},
	} {
		t.Run(name, func(t *testing.T) {
			for _, order := range []string{"one way round", "the other way round"} {
				in := made()
				c.change(in)
				if order != "one way round" {
					slices.Reverse(in.fake.machines)
				}
				d := in.decide()
				want(t, d, c.outcome, c.code)
				if d.Outcome == Approve && (d.Machine.group() == groupClusterAPI) != (name == "Cluster API's counts") {
					t.Errorf("its Machine is the one of %s", d.Machine.APIVersion)
				}
			}
		})
	}
}

func (in *input) recordProvider() {
	in.fake.records[0].Status.Identity.ProviderID = "aws:///eu-west-1a/i-0123"
}

func (in *input) condition(kind certificatesv1.RequestConditionType) {
	in.csr.Status.Conditions = []certificatesv1.CertificateSigningRequestCondition{{Type: kind,
		Status: corev1.ConditionTrue}}
}

func (in *input) credential(ids ...string) {
	in.csr.Spec.Extra = map[string]certificatesv1.ExtraValue{extraCredentialID: ids}
}
func (in *input) own() *v1alpha1.CredentialStatus {
	return &in.fake.records[0].Status.Credentials[0]
}
func (in *input) fails(what string) {
	in.fake.fail = map[string]error{what: errors.New("etcdserver: request timed out")}
}

func (in *input) madeAfter(d time.Duration) {
	in.csr.CreationTimestamp = metav1.NewTime(in.fake.machines[0].Created.Add(d))
}

// sum returns the hash of the request's key.
func (in *input) sum() string {
	in.csr.Spec.Request = requestPEM(&in.template, in.key)
	return FromCSR(&in.csr).PublicKeySHA256
}

func (in *input) approved(sum, node string) {
	s := &in.fake.records[0].Status
	s.Phase, s.Certificate = v1alpha1.PhaseJoined, &v1alpha1.CertificateStatus{Node: node, PublicKeySHA256: sum,
		Approved: metav1.NewTime(now.Add(-kept))}
	in.fake.pinned = []*Request{{Kind: Client, Decided: true, Approved: true, PublicKeySHA256: sum}}
}

func uri(s string) []*url.URL { return []*url.URL{must(url.Parse(s))} }

// The page for administrators has a row for each check that csr explain prints.
func TestDocs_NameEveryCheck(t *testing.T) {
	page, err := os.ReadFile("../../docs/approver.md")
	if err != nil {
		t.Fatal(err)
	}
	client := honest().decide().Checks
	s := serving()
	s.template.IPAddresses = nil
	s.renews(t, nil)
	s.template.IPAddresses = serving().template.IPAddresses
	s.fake.machines, s.fake.egress = nil, &Egress{IPs: []string{"10.0.0.5"}}
	d := s.decide()
	want(t, d, Approve, 0)
	for _, c := range append(client, d.Checks[len(d.Checks)-3:]...) {
		if c.Name == "signer" {
			continue // it is the heading
		}
		if !strings.Contains(string(page), "| "+c.Name+" |") && !strings.Contains(string(page), "| "+c.Name+" * |") {
			t.Errorf("docs/approver.md has no row for the check %q", c.Name)
		}
	}
}
