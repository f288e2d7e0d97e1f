// SPDX-License-Identifier: Apache-2.0

package approver

import (
	"crypto"
	"crypto/ed25519"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"embed"
	"encoding/asn1"
	"encoding/pem"
	"net"
	"slices"
	"strings"
	"testing"

	certificatesv1 "k8s.io/api/certificates/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"github.com/mcs-attest/mcs-attest/pkg/api/v1alpha1"
	"github.com/mcs-attest/mcs-attest/pkg/reason"
)

// Attack T54: a client with machine A's credential requests machine B's name.
func TestAttack_T54_AnotherMachinesName(t *testing.T) {
	want(t, honest().decide(), Approve, 0)
	for name, change := range map[string]func(*input){
		"B has not joined": func(*input) {},
		"B has joined": func(in *input) {
			in.fake.machines[1].NodeRef = "worker-1"
			in.fake.nodes = []string{"worker-1"}
		},
		"B attested, too": func(in *input) {
			in.fake.records = append(in.fake.records, recordOf("worker-1", uidB, "JTI=b"))
		},
		"approvals are tried again":     func(in *input) { in.approved(strings.Repeat("ab", 32), "worker-0") },
		"B is of the other Machine API": func(in *input) { in.fake.machines[1].APIVersion = "cluster.x-k8s.io/v1beta2" },
		"another machine is called so, too": func(in *input) {
			in.fake.machines = append(in.fake.machines, machineOf("worker-1", "cccccccc-0000-0000-0000-000000000003"))
		},
	} {
		t.Run(name, func(t *testing.T) {
			in := honest()
			in.template.Subject.CommonName = "system:node:worker-1"
			change(in)
			d := in.decide()
			want(t, d, Deny, reason.CSROtherMachine)
			if d.RecordUID == uidB {
				t.Error("it is put down to the machine whose name was misused")
			}
		})
	}
	// Not a contradiction: an earlier machine may have had the name.
	for name, c := range map[string]struct {
		change func(*input)
		code   reason.Code
	}{
		"A's name is not known yet": {func(in *input) { in.fake.machines[0].Addresses = nil }, reason.MachineNotFound},
		"A was deleted":             {func(in *input) { in.fake.machines = in.fake.machines[1:] }, reason.MachineNotFound},
		"A's record names no Machine": {func(in *input) {
			in.fake.records[0].Status.MachineUID = ""
			in.fake.machines[1].UID = ""
		}, reason.MachineNotFound},
		"A has the name, and was not found by it": {func(in *input) {
			in.fake.gone = []Machine{machineOf("worker-1", uidA)}
			in.fake.machines = in.fake.machines[1:]
		}, reason.MachineAmbiguous},
		"A's Machine cannot be read": {func(in *input) { in.fails("MachineOf") }, reason.StoreUnavailable},
	} {
		t.Run(name, func(t *testing.T) {
			in := honest()
			in.template.Subject.CommonName = "system:node:worker-1"
			c.change(in)
			want(t, in.decide(), Retry, c.code)
		})
	}
}

// Attack T54: the credential that all machines once shared proves nothing.
func TestAttack_T54_SharedCredential(t *testing.T) {
	for name, extra := range map[string]map[string]certificatesv1.ExtraValue{
		"a token of a Secret, without a name": nil,
		"a token that no record has":          {extraCredentialID: {"JTI=ffffffff-2222-3333-4444-555555555555"}},
		"its own word under another key":      {"example.com/credential-id": {credentialA}},
		"A's among two":                       {extraCredentialID: {"JTI=x", credentialA}},
		"an empty one":                        {extraCredentialID: {""}},
	} {
		t.Run(name, func(t *testing.T) {
			in := honest()
			in.csr.Spec.Extra = extra
			d := in.decide()
			want(t, d, Refuse, reason.CSRCredential)
			if d.Proven || d.RecordUID != "" {
				t.Error("it is put down to a machine that it does not prove")
			}
			if slices.Contains(in.fake.asked, "MachinesByInternalDNS") || slices.Contains(in.fake.asked, "Node") {
				t.Error("the cluster was asked for a request that proves nothing")
			}
		})
	}
	// A record with an empty ID must not match.
	in := honest()
	in.csr.Spec.Extra = nil
	in.own().ID = ""
	want(t, in.decide(), Refuse, reason.CSRCredential)
}

