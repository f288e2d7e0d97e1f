// SPDX-License-Identifier: Apache-2.0

package azureattested

import (
	"bytes"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rsa"
	"crypto/sha256"
	"crypto/x509"
	"errors"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/mcs-attest/mcs-attest/pkg/cms"
	"github.com/mcs-attest/mcs-attest/pkg/reason"
)

// Limits for the certificates that come with a document. Verifying signatures costs time, and an
// unauthenticated caller chooses these certificates.
const (
	minRSABits = 2048
	maxRSABits = 4096
	// maxSigners is one more than the one expected signer.
	maxSigners = 2
	// maxAuthorities is far above the length of a chain.
	maxAuthorities = 8
)

// signed returns the content that a trusted certificate signed, and a description of the signer. It
// ignores unusable certificates: up to the limits, additional certificates do not make a document
// invalid.
func (v *Verifier) signed(message *cms.SignedData, sent [][]byte, now time.Time) ([]byte, string, error) {
	if v.Roots == nil {
		return nil, "", reason.Deny(reason.DocumentUntrusted, "no anchors")
	}
	roots, intermediates := v.Roots() // once, so that both pools are from the same bundle
	if roots == nil {
		return nil, "", reason.Deny(reason.DocumentUntrusted, "no anchors") // nil would mean the system's roots
	}
	candidates := slices.Concat(message.Certificates, sent)
	// A known signer needs neither a chain nor the other certificates.
	for _, der := range candidates {
		if known := v.chains.get(roots, intermediates, der, now); known != nil && message.SignedBy(known) {
			return opened(message, known)
		}
	}
	signers, authorities, err := usable(message, candidates)
	if err != nil {
		return nil, "", err
	}
	pool := admitted(authorities, roots, intermediates, now)
	// Anyone can write the issuer and serial number of another certificate into their own. The
	// trusted certificate decides. If none is trusted, the error is that of the certificate whose
	// key made the signature, because its authority may be missing. Certificates that an attacker
	// added do not determine the error.
	var failed error
	for _, c := range signers {
		until, err := v.trusted(c, roots, pool, now)
		if err == nil {
			v.chains.put(roots, intermediates, c, until, now)
			return opened(message, c)
		}
		if _, wrong := message.Verify(c); wrong == nil {
			failed = err
		}
	}
	if failed == nil {
		failed = reason.Deny(reason.DocumentInvalid,
			"no certificate with the signer's issuer and serial number is trusted, or has the key of the signature")
	}
	return nil, "", failed
}

// usable sorts the candidates. It returns at most maxSigners certificates with an RSA key and the
// SignerInfo's issuer and serial number, and at most maxAuthorities that may be above them.
// Duplicates count once. The order does not matter.
func usable(message *cms.SignedData, candidates [][]byte) (signers, authorities []*x509.Certificate, _ error) {
	sorted := slices.SortedFunc(slices.Values(candidates), bytes.Compare)
	named, broken := 0, 0
	var unfit error
	for _, der := range slices.CompactFunc(sorted, bytes.Equal) {
		c, err := parseCertificate(der)
		switch {
		case err != nil:
			broken++
		case message.SignedBy(c):
			if named++; named > maxSigners {
				return nil, nil, reason.Deny(reason.DocumentInvalid,
					"more than %d certificates with the signer's issuer and serial number", maxSigners)
			}
			if _, ok := c.PublicKey.(*rsa.PublicKey); !ok {
				unfit = errors.New("a key that is not RSA")
			} else if err := checkKey(c); err != nil {
				unfit = err
			} else {
				signers = append(signers, c)
			}
		case c.IsCA && checkKey(c) == nil:
			if authorities = append(authorities, c); len(authorities) > maxAuthorities {
				return nil, nil, reason.Deny(reason.DocumentInvalid, "more than %d certificates of authorities", maxAuthorities)
			}
		}
	}
	switch {
	case len(signers) > 0:
		return signers, authorities, nil
	case unfit != nil:
		return nil, nil, reason.Wrap(reason.DocumentInvalid, unfit, "the certificate of the signer")
	}
	return nil, nil, reason.Deny(reason.DocumentInvalid,
		"the signer's certificate is missing; of %d certificates, %d cannot be parsed", len(candidates), broken)
}

// admitted returns the configured intermediates, and those received authorities that chain to a
// root. Only these take part in building the signer's chain. So an attacker gains nothing from
// certificates that certify each other: each is checked only against certificates that are already
// trusted.
func admitted(authorities []*x509.Certificate, roots, intermediates *x509.CertPool, now time.Time) *x509.CertPool {
	pool := x509.NewCertPool()
	if intermediates != nil {
		pool = intermediates.Clone()
	}
	for {
		var waiting []*x509.Certificate // may chain to one of the others
		for _, c := range authorities {
			// The usages of the chain are checked for the signer only.
			_, err := c.Verify(x509.VerifyOptions{Roots: roots, Intermediates: pool, CurrentTime: now,
				KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageAny}})
			if err != nil {
				waiting = append(waiting, c)
				continue
			}
			pool.AddCert(c)
		}
		if len(waiting) == len(authorities) {
			return pool
		}
		authorities = waiting
	}
}

