// SPDX-License-Identifier: Apache-2.0

// Package cms reads signed messages in the Cryptographic Message Syntax (RFC 5652), in the one form
// in which clouds sign documents about their instances.
//
// A message is a ContentInfo of type signedData with the content inside and exactly one signer. The
// parser follows one fixed grammar and is not a general ASN.1 decoder. It rejects every element
// that the grammar does not name, and every trailing byte. All content is untrusted until
// [SignedData.Verify] returns it.
//
// The grammar accepts only:
//   - DER; with [Options.BER] also the form that AWS sends, in which the six outermost structures
//     have an end marker instead of a length (X.690, 8.1.3.6 and 8.7.3.2). A message has one of the
//     two forms. The grammar fixes the depth.
//   - SignedData version 1 over id-data, with one digest algorithm, the signer's.
//   - Certificates, at most [MaxCertificates]. They are untrusted candidates. No CRLs.
//   - SignerInfo version 1: the signer is named by issuer and serial number.
//   - Signed attributes with contentType and messageDigest, each once. They are required, except
//     with [Options.AttributesOptional]. Other attributes are covered by the signature and
//     otherwise ignored. No unsigned attributes.
//   - SHA-256, SHA-384 or SHA-512, and RSA with PKCS #1 v1.5 and the same hash.
//
// Two variations remain that change no byte of the content: the parameters of an algorithm are NULL
// or absent (RFC 5754, 2, requires both to be accepted), and BER may split the content into several
// pieces.
package cms

import (
	"bytes"
	"crypto"
	"errors"
	"fmt"
	"math/big"

	"golang.org/x/crypto/cryptobyte"
	"golang.org/x/crypto/cryptobyte/asn1"
)

// Limits of one message.
const (
	MaxMessage      = 64 << 10
	MaxCertificates = 16
	maxSegments     = 64
	maxAttributes   = 16
	maxSerial       = 20 // octets; RFC 5280, 4.1.2.2
)

// Options are the variations of the signers.
type Options struct {
	// BER allows structures of indefinite length around the content, as AWS sends them.
	BER bool
	// SHA256WithRSAAsDigest accepts sha256WithRSAEncryption as a digest algorithm, as Azure sends
	// it, and reads it as SHA-256.
	SHA256WithRSAAsDigest bool
	// AttributesOptional accepts a signature over the content itself, as Azure creates it. Such a
	// content must not begin like a set of attributes. Otherwise the attributes of one message
	// could be presented as the content of another.
	AttributesOptional bool
}

// SignedData is one message with its content and exactly one signer (RFC 5652, 5). Nothing in it is
// verified yet.
type SignedData struct {
	Content      []byte   // eContent's octets: untrusted until Verify
	Certificates [][]byte // DER, candidates; may be empty
	Issuer       []byte   // of the signer's certificate, a DER Name
	Serial       *big.Int // of the signer's certificate

	hash          crypto.Hash
	attributes    []byte // as in the message, with the tag [0]; nil: none
	messageDigest []byte // from the attributes
	signature     []byte
}

var errBytesLeft = errors.New("bytes after its last field")

// Parse reads one message. The result refers to raw.
func Parse(raw []byte, o Options) (*SignedData, error) {
	if len(raw) > MaxMessage {
		return nil, fmt.Errorf("cms: a message of %d bytes; at most %d", len(raw), MaxMessage)
	}
	p := parser{Options: o, indefinite: o.BER && len(raw) > 1 && raw[1] == indefinite}
	rest := cryptobyte.String(raw)
	if err := p.within(&rest, asn1.SEQUENCE, p.contentInfo); err != nil {
		return nil, fmt.Errorf("cms: %w", err)
	}
	if !rest.Empty() {
		return nil, errors.New("cms: bytes after the message")
	}
	return &p.SignedData, nil
}

// parser fills a SignedData. Each method reads one structure of RFC 5652 after its header.
type parser struct {
	Options
	SignedData
	indefinite bool   // the outermost structures have end markers instead of lengths
	digest     []byte // the one element of digestAlgorithms, encoded
}

const indefinite = 0x80

var (
	contextConstructed = [...]asn1.Tag{asn1.Tag(0).Constructed().ContextSpecific(),
		asn1.Tag(1).Constructed().ContextSpecific()}
	segmented = asn1.OCTET_STRING.Constructed()
)

