// SPDX-License-Identifier: Apache-2.0

package approver

import (
	"bytes"
	"net"
	"net/url"
	"slices"
	"strings"
	"testing"
	"time"

	certificatesv1 "k8s.io/api/certificates/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/mcs-attest/mcs-attest/pkg/api/v1alpha1"
	"github.com/mcs-attest/mcs-attest/pkg/reason"
)

const issuer = "system:serviceaccount:mcs-attest:mcs-attest-controller"

// certified returns the request that the verifier makes for worker-0, which attested its key and
// waits for its config.
func certified() *input {
	in := stockClient()
	in.config.Attestation, in.config.Issuer = true, issuer
	in.csr.Spec.Username = issuer
	in.csr.Spec.Groups = []string{"system:serviceaccounts", "system:serviceaccounts:mcs-attest", "system:authenticated"}
	in.csr.Spec.Request = requestPEM(&in.template, in.key)
	r := FromCSR(&in.csr)
	in.csr.Name = Name(uidA, r.PublicKeySHA256)
	rec := recordOf("worker-0", uidA, credentialA)
	rec.Status.Credentials = nil
	rec.Status.Phase, rec.Status.CSRKeySHA256 = v1alpha1.PhaseAttested, r.PublicKeySHA256
	rec.Status.Token = &v1alpha1.TokenStatus{ID: "token1", Expiry: metav1.NewTime(now.Add(time.Hour)), MaxUses: 3}
	rec.Status.CertificateRequest = &v1alpha1.CertificateRequestStatus{Request: r.CSR.Raw, Token: "token1"}
	in.fake.records = []*v1alpha1.MachineAttestation{rec}
	return in
}

// again makes the request once more with the present template and key.
func (in *input) again() { in.csr.Spec.Request = requestPEM(&in.template, in.key) }

func TestAttested_ApprovesTheMachinesOwnKey(t *testing.T) {
	in := certified()
	d := in.decide()
	want(t, d, Approve, 0)
	if !d.Attested || !d.Proven || d.RecordUID != uidA || d.Machine == nil || d.Machine.UID != uidA {
		t.Errorf("%+v", d)
	}
	var names []string
	for _, c := range d.Checks {
		names = append(names, c.Name)
	}
	if got := strings.Join(names, " "); got != "signer requester request attested limit quarantine content switch owner "+
		"node machine joined age key enrollments" {
		t.Errorf("the checks are %s", got)
	}
	if uid, ok := in.config.Issues(FromCSR(&in.csr)); !ok || uid != uidA {
		t.Errorf("the machine is %q", uid)
	}
	if slices.Contains(in.fake.asked, "RecordByCredential") {
		t.Error("a credential was read")
	}
}

