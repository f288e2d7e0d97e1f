// SPDX-License-Identifier: Apache-2.0

package tpm2

import (
	"context"
	"crypto"
	"crypto/sha256"
	"crypto/x509"
	"encoding/asn1"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	x509ext "github.com/google/go-attestation/x509"

	"github.com/mcs-attest/mcs-attest/pkg/anchors"
	"github.com/mcs-attest/mcs-attest/pkg/reason"
)

// MaxAKCertificateSize limits each certificate that a node sends with its AK, in bytes
// (proto/README.md, 2). Azure's are the largest.
const MaxAKCertificateSize = 16 << 10

// VouchesForGCE is a line in the text before an anchor. It allows certificates below this anchor to
// name an instance of Compute Engine. Without it, the anchor vouches only for keys, whatever its
// certificates contain.
const VouchesForGCE = "vouches for: gce instances"

// vendorGoogle is the TCG vendor ID in the certificates of Google's virtual TPMs.
const vendorGoogle = "id:474F4F47"

// oidAIKCertificate is tcg-kp-AIKCertificate (TCG Credential Profiles for TPM Family 1.2, 3.4; also
// used for 2.0).
var oidAIKCertificate = asn1.ObjectIdentifier{2, 23, 133, 8, 3}

// AKCertificateEndorser endorses an AK that a platform's authority certified.
// [NewAKCertificateEndorser] creates one.
type AKCertificateEndorser struct {
	Roots Roots
	// GCE are the anchors, by the SHA-256 of their DER, that may name an instance of Compute
	// Engine.
	GCE map[[sha256.Size]byte]bool
}

// NewAKCertificateEndorser reads from the text before each anchor what the anchor vouches for.
func NewAKCertificateEndorser(all []anchors.Anchor) AKCertificateEndorser {
	set := anchors.NewSet(all)
	e := AKCertificateEndorser{
		Roots: Roots{Anchors: set.Roots(), Intermediates: set.Intermediates()},
		GCE:   map[[sha256.Size]byte]bool{},
	}
	for _, a := range set.All() {
		if a.Root && slices.Contains(strings.Split(a.Provenance, "\n"), VouchesForGCE) {
			e.GCE[a.SHA256] = true
		}
	}
	return e
}

// Endorse verifies the AK's certificate. Without a certificate it returns [ErrNotMine]. The chain
// is untrusted: the AK's certificate in DER first, then candidates for intermediates in any order.
// Every other error is a denial. The checks, in order:
//
//   - 1 to [MaxChain] certificates of at most [MaxAKCertificateSize] bytes, each one whole DER
//     structure ([reason.EKCertificateInvalid], like the next six);
//   - every key is RSA of 2048 to 4096 bits or on P-256 or P-384. After the first certificate, one
//     on P-521 is ignored; it is used only if it is in Roots;
//   - the first certificate is not an authority's;
//   - its key may sign: key usage with digitalSignature, as Google and Microsoft issue it. Google's
//     EK certificates come from the same root and do not have it;
//   - its extended key usages, if any, include tcg-kp-AIKCertificate. Microsoft's certificates have
//     it; Google's have none, except for those of 2021 and 2022 ([isGoogleEKForm]);
//   - its key is the AK;
//   - now is within its validity, with [ClockLeeway] at the beginning;
//   - it chains to an anchor now. An AK is certified together with its machine, so expired
//     certificates are not accepted. The error is [reason.DocumentUntrusted], which is temporary,
//     because clouds add authorities without notice;
//   - if it names an instance of Compute Engine, it chains to an anchor of that cloud
//     ([reason.DocumentUntrusted]), the extension is complete ([reason.EKCertificateInvalid]), and
//     Google marks the instance as production ([reason.EKUntrusted]).
//
// Revocation is not checked, because nothing that a certificate names is ever fetched.
//
// Only the AK is endorsed. The EK stays unproven, although [VerifyQuote] proves that it is in the
// same TPM. Microsoft's certificates name no virtual machine (their subject is a name that the host
// chooses), so other evidence must name it.
func (e AKCertificateEndorser) Endorse(_ context.Context, id Identity, now time.Time) (*Endorsement, error) {
	if len(id.AKCertificates) == 0 {
		return nil, ErrNotMine
	}
	certs, err := parseChain(id.AKCertificates, MaxAKCertificateSize)
	if err != nil {
		return nil, reason.Wrap(reason.EKCertificateInvalid, err, "AK certificate chain")
	}
	leaf := certs[0]
	if err := checkAKCertificate(leaf, id.AK); err != nil {
		return nil, reason.Wrap(reason.EKCertificateInvalid, err, "AK certificate by %q", leaf.Issuer)
	}
	if now.After(leaf.NotAfter) || now.Add(ClockLeeway).Before(leaf.NotBefore) {
		return nil, reason.Deny(reason.EKCertificateInvalid, "the AK certificate is valid from %s to %s",
			leaf.NotBefore.UTC().Format(time.RFC3339), leaf.NotAfter.UTC().Format(time.RFC3339))
	}
	if now.Before(leaf.NotBefore) {
		now = leaf.NotBefore
	}
	chains, err := buildChains(leaf, certs[1:], e.Roots, now)
	if err != nil {
		return nil, reason.Wrap(reason.DocumentUntrusted, err, "AK certificate by %q", leaf.Issuer)
	}
	endorsement := &Endorsement{Kind: AKCertificate, AKSHA256: id.AK.SPKIHash()}
	instance, err := e.instance(leaf, chains)
	if err != nil {
		return nil, err
	}
	if instance != nil {
		endorsement.ProviderID, endorsement.InstanceID = instance.providerID(), instance.instanceID()
	}
	return endorsement, nil
}