// opened verifies the signature.
func opened(message *cms.SignedData, signer *x509.Certificate) ([]byte, string, error) {
	raw, err := message.Verify(signer)
	if err != nil {
		return nil, "", reason.Wrap(reason.DocumentInvalid, err, "signed by %.128q", signer.Subject)
	}
	if len(raw) > maxContent {
		return nil, "", reason.Deny(reason.DocumentInvalid, "a content of %d bytes; at most %d", len(raw), maxContent)
	}
	return raw, signer.Subject.CommonName + " of " + signer.Issuer.CommonName, nil
}

// parseCertificate parses exactly one certificate.
func parseCertificate(der []byte) (*x509.Certificate, error) {
	if len(der) > maxCertificate {
		return nil, errors.New("a certificate that is too long")
	}
	return x509.ParseCertificate(der)
}

// checkKey rejects keys that are weak or slow to verify with. A signature on P-521 costs as much as
// a hundred with RSA.
func checkKey(c *x509.Certificate) error {
	switch key := c.PublicKey.(type) {
	case *rsa.PublicKey:
		if n := key.N.BitLen(); n < minRSABits || n > maxRSABits {
			return errors.New("an RSA key that is not of 2048 to 4096 bits")
		}
	case *ecdsa.PublicKey:
		if key.Curve != elliptic.P256() && key.Curve != elliptic.P384() {
			return errors.New("a key that is not on P-256 or P-384")
		}
	default:
		return errors.New("a key that is neither RSA nor ECDSA")
	}
	return nil
}

// trusted verifies a certificate's chain and name. It returns when the chain expires.
func (v *Verifier) trusted(c *x509.Certificate, roots, intermediates *x509.CertPool, now time.Time) (time.Time, error) {
	switch {
	case !slices.ContainsFunc(c.DNSNames, v.named):
		return time.Time{}, reason.Deny(reason.DocumentUntrusted,
			"the signer's certificate is for %.128q, none of which is below %.128q", c.DNSNames, v.Names)
	case c.IsCA:
		return time.Time{}, reason.Deny(reason.DocumentUntrusted, "the signer's certificate is a CA's")
	case c.KeyUsage != 0 && c.KeyUsage&x509.KeyUsageDigitalSignature == 0:
		return time.Time{}, reason.Deny(reason.DocumentUntrusted, "the signer's certificate is not for signatures")
	}
	found, err := c.Verify(x509.VerifyOptions{
		Roots: roots, Intermediates: intermediates, CurrentTime: now,
		// Azure signs documents with a TLS server certificate.
		KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth},
	})
	if err != nil {
		return time.Time{}, reason.Wrap(reason.DocumentUntrusted, err, "the certificate of %.128q, issued by %.128q",
			c.Subject, c.Issuer)
	}
	var until time.Time
	for _, chain := range found {
		end := slices.MinFunc(chain, func(a, b *x509.Certificate) int { return a.NotAfter.Compare(b.NotAfter) }).NotAfter
		if end.After(until) {
			until = end
		}
	}
	return until, nil
}

// named reports whether a host is one of Names, or a subdomain of one.
func (v *Verifier) named(host string) bool {
	host = strings.ToLower(host)
	return slices.ContainsFunc(v.Names,
		func(name string) bool { return host == name || strings.HasSuffix(host, "."+name) })
}

// maxChains limits the memory. Each region of a cloud has one or two certificates.
const maxChains = 256

// chains caches the signers' certificates whose chains were verified with one pair of pools. Other
// pools clear the cache. The roots are never nil.
type chains struct {
	mu                   sync.Mutex
	roots, intermediates *x509.CertPool
	known                map[[sha256.Size]byte]chain
}

type chain struct {
	signer *x509.Certificate
	until  time.Time
}

func (k *chains) get(roots, intermediates *x509.CertPool, der []byte, now time.Time) *x509.Certificate {
	k.mu.Lock()
	defer k.mu.Unlock()
	if len(der) > maxCertificate || k.roots != roots || k.intermediates != intermediates {
		return nil
	}
	found, ok := k.known[sha256.Sum256(der)]
	if !ok || now.After(found.until) || now.Before(found.signer.NotBefore) {
		return nil
	}
	return found.signer
}

// put stores a chain. A call with pools that have been replaced may clear the cache, which only
// costs another verification.
func (k *chains) put(roots, intermediates *x509.CertPool, signer *x509.Certificate, until, now time.Time) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.roots != roots || k.intermediates != intermediates {
		k.roots, k.intermediates, k.known = roots, intermediates, map[[sha256.Size]byte]chain{}
	}
	for key, c := range k.known {
		if len(k.known) < maxChains && !now.After(c.until) {
			continue
		}
		delete(k.known, key)
	}
	k.known[sha256.Sum256(signer.Raw)] = chain{signer, until}
}