// within enters one structure in the form of the message, reads its body, and checks that no byte
// is left in it.
func (p *parser) within(s *cryptobyte.String, tag asn1.Tag, body func(*cryptobyte.String) error) error {
	if !p.indefinite {
		var inner cryptobyte.String
		if !s.ReadASN1(&inner, tag) {
			return fmt.Errorf("no structure with tag 0x%02x", byte(tag))
		}
		if err := body(&inner); err != nil {
			return err
		}
		if !inner.Empty() {
			return errBytesLeft
		}
		return nil
	}
	if !bytes.HasPrefix(*s, []byte{byte(tag), indefinite}) {
		return fmt.Errorf("no structure of indefinite length with tag 0x%02x", byte(tag))
	}
	s.Skip(2)
	if err := body(s); err != nil {
		return err
	}
	if !bytes.HasPrefix(*s, []byte{0, 0}) {
		return errBytesLeft
	}
	s.Skip(2)
	return nil
}

func (p *parser) contentInfo(s *cryptobyte.String) error {
	if !readOID(s, oidSignedData) {
		return errors.New("not signedData")
	}
	return p.within(s, contextConstructed[0], func(s *cryptobyte.String) error {
		return p.within(s, asn1.SEQUENCE, p.signedData)
	})
}

func (p *parser) signedData(s *cryptobyte.String) error {
	var algorithms, signers cryptobyte.String
	if !readVersion1(s) {
		return errors.New("signedData: not version 1")
	}
	if !s.ReadASN1(&algorithms, asn1.SET) || !readElement(&algorithms, &p.digest) || !algorithms.Empty() {
		return errors.New("signedData: not exactly one digest algorithm")
	}
	if err := p.within(s, asn1.SEQUENCE, p.encapsulatedContent); err != nil {
		return fmt.Errorf("encapContentInfo: %w", err)
	}
	if err := p.certificates(s); err != nil {
		return fmt.Errorf("certificates: %w", err)
	}
	if s.PeekASN1Tag(contextConstructed[1]) {
		return errors.New("signedData: crls")
	}
	var signer cryptobyte.String
	if !s.ReadASN1(&signers, asn1.SET) || !signers.ReadASN1(&signer, asn1.SEQUENCE) || !signers.Empty() {
		return errors.New("signedData: not exactly one signer")
	}
	if err := p.signerInfo(&signer); err != nil {
		return fmt.Errorf("signerInfo: %w", err)
	}
	return nil
}

func (p *parser) encapsulatedContent(s *cryptobyte.String) error {
	if !readOID(s, oidData) {
		return errors.New("not id-data")
	}
	return p.within(s, contextConstructed[0], func(s *cryptobyte.String) error {
		if p.indefinite {
			return p.within(s, segmented, p.segments)
		}
		var content cryptobyte.String
		if !s.ReadASN1(&content, asn1.OCTET_STRING) {
			return errors.New("no octet string")
		}
		p.Content = content
		return nil
	})
}

// segments joins the pieces of an octet string. A single piece, the usual case, is not copied.
func (p *parser) segments(s *cryptobyte.String) error {
	for n := 0; s.PeekASN1Tag(asn1.OCTET_STRING); n++ {
		var piece cryptobyte.String
		switch {
		case n == maxSegments:
			return fmt.Errorf("more than %d pieces", maxSegments)
		case !s.ReadASN1(&piece, asn1.OCTET_STRING):
			return errors.New("a truncated piece")
		case len(piece) == 0:
			return errors.New("an empty piece")
		case n == 0:
			p.Content = piece[:len(piece):len(piece)] // so that append copies
		default:
			p.Content = append(p.Content, piece...)
		}
	}
	if p.Content == nil {
		return errors.New("no content")
	}
	return nil
}

func (p *parser) certificates(s *cryptobyte.String) error {
	var all cryptobyte.String
	var present bool
	if !s.ReadOptionalASN1(&all, &present, contextConstructed[0]) {
		return errors.New("truncated")
	}
	for !all.Empty() {
		var one []byte
		if !readElement(&all, &one) {
			return errors.New("an element that is not a certificate")
		}
		if p.Certificates = append(p.Certificates, one); len(p.Certificates) > MaxCertificates {
			return fmt.Errorf("more than %d", MaxCertificates)
		}
	}
	if present && p.Certificates == nil {
		return errors.New("an empty set")
	}
	return nil
}

