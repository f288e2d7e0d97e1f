// SPDX-License-Identifier: Apache-2.0

package tpm2_test

import (
	"crypto"
	"crypto/rand"
	"crypto/sha256"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/asn1"
	"encoding/hex"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-attestation/oid"
	x509ext "github.com/google/go-attestation/x509"
	tpm "github.com/google/go-tpm/tpm2"
	"golang.org/x/crypto/cryptobyte"
	der "golang.org/x/crypto/cryptobyte/asn1"

	"github.com/mcs-attest/mcs-attest/pkg/evidence/tpm2"
	"github.com/mcs-attest/mcs-attest/pkg/reason"
)

var (
	idBasicConstraints = asn1.ObjectIdentifier{2, 5, 29, 19}
	idKeyUsage         = asn1.ObjectIdentifier{2, 5, 29, 15}
	idExtKeyUsage      = asn1.ObjectIdentifier{2, 5, 29, 37}
	idPolicies         = asn1.ObjectIdentifier{2, 5, 29, 32}
	idAttributes       = asn1.ObjectIdentifier(oid.SubjectDirectoryAttributes)
)

// Values of extensions, as hexadecimal digits.
const (
	falseCA         = "3003010100" // cA FALSE, although it is the default
	keyEncipherment = "03020520"
	forEK           = "300706056781050801" // tcg-kp-EKCertificate
)

func extension(id asn1.ObjectIdentifier, critical bool, value string) pkix.Extension {
	raw, err := hex.DecodeString(value)
	if err != nil {
		panic(err)
	}
	return pkix.Extension{Id: id, Critical: critical, Value: raw}
}

func tpmNamed(vendor, model, version string) pkix.Extension {
	ext, err := x509ext.MarshalSubjectAltName(&x509ext.SubjectAltName{DirectoryNames: []pkix.Name{{
		ExtraNames: []pkix.AttributeTypeAndValue{
			{Type: oid.TPMManufacturer, Value: vendor},
			{Type: oid.TPMModel, Value: model},
			{Type: oid.TPMVersion, Value: version},
		},
	}}}, true)
	if err != nil {
		panic(err)
	}
	return ext
}

// amdForm has the extensions of AMD's certificate for the ECC EK of an fTPM, as of 2022. The one that
// is public is in RustCrypto/formats#1584. basicConstraints is not critical, and the usage is
// keyEncipherment.
func amdForm(vendor string) []pkix.Extension {
	return []pkix.Extension{
		extension(idKeyUsage, true, keyEncipherment),
		extension(idExtKeyUsage, false, forEK),
		extension(idPolicies, false, "300e300c060a2b060104019c7865150a"),
		extension(idBasicConstraints, false, falseCA),
		tpmNamed(vendor, "AMD", "id:00030001"),
		// TPM specification "id:322E3000", level 0, revision 1.37; and security assertions.
		extension(idAttributes, false, "303f301e06056781050210311530130c0b69643a3332324533303030020100020189"+
			"301d06056781050212311430120201000101ff8001008101008201008501ff"),
	}
}

// intelForm has the extensions of the certificates of Intel's service for the EKs of PTT, before the
// eleventh generation of processors. The usage is keyEncipherment for ECC keys, too.
func intelForm(vendor string) []pkix.Extension {
	return []pkix.Extension{
		extension(idBasicConstraints, true, falseCA),
		extension(idKeyUsage, true, keyEncipherment),
		extension(idExtKeyUsage, false, forEK),
		extension(idAttributes, false, "3018301606056781050210310d300b0c03322e30020100020167"),
		tpmNamed(vendor, "CNL", "id:00020000"),
	}
}

// issueForm returns a chain for the pki's EK whose first certificate has exactly these extensions and
// an authority key identifier.
func (p *pki) issueForm(t testing.TB, extensions []pkix.Extension) [][]byte {
	t.Helper()
	template := ekTemplate(t, p.ek)
	template.KeyUsage, template.BasicConstraintsValid, template.UnknownExtKeyUsage = 0, false, nil
	template.ExtraExtensions = extensions
	cert := sign(t, template, p.intermediate, p.ek.PublicKey())
	return [][]byte{explicitDefaults(t, cert, p.intermediate), p.intermediate.cert.Raw}
}

