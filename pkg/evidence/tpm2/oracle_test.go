// SPDX-License-Identifier: Apache-2.0

package tpm2_test

import (
	"bytes"
	"crypto"
	"crypto/x509"
	"crypto/x509/pkix"
	"math"
	"testing"

	"github.com/google/go-attestation/attest"
	attestpb "github.com/google/go-tpm-tools/proto/attest"
	tpmpb "github.com/google/go-tpm-tools/proto/tpm"
	"github.com/google/go-tpm-tools/quote"
	"github.com/google/go-tpm-tools/server"
	tpm "github.com/google/go-tpm/tpm2"

	"github.com/mcs-attest/mcs-attest/pkg/evidence/tpm2"
	"github.com/mcs-attest/mcs-attest/pkg/reason"
)

// The oracles are the libraries that are usually used for this purpose. They must agree on valid
// evidence. If they accept what this package rejects, a test documents that: it fails when a new
// version rejects it, and then docs/evidence/tpm2.md changes with it.
//
// Two findings are not run, because they end the process or the test: go-attestation 0.6.4
// dereferences nil in ActivationParameters.Generate for an AK with a NULL scheme, and go-eventlog
// panics on an unknown event type.

// goAttestation verifies a quote like a user of go-attestation.
func goAttestation(t testing.TB, akPublic []byte, c *conversation, pcrs []int) error {
	t.Helper()
	ak, err := attest.ParseAKPublic(akPublic)
	if err != nil {
		return err
	}
	var list []attest.PCR
	for i, p := range pcrs {
		list = append(list, attest.PCR{Index: p, Digest: c.evidence.PCRValues[i], DigestAlg: crypto.SHA256})
	}
	return ak.VerifyAll([]attest.Quote{{Quote: c.evidence.Quote, Signature: c.evidence.Signature}},
		list, c.challenge.Transcript[:])
}

// goTPMTools verifies a quote with server.VerifyAttestation.
func goTPMTools(t testing.TB, c *conversation, pcrs []int) error {
	t.Helper()
	values := map[uint32][]byte{}
	for i, p := range pcrs {
		values[uint32(p)] = c.evidence.PCRValues[i]
	}
	return quote.Verify(&tpmpb.Quote{
		Quote: c.evidence.Quote, RawSig: c.evidence.Signature,
		Pcrs: &tpmpb.PCRs{Hash: tpmpb.HashAlgo_SHA256, Pcrs: values},
	}, c.challenge.AK.PublicKey(), c.challenge.Transcript[:])
}

func TestOraclesAgreeOnHonestEvidence(t *testing.T) {
	for akKind := range akTemplates {
		if akKind == "RSA-2048 RSAPSS SHA-256" {
			continue // neither of them verifies it
		}
		t.Run(akKind, func(t *testing.T) {
			_, c := honest(t, "ecc-p256", akKind)
			if _, err := c.verify(); err != nil {
				t.Errorf("this package: %v", err)
			}
			if err := goAttestation(t, c.ak.public, c, quotedPCRs); err != nil {
				t.Errorf("go-attestation: %v", err)
			}
			if err := goTPMTools(t, c, quotedPCRs); err != nil {
				t.Errorf("go-tpm-tools: %v", err)
			}
		})
	}
}

func TestGoTPMReadsTheSameQuote(t *testing.T) {
	_, c := honest(t, "ecc-p256", agentAK)
	q, err := c.verify()
	if err != nil {
		t.Fatal(err)
	}
	att, err := tpm.Unmarshal[tpm.TPMSAttest](c.evidence.Quote)
	if err != nil {
		t.Fatal(err)
	}
	if q.Clock != att.ClockInfo.Clock || q.ResetCount != att.ClockInfo.ResetCount ||
		q.RestartCount != att.ClockInfo.RestartCount ||
		q.Safe != bool(att.ClockInfo.Safe) || q.FirmwareVersion != att.FirmwareVersion {
		t.Errorf("%+v, go-tpm reads %+v", q, att)
	}
	public, err := tpm.Unmarshal[tpm.TPMTPublic](c.ak.public)
	if err != nil {
		t.Fatal(err)
	}
	name, err := tpm.ObjectName(public)
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(name.Buffer, q.AK.Name()) {
		t.Errorf("Name %x, go-tpm's is %x", q.AK.Name(), name.Buffer)
	}
}

func TestOraclesAcceptAQuoteOverNoPCRs(t *testing.T) {
	d, c := honest(t, "ecc-p256", agentAK)
	c.evidence.Quote, c.evidence.Signature = d.quote(c.ak, c.challenge.Transcript[:], selected(tpm.TPMAlgSHA256))
	c.evidence.PCRValues = nil
	if err := goAttestation(t, c.ak.public, c, nil); err != nil {
		t.Errorf("go-attestation now rejects: %v", err)
	}
	if err := goTPMTools(t, c, nil); err != nil {
		t.Errorf("go-tpm-tools' quote now rejects: %v", err)
	}
	state, err := server.VerifyAttestation(&attestpb.Attestation{
		AkPub: c.ak.public,
		Quotes: []*tpmpb.Quote{{
			Quote: c.evidence.Quote, RawSig: c.evidence.Signature, Pcrs: &tpmpb.PCRs{Hash: tpmpb.HashAlgo_SHA256},
		}},
	}, server.VerifyOpts{Nonce: c.challenge.Transcript[:], TrustedAKs: []crypto.PublicKey{c.challenge.AK.PublicKey()}})
	if err != nil || state == nil {
		t.Errorf("go-tpm-tools' server now rejects: %v", err)
	}
	_, err = c.verify()
	denied(t, err, reason.PCRSelection)
}

