// SPDX-License-Identifier: Apache-2.0

package tpm2

import (
	"bytes"
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"encoding/asn1"
	"encoding/binary"
	"errors"
	"math/big"
	"strings"
	"testing"
)

// joined concatenates numbers of 16 and 32 bits in big-endian order, and bytes.
func joined(t testing.TB, parts ...any) []byte {
	t.Helper()
	var b bytes.Buffer
	for _, p := range parts {
		if err := binary.Write(&b, binary.BigEndian, p); err != nil {
			t.Fatal(err)
		}
	}
	return b.Bytes()
}

// eccPublic is the TPMT_PUBLIC of an ECDSA key on P-256.
type eccPublic struct {
	typ, nameAlg, symmetric, scheme, hash, curve, kdf uint16
	x, y                                              []byte
}

func newECCPublic(t testing.TB) eccPublic {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	point, err := key.PublicKey.Bytes()
	if err != nil {
		t.Fatal(err)
	}
	return eccPublic{algECC, algSHA256, algNull, algECDSA, algSHA256, curveP256, algNull, point[1:33], point[33:]}
}

func (p eccPublic) bytes(t testing.TB) []byte {
	t.Helper()
	return joined(t, p.typ, p.nameAlg, uint32(akMust), sized(), p.symmetric, p.scheme, p.hash, p.curve, p.kdf, sized(p.x),
		sized(p.y))
}

// rsaKey is the TPMT_PUBLIC of an RSA key of 2048 bits with a policy and AES.
type rsaKey struct {
	symmetric, keyBits, mode, scheme, bits uint16
	exponent                               uint32
	modulus                                []byte
}

func newRSAKey() rsaKey {
	return rsaKey{algAES, 128, algCFB, algNull, 2048, 0, bytes.Repeat([]byte{0xC5}, 256)}
}

func (p rsaKey) bytes(t testing.TB) []byte {
	t.Helper()
	return joined(t, uint16(algRSA), uint16(algSHA256), uint32(ekMust), sized(make([]byte, 32)), p.symmetric, p.keyBits,
		p.mode, p.scheme, p.bits, p.exponent, sized(p.modulus))
}

func quoted(t testing.TB) []byte {
	t.Helper()
	return joined(t, uint32(generated), uint16(attestQuote), sized([]byte("signer")), sized([]byte("extra")), uint64(1),
		uint32(2), uint32(3), uint8(1), uint64(4), uint32(1), uint16(BankSHA256), sized([]byte{1, 0, 0})[1:],
		sized(make([]byte, 32)))
}

func TestParse_EveryPrefixEndsTooEarly(t *testing.T) {
	public := func(b []byte) error { _, err := parsePublic(b); return err }
	attestation := func(b []byte) error { _, err := parseAttestation(b); return err }
	signature := func(b []byte) error { _, err := parseSignature(b); return err }
	for name, c := range map[string]struct {
		parse func([]byte) error
		valid []byte
	}{
		"ECC key":         {public, newECCPublic(t).bytes(t)},
		"RSA key":         {public, newRSAKey().bytes(t)},
		"quote":           {attestation, quoted(t)},
		"ECDSA signature": {signature, joined(t, uint16(algECDSA), uint16(algSHA256), sized([]byte{1}), sized([]byte{2}))},
		"RSA signature":   {signature, joined(t, uint16(algRSAPSS), uint16(algSHA256), sized([]byte{1, 2}))},
	} {
		if err := c.parse(c.valid); err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		for n := range c.valid {
			if err := c.parse(c.valid[:n]); !errors.Is(err, errShort) {
				t.Errorf("%s, %d of %d bytes: %v", name, n, len(c.valid), err)
			}
		}
		if err := c.parse(append(bytes.Clone(c.valid), 0)); !errors.Is(err, errTrailing) {
			t.Errorf("%s with one byte more: %v", name, err)
		}
	}
}

func TestParse_Sizes(t *testing.T) {
	for name, c := range map[string]struct {
		parse func([]byte) error
		most  int
	}{
		"public":      {func(b []byte) error { _, err := parsePublic(b); return err }, 1024},
		"attestation": {func(b []byte) error { _, err := parseAttestation(b); return err }, 2048},
		"signature":   {func(b []byte) error { _, err := parseSignature(b); return err }, 1024},
	} {
		for n, want := range map[int]bool{c.most: false, c.most + 1: true} {
			if err := c.parse(make([]byte, n)); err == nil || strings.Contains(err.Error(), "bytes; at most") != want {
				t.Errorf("%s of %d bytes: %v", name, n, err)
			}
		}
	}
}

