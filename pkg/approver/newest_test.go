// SPDX-License-Identifier: Apache-2.0

package approver

import (
	"crypto/x509"
	"slices"
	"strings"
	"testing"
	"time"

	certificatesv1 "k8s.io/api/certificates/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/mcs-attest/mcs-attest/pkg/api/v1alpha1"
	"github.com/mcs-attest/mcs-attest/pkg/reason"
)

// askedAgain returns the next request of the same kubelet, with a new key.
func askedAgain(change func(*input)) *Request {
	in := honest()
	in.csr.Name, in.key = "csr-again", otherEC()
	in.csr.CreationTimestamp = metav1.NewTime(now)
	if change != nil {
		change(in)
	}
	in.csr.Spec.Request = requestPEM(&in.template, in.key)
	return FromCSR(&in.csr)
}

// After a quarter of an hour a kubelet makes a new request with a new key, and discards the
// old key.
func TestDecide_ApprovesOnlyTheNewestFirstRequest(t *testing.T) {
	superseded := func(change func(*input)) func(*input) {
		return func(in *input) { in.fake.newer = []*Request{askedAgain(change)} }
	}
	for name, c := range map[string]struct {
		change  func(*input)
		outcome Outcome
		code    reason.Code
	}{
		"the newest":                    {func(*input) {}, Approve, 0},
		"asked again with another key":  {superseded(nil), Retry, reason.CSRLimit},
		"asked again with the same key": {superseded(func(in *input) { in.key = ecKey() }), Approve, 0},
		"the newer one is decided": {superseded(func(in *input) { in.condition(certificatesv1.CertificateDenied) }),
			Approve, 0},
		"the newer one is no kubelet's":  {superseded(func(in *input) { in.template.DNSNames = []string{"x"} }), Approve, 0},
		"the newer one has other groups": {superseded(func(in *input) { in.csr.Spec.Groups = nil }), Approve, 0},
		"the newer one is for another name": {superseded(func(in *input) {
			in.template.Subject.CommonName = "system:node:worker-1"
		}), Approve, 0},
		"the newer one's credential ended": {superseded(func(in *input) { in.credential("JTI=ended") }), Approve, 0},
		"the newer one is for another signer": {func(in *input) {
			superseded(nil)(in)
			in.fake.newer[0].Kind = Serving
		}, Approve, 0},
		"the newer one is of another user": {superseded(func(in *input) { in.csr.Spec.Username = "eve" }), Approve, 0},
		"the newer one has the attested key": {func(in *input) {
			superseded(nil)(in)
			in.fake.records[0].Status.CSRKeySHA256 = in.fake.newer[0].PublicKeySHA256
		}, Retry, reason.CSRLimit},
		"a third key is on the record, and was approved": {func(in *input) {
			superseded(nil)(in)
			in.approved(strings.Repeat("3", 64), "worker-0")
		}, Retry, reason.CSRLimit},
		"the newer one's key is not the attested": {func(in *input) {
			superseded(nil)(in)
			in.fake.records[0].Status.CSRKeySHA256 = in.sum()
		}, Approve, 0},
		"broken ones after a good one": {func(in *input) {
			broken := askedAgain(nil)
			broken.CSR = nil
			in.fake.newer = []*Request{broken, askedAgain(nil)}
		}, Retry, reason.CSRLimit},
		"this key is on the record, and was not approved": {func(in *input) {
			superseded(nil)(in)
			in.approved(in.sum(), "worker-0")
			in.fake.pinned = nil
		}, Retry, reason.CSRLimit},
		"this key is on the record, and was approved": {func(in *input) {
			superseded(nil)(in)
			in.approved(in.sum(), "worker-0")
		}, Approve, 0},
		"this key is on the record, and its Node existed": {func(in *input) {
			superseded(nil)(in)
			in.approved(in.sum(), "worker-0")
			in.fake.records[0].Status.Certificate.Used, in.fake.pinned = true, nil
		}, Refuse, reason.MachineJoined},
		"what was approved cannot be read": {func(in *input) {
			superseded(nil)(in)
			in.approved(in.sum(), "worker-0")
			in.fails("Pinned")
		}, Retry, reason.StoreUnavailable},
	} {
		t.Run(name, func(t *testing.T) {
			in := honest()
			c.change(in)
			want(t, in.decide(), c.outcome, c.code)
		})
	}
	stock := stockClient()
	stock.fake.newer = []*Request{askedAgain(nil)}
	want(t, stock.decide(), Approve, 0)
}