func TestOraclesAcceptAnAKOfAnotherHierarchy(t *testing.T) {
	d := simulate(t)
	ek, ak := d.primary(tpm.TPMRHEndorsement, tpm.ECCEKTemplate), d.primary(tpm.TPMRHOwner, akTemplates[agentAK])
	c := d.converse(ek, ak, tpm.TPMAlgSHA256, []int{11}, "owner")
	if err := goAttestation(t, ak.public, c, []int{11}); err != nil {
		t.Errorf("go-attestation now rejects: %v", err)
	}
	if err := goTPMTools(t, c, []int{11}); err != nil {
		t.Errorf("go-tpm-tools now rejects: %v", err)
	}
	_, err := c.verify()
	denied(t, err, reason.QuoteInvalid)
}

func TestOracles_AcceptAKsThatThisPackageRejects(t *testing.T) {
	f := newForger(t)
	valid := softwareAK(&f.key.PublicKey)
	unrestricted := valid
	unrestricted.ObjectAttributes.Restricted = false
	exportable := valid
	exportable.ObjectAttributes.FixedTPM, exportable.ObjectAttributes.SensitiveDataOrigin = false, false
	for name, public := range map[string][]byte{
		"trailing bytes": append(tpm.Marshal(valid), 1, 2, 3),
		"not restricted": tpm.Marshal(unrestricted),
		"exportable":     tpm.Marshal(exportable),
		"RSA-1024":       tpm.Marshal(rsaPublic(1024, 65537, nil)),
		"exponent 3":     tpm.Marshal(rsaPublic(2048, 3, nil)),
	} {
		t.Run(name, func(t *testing.T) {
			if _, err := tpm.Unmarshal[tpm.TPMTPublic](public); err != nil {
				t.Errorf("go-tpm now rejects: %v", err)
			}
			if _, err := attest.ParseAKPublic(public); err != nil {
				t.Errorf("go-attestation now rejects: %v", err)
			}
			_, err := tpm2.ParseAK(public)
			denied(t, err, reason.AKUnacceptable)
		})
	}
	t.Run("a point off its curve", func(t *testing.T) {
		point, err := valid.Unique.ECC()
		if err != nil {
			t.Fatal(err)
		}
		off := valid
		wrong := &tpm.TPMSECCPoint{X: point.X, Y: tpm.TPM2BECCParameter{Buffer: bytes.Repeat([]byte{1}, 32)}}
		off.Unique = tpm.NewTPMUPublicID(tpm.TPMAlgECC, wrong)
		parms, err := off.Parameters.ECCDetail()
		if err != nil {
			t.Fatal(err)
		}
		if _, err := tpm.ECDSAPub(parms, wrong); err != nil {
			t.Errorf("go-tpm now rejects: %v", err)
		}
		_, err = tpm2.ParseAK(tpm.Marshal(off))
		denied(t, err, reason.AKUnacceptable)
	})
	t.Run("an RSA exponent of any size", func(t *testing.T) {
		pub := rsaPublic(2048, math.MaxUint32, nil)
		if _, err := tpm.Unmarshal[tpm.TPMTPublic](tpm.Marshal(pub)); err != nil {
			t.Errorf("go-tpm now rejects: %v", err)
		}
		_, err := tpm2.ParseAK(tpm.Marshal(pub))
		denied(t, err, reason.AKUnacceptable)
	})
}

// go-tpm-tools leaves the roots to its caller, and does not check the bytes after the extension.
func TestOracle_AcceptsInstancesThatThisPackageRejects(t *testing.T) {
	p := newPlatform(t)
	for name, c := range map[string]struct {
		extension pkix.Extension
		gce       bool // the root vouches for instances
	}{
		"as Google writes it":           {gceExtension(t, nil), true},
		"under a root of another cloud": {gceExtension(t, nil), false},
		"with bytes after the extension": {pkix.Extension{Id: gceExtension(t, nil).Id,
			Value: append(gceExtension(t, nil).Value, 5, 0)}, true},
		"with a name that reaches elsewhere": {gceExtension(t, func(g *gceName) { g.name = "../../other/zones/z/worker" }),
			true},
	} {
		t.Run(name, func(t *testing.T) {
			chain := p.issue(t, func(cert *x509.Certificate) { cert.ExtraExtensions = []pkix.Extension{c.extension} })
			leaf, err := x509.ParseCertificate(chain[0])
			if err != nil {
				t.Fatal(err)
			}
			info, err := server.GetGCEInstanceInfo(leaf)
			if err != nil || info == nil || info.GetInstanceId() != 6524697943022743941 {
				t.Errorf("go-tpm-tools: %v, %v", info, err)
			}
			_, err = p.endorser(t, c.gce).Endorse(t.Context(), tpm2.Identity{AK: p.ak, AKCertificates: chain}, today)
			if refused := err != nil; refused != (name != "as Google writes it") {
				t.Errorf("this package: %v", err)
			}
		})
	}
	info, err := server.GetGCEInstanceInfo(published(t, "gce-ak"))
	if err != nil || info.GetInstanceName() != "instance-1" || info.GetProjectId() != "core-eso" ||
		info.GetZone() != "us-central1-a" {
		t.Errorf("%v, %v", info, err)
	}
}