// Attack T54: the machine itself requests more than a kubelet's client certificate.
func TestAttack_T54_MoreThanAKubeletRequests(t *testing.T) {
	for name, change := range map[string]func(*input){
		"a usage more": func(in *input) {
			in.csr.Spec.Usages = append(in.csr.Spec.Usages, certificatesv1.UsageServerAuth)
		},
		"a server's usages":    func(in *input) { in.csr.Spec.Usages[1] = certificatesv1.UsageServerAuth },
		"any usage":            func(in *input) { in.csr.Spec.Usages[1] = certificatesv1.UsageAny },
		"no usage":             func(in *input) { in.csr.Spec.Usages = nil },
		"a usage twice":        func(in *input) { in.csr.Spec.Usages[0] = certificatesv1.UsageClientAuth },
		"another organization": func(in *input) { in.template.Subject.Organization = []string{"system:masters"} },
		"an organization more": func(in *input) {
			in.template.Subject.Organization = []string{"system:nodes", "system:masters"}
		},
		"an organization twice": func(in *input) {
			in.template.Subject.Organization = []string{"system:nodes", "system:nodes"}
		},
		"no organization":              func(in *input) { in.template.Subject.Organization = nil },
		"no node's name":               func(in *input) { in.template.Subject.CommonName = "system:admin" },
		"an empty name":                func(in *input) { in.template.Subject.CommonName = "system:node:" },
		"a name in upper case":         func(in *input) { in.template.Subject.CommonName = "system:node:WORKER-0" },
		"a name with a dot at its end": func(in *input) { in.template.Subject.CommonName = "system:node:worker-0." },
		"a path for a name":            func(in *input) { in.template.Subject.CommonName = "system:node:../pods" },
		"two names": func(in *input) {
			in.template.Subject.ExtraNames = []pkix.AttributeTypeAndValue{{Type: asn1.ObjectIdentifier{2, 5, 4, 3},
				Value: "system:admin"}}
		},
		"a user id of its own": func(in *input) {
			in.template.Subject.ExtraNames = []pkix.AttributeTypeAndValue{{Type: asn1.ObjectIdentifier{1, 3, 6, 1, 4, 1, 57683,
				2}, Value: "0"}}
		},
		"a DNS name":       func(in *input) { in.template.DNSNames = []string{"api.example.com"} },
		"an IP address":    func(in *input) { in.template.IPAddresses = []net.IP{net.IPv4(10, 0, 0, 1)} },
		"a URI":            func(in *input) { in.template.URIs = uri("spiffe://cluster.local/admin") },
		"an email address": func(in *input) { in.template.EmailAddresses = []string{"root@example.com"} },
	} {
		t.Run(name, func(t *testing.T) {
			in := honest()
			change(in)
			want(t, in.decide(), Deny, reason.CSRContent)
			// Without a record it is left to an administrator, because its maker is unknown.
			in = stockClient()
			change(in)
			want(t, in.decide(), Refuse, reason.CSRContent)
		})
	}
}

// Attack T54: Kubernetes soon deletes the request of a short certificate. Then nothing shows that it was approved.
func TestAttack_T54_ACertificateWhoseRequestIsDeletedSoon(t *testing.T) {
	for seconds, outcome := range map[int32]Outcome{0: Approve, 600: Deny, 3599: Deny, 3600: Approve} {
		in := honest()
		if seconds > 0 {
			in.csr.Spec.ExpirationSeconds = ptr.To(seconds)
		}
		code := reason.CSRContent
		if outcome == Approve {
			code = 0
		}
		want(t, in.decide(), outcome, code)
	}
	stock := stockClient() // there is no record to protect
	stock.csr.Spec.ExpirationSeconds = ptr.To(int32(600))
	want(t, stock.decide(), Approve, 0)
}

// Attack T54, for serving certificates: what the stock approver does not detect.
func TestAttack_T54_MoreThanAServingCertificate(t *testing.T) {
	for name, change := range map[string]func(*input){
		"a client's usage in place of key encipherment": func(in *input) {
			in.csr.Spec.Usages = append(in.csr.Spec.Usages, certificatesv1.UsageClientAuth)
		},
		"no name at all":   func(in *input) { in.template.DNSNames, in.template.IPAddresses = nil, nil },
		"an empty name":    func(in *input) { in.template.DNSNames = []string{""} },
		"a URI":            func(in *input) { in.template.URIs = uri("https://api.example.com/") },
		"an email address": func(in *input) { in.template.EmailAddresses = []string{"root@example.com"} },
		"an organization more": func(in *input) {
			in.template.Subject.Organization = []string{"system:nodes", "system:masters"}
		},
		"an attribute more": func(in *input) { in.template.Subject.OrganizationalUnit = []string{"x"} },
		"a URI that the old one had": func(in *input) {
			in.template.URIs = uri("https://api.example.com/")
			in.fake.presented = present(t, in.template, func(c *x509.Certificate) { c.URIs = uri("https://api.example.com/") })
		},
	} {
		t.Run(name, func(t *testing.T) {
			for _, attestation := range []bool{false, true} {
				in := serving()
				in.config.Attestation = attestation
				change(in)
				want(t, in.decide(), Refuse, reason.CSRContent)
			}
		})
	}
}