// The record gets the key before the request is approved. If the approval fails in between,
// the record has a key that was discarded.
func TestDecide_ReplacesAKeyThatWasNeverApproved(t *testing.T) {
	const dead = "dead"
	for name, c := range map[string]struct {
		change  func(*input)
		outcome Outcome
		code    reason.Code
	}{
		"its request was deleted": {func(*input) {}, Approve, 0},
		"its request waits":       {func(in *input) { in.pinned(clockSkew-time.Second, false) }, Approve, 0},
		"its request was denied":  {func(in *input) { in.pinned(0, true) }, Approve, 0},
		"its request was denied long ago": {func(in *input) {
			in.longAgo()
			in.pinned(0, true)
		}, Approve, 0},
		"its request was deleted long ago, and is made again": {func(in *input) {
			in.longAgo()
			in.pinned(clockSkew, false)
		}, Refuse, reason.CSRKeyChanged},
		"its request was deleted long ago, and a copy was denied": {func(in *input) {
			in.longAgo()
			in.pinned(clockSkew, true)
		}, Refuse, reason.CSRKeyChanged},
		"its request waits for long, and is copied": {func(in *input) {
			in.longAgo()
			in.pinned(clockSkew, false)
			in.pinned(0, false)
		}, Approve, 0},
		"its request was approved": {func(in *input) { in.approved(dead, "worker-0") }, Refuse, reason.CSRKeyChanged},
		"another one with its key": {func(in *input) {
			in.approved(dead, "worker-0")
			in.fake.pinned = append([]*Request{{}}, in.fake.pinned...)
		}, Refuse, reason.CSRKeyChanged},
		"its request was deleted long ago": {(*input).longAgo, Refuse, reason.CSRKeyChanged},
		"its Node existed": {func(in *input) {
			in.fake.records[0].Status.Certificate.Used = true
			in.pinned(0, false)
		}, Refuse, reason.CSRKeyChanged},
		"there is a Node": {func(in *input) { in.fake.nodes = []string{"worker-0"} }, Refuse, reason.CSRNodeExists},
		"it was for another name": {func(in *input) { in.fake.records[0].Status.Certificate.Node = "worker-7" },
			Refuse, reason.CSRKeyChanged},
		"it is the key that was attested": {func(in *input) { in.fake.records[0].Status.CSRKeySHA256 = dead }, Refuse,
			reason.CSRKeyChanged},
		"the credential has ended": {func(in *input) { in.own().Expiry = metav1.NewTime(now.Add(-time.Second)) }, Refuse,
			reason.CSRCredential},
		"the machine is quarantined": {func(in *input) { in.fake.records[0].Status.Quarantined = true }, Retry,
			reason.Quarantined},
		"the requests cannot be read": {func(in *input) { in.fails("Pinned") }, Retry, reason.StoreUnavailable},
		"the machine asked again with another": {func(in *input) {
			in.key, in.csr.Spec.Request = rsaKey(), nil
			in.fake.newer = []*Request{askedAgain(nil)}
		}, Retry, reason.CSRLimit},
	} {
		t.Run(name, func(t *testing.T) {
			in := honest()
			in.approved(dead, "worker-0")
			in.fake.pinned = nil
			c.change(in)
			d := in.decide()
			want(t, d, c.outcome, c.code)
			if (d.Outcome == Approve) != (d.Replaces == dead) {
				t.Errorf("it replaces %q", d.Replaces)
			}
		})
	}
}

// longAgo moves the approval on the record so far back that Kubernetes may have deleted the request.
func (in *input) longAgo() {
	in.fake.records[0].Status.Certificate.Approved = metav1.NewTime(now.Add(-kept - time.Second))
}

// pinned adds a request with the key on the record. It was created some time after the approval that is on the record.
func (in *input) pinned(after time.Duration, denied bool) {
	in.fake.pinned = append(in.fake.pinned, &Request{Kind: Client, Decided: denied,
		Created: in.fake.records[0].Status.Certificate.Approved.Add(after)})
}

// The same key again is no replacement, even if its request was never approved.
func TestDecide_TheKeyOnTheRecordReplacesNone(t *testing.T) {
	in := honest()
	in.approved(in.sum(), "worker-0")
	in.fake.pinned = nil
	d := in.decide()
	want(t, d, Approve, 0)
	if d.Replaces != "" {
		t.Errorf("it replaces %q", d.Replaces)
	}
}

