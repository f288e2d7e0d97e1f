// SPDX-License-Identifier: Apache-2.0

// Package cmstest signs messages in the forms that clouds send, for tests and for emulators of
// clouds. It is not a general CMS library; package cms defines the grammar.
package cmstest

import (
	"crypto"
	"crypto/rand"
	"crypto/rsa"
	"crypto/x509"
	"encoding/asn1"
	"math/big"
	"time"

	"golang.org/x/crypto/cryptobyte"
	tag "golang.org/x/crypto/cryptobyte/asn1"
)

// Object identifiers that are used in messages.
var (
	Data            = asn1.ObjectIdentifier{1, 2, 840, 113549, 1, 7, 1}
	ContentType     = asn1.ObjectIdentifier{1, 2, 840, 113549, 1, 9, 3}
	MessageDigest   = asn1.ObjectIdentifier{1, 2, 840, 113549, 1, 9, 4}
	SigningTime     = asn1.ObjectIdentifier{1, 2, 840, 113549, 1, 9, 5}
	AlgorithmGuard  = asn1.ObjectIdentifier{1, 2, 840, 113549, 1, 9, 52}
	SHA256          = asn1.ObjectIdentifier{2, 16, 840, 1, 101, 3, 4, 2, 1}
	RSA             = asn1.ObjectIdentifier{1, 2, 840, 113549, 1, 1, 1}
	SHA256WithRSA   = asn1.ObjectIdentifier{1, 2, 840, 113549, 1, 1, 11}
	signedDataOID   = asn1.ObjectIdentifier{1, 2, 840, 113549, 1, 7, 2}
	contextExplicit = [...]tag.Tag{tag.Tag(0).Constructed().ContextSpecific(), tag.Tag(1).Constructed().ContextSpecific()}
)

// Attribute is one signed attribute: its type, and its one value in DER.
type Attribute struct {
	Type  asn1.ObjectIdentifier
	Value []byte
}

// Message is the input of [Message.Sign]. The zero value of every field except Content, Certificate
// and Key is usable.
type Message struct {
	Content     []byte
	Certificate *x509.Certificate // its issuer and serial number name the signer
	Key         crypto.Signer
	// Indefinite gives the outermost structures end markers instead of lengths.
	Indefinite bool
	// Pieces is the length of the pieces of an indefinite content; 0 means one piece.
	Pieces int
	// Certificates are included in the message (DER).
	Certificates [][]byte
	// Hash is SHA-256 by default. Digest and Signature are the algorithm identifiers, by default
	// SHA256 and RSA.
	Hash              crypto.Hash
	Digest, Signature asn1.ObjectIdentifier
	// NoParameters omits the NULL parameters of the algorithms.
	NoParameters bool
	// Attributes are signed in this order. Nil means that the signature is over the content.
	Attributes []Attribute
}

// AWS signs in the form of AWS's instance identity document (rsa2048): indefinite lengths, no
// certificates, four signed attributes.
func AWS(content []byte, signer *x509.Certificate, key crypto.Signer, at time.Time) ([]byte, error) {
	m := Message{Content: content, Certificate: signer, Key: key, Indefinite: true, Signature: SHA256WithRSA}
	m.Attributes = []Attribute{
		{ContentType, oid(Data)},
		{SigningTime, utcTime(at)},
		{AlgorithmGuard, m.Guard()},
		m.DigestAttribute(),
	}
	return m.Sign()
}

// Azure signs in the form of Azure's attested data: DER, with the signer's certificate, a signature
// algorithm as the digest algorithm, no signed attributes.
func Azure(content []byte, signer *x509.Certificate, key crypto.Signer, more ...[]byte) ([]byte, error) {
	return Message{
		Content: content, Certificate: signer, Key: key, Digest: SHA256WithRSA, Signature: RSA,
		Certificates: append([][]byte{signer.Raw}, more...),
	}.Sign()
}

// DigestAttribute returns the messageDigest of the content.
func (m Message) DigestAttribute() Attribute {
	h := m.hash().New()
	h.Write(m.Content)
	return Attribute{MessageDigest, build(func(b *cryptobyte.Builder) { b.AddASN1OctetString(h.Sum(nil)) })}
}

// TypeAttribute returns the contentType id-data.
func (m Message) TypeAttribute() Attribute { return Attribute{ContentType, oid(Data)} }

// Guard returns the value of a CMSAlgorithmProtection of the message's algorithms (RFC 6211).
func (m Message) Guard() []byte {
	return build(func(b *cryptobyte.Builder) {
		b.AddASN1(tag.SEQUENCE, func(b *cryptobyte.Builder) {
			m.algorithm(b, tag.SEQUENCE, m.Digest, SHA256)
			m.algorithm(b, contextExplicit[1], m.Signature, RSA)
		})
	})
}