// Attack T54: duplicates of a name, in either order. The stock approver uses the first.
func TestAttack_T54_TwoMachinesOfOneName(t *testing.T) {
	for _, reverse := range []bool{false, true} {
		in := stockClient()
		in.fake.machines = []Machine{machineOf("worker-0", uidA), machineOf("worker-0", uidB)}
		in.fake.machines[0].NodeRef = "worker-0"
		if reverse {
			slices.Reverse(in.fake.machines)
		}
		want(t, in.decide(), Retry, reason.MachineAmbiguous)
	}
}

// Attack T54: a second key with a used credential, and the credential of a quarantined
// machine.
func TestAttack_T54_SecondKeyAndQuarantine(t *testing.T) {
	in := honest()
	in.approved(in.sum(), "worker-0")
	in.key, in.csr.Spec.Request = otherEC(), nil
	want(t, in.decide(), Refuse, reason.CSRKeyChanged)

	in = honest()
	in.fake.records[0].Spec.Quarantined = true
	want(t, in.decide(), Retry, reason.Quarantined)
	// The quarantine removed the credential from the record.
	in = honest()
	in.fake.records[0].Status.Credentials = nil
	want(t, in.decide(), Refuse, reason.CSRCredential)
}

// Attack T54: a flood of requests affects only its maker. A quarantine counts before it is
// on the record, for both certificates.
func TestAttack_T67_AQuarantineThatIsNotOnTheRecord(t *testing.T) {
	const instance = "aws:///eu-1/i-0123"
	ek := strings.Repeat("ab", 32)
	ref := func(namespace, name string) *v1alpha1.MachineReference {
		return &v1alpha1.MachineReference{Namespace: namespace, Name: name}
	}
	for name, c := range map[string]struct {
		change func(*v1alpha1.MachineAttestation)
		stops  bool
	}{
		"it names the Machine": {func(e *v1alpha1.MachineAttestation) { e.Spec.MachineRef = ref("", "worker-0") }, true},
		"it names the Machine from another namespace": {func(e *v1alpha1.MachineAttestation) {
			e.Namespace, e.Spec.MachineRef = "mcs-attest", ref("openshift-machine-api", "worker-0")
		}, true},
		"it names the Machine of the other API": {func(e *v1alpha1.MachineAttestation) {
			e.Spec.MachineRef = ref("", "worker-0")
			e.Spec.MachineRef.APIVersion = "cluster.x-k8s.io/v1beta2"
		}, true},
		"it is the Machine": {func(e *v1alpha1.MachineAttestation) { e.Name, e.Spec.Pool = "worker-0", "worker" }, true},
		"it names the TPM":  {func(e *v1alpha1.MachineAttestation) { e.Spec.EKSHA256 = []string{strings.ToUpper(ek)} }, true},
		"it names the instance": {func(e *v1alpha1.MachineAttestation) { e.Spec.ExpectedProviderID = instance },
			true},
		"it names another Machine": {func(e *v1alpha1.MachineAttestation) { e.Spec.MachineRef = ref("", "worker-1") }, false},
		"it names one of another place": {func(e *v1alpha1.MachineAttestation) {
			e.Spec.MachineRef = ref("elsewhere", "worker-0")
		}, false},
		"it names another TPM": {func(e *v1alpha1.MachineAttestation) {
			e.Spec.EKSHA256 = []string{strings.Repeat("cd", 32)}
		}, false},
		"it names another instance": {func(e *v1alpha1.MachineAttestation) { e.Spec.ExpectedProviderID = instance + "4" },
			false},
		"it does not quarantine its machine": {func(e *v1alpha1.MachineAttestation) {
			e.Spec.MachineRef, e.Spec.Quarantined = ref("", "worker-0"), false
		}, false},
	} {
		for kind, made := range map[string]func() *input{"client": honest, "serving": func() *input {
			in := serving()
			in.config.Attestation = true
			in.fake.records = honest().fake.records
			return in
		}} {
			t.Run(name+", "+kind, func(t *testing.T) {
				in := made()
				in.fake.machines[0].ProviderID = instance
				in.fake.records[0].Status.Identity = v1alpha1.RecordedIdentity{EKSHA256: ek, ProviderID: instance}
				e := v1alpha1.MachineAttestation{ObjectMeta: metav1.ObjectMeta{Namespace: "openshift-machine-api", Name: "stop"}}
				e.Spec.Quarantined = true
				c.change(&e)
				in.fake.quarantines = []v1alpha1.MachineAttestation{e}
				if !c.stops {
					want(t, in.decide(), Approve, 0)
					return
				}
				want(t, in.decide(), Retry, reason.Quarantined)
				in.fake.quarantines = nil
				in.fails("Quarantines")
				want(t, in.decide(), Retry, reason.StoreUnavailable)
			})
		}
	}
}

