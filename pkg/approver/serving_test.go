// SPDX-License-Identifier: Apache-2.0

package approver

import (
	"crypto/x509"
	"errors"
	"net"
	"slices"
	"strings"
	"testing"
	"time"

	certificatesv1 "k8s.io/api/certificates/v1"
	corev1 "k8s.io/api/core/v1"

	"github.com/mcs-attest/mcs-attest/pkg/api/v1alpha1"
	"github.com/mcs-attest/mcs-attest/pkg/reason"
)

var errNoKubelet = errors.New("dial tcp 10.0.0.5:10250: connect: connection refused")

// Status rows D7, D8, D9, D11 and D13, with attestation and without.
func TestServing(t *testing.T) {
	type want2 struct {
		outcome Outcome
		code    reason.Code
	}
	both := func(o Outcome, c reason.Code) [2]want2 { return [2]want2{{o, c}, {o, c}} }
	for name, c := range map[string]struct {
		change func(*testing.T, *input)
		want   [2]want2 // without attestation, with
	}{
		"a first request": {func(*testing.T, *input) {}, both(Approve, 0)},
		"a request by no node": {func(_ *testing.T, in *input) {
			in.csr.Spec.Username, in.csr.Spec.Groups = "eve", []string{"system:authenticated"}
		}, both(Ignore, 0)},
		"a group too many": {func(_ *testing.T, in *input) {
			in.csr.Spec.Groups = append(in.csr.Spec.Groups, "more")
		}, both(Approve, 0)},
		"a user who calls himself a node": {func(_ *testing.T, in *input) { in.csr.Spec.Username = "node:worker-0" },
			both(Refuse, reason.CSRRequester)},
		"a node without a name": {func(_ *testing.T, in *input) { in.csr.Spec.Username = "system:node:" },
			both(Refuse, reason.CSRRequester)},
		"a node that is not authenticated": {func(_ *testing.T, in *input) { in.csr.Spec.Groups = []string{"system:nodes"} },
			both(Refuse, reason.CSRRequester)},
		"another node's name": {func(_ *testing.T, in *input) {
			in.template.Subject.CommonName = "system:node:worker-1"
		}, both(Refuse, reason.CSRContent)},
		"a name that is no Node's": {func(_ *testing.T, in *input) {
			in.template.Subject.CommonName = "system:node:../worker-0"
		}, both(Refuse, reason.CSRContent)},
		"no Machine with this Node": {func(_ *testing.T, in *input) { in.fake.machines[0].NodeRef = "" },
			both(Retry, reason.MachineNotFound)},
		"two Machines with this Node": {func(_ *testing.T, in *input) { in.fake.machines[1].NodeRef = "worker-0" },
			both(Retry, reason.MachineAmbiguous)},
		"a name of another machine": {func(_ *testing.T, in *input) { in.template.DNSNames = []string{"worker-1"} },
			both(Retry, reason.CSRAddress)},
		"an address of another machine": {func(_ *testing.T, in *input) {
			in.template.IPAddresses = []net.IP{net.IPv4(10, 0, 0, 6)}
		}, both(Retry, reason.CSRAddress)},
		"a Machine without addresses yet": {func(_ *testing.T, in *input) { in.fake.machines[0].Addresses = nil },
			both(Retry, reason.CSRAddress)},
		"a wildcard": {func(_ *testing.T, in *input) { in.template.DNSNames = []string{"*"} },
			both(Retry, reason.CSRAddress)},
		"an IPv6 address in a longer form": {func(_ *testing.T, in *input) { in.sixes() }, both(Retry, reason.CSRAddress)},
		"an address as a name": {func(_ *testing.T, in *input) { in.template.DNSNames = []string{"10.0.0.5"} },
			both(Retry, reason.CSRAddress)},
		"only one name":    {func(_ *testing.T, in *input) { in.template.IPAddresses = nil }, both(Approve, 0)},
		"only one address": {func(_ *testing.T, in *input) { in.template.DNSNames = nil }, both(Approve, 0)},
		"an external name in upper case": {func(_ *testing.T, in *input) {
			in.fake.machines[0].Addresses[0] = corev1.NodeAddress{Type: corev1.NodeExternalDNS, Address: "Worker-0."}
		}, both(Approve, 0)},
		"a flood by others": {func(_ *testing.T, in *input) { in.fake.load.Pending = 103 },
			[2]want2{{Retry, reason.CSRLimit}, {Approve, 0}}},
		"11 requests of this node": {func(_ *testing.T, in *input) { in.fake.load.Own = 11 },
			[2]want2{{Approve, 0}, {Retry, reason.CSRLimit}}},
		"a quarantine": {func(_ *testing.T, in *input) { in.quarantined() },
			[2]want2{{Approve, 0}, {Retry, reason.Quarantined}}},
		"a quarantine in the status": {func(_ *testing.T, in *input) {
			in.quarantined()
			in.fake.records[0].Spec.Quarantined, in.fake.records[0].Status.Quarantined = false, true
		}, [2]want2{{Approve, 0}, {Retry, reason.Quarantined}}},
		"a quarantine, and a renewal": {func(t *testing.T, in *input) { in.quarantined(); in.renews(t, nil) },
			[2]want2{{Approve, 0}, {Retry, reason.Quarantined}}},
		"no record to be read": {func(_ *testing.T, in *input) { in.fails("RecordByMachine") },
			[2]want2{{Approve, 0}, {Retry, reason.StoreUnavailable}}},
		"no Machine to be read": {func(_ *testing.T, in *input) { in.fails("MachinesByNode") },
			both(Retry, reason.StoreUnavailable)},
		"no kubelet that answers": {func(_ *testing.T, in *input) { in.fails("ServingCertificate") }, both(Approve, 0)},
		"a renewal without a Machine": {func(t *testing.T, in *input) { in.renews(t, nil); in.fake.machines = nil },
			both(Approve, 0)},
		"a renewal of an expired one": {func(t *testing.T, in *input) {
			in.renewsUnbound(t, func(c *x509.Certificate) { c.NotAfter = now.Add(-time.Second) })
		}, both(Retry, reason.MachineNotFound)},
		"a renewal of one not valid yet": {func(t *testing.T, in *input) {
			in.renewsUnbound(t, func(c *x509.Certificate) { c.NotBefore = now.Add(time.Second) })
		}, both(Retry, reason.MachineNotFound)},
		"a renewal of a client's": {func(t *testing.T, in *input) {
			in.renewsUnbound(t, func(c *x509.Certificate) { c.ExtKeyUsage = []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth} })
		}, both(Retry, reason.MachineNotFound)},
		"a renewal of another node's": {func(t *testing.T, in *input) {
			in.renewsUnbound(t, func(c *x509.Certificate) { c.Subject.CommonName = "system:node:worker-1" })
		}, both(Retry, reason.MachineNotFound)},
		"a renewal with a name more": {func(t *testing.T, in *input) {
			in.renewsUnbound(t, func(c *x509.Certificate) { c.DNSNames = nil })
		}, both(Retry, reason.MachineNotFound)},
		"a renewal with a name fewer": {func(t *testing.T, in *input) {
			in.renewsUnbound(t, func(c *x509.Certificate) { c.DNSNames = append(c.DNSNames, "more") })
		}, both(Retry, reason.MachineNotFound)},
		"a renewal with another address": {func(t *testing.T, in *input) {
			in.renewsUnbound(t, func(c *x509.Certificate) { c.IPAddresses = []net.IP{net.IPv4(10, 0, 0, 6)} })
		}, both(Retry, reason.MachineNotFound)},
		"a renewal of one with a URI": {func(t *testing.T, in *input) {
			in.renewsUnbound(t, func(c *x509.Certificate) { c.URIs = uri("spiffe://x/y") })
		}, both(Retry, reason.MachineNotFound)},
		"a renewal of one with an email address": {func(t *testing.T, in *input) {
			in.renewsUnbound(t, func(c *x509.Certificate) { c.EmailAddresses = []string{"a@b"} })
		}, both(Retry, reason.MachineNotFound)},
		"a handshake without a certificate": {func(_ *testing.T, in *input) {
			in.fake.machines, in.fake.presented = nil, &Presented{Roots: x509.NewCertPool()}
		}, both(Retry, reason.MachineNotFound)},
		"a renewal by another authority": {func(t *testing.T, in *input) {
			in.renewsUnbound(t, nil)
			in.fake.presented.Roots = x509.NewCertPool()
		}, both(Retry, reason.MachineNotFound)},
		"a renewal without known authorities": {func(t *testing.T, in *input) {
			in.renewsUnbound(t, nil)
			in.fake.presented.Roots = nil
		}, both(Retry, reason.MachineNotFound)},
		"an old certificate, a new address": {func(t *testing.T, in *input) {
			in.renews(t, func(c *x509.Certificate) { c.IPAddresses = nil })
		}, both(Approve, 0)},
		"an egress address, no certificate": {func(t *testing.T, in *input) {
			in.egress(t, "99.0.1.1")
			in.fake.presented = nil
		}, both(Retry, reason.CSRAddress)},
		"an egress address": {func(t *testing.T, in *input) { in.egress(t, "99.0.1.1") }, both(Approve, 0)},
		"an egress address of another node": {func(t *testing.T, in *input) { in.egress(t, "99.0.1.2") },
			both(Retry, reason.CSRAddress)},
		"an egress address that is none": {func(t *testing.T, in *input) { in.egress(t, "all") },
			both(Retry, reason.CSRAddress)},
		"an egress range that is none": {func(t *testing.T, in *input) {
			in.egress(t, "99.0.1.2")
			in.fake.egress.CIDRs = []string{"all"}
		}, both(Retry, reason.CSRAddress)},
		"an egress address and a new name": {func(t *testing.T, in *input) {
			in.egress(t, "99.0.1.1")
			in.template.DNSNames = append(in.template.DNSNames, "new")
		}, both(Retry, reason.CSRAddress)},
		"another network": {func(t *testing.T, in *input) { in.egress(t, "99.0.1.1"); in.fake.egress = nil },
			both(Retry, reason.CSRAddress)},
		"no network to be read": {func(t *testing.T, in *input) { in.egress(t, "99.0.1.1"); in.fails("Egress") },
			both(Retry, reason.StoreUnavailable)},
		"a renewal, and no network": {func(t *testing.T, in *input) { in.renews(t, nil); in.fails("Egress") },
			both(Approve, 0)},
		"ed25519 and one usage fewer": {func(_ *testing.T, in *input) { in.csr.Spec.Usages = in.csr.Spec.Usages[1:] },
			both(Refuse, reason.CSRContent)},
		"a usage twice": {func(_ *testing.T, in *input) {
			in.csr.Spec.Usages = append(in.csr.Spec.Usages, certificatesv1.UsageServerAuth)
		}, both(Refuse, reason.CSRContent)},
	} {
		t.Run(name, func(t *testing.T) {
			for i, mode := range []bool{false, true} {
				in := serving()
				in.config.Attestation = mode
				c.change(t, in)
				d := in.decide()
				want(t, d, c.want[i].outcome, c.want[i].code)
				if d.Proven || !mode && slices.Contains(in.fake.asked, "Quarantines") {
					t.Errorf("a serving certificate's request proves no credential; %q was read", in.fake.asked)
				}
			}
		})
	}
}

