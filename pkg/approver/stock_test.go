// SPDX-License-Identifier: Apache-2.0

package approver

import (
	"crypto/x509"
	"crypto/x509/pkix"
	"net"
	"slices"
	"testing"
	"time"

	certificatesv1 "k8s.io/api/certificates/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// The cluster-machine-approver's results: approval, final refusal, or an error, after which
// it tries again.
type answer int

const (
	yes answer = iota
	no
	again
)

const bootstrapperName = "system:serviceaccount:openshift-machine-config-operator:node-bootstrapper"

var (
	legacyServing = []certificatesv1.KeyUsage{certificatesv1.UsageDigitalSignature, certificatesv1.UsageKeyEncipherment,
		certificatesv1.UsageServerAuth}
	legacyClient = []certificatesv1.KeyUsage{certificatesv1.UsageKeyEncipherment, certificatesv1.UsageDigitalSignature,
		certificatesv1.UsageClientAuth}
)

// stockServing is the case "ok" of the stock approver's table.
func stockServing() *input {
	return &input{
		template: x509.CertificateRequest{
			Subject:  pkix.Name{Organization: []string{"system:nodes"}, CommonName: "system:node:test"},
			DNSNames: []string{"node1", "node1.local"}, IPAddresses: []net.IP{net.IPv4(10, 0, 0, 1), net.IPv4(127, 0, 0, 1)},
		},
		key: rsaKey(),
		csr: certificatesv1.CertificateSigningRequest{Spec: certificatesv1.CertificateSigningRequestSpec{
			SignerName: certificatesv1.KubeletServingSignerName, Usages: slices.Clone(legacyServing),
			Username: "system:node:test", Groups: []string{"system:authenticated", "system:nodes"},
		}},
		fake: &fakeCluster{load: Load{Machines: 1, Nodes: 1},
			machines: []Machine{{NodeRef: "test", Addresses: []corev1.NodeAddress{
				{Type: corev1.NodeInternalIP, Address: "127.0.0.1"}, {Type: corev1.NodeExternalIP, Address: "10.0.0.1"},
				{Type: corev1.NodeInternalDNS, Address: "node1.local"}, {Type: corev1.NodeExternalDNS, Address: "node1"},
			}}}},
	}
}

// stockPanda is the case "client good".
func stockPanda() *input {
	animal := func(name string) Machine {
		return Machine{Addresses: []corev1.NodeAddress{{Type: corev1.NodeInternalDNS, Address: name}}}
	}
	return &input{
		template: x509.CertificateRequest{Subject: pkix.Name{Organization: []string{"system:nodes"},
			CommonName: "system:node:panda"}},
		key: rsaKey(),
		csr: certificatesv1.CertificateSigningRequest{Spec: certificatesv1.CertificateSigningRequestSpec{
			SignerName: certificatesv1.KubeAPIServerClientKubeletSignerName, Usages: slices.Clone(legacyClient),
			Username: bootstrapperName, Groups: bootstrapperGroups(),
		}},
		fake: &fakeCluster{load: Load{Machines: 2}, machines: []Machine{animal("tigers"), animal("panda")}},
	}
}

// Status row D18: without attestation this package decides like the cluster-machine-approver
// in the 48 cases of its Test_authorizeCSR, whose names these are. The inputs are written
// from the names and conditions. Its second call in each case, with nil, has no counterpart.
func TestDecide_AgreesWithTheStockApprover(t *testing.T) {
	server := func(change func(*input)) func() *input {
		return func() *input { in := stockServing(); change(in); return in }
	}
	client := func(change func(*input)) func() *input {
		return func() *input { in := stockPanda(); change(in); return in }
	}
	// The node's kubelet presents its certificate; there is no Machine.
	renewing := func(change func(*input)) func() *input {
		return server(func(in *input) {
			in.fake.machines, in.fake.nodes = nil, []string{"test"}
			in.fake.presented = present(t, in.template, nil)
			change(in)
		})
	}
	extra := func(in *input) { in.template.IPAddresses = append(in.template.IPAddresses, net.IPv4(99, 0, 1, 1)) }
	times := func(machineAgo, requestAgo time.Duration) func(*input) {
		return func(in *input) {
			in.fake.machines[1].Created = now.Add(-machineAgo)
			in.csr.CreationTimestamp = metav1.NewTime(now.Add(-requestAgo))
		}
	}
	usages := func(u ...certificatesv1.KeyUsage) func(*input) {
		return func(in *input) { in.csr.Spec.Usages = u }
	}
	const (
		sign, encipher = certificatesv1.UsageDigitalSignature, certificatesv1.UsageKeyEncipherment
		srv, cli       = certificatesv1.UsageServerAuth, certificatesv1.UsageClientAuth
	)
	vectors := []struct {
		name  string
		made  func() *input
		stock answer
	}{
		{"ok", server(func(*input) {}), yes},
		{"ok with ECDSA",
			server(func(in *input) { in.key, in.csr.Spec.Usages = ecKey(), []certificatesv1.KeyUsage{sign, srv} }), yes},
		{"bad-csr", server(func(in *input) { in.csr.Spec.Request = []byte("-----BEGIN??\n") }), again},
		{"no-node-prefix", server(func(in *input) { in.csr.Spec.Username = "test" }), no},
		{"only-node-prefix", server(func(in *input) { in.csr.Spec.Username = "system:node:" }), no},
		{"no-machine-status-ref", server(func(in *input) { in.fake.machines[0].NodeRef = "" }), again},
		{"missing-groups-1", server(func(in *input) { in.csr.Spec.Groups = []string{"system:authenticated"} }), no},
		{"missing-groups-2", server(func(in *input) { in.csr.Spec.Groups = []string{"system:nodes"} }), no},
		{"extra-group", server(func(in *input) { in.csr.Spec.Groups = append(in.csr.Spec.Groups, "foo-group") }), yes},
		{"wrong-group", server(func(in *input) { in.csr.Spec.Groups[1] = "foo-group" }), no},
		{"usages-missing", server(usages(encipher, srv)), no},
		{"usages-missing", server(usages(sign)), no},
		{"usages-missing-1", server(usages(encipher, srv)), no},
		{"usage-missing-2", server(usages(sign, encipher)), no},
		{"usage-extra", server(usages(sign, encipher, srv, certificatesv1.UsageSigning)), no},
		{"csr-cn", server(func(in *input) { in.template.Subject.CommonName = "system:node:foobar" }), no},
		{"csr-cn-2", server(func(in *input) { in.template.Subject.CommonName = "test" }), no},
		{"csr-no-o", server(func(in *input) { in.template.Subject.Organization = nil }), no},
		{"csr-extra-addr", server(extra), again},
		{"csr-san-ip-mismatch", server(func(in *input) { in.fake.machines[0].Addresses[1].Address = "10.0.0.2" }), again},
		{"csr-san-dns-mismatch", server(func(in *input) { in.fake.machines[0].Addresses[3].Address = "node2" }), again},
		{"csr-san-dns-trailing-period", server(func(in *input) { in.fake.machines[0].Addresses[3].Address = "node1." }),
			yes},
		{"client good", client(func(*input) {}), yes},
		{"client good with upper case DNS", client(func(in *input) { in.fake.machines[1].Addresses[0].Address = "Panda" }),
			yes},
		{"client good with trailing dot in DNS",
			client(func(in *input) { in.fake.machines[1].Addresses[0].Address = "panda." }), yes},
		{"client extra O", client(func(in *input) { in.template.Subject.Organization = []string{"system:nodes", "bamboo"} }),
			no},
		{"client with DNS", client(func(in *input) { in.template.DNSNames = []string{"banana"} }), no},
		{"client good but extra usage", client(usages(encipher, sign, cli, srv)), no},
		{"client good but wrong usage", client(usages(encipher, sign, srv)), no},
		{"client good but missing usage", client(usages(encipher, cli)), no},
		{"client good but wrong CN", client(func(in *input) {
			in.template.Subject.CommonName = "system:foo:zebra"
			in.fake.machines[1].Addresses[0].Address = "zebra"
		}), no},
		{"client good but wrong user", client(func(in *input) { in.csr.Spec.Username += "-not" }), no},
		{"client good but wrong user group",
			client(func(in *input) { in.csr.Spec.Groups = append(in.csr.Spec.Groups, "extra-group") }), no},
		{"client good but empty name", client(func(in *input) { in.template.Subject.CommonName = "system:node:" }), no},
		{"client good but node exists", client(func(in *input) { in.fake.nodes = []string{"panda"} }), no},
		{"client good but missing machine",
			client(func(in *input) { in.fake.machines[1].Addresses[0].Type = corev1.NodeExternalDNS }), again},
		{"client good but machine has node ref", client(func(in *input) { in.fake.machines[1].NodeRef = "other" }), no},
		{"client good but auto approval is disabled", client(func(in *input) { in.fake.disabled = true }), again},
		{"client good with proper timing", client(times(11*time.Minute, 10*time.Minute)), yes},
		{"client good with proper timing 2", client(times(3*time.Minute, 2*time.Minute+51*time.Second)), yes},
		{"client good but CSR too early", client(times(2*time.Minute, 3*time.Minute)), no},
		{"client good but CSR too late", client(times(25*time.Hour, time.Minute)), no},
		{"successful renew flow", renewing(func(*input) {}), yes},
		{"successful fallback to fresh approval", server(func(in *input) {
			in.fake.fail = map[string]error{"ServingCertificate": errNoKubelet}
		}), yes},
		{"successful fallback to fresh approval from incorrect server cert", renewing(func(in *input) {
			in.fake.presented = present(t, in.template, func(c *x509.Certificate) { c.Subject.CommonName = "example.net" })
		}), again},
		{"CSR extra address not in egress IPs", renewing(func(in *input) { extra(in); in.fake.egress = &Egress{} }), again},
		{"CSR extra address in egress IPs",
			renewing(func(in *input) { extra(in); in.fake.egress = &Egress{IPs: []string{"99.0.1.1"}} }), yes},
		{"CSR extra address in egress CIDRs",
			renewing(func(in *input) { extra(in); in.fake.egress = &Egress{CIDRs: []string{"99.0.1.0/24"}} }), yes},
	}
	if len(vectors) != 48 {
		t.Fatalf("%d vectors, the table has 48", len(vectors))
	}
	approved := 0
	for _, v := range vectors {
		t.Run(v.name, func(t *testing.T) {
			d := v.made().decide()
			got := no
			switch d.Outcome {
			case Approve:
				got, approved = yes, approved+1
			case Retry:
				got = again
			case Deny:
				t.Error("the stock approver never denies")
			}
			// The stock approver tries again indefinitely, although the request will never parse.
			want := v.stock
			if v.name == "bad-csr" {
				want = no
			}
			if got != want {
				t.Errorf("%s (%v), the stock approver answers %d\n%v", d.Outcome, d.Denial, v.stock, d.Checks)
			}
		})
	}
	if approved != 13 {
		t.Errorf("%d are approved, the stock approver approves 13", approved)
	}
}
