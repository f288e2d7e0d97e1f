// SPDX-License-Identifier: Apache-2.0

package pointer

import (
	"crypto/sha256"
	"crypto/sha512"
	"crypto/x509"
	"encoding/hex"
	"encoding/pem"
	"errors"
	"fmt"
	"strings"

	"github.com/coreos/ignition/v2/config/v3_6/types"
	"github.com/vincent-petithory/dataurl"

	"github.com/mcs-attest/mcs-attest/pkg/bounded"
)

// CertificateAuthorities returns the certificates of ignition.security.tls, including those of
// configs in data sources. Ignition also trusts the system's; the agent trusts only these. An
// authority behind a URL is an error, because no authority is known yet for that URL's server.
func (c *Config) CertificateAuthorities() ([]*x509.Certificate, error) {
	left := MaxSize
	return c.authorities(&left)
}

// authorities is CertificateAuthorities. left is the number of bytes that may still be decoded.
func (c *Config) authorities(left *int) ([]*x509.Certificate, error) {
	var out []*x509.Certificate
	for i, r := range c.parsed.Ignition.Security.TLS.CertificateAuthorities {
		certificates, err := authority(r, left)
		if err != nil {
			return nil, fmt.Errorf("ignition.security.tls.certificateAuthorities[%d]: %w", i, err)
		}
		out = append(out, certificates...)
	}
	for _, r := range c.refs {
		if r.inner == nil || len(r.inner.Sources()) == 0 {
			continue
		}
		certificates, err := r.inner.authorities(left)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", r.where, err)
		}
		out = append(out, certificates...)
	}
	return out, nil
}

func authority(r types.Resource, left *int) ([]*x509.Certificate, error) {
	if r.Source == nil {
		return nil, errors.New("it has no source")
	}
	if !strings.HasPrefix(strings.ToLower(*r.Source), "data:") {
		return nil, errors.New("its source is not a data URL")
	}
	compression := ""
	if r.Compression != nil {
		compression = *r.Compression
	}
	raw, err := decodeAtMost(*r.Source, compression, *left)
	if err != nil {
		return nil, err
	}
	*left -= len(raw)
	if r.Verification.Hash != nil && !hashMatches(*r.Verification.Hash, raw) {
		return nil, errors.New("its verification hash does not match")
	}
	out, err := ParseCertificates(raw)
	if err == nil && len(out) == 0 {
		err = errors.New("it contains no certificate in PEM")
	}
	return out, err
}

// ParseCertificates parses the certificates in PEM data. Other blocks are ignored.
func ParseCertificates(raw []byte) ([]*x509.Certificate, error) {
	var out []*x509.Certificate
	for block, rest := pem.Decode(raw); block != nil; block, rest = pem.Decode(rest) {
		if block.Type != "CERTIFICATE" {
			continue
		}
		certificate, err := x509.ParseCertificate(block.Bytes)
		if err != nil {
			return nil, fmt.Errorf("certificate %d: %w", len(out), err)
		}
		out = append(out, certificate)
	}
	return out, nil
}

// decodeData decodes and decompresses a data URL; the result has at most MaxSize bytes.
func decodeData(url, compression string) ([]byte, error) {
	return decodeAtMost(url, compression, MaxSize)
}

// decodeAtMost is decodeData with another maximum, in bytes.
func decodeAtMost(url, compression string, limit int) ([]byte, error) {
	data, err := dataurl.DecodeString(url)
	if err != nil {
		return nil, errors.New("its data URL cannot be decoded")
	}
	switch compression {
	case "":
		if len(data.Data) > limit {
			return nil, fmt.Errorf("it has more than %d bytes", limit)
		}
		return data.Data, nil
	case "gzip":
		return bounded.Gunzip(data.Data, limit)
	}
	return nil, fmt.Errorf("unknown compression %q", compression)
}

// hashMatches checks Ignition's "sha512-<hex>" and "sha256-<hex>".
func hashMatches(want string, raw []byte) bool {
	name, sum, _ := strings.Cut(want, "-")
	switch name {
	case "sha512":
		have := sha512.Sum512(raw)
		return strings.EqualFold(sum, hex.EncodeToString(have[:]))
	case "sha256":
		have := sha256.Sum256(raw)
		return strings.EqualFold(sum, hex.EncodeToString(have[:]))
	}
	return false
}

// Encode returns certificates in PEM.
func Encode(all ...*x509.Certificate) []byte {
	var b []byte
	for _, c := range all {
		b = append(b, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: c.Raw})...)
	}
	return b
}