func (p *parser) signerInfo(s *cryptobyte.String) error {
	if !readVersion1(s) {
		return errors.New("not version 1: the signer must be named by issuer and serial number")
	}
	var id cryptobyte.String
	if !s.ReadASN1(&id, asn1.SEQUENCE) || !readElement(&id, &p.Issuer) {
		return errors.New("no issuer")
	}
	p.Serial = new(big.Int)
	if !id.ReadASN1Integer(p.Serial) || !id.Empty() || p.Serial.Sign() < 0 || p.Serial.BitLen() > 8*maxSerial {
		return errors.New("no serial number, or not one of a certificate")
	}
	var digest, signature []byte
	if !readElement(s, &digest) {
		return errors.New("no digest algorithm")
	}
	if !bytes.Equal(digest, p.digest) {
		return errors.New("a digest algorithm that signedData does not name")
	}
	if p.hash = p.digestHash(digest); p.hash == 0 {
		return errors.New("the digest algorithm is not SHA-256, SHA-384 or SHA-512")
	}
	var attributes cryptobyte.String
	if s.PeekASN1Tag(contextConstructed[0]) {
		if !s.ReadASN1Element(&attributes, contextConstructed[0]) {
			return errors.New("truncated signed attributes")
		}
		p.attributes = attributes
	}
	if !readElement(s, &signature) {
		return errors.New("no signature algorithm")
	}
	if !p.signs(signature) {
		return errors.New("the signature algorithm is not RSA with PKCS #1 v1.5 and the digest's hash")
	}
	if !s.ReadASN1((*cryptobyte.String)(&p.signature), asn1.OCTET_STRING) {
		return errors.New("no signature")
	}
	if s.PeekASN1Tag(contextConstructed[1]) {
		return errors.New("unsigned attributes")
	}
	if !s.Empty() {
		return errBytesLeft
	}
	if p.attributes == nil {
		return p.withoutAttributes()
	}
	return p.signedAttributes(digest, signature)
}

func (p *parser) withoutAttributes() error {
	switch {
	case !p.AttributesOptional:
		return errors.New("no signed attributes")
	case len(p.Content) > 0 && p.Content[0] == byte(asn1.SET):
		return errors.New("no signed attributes, and a content that looks like them")
	}
	return nil
}

// signedAttributes reads the attributes (RFC 5652, 11). Each type occurs once.
func (p *parser) signedAttributes(digest, signature []byte) error {
	s := cryptobyte.String(p.attributes)
	var set cryptobyte.String
	if !s.ReadASN1(&set, contextConstructed[0]) {
		return errors.New("truncated signed attributes")
	}
	var seen [maxAttributes][]byte
	contentType := false
	for n := 0; !set.Empty(); n++ {
		var attribute, kind, values cryptobyte.String
		if n == maxAttributes {
			return fmt.Errorf("more than %d signed attributes", maxAttributes)
		}
		if !set.ReadASN1(&attribute, asn1.SEQUENCE) || !attribute.ReadASN1(&kind, asn1.OBJECT_IDENTIFIER) ||
			!attribute.ReadASN1(&values, asn1.SET) || !attribute.Empty() {
			return errors.New("a malformed signed attribute")
		}
		for _, other := range seen[:n] {
			if bytes.Equal(other, kind) {
				return errors.New("a duplicate signed attribute")
			}
		}
		seen[n] = kind
		switch string(kind) {
		case oidContentType:
			if contentType = readOID(&values, oidData) && values.Empty(); !contentType {
				return errors.New("contentType is not id-data")
			}
		case oidMessageDigest:
			if !values.ReadASN1((*cryptobyte.String)(&p.messageDigest), asn1.OCTET_STRING) || !values.Empty() {
				return errors.New("messageDigest is not one octet string")
			}
		case oidAlgorithmProtect:
			if !protects(&values, digest, signature) {
				return errors.New("the algorithms of the message differ from the signed ones")
			}
		}
	}
	if !contentType || p.messageDigest == nil {
		return errors.New("signed attributes without contentType or messageDigest")
	}
	return nil
}
