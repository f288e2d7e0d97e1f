// SPDX-License-Identifier: Apache-2.0

package record_test

import (
	"testing"
	"time"

	"github.com/mcs-attest/mcs-attest/pkg/api/v1alpha1"
	"github.com/mcs-attest/mcs-attest/pkg/reason"
	"github.com/mcs-attest/mcs-attest/pkg/record"
)

func TestReapprove_ReplacesAnUnissuedCertificate(t *testing.T) {
	r, err := record.Approve(fetched(t), certificate(), start)
	if err != nil {
		t.Fatal(err)
	}
	if again, err := record.Reapprove(r, "k1", certificate(), start.Add(time.Minute)); err != nil || again != nil {
		t.Errorf("the same key: %v, %v", again, err)
	}
	next := certificate()
	next.PublicKeySHA256, next.Request = "k2", "csr-2"
	r, err = record.Reapprove(r, "k1", next, start.Add(time.Minute))
	if err != nil || r == nil {
		t.Fatalf("%v, %v", r, err)
	}
	if s := r.Status; s.Certificate.PublicKeySHA256 != "k2" || s.Certificate.Request != "csr-2" ||
		s.Phase != v1alpha1.PhaseJoined {
		t.Errorf("%+v", s)
	}
	_, err = record.Approve(r, certificate(), start.Add(time.Minute))
	wantCode(t, err, reason.CSRKeyChanged)
	if again, err := record.Reapprove(r, "k1", next, start.Add(2*time.Minute)); err != nil || again != nil {
		t.Errorf("the same again: %v, %v", again, err)
	}
}

func TestCertificateUsed_OnlyTheNodeOfTheCertificateShowsIt(t *testing.T) {
	r, err := record.Approve(fetched(t), certificate(), start)
	if err != nil || r.Status.Certificate.Used {
		t.Fatalf("%+v, %v", r, err)
	}
	for _, node := range []string{"", "worker-1"} {
		if got := record.CertificateUsed(r, node); got != nil {
			t.Errorf("Node %q: %+v", node, got.Status.Certificate)
		}
	}
	next := record.CertificateUsed(r, "worker-0")
	if next == nil || !next.Status.Certificate.Used || r.Status.Certificate.Used {
		t.Fatalf("%+v, from %+v", next, r.Status.Certificate)
	}
	if got := record.CertificateUsed(next, "worker-0"); got != nil {
		t.Errorf("recorded twice: %+v", got.Status)
	}
	if record.CertificateUsed(nil, "") != nil || record.CertificateUsed(fetched(t), "") != nil {
		t.Error("without a certificate")
	}
}

func TestAttack_T54_OnlyTheExpectedKeyIsReplaced(t *testing.T) {
	for name, c := range map[string]struct {
		replaced string
		change   func(*rec)
		csr      func(*v1alpha1.CertificateStatus)
		want     reason.Code
	}{
		"another key was approved meanwhile": {"k0", nil, nil, reason.CSRKeyChanged},
		"no key is named":                    {"", nil, nil, reason.CSRKeyChanged},
		"its Node existed": {"k1", func(r *rec) { r.Status.Certificate.Used = true }, nil,
			reason.CSRKeyChanged},
		"another name": {"k1", nil, func(c *v1alpha1.CertificateStatus) { c.Node = "worker-1" },
			reason.CSRKeyChanged},
		"a credential of no machine": {"k1", nil, func(c *v1alpha1.CertificateStatus) { c.CredentialID = "JTI=shared" },
			reason.CSRCredential},
		"a quarantined machine":         {"k1", func(r *rec) { r.Status.Quarantined = true }, nil, reason.Quarantined},
		"not the key that was attested": {"k1", func(r *rec) { r.Status.CSRKeySHA256 = "k1" }, nil, reason.CSRKeyChanged},
		"one that joined without any":   {"k1", func(r *rec) { r.Status.Certificate = nil }, nil, reason.MachineJoined},
	} {
		t.Run(name, func(t *testing.T) {
			r, err := record.Approve(fetched(t), certificate(), start)
			if err != nil {
				t.Fatal(err)
			}
			if c.change != nil {
				c.change(r)
			}
			next := certificate()
			next.PublicKeySHA256 = "k2"
			if c.csr != nil {
				c.csr(&next)
			}
			_, err = record.Reapprove(r, c.replaced, next, start)
			wantCode(t, err, c.want)
		})
	}
	_, err := record.Reapprove(nil, "k0", certificate(), start)
	wantCode(t, err, reason.CSRCredential)
}
