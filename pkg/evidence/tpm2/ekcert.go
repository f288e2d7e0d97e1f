// SPDX-License-Identifier: Apache-2.0

package tpm2

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rsa"
	"crypto/sha256"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/asn1"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/google/go-attestation/oid"
	x509ext "github.com/google/go-attestation/x509"

	"github.com/mcs-attest/mcs-attest/pkg/reason"
)

const (
	// MaxChain limits the certificates that a node sends with its EK.
	MaxChain = 8

	// MaxCertificateSize limits each of them, in bytes.
	MaxCertificateSize = 8 << 10

	// ClockLeeway is how far in the future an EK certificate may begin: the clock of a hypervisor
	// that creates a TPM with its machine may be ahead of the verifier's.
	ClockLeeway = 5 * time.Minute
)

// Roots are the trust anchors of EK certificates.
type Roots struct {
	// Anchors are trusted regardless of their signatures. So an intermediate that is signed with
	// SHA-1 can be made an anchor.
	Anchors *x509.CertPool
	// Intermediates complete the chains of nodes that send none. May be nil.
	Intermediates *x509.CertPool
}

// EKCertificate is a verified EK certificate; only [VerifyEKCertificate] creates one. The issuer
// chose the text fields. They must be escaped before they are printed to a terminal.
type EKCertificate struct {
	SHA256       [sha256.Size]byte // of the DER
	Subject      string            // RFC 4514 form; empty in most EK certificates
	Issuer       string
	Manufacturer string // TCG vendor ID: "id:" and eight hexadecimal digits
	Model        string
	Version      string // firmware: "id:" and hexadecimal digits
	NotAfter     time.Time
}

// VerifyEKCertificate checks that a manufacturer vouches for ek. The chain is untrusted: the EK
// certificate in DER first, then intermediates in any order. Every error is a denial. The checks,
// in order:
//
//   - 1 to [MaxChain] certificates of at most [MaxCertificateSize] bytes, each one whole DER
//     structure ([reason.EKCertificateInvalid], like the next five);
//   - every key is RSA of 2048 to 4096 bits or on P-256 or P-384. After the first certificate, one
//     on P-521 is ignored; it is used only if it is in Roots;
//   - the first is an EK certificate: TCG EK Credential Profile 2.6, section 3.2, as go-attestation
//     checks it, except for known deviations of the TPM's manufacturer. A critical subjectAltName
//     with only a directoryName is accepted; any other unknown critical extension is rejected;
//   - its extended key usages, if any, include tcg-kp-EKCertificate;
//   - its key is ek;
//   - now is within its validity, with [ClockLeeway] at the beginning;
//   - it chains to an anchor ([reason.EKUntrusted]) at the time now. If that fails, the time of its
//     issue is used: TPMs live longer than some of their intermediates.
//
// Revocation is not checked, because nothing that a certificate names is ever fetched.
func VerifyEKCertificate(chain [][]byte, ek *EK, roots Roots, now time.Time) (*EKCertificate, error) {
	certs, err := parseChain(chain, MaxCertificateSize)
	if err != nil {
		return nil, reason.Wrap(reason.EKCertificateInvalid, err, "EK certificate chain")
	}
	profile, err := checkEKProfile(certs[0])
	if err != nil {
		return nil, reason.Wrap(reason.EKCertificateInvalid, err, "EK certificate")
	}
	leaf := profile.Certificate
	if key, ok := leaf.PublicKey.(interface{ Equal(crypto.PublicKey) bool }); !ok || !key.Equal(ek.PublicKey()) {
		return nil, reason.Deny(reason.EKCertificateInvalid, "the certificate is for another key than the EK (%s)",
			ek.Describe())
	}
	if now.After(leaf.NotAfter) || now.Add(ClockLeeway).Before(leaf.NotBefore) {
		return nil, reason.Deny(reason.EKCertificateInvalid, "the EK certificate is valid from %s to %s",
			leaf.NotBefore.UTC().Format(time.RFC3339), leaf.NotAfter.UTC().Format(time.RFC3339))
	}
	if err := verifyChain(leaf, certs[1:], roots, now); err != nil {
		return nil, reason.Wrap(reason.EKUntrusted, err, "EK certificate by %q", leaf.Issuer)
	}
	return &EKCertificate{
		SHA256:       sha256.Sum256(leaf.Raw),
		Subject:      leaf.Subject.String(),
		Issuer:       leaf.Issuer.String(),
		Manufacturer: profile.TpmManufacturer,
		Model:        profile.TpmModel,
		Version:      profile.TpmVersion,
		NotAfter:     leaf.NotAfter,
	}, nil
}

func parseChain(chain [][]byte, size int) ([]*x509.Certificate, error) {
	if len(chain) == 0 || len(chain) > MaxChain {
		return nil, fmt.Errorf("%d certificates; 1 to %d are accepted", len(chain), MaxChain)
	}
	var certs []*x509.Certificate
	for i, der := range chain {
		if len(der) > size {
			return nil, fmt.Errorf("certificate %d of %d bytes; at most %d", i+1, len(der), size)
		}
		cert, err := x509.ParseCertificate(der)
		if err != nil {
			return nil, fmt.Errorf("certificate %d: %w", i+1, err)
		}
		switch err := checkCertificateKey(cert.PublicKey); {
		case err == nil:
			certs = append(certs, cert)
		case i == 0 || !errors.Is(err, errSlow):
			return nil, fmt.Errorf("certificate %d: %w", i+1, err)
		}
	}
	return certs, nil
}