func checkAKCertificate(leaf *x509.Certificate, ak *AK) error {
	if leaf.IsCA || leaf.KeyUsage&x509.KeyUsageCertSign != 0 {
		return errors.New("it is a certificate of an authority")
	}
	if leaf.KeyUsage&x509.KeyUsageDigitalSignature == 0 {
		return errors.New("its key usage does not allow signing")
	}
	isAIK := func(usage asn1.ObjectIdentifier) bool { return usage.Equal(oidAIKCertificate) }
	if len(leaf.ExtKeyUsage)+len(leaf.UnknownExtKeyUsage) > 0 && !slices.ContainsFunc(leaf.UnknownExtKeyUsage, isAIK) &&
		!isGoogleEKForm(leaf) {
		return fmt.Errorf("extended key usages without tcg-kp-AIKCertificate (%v)", oidAIKCertificate)
	}
	if key, ok := leaf.PublicKey.(interface{ Equal(crypto.PublicKey) bool }); !ok || !key.Equal(ak.PublicKey()) {
		return fmt.Errorf("it is for another key than the AK (%s)", ak.Describe())
	}
	return nil
}

// isGoogleEKForm reports whether leaf has the form in which Google certified AKs in 2021 and 2022. It
// is that of an EK certificate, with tcg-kp-EKCertificate and a critical subjectAltName with the name
// of Google's TPM. Only the key usage is that of an AK. Google's EKs of that time cannot sign.
//
// Such a certificate names an instance, so it must be below an anchor of Compute Engine. The
// subjectAltName is removed from the list of unhandled critical extensions.
func isGoogleEKForm(leaf *x509.Certificate) bool {
	if leaf.KeyUsage != x509.KeyUsageDigitalSignature || instanceExtension(leaf) == nil {
		return false
	}
	ek := *leaf
	ek.KeyUsage = x509.KeyUsageKeyAgreement | x509.KeyUsageKeyEncipherment
	profile, err := x509ext.ToEKCertificate(&ek)
	if err != nil || profile.TpmManufacturer != vendorGoogle || !profile.HasEkcExtendedKeyUsage {
		return false
	}
	leaf.UnhandledCriticalExtensions = ek.UnhandledCriticalExtensions
	return true
}

// instanceExtension returns the content of Google's extension, or nil.
func instanceExtension(leaf *x509.Certificate) []byte {
	for _, ext := range leaf.Extensions { // crypto/x509 rejects duplicates
		if ext.Id.Equal(oidGCEInstance) {
			return ext.Value
		}
	}
	return nil
}

// instance returns the instance of Compute Engine that leaf names, or nil.
func (e AKCertificateEndorser) instance(leaf *x509.Certificate, chains [][]*x509.Certificate) (*gceInstance, error) {
	value := instanceExtension(leaf)
	if value == nil {
		return nil, nil
	}
	if !slices.ContainsFunc(chains, func(chain []*x509.Certificate) bool {
		return e.GCE[sha256.Sum256(chain[len(chain)-1].Raw)]
	}) {
		return nil, reason.Deny(reason.DocumentUntrusted,
			"the AK certificate by %q names an instance of Compute Engine, and its root may not vouch for instances",
			leaf.Issuer)
	}
	instance, err := parseGCEInstance(value)
	if err != nil {
		return nil, reason.Wrap(reason.EKCertificateInvalid, err, "AK certificate: instance of Compute Engine")
	}
	if !instance.production {
		return nil, reason.Deny(reason.EKUntrusted,
			"the AK certificate is for %s, which Google does not mark as an instance of production", instance.providerID())
	}
	return instance, nil
}