// Each case changes one thing of the approved request.
func TestAttack_T73_TheNodesCertificate(t *testing.T) {
	rec := func(change func(*v1alpha1.MachineAttestation)) func(*input) {
		return func(in *input) { change(in.fake.records[0]) }
	}
	for name, c := range map[string]struct {
		change  func(*input)
		outcome Outcome
		code    reason.Code
	}{
		"another key than the attested": {func(in *input) {
			in.key = otherEC()
			in.again()
			in.csr.Name = Name(uidA, FromCSR(&in.csr).PublicKeySHA256)
		}, Refuse, reason.CSRKeyChanged},
		"another key under the name of the attested": {func(in *input) {
			in.key = otherEC()
			in.again()
		}, Refuse, reason.CSRCredential},
		"the name of a neighbor": {func(in *input) {
			in.template.Subject.CommonName = "system:node:worker-1"
			in.again()
		}, Deny, reason.CSROtherMachine},
		"a name that no Machine has": {func(in *input) {
			in.template.Subject.CommonName = "system:node:worker-9"
			in.again()
		}, Retry, reason.MachineNotFound},
		"a name of the serving certificate": {func(in *input) {
			in.template.DNSNames = []string{"worker-0"}
			in.again()
		}, Deny, reason.CSRContent},
		"an address": {func(in *input) {
			in.template.IPAddresses = []net.IP{net.IPv4(10, 0, 0, 5)}
			in.again()
		}, Deny, reason.CSRContent},
		"a URI": {func(in *input) {
			in.template.URIs = []*url.URL{{Scheme: "spiffe", Host: "x"}}
			in.again()
		}, Deny, reason.CSRContent},
		"the group of administrators": {func(in *input) {
			in.template.Subject.Organization = []string{"system:nodes", "system:masters"}
			in.again()
		}, Deny, reason.CSRContent},
		"the usages of a server": {func(in *input) {
			in.csr.Spec.Usages = append(in.csr.Spec.Usages, certificatesv1.UsageServerAuth)
		}, Deny, reason.CSRContent},
		"a request of another account with the right name": {func(in *input) {
			in.csr.Spec.Username = "system:serviceaccount:mcs-attest:mcs-attest-verifier"
		}, Ignore, 0},
		"a request with the name of another machine": {func(in *input) {
			in.csr.Name = Name(uidB, FromCSR(&in.csr).PublicKeySHA256)
		}, Refuse, reason.CSRCredential},
		"a request of no machine": {func(in *input) {
			in.csr.Name = Name("", FromCSR(&in.csr).PublicKeySHA256)
			in.fake.records[0].Status.MachineUID = ""
		}, Refuse, reason.CSRCredential},
		"the record of another machine": {func(in *input) {
			in.fake.stale = in.fake.records[0].DeepCopy()
			in.fake.stale.Status.MachineUID = uidB
		}, Refuse, reason.CSRCredential},
		"a verifier that makes no requests": {func(in *input) { in.config.Issuer = "" }, Ignore, 0},
		"without attestation":               {func(in *input) { in.config.Attestation = false }, Ignore, 0},
		"a replay after a later attestation": {rec(func(r *v1alpha1.MachineAttestation) {
			r.Status.Token.ID = "token2"
		}), Refuse, reason.TokenSuperseded},
		"a replay after the token ended": {rec(func(r *v1alpha1.MachineAttestation) {
			r.Status.Token.Expiry = metav1.NewTime(now)
		}), Refuse, reason.TokenSuperseded},
		"a record without the request": {rec(func(r *v1alpha1.MachineAttestation) {
			r.Status.CertificateRequest = nil
		}), Refuse, reason.CSRCredential},
		"a machine that attested no key": {rec(func(r *v1alpha1.MachineAttestation) {
			r.Status.CSRKeySHA256 = ""
		}), Refuse, reason.CSRKeyChanged},
		"a machine that joined": {rec(func(r *v1alpha1.MachineAttestation) {
			r.Status.Phase = v1alpha1.PhaseJoined
		}), Refuse, reason.MachineJoined},
		"a quarantined machine": {rec(func(r *v1alpha1.MachineAttestation) {
			r.Status.Quarantined = true
		}), Retry, reason.Quarantined},
		"a quarantine that is not on the record yet": {func(in *input) {
			q := v1alpha1.MachineAttestation{ObjectMeta: metav1.ObjectMeta{Namespace: "openshift-machine-api"}}
			q.Spec.Quarantined, q.Spec.MachineRef = true, &v1alpha1.MachineReference{Name: "worker-0"}
			in.fake.quarantines = []v1alpha1.MachineAttestation{q}
		}, Retry, reason.Quarantined},
		"a Node of that name": {func(in *input) { in.fake.nodes = []string{"worker-0"} }, Refuse, reason.CSRNodeExists},
		"a Machine with a Node": {func(in *input) { in.fake.machines[0].NodeRef = "other" }, Refuse,
			reason.MachineJoined},
		"a Machine that is deleted": {func(in *input) { in.fake.machines[0].Deleting = true }, Refuse,
			reason.MachineDeleting},
		"a Machine that is too old": {func(in *input) { in.madeAfter(2 * time.Hour) }, Refuse, reason.MachineTooOld},
		"no record to be read":      {func(in *input) { in.fails("RecordByMachine") }, Retry, reason.StoreUnavailable},
	} {
		t.Run(name, func(t *testing.T) {
			in := certified()
			want(t, in.decide(), Approve, 0) // the honest one
			in = certified()
			c.change(in)
			want(t, in.decide(), c.outcome, c.code)
		})
	}
}