// What csr explain prints if neither the Machine nor the kubelet has the addresses.
func TestServing_ExplainsWhatWasNotChecked(t *testing.T) {
	for name, c := range map[string]struct {
		change func(*testing.T, *input)
		want   []Check
	}{
		"no kubelet": {func(_ *testing.T, in *input) { in.fake.fail = map[string]error{"ServingCertificate": errNoKubelet} },
			[]Check{{"renewal", Skipped, "the kubelet presents no certificate: " + errNoKubelet.Error()},
				{"egress", Skipped, "the network is not OpenShiftSDN"}}},
		"no kubelet, and egress addresses": {func(_ *testing.T, in *input) { in.fake.egress = &Egress{} },
			[]Check{{"renewal", Skipped, "the kubelet presents no certificate"},
				{"egress", Skipped, "the kubelet presents no certificate"}}},
	} {
		in := serving()
		in.template.DNSNames = []string{"worker-9"}
		in.fake.machines[0].Addresses = append(in.fake.machines[0].Addresses,
			corev1.NodeAddress{Type: corev1.NodeExternalIP, Address: "192.0.2.1"})
		c.change(t, in)
		d := in.decide()
		want(t, d, Retry, reason.CSRAddress)
		if !slices.Equal(d.Checks[len(d.Checks)-2:], c.want) {
			t.Errorf("%s: %+v", name, d.Checks)
		}
		if !strings.Contains(d.Denial.Detail, `"worker-9" is not a name of Machine openshift-machine-api/worker-0 (["worker-0"])`) {
			t.Errorf("%s: %v", name, d.Denial)
		}
	}
	in := serving()
	in.template.IPAddresses = []net.IP{net.IPv4(10, 0, 0, 6)}
	in.fake.machines[0].Addresses = append(in.fake.machines[0].Addresses,
		corev1.NodeAddress{Type: corev1.NodeExternalIP, Address: "192.0.2.1"})
	if d := in.decide(); !strings.Contains(d.Denial.Detail, `10.0.0.6 is not an address of Machine `+
		`openshift-machine-api/worker-0 (["10.0.0.5" "192.0.2.1"])`) {
		t.Errorf("%v", d.Denial)
	}
}

