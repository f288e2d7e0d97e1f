// SPDX-License-Identifier: Apache-2.0

package main

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"math/big"
	"strings"
	"testing"
	"time"

	"github.com/mcs-attest/mcs-attest/pkg/api/v1alpha1"
	"github.com/mcs-attest/mcs-attest/pkg/evidence"
	"github.com/mcs-attest/mcs-attest/pkg/evidence/tpm2"
	"github.com/mcs-attest/mcs-attest/pkg/evidence/tpm2/attester/swtpmtest"
	"github.com/mcs-attest/mcs-attest/testvm/cloud/aws"
	"github.com/mcs-attest/mcs-attest/testvm/cloud/gcp"
)

// authority certifies AKs and names no instance, as Azure's does.
type authority struct {
	key         *ecdsa.PrivateKey
	certificate *x509.Certificate
}

// trustAuthority makes one that the verifier trusts.
func (s *site) trustAuthority() *authority {
	s.t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		s.t.Fatal(err)
	}
	c := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "an AK authority"}, NotBefore: s.now().Add(-time.Hour),
		NotAfter: s.now().AddDate(1, 0, 0), IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign,
	}
	a := &authority{key: key, certificate: s.sign(c, c, &key.PublicKey, key)}
	put(s.t, s.dir, "ak-roots/own.pem", pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: a.certificate.Raw}))
	s.refresh()
	return a
}

func (s *site) sign(c, issuer *x509.Certificate, public any, key *ecdsa.PrivateKey) *x509.Certificate {
	s.t.Helper()
	der, err := x509.CreateCertificate(rand.Reader, c, issuer, public, key)
	if err != nil {
		s.t.Fatal(err)
	}
	made, err := x509.ParseCertificate(der)
	if err != nil {
		s.t.Fatal(err)
	}
	return made
}

// certify gives a node a certificate for its AK.
func (s *site) certify(n *node, a *authority) {
	s.t.Helper()
	ak, err := tpm2.ParseAK(n.id.AKPublic)
	if err != nil {
		s.t.Fatal(err)
	}
	leaf := s.sign(&x509.Certificate{
		SerialNumber: big.NewInt(2), Subject: pkix.Name{CommonName: "some machine"}, NotBefore: s.now().Add(-time.Hour),
		NotAfter: s.now().AddDate(0, 1, 0), KeyUsage: x509.KeyUsageDigitalSignature,
	}, a.certificate, ak.PublicKey(), a.key)
	n.id.AKCertificates = [][]byte{leaf.Raw}
}

// A certified AK that names no instance is some genuine TPM. Beside a document that
// could be a copy it says nothing of whose.
func TestAttack_T05_AForeignCertifiedTPMBesideACopiedDocument(t *testing.T) {
	own, victims := swtpmtest.Start(t, "sha256"), swtpmtest.Start(t, "sha256")
	s := newSite(t, "aws")
	a := s.trustAuthority()
	s.policy("  evidence: [{all: [aws-iid, tpm2]}]\n  tpm2: {endorsements: [provider, ak-certificate]}\n")
	victim := s.add("victim", victims)
	s.machine("victim", victim)
	thief := s.copyOf(s.node("neighbor", victim, own), evidence.AWSIID, "victim")
	s.certify(thief, a)

	// An outage of the provider is nothing that a thief may gain by.
	s.aws.Fail("GetInstanceTpmEkPub", aws.Fault{Status: 503, Code: "ServiceUnavailable"})
	s.denied(thief, "ProviderUnavailable")
	s.aws.Fail("GetInstanceTpmEkPub", aws.Fault{})
	s.advance(time.Minute)
	s.denied(thief, "EKUntrusted")
	// Nor is a policy that does not ask it.
	s.policy("  evidence: [{all: [aws-iid, tpm2]}]\n  tpm2: {endorsements: [ak-certificate]}\n")
	s.advance(time.Minute)
	s.denied(thief, "EKNotEnrolled")

	s.policy("  evidence: [{all: [aws-iid, tpm2]}]\n  tpm2: {endorsements: [provider, ak-certificate]}\n")
	s.advance(time.Minute)
	s.admitted(s.node("victim", victim, victims))
}

// First use is no way around a provider that is unavailable.
func TestAttack_T42_FirstUseWhileTheProviderIsUnavailable(t *testing.T) {
	own, victims := swtpmtest.Start(t, "sha256"), swtpmtest.StartOfAnotherMaker(t, "sha256")
	s := newSite(t, "gcp")
	s.change("ek-roots/own.pem", string(own.Roots()))
	s.policy("  evidence: [{all: [gcp-identity, tpm2]}]\n" +
		"  tpm2: {endorsements: [provider, manufacturer], approval: FirstUse}\n")
	id := s.add("victim", victims)
	s.machine("victim", id)
	s.denied(s.node("victim", id, own), "EKUntrusted")
	s.gcp.Fail(gcp.Compute, gcp.Fault{Status: 503})
	s.advance(time.Minute)
	if d := s.denied(s.node("victim", id, own), "ProviderUnavailable"); !d.GetTemporary() {
		t.Error("final")
	}
	s.gcp.Heal(gcp.Compute)
	s.advance(time.Minute)
	s.admitted(s.node("victim", id, victims))
}