// A name belongs to a request only if the verifier made it, for a client certificate.
func TestIssues(t *testing.T) {
	key := strings.Repeat("0123456789abcdef", 4)
	if got := Name("u-1", key); got != "mcs-attest-u-1-0123456789abcdef" {
		t.Errorf("%q", got)
	}
	if got := Name("u-1", "01"); got != "mcs-attest-u-1-01" {
		t.Errorf("a short key: %q", got)
	}
	config := Config{Attestation: true, Issuer: issuer}
	for name, c := range map[string]struct {
		config Config
		change func(*Request)
		want   string
	}{
		"its own":                          {config, func(*Request) {}, "u-1"},
		"a UID of one character":           {config, func(r *Request) { r.Name = Name("u", key) }, "u"},
		"no UID":                           {config, func(r *Request) { r.Name = Name("", key) }, ""},
		"no key":                           {config, func(r *Request) { r.Name = issuedPrefix + "u" }, ""},
		"another prefix":                   {config, func(r *Request) { r.Name = "csr-u-1" }, ""},
		"another user":                     {config, func(r *Request) { r.Username = "eve" }, ""},
		"a serving certificate":            {config, func(r *Request) { r.Kind = Serving }, ""},
		"without attestation":              {Config{Issuer: issuer}, func(*Request) {}, ""},
		"no issuer, and a request of none": {Config{Attestation: true}, func(r *Request) { r.Username = "" }, ""},
	} {
		r := &Request{Kind: Client, Username: issuer, Name: Name("u-1", key)}
		c.change(r)
		if uid, ok := c.config.Issues(r); uid != c.want || ok != (c.want != "") {
			t.Errorf("%s: %q, %v", name, uid, ok)
		}
	}
}

// The verifier creates a request only if its approver could approve it.
func TestNewRequest(t *testing.T) {
	in := certified()
	rec := in.fake.records[0]
	made, err := NewRequest(rec, 90*time.Minute, now)
	if err != nil {
		t.Fatal(err)
	}
	if made.Name != in.csr.Name || *made.Spec.ExpirationSeconds != 5400 ||
		!bytes.Equal(made.Spec.Request, in.csr.Spec.Request) || made.Spec.SignerName != in.csr.Spec.SignerName {
		t.Errorf("%+v", made)
	}
	made.CreationTimestamp, made.Spec.Username, made.Spec.Groups = in.csr.CreationTimestamp, issuer, in.csr.Spec.Groups
	in.csr = *made
	want(t, in.decide(), Approve, 0)
	for name, c := range map[string]struct {
		change func(*input, *v1alpha1.MachineAttestation)
		code   reason.Code
	}{
		"no request": {func(_ *input, r *v1alpha1.MachineAttestation) { r.Status.CertificateRequest = nil },
			reason.CSRCredential},
		"garbage": {func(_ *input, r *v1alpha1.MachineAttestation) {
			r.Status.CertificateRequest.Request = []byte("garbage")
		}, reason.CSRMalformed},
		"a name of a serving certificate": {func(in *input, r *v1alpha1.MachineAttestation) {
			in.template.DNSNames = []string{"worker-0"}
			in.again()
			r.Status.CertificateRequest.Request = FromCSR(&in.csr).CSR.Raw
		}, reason.CSRContent},
		"another key": {func(_ *input, r *v1alpha1.MachineAttestation) { r.Status.CSRKeySHA256 = "k2" },
			reason.CSRKeyChanged},
		"a quarantine": {func(_ *input, r *v1alpha1.MachineAttestation) { r.Spec.Quarantined = true },
			reason.Quarantined},
	} {
		in := certified()
		c.change(in, in.fake.records[0])
		if made, err := NewRequest(in.fake.records[0], time.Hour, now); made != nil || reason.From(err).Code != c.code {
			t.Errorf("%s: %v, %v", name, made, err)
		}
	}
	if made, err := NewRequest(nil, time.Hour, now); made != nil || reason.From(err).Code != reason.CSRCredential {
		t.Errorf("no record: %v, %v", made, err)
	}
}