// Cloud names differ at their ends, and an administrator compares them.
func TestServing_MessagesHaveWholeNames(t *testing.T) {
	const other, own = "ip-10-0-134-18.eu-west-1.compute.internal", "ip-10-0-134-17.eu-west-1.compute.internal"
	in := serving()
	in.template.DNSNames = []string{other}
	in.fake.machines[0].Addresses = []corev1.NodeAddress{{Type: corev1.NodeInternalDNS, Address: own}}
	if d := in.decide(); !strings.Contains(d.Denial.Detail, `"`+other+`" is not a name of Machine `) ||
		!strings.Contains(d.Denial.Detail, `(["`+own+`"])`) {
		t.Errorf("%v", d.Denial)
	}
}

// A list of a request, which may be long, has ten entries in a message.
func TestFew(t *testing.T) {
	for n, want := range map[int]int{0: 0, 10: 10, 11: 10} {
		if got := len(few(make([]string, n))); got != want {
			t.Errorf("%d of %d entries, want %d", got, n, want)
		}
	}
}

// Without authorities nothing verifies, not even with those of the system.
func TestRenewal_DoesNotUseTheSystemsRoots(t *testing.T) {
	in := serving()
	in.renewsUnbound(t, nil)
	in.fake.presented.Roots = nil
	want(t, in.decide(), Retry, reason.MachineNotFound)
	for _, c := range in.decide().Checks {
		if c.Name == "renewal" && c.Detail != "the kubelets' certificate authorities are unknown" {
			t.Errorf("%+v", c)
		}
	}
}

func (in *input) quarantined() {
	rec := recordOf("worker-0", uidA, credentialA)
	rec.Spec.Quarantined = true
	in.fake.records = []*v1alpha1.MachineAttestation{rec}
}

// renews makes the kubelet present a certificate for the content of the request.
func (in *input) renews(t *testing.T, change func(*x509.Certificate)) {
	in.fake.presented = present(t, in.template, change)
}

// renewsUnbound does the same without a Machine.
func (in *input) renewsUnbound(t *testing.T, change func(*x509.Certificate)) {
	in.renews(t, change)
	in.fake.machines = nil
}

// egress adds an address to the request, and makes ip an egress address of the node.
func (in *input) egress(t *testing.T, ip string) {
	in.renews(t, nil)
	in.template.IPAddresses = append(slices.Clone(in.template.IPAddresses), net.IPv4(99, 0, 1, 1))
	in.fake.egress = &Egress{IPs: []string{ip}}
}

func (in *input) sixes() {
	in.template.IPAddresses = []net.IP{net.ParseIP("fd00::5")}
	in.fake.machines[0].Addresses[1].Address = "fd00:0:0:0:0:0:0:5"
}