func TestParsePublic_NamesTheFieldThatIsNotAccepted(t *testing.T) {
	type change struct {
		ecc  func(*eccPublic)
		rsa  func(*rsaKey)
		want string // "": it is accepted
	}
	for name, c := range map[string]change{
		"a hash":                    {ecc: func(p *eccPublic) { p.typ = 8 }, want: "object type 0x0008 is neither"},
		"SHA-1":                     {ecc: func(p *eccPublic) { p.nameAlg = 4 }, want: "name algorithm: hash"},
		"ECDAA":                     {ecc: func(p *eccPublic) { p.scheme = 0x1A }, want: "scheme 0x001a is not accepted"},
		"RSASSA":                    {ecc: func(p *eccPublic) { p.scheme = algRSASSA }, want: "RSA scheme on an ECC key"},
		"P-521":                     {ecc: func(p *eccPublic) { p.curve = 5 }, want: "curve 0x0005; P-256"},
		"a KDF":                     {ecc: func(p *eccPublic) { p.kdf = 0x20 }, want: "key derivation scheme 0x0020"},
		"a long x":                  {ecc: func(p *eccPublic) { p.x = append([]byte{0}, p.x...) }, want: "coordinate longer"},
		"a long y":                  {ecc: func(p *eccPublic) { p.y = append([]byte{0}, p.y...) }, want: "coordinate longer"},
		"another point":             {ecc: func(p *eccPublic) { p.y = make([]byte, 32) }, want: "not on its curve"},
		"another cipher":            {rsa: func(p *rsaKey) { p.symmetric = 0x26 }, want: "symmetric algorithm 0x0026"},
		"AES-192":                   {rsa: func(p *rsaKey) { p.keyBits = 192 }, want: "192 bits"},
		"AES-256":                   {rsa: func(p *rsaKey) { p.keyBits = 256 }},
		"another mode":              {rsa: func(p *rsaKey) { p.mode = 0x42 }, want: "mode 0x0042"},
		"1024 bits":                 {rsa: func(p *rsaKey) { p.bits = 1024 }, want: "RSA key of 1024 bits"},
		"exponent 65537":            {rsa: func(p *rsaKey) { p.exponent = 65537 }},
		"exponent 65538":            {rsa: func(p *rsaKey) { p.exponent = 65538 }, want: "RSA exponent 65538"},
		"exponent 3":                {rsa: func(p *rsaKey) { p.exponent = 3 }, want: "RSA exponent 3"},
		"a modulus that is even":    {rsa: func(p *rsaKey) { p.modulus[255] = 0xC4 }, want: "not an odd number"},
		"a modulus of fewer bits":   {rsa: func(p *rsaKey) { p.modulus[0] = 0x7F }, want: "not an odd number"},
		"the high bit of a modulus": {rsa: func(p *rsaKey) { p.modulus[0] = 0x80 }},
		"a shorter modulus":         {rsa: func(p *rsaKey) { p.modulus = p.modulus[1:] }, want: "not an odd number"},
	} {
		t.Run(name, func(t *testing.T) {
			var raw []byte
			if c.ecc != nil {
				p := newECCPublic(t)
				c.ecc(&p)
				raw = p.bytes(t)
			} else {
				p := newRSAKey()
				c.rsa(&p)
				raw = p.bytes(t)
			}
			_, err := parsePublic(raw)
			if c.want == "" && err != nil || c.want != "" && (err == nil || !strings.Contains(err.Error(), c.want)) {
				t.Errorf("%v, want %q", err, c.want)
			}
		})
	}
}

func TestDescribe(t *testing.T) {
	for want, all := range map[string][]selection{
		"no bank":                      nil,
		"sha256:0,7,11":                {{BankSHA256, []byte{0x81, 0x08, 0}}},
		"sha256:none":                  {{BankSHA256, []byte{0, 0, 0}}},
		"sha256:16,23 and sha384:none": {{BankSHA256, []byte{0, 0, 0x81}}, {BankSHA384, nil}},
		"sha384:8 and sha256:1 and sha256:24": {{BankSHA384, []byte{0, 1}}, {BankSHA256, []byte{2}},
			{BankSHA256, []byte{0, 0, 0, 1}}},
	} {
		if got := describe(all...); got != want {
			t.Errorf("%q, want %q", got, want)
		}
	}
}

func TestDERSignature(t *testing.T) {
	for _, n := range [][]byte{{0}, {0, 0}, {1}, {0, 1}, {0x7F}, {0x80}, {0, 0x80}, {0, 0, 0xFF, 0}, {1, 0, 0, 0}} {
		want, err := asn1.Marshal([]*big.Int{new(big.Int).SetBytes(n), big.NewInt(5)})
		if err != nil {
			t.Fatal(err)
		}
		if got, err := derSignature(n, []byte{5}, 4); err != nil || !bytes.Equal(got, want) {
			t.Errorf("%x: %x, %v; want %x", n, got, err, want)
		}
	}
	for _, c := range [][2][]byte{{nil, {1}}, {{1}, nil}, {make([]byte, 5), {1}}, {{1}, make([]byte, 5)}} {
		if got, err := derSignature(c[0], c[1], 4); err == nil || got != nil {
			t.Errorf("%x: %x", c, got)
		}
	}
}

func TestHashByAlg(t *testing.T) {
	for alg, want := range map[uint16]crypto.Hash{0x0B: crypto.SHA256, 0x0C: crypto.SHA384, 0x0D: crypto.SHA512} {
		if got, err := hashByAlg(alg); got != want || err != nil {
			t.Errorf("0x%04x: %v, %v", alg, got, err)
		}
	}
	for _, alg := range []uint16{0, 4, 0x0A, 0x0E, 0x10, 0x27} {
		if got, err := hashByAlg(alg); got != 0 || err == nil {
			t.Errorf("0x%04x: %v, %v", alg, got, err)
		}
	}
}