// A refusal is put down to no machine whose record does not exist.
func TestAttested_WithoutARecord(t *testing.T) {
	in := certified()
	in.fake.records = nil
	d := in.decide()
	want(t, d, Refuse, reason.CSRCredential)
	if d.RecordUID != "" || !strings.Contains(d.Denial.Detail, "no record belongs to the machine") {
		t.Errorf("%q, %v", d.RecordUID, d.Denial)
	}
}

// Whose request it is does not depend on a quarantine, so a refusal of it is that machine's.
func TestAttack_T73_AQuarantineDecides(t *testing.T) {
	for name, change := range map[string]func(*v1alpha1.MachineAttestation){
		"in the spec":   func(r *v1alpha1.MachineAttestation) { r.Spec.Quarantined = true },
		"in the status": func(r *v1alpha1.MachineAttestation) { r.Status.Quarantined = true },
	} {
		t.Run(name, func(t *testing.T) {
			in := certified()
			change(in.fake.records[0])
			d := in.decide()
			want(t, d, Retry, reason.Quarantined)
			if last := d.Checks[len(d.Checks)-1]; !d.Proven || last.Name != "quarantine" || last.Result != Failed {
				t.Errorf("proven %v, %+v", d.Proven, last)
			}
			in.key = otherEC() // not the attested one
			in.again()
			in.csr.Name = Name(uidA, FromCSR(&in.csr).PublicKeySHA256)
			if d := in.decide(); d.Proven {
				t.Error("another key is put down to the machine")
			}
		})
	}
}

// The machine may then request with its own credential. The certificate of the verifier is noticed, too.
func TestAttack_T73_AnIssuedKeyBesideTheKubeletsIsReported(t *testing.T) {
	in := honest()
	in.config.Issuer = issuer
	want(t, in.decide(), Approve, 0)
	former := FromCSR(&certified().csr)
	former.PublicKeySHA256, former.Approved, former.Decided = "k1", true, true
	in.fake.issued = []*Request{former}
	d := in.decide()
	want(t, d, Approve, 0)
	if !slices.Equal(d.Superseded, []string{former.Name}) {
		t.Errorf("it supersedes %q", d.Superseded)
	}
}

// A first boot that is interrupted leaves a certificate that no kubelet uses. The machine attests
// again with another key. A third party's certificate for the name still stops it.
func TestAttested_InterruptedFirstBoots(t *testing.T) {
	before := func(user, key string) *Request {
		r := FromCSR(&certified().csr)
		r.Name, r.Username, r.PublicKeySHA256, r.Approved, r.Decided = "csr-"+key, user, key, true, true
		return r
	}
	bootstrapper := honest().csr.Spec.Username
	for name, c := range map[string]struct {
		issued []*Request
		code   reason.Code
	}{
		"one": {[]*Request{before(issuer, "k1")}, 0},
		"two": {[]*Request{before(issuer, "k1"), before(issuer, "k2")}, 0},
		"three": {[]*Request{before(issuer, "k1"), before(issuer, "k2"), before(issuer, "k3")},
			reason.CSRKeyChanged},
		"a request that a kubelet made": {[]*Request{before(bootstrapper, "k1")}, reason.CSRKeyChanged},
		"one, and one that a kubelet made": {[]*Request{before(issuer, "k1"), before(bootstrapper, "k2")},
			reason.CSRKeyChanged},
	} {
		t.Run(name, func(t *testing.T) {
			in := certified()
			in.fake.issued = c.issued
			if c.code != 0 {
				want(t, in.decide(), Refuse, c.code)
				return
			}
			d := in.decide()
			want(t, d, Approve, 0)
			if len(d.Superseded) != len(c.issued) || d.Superseded[0] != "csr-k1" {
				t.Errorf("it supersedes %q", d.Superseded)
			}
		})
	}
}