// granted adds an administrator's grant to the record.
func (in *input) granted(until time.Time) {
	in.fake.records[0].Spec.Reattest = &v1alpha1.ReattestGrant{Until: metav1.NewTime(until)}
}

// A client that may write records can clear the approved key. The approved request remains.
func TestAttack_T54_AnEmptiedRecordDoesNotPermitASecondKey(t *testing.T) {
	approved := func(change func(*Request)) func(*input) {
		return func(in *input) {
			r := askedAgain(nil)
			r.Decided, r.Approved = true, true
			change(r)
			in.fake.issued = []*Request{r}
		}
	}
	for name, c := range map[string]struct {
		change  func(*input)
		outcome Outcome
		code    reason.Code
	}{
		"another key": {approved(func(*Request) {}), Refuse, reason.CSRKeyChanged},
		"the same key": {func(in *input) {
			approved(func(r *Request) { r.PublicKeySHA256 = in.sum() })(in)
		}, Approve, 0},
		"another key, for a Machine of this name before": {func(in *input) {
			before := in.fake.machines[0].Created.Add(-time.Minute)
			approved(func(r *Request) { r.Created = before })(in)
		}, Approve, 0},
		"another key, 10 s before the Machine, as clocks differ": {func(in *input) {
			before := in.fake.machines[0].Created.Add(-10 * time.Second)
			approved(func(r *Request) { r.Created = before })(in)
		}, Approve, 0},
		"another key, less than 10 s before the Machine": {func(in *input) {
			before := in.fake.machines[0].Created.Add(-10*time.Second + 1)
			approved(func(r *Request) { r.Created = before })(in)
		}, Refuse, reason.CSRKeyChanged},
		"another key, and the record has this one": {func(in *input) {
			approved(func(*Request) {})(in)
			in.approved(in.sum(), "worker-0")
		}, Refuse, reason.CSRKeyChanged},
		"the requests cannot be read": {func(in *input) { in.fails("Issued") }, Retry, reason.StoreUnavailable},
		"another key, and an administrator granted another attestation": {func(in *input) {
			approved(func(*Request) {})(in)
			in.fake.issued = append(in.fake.issued, in.fake.issued[0]) // the kubelet made two requests
			in.granted(now.Add(time.Hour))
		}, Approve, 0},
		"two other keys, and there is a grant": {func(in *input) {
			approved(func(*Request) {})(in)
			third := *in.fake.issued[0]
			third.PublicKeySHA256 = strings.Repeat("3", 64)
			in.fake.issued = append(in.fake.issued, &third)
			in.granted(now.Add(time.Hour))
		}, Refuse, reason.CSRKeyChanged},
		"another key, and the grant has ended": {func(in *input) {
			approved(func(*Request) {})(in)
			in.granted(now)
		}, Refuse, reason.CSRKeyChanged},
		"another key, and the grant lasts longer than one may": {func(in *input) {
			approved(func(*Request) {})(in)
			in.granted(now.Add(25 * time.Hour))
		}, Refuse, reason.CSRKeyChanged},
	} {
		t.Run(name, func(t *testing.T) {
			in := honest()
			c.change(in)
			want(t, in.decide(), c.outcome, c.code)
		})
	}
	for name, command := range map[string]string{
		"csr-abcde": "'kubectl delete csr csr-abcde " + honest().csr.Name + "'", "$(reboot)": "",
	} {
		in := honest()
		approved(func(r *Request) { r.Name = name })(in)
		d := in.decide()
		want(t, d, Refuse, reason.CSRKeyChanged)
		if has := strings.Contains(d.Denial.Detail, "kubectl"); has != (command != "") ||
			!strings.Contains(d.Denial.Detail, command) {
			t.Errorf("what to do about %s: %s", name, d.Denial.Detail)
		}
	}
	stock := stockClient() // without attestation no key is recorded
	approved(func(*Request) {})(stock)
	want(t, stock.decide(), Approve, 0)
}

// A kubelet that does not answer does not delay the first serving certificate.
func TestServing_AsksTheKubeletLast(t *testing.T) {
	in := serving()
	want(t, in.decide(), Approve, 0)
	if slices.Contains(in.fake.asked, "ServingCertificate") {
		t.Error("the kubelet was asked, and its Machine speaks for it")
	}
	in = serving()
	in.renews(t, func(*x509.Certificate) {})
	in.fake.machines = nil
	want(t, in.decide(), Approve, 0)
	if !slices.Contains(in.fake.asked, "ServingCertificate") {
		t.Error("the kubelet was not asked")
	}
}