// Where a record rests on first use and another TPM shows up with the same cloud
// statement, it is unknown which is right: both wait for an administrator, and the
// token that is out opens nothing.
func TestAttack_T43_AFirstUseThatIsContested(t *testing.T) {
	first, second := swtpmtest.Start(t, "sha256"), swtpmtest.Start(t, "sha256")
	s := newSite(t, "gcp")
	s.change("ek-roots/first.pem", string(first.Roots()))
	s.change("ek-roots/second.pem", string(second.Roots()))
	s.policy("  evidence: [{all: [gcp-identity, tpm2]}]\n" +
		"  tpm2: {endorsements: [enrolled, manufacturer], approval: FirstUse}\n")
	id := s.add("worker-0", nil)
	s.machine("worker-0", id)
	holder := s.node("worker-0", id, first)
	token := s.admitted(holder).GetToken()
	if status, _, _ := s.fetch("GET", "/config/worker", token); status != 200 {
		t.Fatalf("the gate: %d", status)
	}
	s.advance(time.Minute)
	challenger := s.node("worker-0", id, second)
	if d := s.denied(challenger, "PendingApproval"); !d.GetTemporary() {
		t.Error("final")
	}
	if status, _, _ := s.fetch("GET", "/config/worker", token); status != 503 {
		t.Errorf("the contested holder's token: %d", status)
	}
	s.advance(time.Minute)
	s.denied(holder, "PendingApproval")
	// The administrator says which.
	s.change("attestations/worker-0.yaml", enrolment("worker-0",
		"  machineRef: {apiVersion: machine.openshift.io/v1beta1, kind: Machine, namespace: openshift-machine-api, name: "+
			"worker-0}\n", holder.id.EKSPKI))
	s.advance(time.Minute)
	s.admitted(holder)
}

// Two first boots, of which one meets an outage: the machine waits, and is the same.
func TestTwoFirstBootsAndAnOutageBetween(t *testing.T) {
	tpm := swtpmtest.Start(t, "sha256")
	s := newSite(t, "gcp")
	a := s.trustAuthority()
	id := s.add("worker-0", tpm)
	s.machine("worker-0", id)
	n := s.node("worker-0", id, tpm)
	s.certify(n, a)
	s.admitted(n)
	s.gcp.Fail(gcp.Compute, gcp.Fault{Status: 503})
	s.advance(time.Minute)
	if d := s.denied(n, "ProviderUnavailable"); !d.GetTemporary() {
		t.Error("final")
	}
	s.gcp.Heal(gcp.Compute)
	s.advance(time.Minute)
	s.admitted(n)
}

// An enrollment is enough where only the machine itself names an instance,
// whatever a cloud says of its TPM.
func TestAttest_EnrollmentSufficesIfOnlyClaimsNameAnInstance(t *testing.T) {
	tpm := swtpmtest.Start(t, "sha256")
	s := newSite(t, "aws")
	s.policy("  evidence: [{all: [tpm2]}]\n  tpm2: {endorsements: [provider, enrolled]}\n")
	id := s.add("worker-0", nil)
	s.machine("worker-0", id)
	n := s.node("worker-0", id, tpm)
	n.offers = nil
	s.denied(n, "EKNotEnrolled")
	s.change("attestations/worker-0.yaml", enrolment("worker-0",
		"  machineRef: {apiVersion: machine.openshift.io/v1beta1, kind: Machine, namespace: openshift-machine-api, name: "+
			"worker-0}\n", n.id.EKSPKI))
	s.advance(time.Minute)
	if endorsement := s.admittedBy(n); endorsement != v1alpha1.EndorsementEnrolled {
		t.Errorf("endorsed by %q", endorsement)
	}
}

func (s *site) admittedBy(n *node) v1alpha1.Endorsement {
	s.t.Helper()
	s.admitted(n)
	return s.verifier.machine("openshift-machine-api/worker-0").Record.Endorsement
}

// Azure's resource ids do not distinguish case.
func TestAttest_AzureResourceIDsIgnoreCase(t *testing.T) {
	s := newSite(t, "azure")
	id := s.add("worker-0", nil)
	s.machine("worker-0", id)
	n := s.node("worker-0", id, nil)
	s.admitted(n)
	s.advance(time.Minute)
	s.machine("worker-0", strings.Replace(id, "demo-rg", "DEMO-RG", 1))
	s.admitted(n)
}