// errSlow reports a key that a manufacturer may use. But ten certificates with such keys that
// certify each other would cost a second before anything is proven.
var errSlow = errors.New("key on P-521 is not accepted")

// checkCertificateKey limits the cost of a signature check in advance.
func checkCertificateKey(key crypto.PublicKey) error {
	switch key := key.(type) {
	case *rsa.PublicKey:
		if n := key.N.BitLen(); n < 2048 || n > 4096 {
			return fmt.Errorf("RSA key of %d bits; 2048 to 4096 are accepted", n)
		}
		return nil
	case *ecdsa.PublicKey:
		switch key.Curve {
		case elliptic.P256(), elliptic.P384():
			return nil
		case elliptic.P521():
			return errSlow
		}
		return fmt.Errorf("key on %s is not accepted", key.Curve.Params().Name)
	case nil:
		// Early ST and Infineon certificates use RSAES-OAEP as the algorithm of their key, which
		// crypto/x509 does not parse.
		return errors.New("the key's algorithm is not supported; enroll this TPM by the hash of its EK instead")
	}
	return fmt.Errorf("key of type %T is not accepted", key)
}

// TCG vendor IDs (TCG TPM Vendor ID Registry 1.06) with deviations.
const (
	vendorAMD   = "id:414D4400"
	vendorIntel = "id:494E5443"
)

var oidBasicConstraints = asn1.ObjectIdentifier{2, 5, 29, 19}

// deviation is a departure from the profile in the certificates of genuine TPMs.
type deviation struct {
	what    string
	vendors []string
	// correct changes a copy of the certificate to the profile's form. It returns false if the
	// certificate does not deviate.
	correct func(*x509.Certificate) bool
}

// deviations are those that are known. docs/evidence/tpm2.md has their sources.
var deviations = []deviation{
	{"basicConstraints is not critical", []string{vendorAMD}, func(c *x509.Certificate) bool {
		i := slices.IndexFunc(c.Extensions, func(e pkix.Extension) bool { return e.Id.Equal(oidBasicConstraints) })
		if i < 0 || c.Extensions[i].Critical {
			return false
		}
		c.Extensions = slices.Clone(c.Extensions)
		c.Extensions[i].Critical = true
		return true
	}},
	{"an ECC key whose usage is only keyEncipherment", []string{vendorAMD, vendorIntel}, func(c *x509.Certificate) bool {
		if c.PublicKeyAlgorithm != x509.ECDSA || c.KeyUsage != x509.KeyUsageKeyEncipherment {
			return false
		}
		c.KeyUsage = x509.KeyUsageKeyAgreement
		return true
	}},
}

// checkEKProfile removes the subjectAltName from cert's list of unhandled critical extensions after
// it has parsed it.
func checkEKProfile(cert *x509.Certificate) (*x509ext.EKCertificate, error) {
	corrected := *cert
	var found []deviation
	for _, d := range deviations {
		if d.correct(&corrected) {
			found = append(found, d)
		}
	}
	profile, err := x509ext.ToEKCertificate(&corrected)
	if err != nil {
		return nil, fmt.Errorf("profile: %w", err)
	}
	for _, d := range found {
		if !slices.Contains(d.vendors, profile.TpmManufacturer) {
			return nil, fmt.Errorf("profile: %s, in a certificate of manufacturer %.40q", d.what, profile.TpmManufacturer)
		}
	}
	cert.UnhandledCriticalExtensions, profile.Certificate = corrected.UnhandledCriticalExtensions, cert
	if left := cert.UnhandledCriticalExtensions; len(left) > 0 {
		return nil, fmt.Errorf("unknown critical extension %v", left[0])
	}
	if len(cert.ExtKeyUsage)+len(cert.UnknownExtKeyUsage) > 0 && !profile.HasEkcExtendedKeyUsage {
		return nil, fmt.Errorf("extended key usages without tcg-kp-EKCertificate (%v)", oid.EKCertificate)
	}
	return profile, nil
}

func verifyChain(leaf *x509.Certificate, sent []*x509.Certificate, roots Roots, now time.Time) error {
	_, err := buildChains(leaf, sent, roots, now)
	if err == nil {
		return nil
	}
	_, err = buildChains(leaf, sent, roots, leaf.NotBefore)
	return err
}

// buildChains returns the chains from leaf to the anchors that are valid at a time. The caller has
// checked leaf's usages.
func buildChains(leaf *x509.Certificate, sent []*x509.Certificate, roots Roots,
	at time.Time) ([][]*x509.Certificate, error) {
	if roots.Anchors == nil {
		// For crypto/x509, nil means the system's roots.
		return nil, errors.New("no roots are configured")
	}
	intermediates := x509.NewCertPool()
	if roots.Intermediates != nil {
		intermediates = roots.Intermediates
		if len(sent) > 0 {
			intermediates = intermediates.Clone()
		}
	}
	for _, c := range sent {
		intermediates.AddCert(c)
	}
	return leaf.Verify(x509.VerifyOptions{
		Roots:         roots.Anchors,
		Intermediates: intermediates,
		CurrentTime:   at,
		KeyUsages:     []x509.ExtKeyUsage{x509.ExtKeyUsageAny},
	})
}
