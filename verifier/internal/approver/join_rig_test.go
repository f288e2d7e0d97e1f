package approver_test

import (
	"slices"
	"testing"

	"github.com/mcs-attest/mcs-attest/pkg/api/v1alpha1"
)

func TestAnAttestedMachineBecomesANode(t *testing.T) {
	s := newSite(t).run()
	m := s.machine("w-0")
	k := s.attested(m)
	name := k.ask()
	cert := s.signed(name)
	if want := "system:node:" + s.node("w-0"); cert.Subject.CommonName != want {
		t.Errorf("the certificate is for %q, not %q", cert.Subject.CommonName, want)
	}
	k.withCertificate(cert)
	rec := s.record(m)
	switch c := rec.Certificate; {
	case c == nil:
		t.Error("the record has no certificate")
	case c.Node != k.node || c.Request != name || c.PublicKeySHA256 == "" || c.CredentialID != rec.Credentials[0].ID:
		t.Errorf("the record has the certificate %+v", c)
	}
	if rec.Phase != v1alpha1.PhaseJoined {
		t.Errorf("the phase is %s", rec.Phase)
	}
	if got := s.events.about(m); !slices.Equal(got, []string{"Joined"}) {
		t.Errorf("the events are %q", got)
	}
	if n := s.count("mcs_attest_csr_decisions_total", "kind", "client", "outcome", "approve", "reason", ""); n != 1 {
		t.Errorf("%v approvals were counted", n)
	}
}