// explicitDefaults returns a certificate with "critical FALSE" written out in each extension that is
// not critical, as AMD and Intel do, signed again on P-256.
func explicitDefaults(t testing.TB, cert *x509.Certificate, by *authority) []byte {
	t.Helper()
	tbs := cryptobyte.String(cert.RawTBSCertificate)
	var fields, field cryptobyte.String
	var tag der.Tag
	if !tbs.ReadASN1(&fields, der.SEQUENCE) {
		t.Fatal("no TBSCertificate")
	}
	var b cryptobyte.Builder
	b.AddASN1(der.SEQUENCE, func(b *cryptobyte.Builder) {
		for fields.ReadAnyASN1Element(&field, &tag) && tag != explicit(3) {
			b.AddBytes(field)
		}
		b.AddASN1(explicit(3), func(b *cryptobyte.Builder) {
			b.AddASN1(der.SEQUENCE, func(b *cryptobyte.Builder) {
				for _, e := range cert.Extensions {
					b.AddASN1(der.SEQUENCE, func(b *cryptobyte.Builder) {
						b.AddASN1ObjectIdentifier(e.Id)
						b.AddASN1Boolean(e.Critical)
						b.AddASN1OctetString(e.Value)
					})
				}
			})
		})
	})
	body := b.BytesOrPanic()
	digest := sha256.Sum256(body)
	signature, err := by.key.Sign(rand.Reader, digest[:], crypto.SHA256)
	if err != nil {
		t.Fatal(err)
	}
	var out cryptobyte.Builder
	out.AddASN1(der.SEQUENCE, func(b *cryptobyte.Builder) {
		b.AddBytes(body)
		b.AddASN1(der.SEQUENCE, func(b *cryptobyte.Builder) {
			b.AddASN1ObjectIdentifier(asn1.ObjectIdentifier{1, 2, 840, 10045, 4, 3, 2}) // ecdsa-with-SHA256
		})
		b.AddASN1BitString(signature)
	})
	return out.BytesOrPanic()
}

// with returns the extensions with one of them replaced, or removed if its value is nil.
func with(list []pkix.Extension, e pkix.Extension) []pkix.Extension {
	list = slices.Clone(list)
	i := slices.IndexFunc(list, func(x pkix.Extension) bool { return x.Id.Equal(e.Id) })
	if e.Value == nil {
		return slices.Delete(list, i, i+1)
	}
	list[i] = e
	return list
}

const (
	amd      = "id:414D4400"
	intel    = "id:494E5443"
	infineon = "id:49465800"
)

func TestManufacturer_AcceptsKnownDeviationsFromTheProfile(t *testing.T) {
	p := newPKI(t)
	ofRSA := &pki{p.root, p.intermediate, mustEK(t, capture(t, "ek-rsa2048.pub"))}
	for name, c := range map[string]struct {
		pki    *pki
		form   []pkix.Extension
		vendor string
	}{
		"AMD fTPM, ECC":  {p, amdForm(amd), amd},
		"AMD fTPM, RSA":  {ofRSA, amdForm(amd), amd},
		"Intel PTT, ECC": {p, intelForm(intel), intel},
		"Intel PTT, RSA": {ofRSA, intelForm(intel), intel},
		"Intel PTT, ECC, eleventh generation": {p,
			with(intelForm(intel), extension(idKeyUsage, true, "03020308")), intel}, // keyAgreement
	} {
		t.Run(name, func(t *testing.T) {
			cert, err := c.pki.verify(c.pki.issueForm(t, c.form))
			if err != nil {
				t.Fatal(err)
			}
			if cert.Manufacturer != c.vendor || cert.Issuer != "CN=intermediate" {
				t.Errorf("%+v", cert)
			}
		})
	}
}