// Sign returns the signed message.
func (m Message) Sign() ([]byte, error) {
	signed := m.Content
	if m.Attributes != nil {
		signed = build(func(b *cryptobyte.Builder) { m.attributes(b, tag.SET) })
	}
	h := m.hash().New()
	h.Write(signed)
	signature, err := m.Key.Sign(rand.Reader, h.Sum(nil), m.hash())
	if err != nil {
		return nil, err
	}
	return build(func(b *cryptobyte.Builder) {
		m.frame(b, tag.SEQUENCE, func(b *cryptobyte.Builder) {
			b.AddASN1ObjectIdentifier(signedDataOID)
			m.frame(b, contextExplicit[0], func(b *cryptobyte.Builder) {
				m.frame(b, tag.SEQUENCE, func(b *cryptobyte.Builder) { m.signedData(b, signature) })
			})
		})
	}), nil
}

func (m Message) hash() crypto.Hash {
	if m.Hash == 0 {
		return crypto.SHA256
	}
	return m.Hash
}

// frame writes a structure that has no length if the message is indefinite.
func (m Message) frame(b *cryptobyte.Builder, t tag.Tag, body func(*cryptobyte.Builder)) {
	if !m.Indefinite {
		b.AddASN1(t, body)
		return
	}
	b.AddBytes([]byte{byte(t), 0x80})
	body(b)
	b.AddBytes([]byte{0, 0})
}

func (m Message) signedData(b *cryptobyte.Builder, signature []byte) {
	b.AddASN1Int64(1)
	b.AddASN1(tag.SET, func(b *cryptobyte.Builder) { m.algorithm(b, tag.SEQUENCE, m.Digest, SHA256) })
	m.frame(b, tag.SEQUENCE, func(b *cryptobyte.Builder) {
		b.AddASN1ObjectIdentifier(Data)
		m.frame(b, contextExplicit[0], m.content)
	})
	if m.Certificates != nil {
		b.AddASN1(contextExplicit[0], func(b *cryptobyte.Builder) {
			for _, c := range m.Certificates {
				b.AddBytes(c)
			}
		})
	}
	b.AddASN1(tag.SET, func(b *cryptobyte.Builder) {
		b.AddASN1(tag.SEQUENCE, func(b *cryptobyte.Builder) {
			b.AddASN1Int64(1)
			b.AddASN1(tag.SEQUENCE, func(b *cryptobyte.Builder) {
				b.AddBytes(m.Certificate.RawIssuer)
				b.AddASN1BigInt(new(big.Int).Set(m.Certificate.SerialNumber))
			})
			m.algorithm(b, tag.SEQUENCE, m.Digest, SHA256)
			if m.Attributes != nil {
				m.attributes(b, contextExplicit[0])
			}
			m.algorithm(b, tag.SEQUENCE, m.Signature, RSA)
			b.AddASN1OctetString(signature)
		})
	})
}

func (m Message) content(b *cryptobyte.Builder) {
	if !m.Indefinite {
		b.AddASN1OctetString(m.Content)
		return
	}
	m.frame(b, tag.OCTET_STRING.Constructed(), func(b *cryptobyte.Builder) {
		for rest := m.Content; len(rest) > 0; {
			n := len(rest)
			if m.Pieces > 0 {
				n = min(n, m.Pieces)
			}
			b.AddASN1OctetString(rest[:n])
			rest = rest[n:]
		}
	})
}

func (m Message) attributes(b *cryptobyte.Builder, t tag.Tag) {
	b.AddASN1(t, func(b *cryptobyte.Builder) {
		for _, a := range m.Attributes {
			b.AddASN1(tag.SEQUENCE, func(b *cryptobyte.Builder) {
				b.AddASN1ObjectIdentifier(a.Type)
				b.AddASN1(tag.SET, func(b *cryptobyte.Builder) { b.AddBytes(a.Value) })
			})
		}
	})
}

func (m Message) algorithm(b *cryptobyte.Builder, t tag.Tag, id, otherwise asn1.ObjectIdentifier) {
	if id == nil {
		id = otherwise
	}
	b.AddASN1(t, func(b *cryptobyte.Builder) {
		b.AddASN1ObjectIdentifier(id)
		if !m.NoParameters {
			b.AddASN1NULL()
		}
	})
}

func oid(id asn1.ObjectIdentifier) []byte {
	return build(func(b *cryptobyte.Builder) { b.AddASN1ObjectIdentifier(id) })
}

func utcTime(at time.Time) []byte {
	return build(func(b *cryptobyte.Builder) { b.AddASN1UTCTime(at.UTC()) })
}

// build panics on a value that cannot be encoded, which is an error in a test.
func build(f func(*cryptobyte.Builder)) []byte {
	var b cryptobyte.Builder
	f(&b)
	return b.BytesOrPanic()
}

// Certificate returns a self-signed certificate like those that AWS uses in each region.
func Certificate(template *x509.Certificate, key *rsa.PrivateKey) (*x509.Certificate, error) {
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		return nil, err
	}
	return x509.ParseCertificate(der)
}
