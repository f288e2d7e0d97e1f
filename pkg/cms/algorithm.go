// SPDX-License-Identifier: Apache-2.0

package cms

import (
	"bytes"
	"crypto"

	"golang.org/x/crypto/cryptobyte"
	"golang.org/x/crypto/cryptobyte/asn1"
)

// Object identifiers, as the octets of their encoding.
const (
	oidData             = "\x2a\x86\x48\x86\xf7\x0d\x01\x07\x01" // 1.2.840.113549.1.7.1; RFC 5652, 4
	oidSignedData       = "\x2a\x86\x48\x86\xf7\x0d\x01\x07\x02" // 1.2.840.113549.1.7.2; RFC 5652, 5.1
	oidContentType      = "\x2a\x86\x48\x86\xf7\x0d\x01\x09\x03" // 1.2.840.113549.1.9.3; RFC 5652, 11.1
	oidMessageDigest    = "\x2a\x86\x48\x86\xf7\x0d\x01\x09\x04" // 1.2.840.113549.1.9.4; RFC 5652, 11.2
	oidAlgorithmProtect = "\x2a\x86\x48\x86\xf7\x0d\x01\x09\x34" // 1.2.840.113549.1.9.52; RFC 6211, 2
	oidSHA256           = "\x60\x86\x48\x01\x65\x03\x04\x02\x01" // 2.16.840.1.101.3.4.2.1; RFC 5754, 2
	oidSHA384           = "\x60\x86\x48\x01\x65\x03\x04\x02\x02" // 2.16.840.1.101.3.4.2.2
	oidSHA512           = "\x60\x86\x48\x01\x65\x03\x04\x02\x03" // 2.16.840.1.101.3.4.2.3
	oidRSA              = "\x2a\x86\x48\x86\xf7\x0d\x01\x01\x01" // 1.2.840.113549.1.1.1; RFC 3370, 3.2
	oidSHA256WithRSA    = "\x2a\x86\x48\x86\xf7\x0d\x01\x01\x0b" // 1.2.840.113549.1.1.11; RFC 5754, 3.2
	oidSHA384WithRSA    = "\x2a\x86\x48\x86\xf7\x0d\x01\x01\x0c" // 1.2.840.113549.1.1.12
	oidSHA512WithRSA    = "\x2a\x86\x48\x86\xf7\x0d\x01\x01\x0d" // 1.2.840.113549.1.1.13
)

// readElement reads one SEQUENCE including its header.
func readElement(s *cryptobyte.String, out *[]byte) bool {
	return s.ReadASN1Element((*cryptobyte.String)(out), asn1.SEQUENCE)
}

func readOID(s *cryptobyte.String, want string) bool {
	var oid cryptobyte.String
	return s.ReadASN1(&oid, asn1.OBJECT_IDENTIFIER) && string(oid) == want
}

func readVersion1(s *cryptobyte.String) bool {
	var v cryptobyte.String
	return s.ReadASN1(&v, asn1.INTEGER) && len(v) == 1 && v[0] == 1
}

// algorithm returns the identifier in an AlgorithmIdentifier whose parameters are NULL or absent,
// or "".
func algorithm(element []byte) string {
	s := cryptobyte.String(element)
	var inner, oid cryptobyte.String
	if !s.ReadASN1(&inner, asn1.SEQUENCE) || !s.Empty() || !inner.ReadASN1(&oid, asn1.OBJECT_IDENTIFIER) {
		return ""
	}
	if !inner.Empty() && !bytes.Equal(inner, []byte{byte(asn1.NULL), 0}) {
		return ""
	}
	return string(oid)
}

// digestHash returns the hash that a digest algorithm names, or zero.
func (p *parser) digestHash(element []byte) crypto.Hash {
	switch algorithm(element) {
	case oidSHA256:
		return crypto.SHA256
	case oidSHA384:
		return crypto.SHA384
	case oidSHA512:
		return crypto.SHA512
	case oidSHA256WithRSA:
		if p.SHA256WithRSAAsDigest {
			return crypto.SHA256
		}
	}
	return 0
}

// signs reports whether a signature algorithm is RSA with the hash of the digest.
func (p *parser) signs(element []byte) bool {
	switch algorithm(element) {
	case oidRSA:
		return true // by definition with the hash of the digest
	case oidSHA256WithRSA:
		return p.hash == crypto.SHA256
	case oidSHA384WithRSA:
		return p.hash == crypto.SHA384
	case oidSHA512WithRSA:
		return p.hash == crypto.SHA512
	}
	return false
}

// protects checks a CMSAlgorithmProtection (RFC 6211): its algorithms must be those of the message,
// so that an attacker cannot replace them with weaker ones.
func protects(values *cryptobyte.String, digest, signature []byte) bool {
	var protection, mac cryptobyte.String
	var protected []byte
	return values.ReadASN1(&protection, asn1.SEQUENCE) && values.Empty() &&
		readElement(&protection, &protected) && algorithm(protected) == algorithm(digest) &&
		protection.ReadASN1(&mac, contextConstructed[1]) && protection.Empty() &&
		sameAlgorithm(mac, signature)
}

// sameAlgorithm compares the content of an AlgorithmIdentifier with a whole one.
func sameAlgorithm(body, element []byte) bool {
	s := cryptobyte.String(element)
	var inner cryptobyte.String
	return s.ReadASN1(&inner, asn1.SEQUENCE) && bytes.Equal(body, inner)
}