// A deviation is accepted only in the form and from the maker for which it is known.
func TestAttack_T34_OtherDeviationsFromTheProfile(t *testing.T) {
	p := newPKI(t)
	for _, form := range [][]pkix.Extension{amdForm(amd), intelForm(intel)} {
		if _, err := p.verify(p.issueForm(t, form)); err != nil {
			t.Fatalf("the valid case: %v", err)
		}
	}
	const (
		signing    = "03020780"
		both       = "030205a0" // digitalSignature, keyEncipherment
		trueCA     = "30030101ff"
		forAK      = "300706056781050803"
		webServers = "300a06082b06010505070301"
	)
	none := func(id asn1.ObjectIdentifier) pkix.Extension { return pkix.Extension{Id: id} }
	for name, c := range map[string]struct {
		form  []pkix.Extension
		words string
	}{
		"AMD's form of another maker":   {amdForm(infineon), "basicConstraints is not critical"},
		"AMD's form of Intel":           {amdForm(intel), "basicConstraints is not critical"},
		"Intel's form of another maker": {intelForm(infineon), "an ECC key whose usage is only keyEncipherment"},
		"AMD's vendor ID in lower case": {amdForm("id:414d4400"), "basicConstraints is not critical"},
		"a CA by AMD":                   {with(amdForm(amd), extension(idBasicConstraints, false, trueCA)), "CA"},
		"no basic constraints":          {with(amdForm(amd), none(idBasicConstraints)), "BasicConstraints"},
		"a signing key by AMD":          {with(amdForm(amd), extension(idKeyUsage, true, signing)), "KeyUsage"},
		"a key for two usages by AMD":   {with(amdForm(amd), extension(idKeyUsage, true, both)), "KeyUsage"},
		"no key usage":                  {with(amdForm(amd), none(idKeyUsage)), "Key"},
		"a key usage that is not critical": {with(amdForm(amd), extension(idKeyUsage, false, keyEncipherment)),
			"Key Usage"},
		"an AK's certificate by AMD": {with(amdForm(amd), extension(idExtKeyUsage, false, forAK)), "tcg-kp-EKCertificate"},
		"a web server by Intel": {with(intelForm(intel), extension(idExtKeyUsage, false, webServers)),
			"tcg-kp-EKCertificate"},
		"another critical extension": {append(amdForm(amd), extension(asn1.ObjectIdentifier{1, 2, 3}, true, "0500")),
			"1.2.3"},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := p.verify(p.issueForm(t, c.form))
			denied(t, err, reason.EKCertificateInvalid)
			if !strings.Contains(err.Error(), c.words) {
				t.Errorf("%v does not contain %q", err, c.words)
			}
		})
	}
	t.Run("with the chain of another authority", func(t *testing.T) {
		_, err := tpm2.VerifyEKCertificate(p.issueForm(t, amdForm(amd)), p.ek, anchors(newPKI(t).root.cert), today)
		denied(t, err, reason.EKUntrusted)
	})
	t.Run("for another EK", func(t *testing.T) {
		other := mustEK(t, tpm.Marshal(softwareEK(t)))
		_, err := tpm2.VerifyEKCertificate(p.issueForm(t, amdForm(amd)), other, anchors(p.root.cert), today)
		denied(t, err, reason.EKCertificateInvalid)
	})
}

// googleForm turns an AK certificate of today into the form of 2021 and 2022, which
// testdata/akcert/gce-ak-2022.pem has.
func googleForm(vendor string) func(*x509.Certificate) {
	return func(c *x509.Certificate) {
		c.Subject = pkix.Name{}
		c.UnknownExtKeyUsage = []asn1.ObjectIdentifier{oid.EKCertificate}
		c.ExtraExtensions = append(c.ExtraExtensions, tpmNamed(vendor, "vTPM", "id:20160511"),
			extension(idAttributes, false, "3018301606056781050210310d300b0c03322e30020100020174"))
	}
}

func TestAttack_T21_AKCertificatesInGooglesFormOf2022(t *testing.T) {
	const google = "id:474F4F47"
	p := newPlatform(t)
	and := func(change func(*x509.Certificate)) func(*x509.Certificate) {
		return func(c *x509.Certificate) { googleForm(google)(c); change(c) }
	}
	e, err := p.endorse(t, p.issue(t, googleForm(google)))
	if err != nil {
		t.Fatal(err)
	}
	if e.ProviderID != "gce://project-1/europe-west3-b/worker-0" {
		t.Errorf("%+v", e)
	}
	invalid := reason.EKCertificateInvalid
	for name, c := range map[string]struct {
		change func(*x509.Certificate)
		want   reason.Code
	}{
		"an EK of that time":     {and(func(c *x509.Certificate) { c.KeyUsage = x509.KeyUsageKeyEncipherment }), invalid},
		"a key for two usages":   {and(func(c *x509.Certificate) { c.KeyUsage |= x509.KeyUsageKeyEncipherment }), invalid},
		"of another maker":       {googleForm(amd), invalid},
		"that names no instance": {and(func(c *x509.Certificate) { c.ExtraExtensions = c.ExtraExtensions[1:] }), invalid},
		"with a web server's usage": {and(func(c *x509.Certificate) {
			c.UnknownExtKeyUsage, c.ExtKeyUsage = nil, []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth}
		}), invalid},
		"with another critical extension": {and(func(c *x509.Certificate) {
			c.ExtraExtensions = append(c.ExtraExtensions, extension(asn1.ObjectIdentifier{1, 2, 3}, true, "0500"))
		}), reason.DocumentUntrusted},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := p.endorse(t, p.issue(t, c.change))
			denied(t, err, c.want)
		})
	}
	t.Run("below a root that may not name instances", func(t *testing.T) {
		_, err := p.endorser(t, false).Endorse(t.Context(),
			tpm2.Identity{AK: p.ak, AKCertificates: p.issue(t, googleForm(google))}, today)
		denied(t, err, reason.DocumentUntrusted)
	})
}
