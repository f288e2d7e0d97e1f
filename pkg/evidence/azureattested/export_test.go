// SPDX-License-Identifier: Apache-2.0

package azureattested

import (
	"context"
	"crypto/x509"
	"time"

	"github.com/mcs-attest/mcs-attest/pkg/cms"
)

func parsed(raw []byte) (*cms.SignedData, error) {
	return cms.Parse(raw, cms.Options{SHA256WithRSAAsDigest: true, AttributesOptional: true})
}

// CheckKey calls checkKey.
func CheckKey(c *x509.Certificate) error { return checkKey(c) }

// Signed returns the content that a trusted certificate signed, whatever its nonce is.
func (v *Verifier) Signed(raw []byte, now time.Time) ([]byte, error) {
	message, err := parsed(raw)
	if err != nil {
		return nil, err
	}
	content, _, err := v.signed(message, nil, now)
	return content, err
}

// Usable returns the certificates of a message that are used, and the intermediates for the
// signer's chain.
func (v *Verifier) Usable(raw []byte, sent [][]byte,
	now time.Time) (signers, authorities []*x509.Certificate, pool *x509.CertPool, _ error) {
	message, err := parsed(raw)
	if err != nil {
		return nil, nil, nil, err
	}
	if signers, authorities, err = usable(message, append(message.Certificates, sent...)); err != nil {
		return nil, nil, nil, err
	}
	roots, intermediates := v.Roots()
	return signers, authorities, admitted(authorities, roots, intermediates, now), nil
}

// ParseGUID calls parseGUID.
func ParseGUID(s string) (string, bool) { return parseGUID(s) }

// ParseResourceID calls parseResourceID.
func ParseResourceID(s string) error {
	_, err := parseResourceID(s)
	return err
}

// Verify calls verify.
func (i *Identity) Verify(ctx context.Context, raw []byte, now time.Time) error {
	_, err := i.verify(ctx, raw, now)
	return err
}