func TestAttack_T54_Flood(t *testing.T) {
	flood := Load{Machines: 2, Nodes: 1, Pending: 100_000, Own: 100_000}
	in := honest()
	in.fake.load = flood
	want(t, in.decide(), Retry, reason.CSRLimit)
	in = honest()
	in.fake.load = Load{Machines: 2, Nodes: 1, Pending: 100_000, Own: 1}
	want(t, in.decide(), Approve, 0)
	// A request without proof is refused before it is counted.
	in = honest()
	in.csr.Spec.Extra, in.fake.load = nil, flood
	want(t, in.decide(), Refuse, reason.CSRCredential)
	if len(in.fake.asked) > 0 {
		t.Errorf("asked for %v", in.fake.asked)
	}
}

// Requests that no kubelet makes are refused at low cost: without a call to the cluster, and
// with allocations of at most a few times their size.
func TestAttack_T54_BrokenRequests(t *testing.T) {
	valid := requestPEM(&honest().template, ecKey())
	many := honest().template
	for range MaxNames + 1 {
		many.DNSNames = append(many.DNSNames, "x")
	}
	thousands := honest().template
	for i := range 10_000 {
		thousands.IPAddresses = append(thousands.IPAddresses, net.IPv4(10, 0, byte(i>>8), byte(i)))
	}
	forged := slices.Clone(must(x509.CreateCertificateRequest(rand.Reader, &honest().template, ed25519Key())))
	forged[len(forged)-1] ^= 1
	for name, raw := range map[string][]byte{
		"nothing":                   nil,
		"text":                      []byte("please"),
		"a block that does not end": valid[:len(valid)-20],
		"another sort of block":     []byte(strings.ReplaceAll(string(valid), requestBlock, "CERTIFICATE")),
		"headers": []byte(strings.Replace(string(valid), "-----\n",
			"-----\nProc-Type: 4,ENCRYPTED\n\n", 1)),
		"two requests":                append(slices.Clone(valid), valid...),
		"something after the request": append(slices.Clone(valid), "more"...),
		"not ASN.1":                   encode([]byte("hello")),
		"a byte after the ASN.1":      encode(append(der(valid), 0)),
		"a signature by another key":  encode(forged),
		"101 names":                   requestPEM(&many, ecKey()),
		"10 000 addresses":            requestPEM(&thousands, ecKey()),
		"a megabyte":                  encode(make([]byte, 1<<20)),
		"a key of 1024 bits":          testdata(t, "rsa1024.csr"),
		"a key of 8192 bits":          testdata(t, "rsa8192.csr"),
	} {
		t.Run(name, func(t *testing.T) {
			in := honest()
			in.csr.Spec.Request = raw
			if raw == nil {
				in.csr.Spec.Request = []byte{}
			}
			d := in.decide()
			want(t, d, Refuse, reason.CSRMalformed)
			if len(in.fake.asked) > 0 || d.Proven {
				t.Errorf("asked for %v", in.fake.asked)
			}
			if per := testing.AllocsPerRun(5, func() { FromCSR(&in.csr) }); len(raw) > MaxRequest && per > 20 {
				t.Errorf("%v allocations for what is too large", per)
			}
		})
	}
	in := honest()
	in.csr.Spec.Request = valid
	want(t, in.decide(), Approve, 0)
	in.csr.Spec.Request = append(append([]byte("a comment, as openssl writes\n"), valid...), " \n"...)
	want(t, in.decide(), Approve, 0)
}

func encode(der []byte) []byte {
	return pem.EncodeToMemory(&pem.Block{Type: requestBlock, Bytes: der})
}

func der(raw []byte) []byte {
	block, _ := pem.Decode(raw)
	return slices.Clone(block.Bytes)
}

func ed25519Key() crypto.Signer { return ed25519.NewKeyFromSeed(make([]byte, ed25519.SeedSize)) }

//go:embed testdata/*.csr
var requests embed.FS

// testdata returns a request by "openssl req -new -newkey rsa:BITS".
func testdata(t *testing.T, name string) []byte {
	t.Helper()
	raw, err := requests.ReadFile("testdata/" + name)
	if err != nil {
		t.Fatal(err)
	}
	return raw
}
