// SPDX-License-Identifier: Apache-2.0

package tpm2

import (
	"bytes"
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/rsa"
	"crypto/sha256"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/asn1"
	"encoding/binary"
	"errors"
	"fmt"
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

// quoted is a TPMS_ATTEST that selects the same bank so many times.
func quoted(t testing.TB, banks int) []byte {
	t.Helper()
	selection := joined(t, uint16(BankSHA256), sized([]byte{1, 0, 0})[1:])
	return joined(t, uint32(generated), uint16(attestQuote), sized([]byte("signer")), sized([]byte("extra")), uint64(1),
		uint32(2), uint32(3), uint8(1), uint64(4), uint32(banks), bytes.Repeat(selection, banks), sized(make([]byte, 32)))
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
		"quote":           {attestation, quoted(t, 1)},
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

// The end is reported before a field that is not accepted: such a field may be there only because a
// part was lost.
func TestParse_ReportsAnEarlyEndBeforeABadField(t *testing.T) {
	hash := newECCPublic(t)
	hash.typ = 8
	for name, c := range map[string]struct {
		parse func([]byte) error
		raw   []byte
	}{
		"a public area of zeros before its policy ends": {func(b []byte) error { _, err := parsePublic(b); return err },
			make([]byte, 9)},
		"another type of object before its scheme ends": {func(b []byte) error { _, err := parsePublic(b); return err },
			hash.bytes(t)[:15]},
		"a signature of zeros before its hash ends": {func(b []byte) error { _, err := parseSignature(b); return err },
			make([]byte, 3)},
	} {
		for n := range len(c.raw) + 1 {
			if err := c.parse(c.raw[:n]); !errors.Is(err, errShort) {
				t.Errorf("%s, %d bytes: %v", name, n, err)
			}
		}
	}
}

// What follows a size that is too large must not be read as the next field.
func TestParse_RejectsASizeBeyondTheEnd(t *testing.T) {
	key := newECCPublic(t)
	for name, c := range map[string]struct {
		parse           func([]byte) error
		valid           []byte
		field, tooLarge []byte
	}{
		"the qualified signer": {func(b []byte) error { _, err := parseAttestation(b); return err }, quoted(t, 1),
			sized([]byte("signer")), []byte{0xFF, 0xFF}},
		"the extra data": {func(b []byte) error { _, err := parseAttestation(b); return err }, quoted(t, 1),
			sized([]byte("extra")), []byte{0xFF, 0xFF}},
		"the selected PCRs": {func(b []byte) error { _, err := parseAttestation(b); return err }, quoted(t, 1),
			[]byte{0, algSHA256, 3, 1, 0, 0}, []byte{0, algSHA256, 0xFF}},
		"a coordinate": {func(b []byte) error { _, err := parsePublic(b); return err }, key.bytes(t),
			sized(key.x), []byte{0xFF, 0xFF}},
		"a number of a signature": {func(b []byte) error { _, err := parseSignature(b); return err },
			joined(t, uint16(algECDSA), uint16(algSHA256), sized([]byte{1}), sized([]byte{2})),
			sized([]byte{1}), []byte{0xFF, 0xFF}},
	} {
		t.Run(name, func(t *testing.T) {
			if n := bytes.Count(c.valid, c.field); n != 1 {
				t.Fatalf("the field is there %d times", n)
			}
			if err := c.parse(c.valid); err != nil {
				t.Fatalf("the valid case: %v", err)
			}
			if err := c.parse(bytes.Replace(c.valid, c.field, c.tooLarge, 1)); !errors.Is(err, errShort) {
				t.Error(err)
			}
		})
	}
}

func TestParseAttestation_AcceptsAtMost16Banks(t *testing.T) {
	if a, err := parseAttestation(quoted(t, 16)); err != nil || len(a.selections) != 16 {
		t.Errorf("16 banks: %+v, %v", a, err)
	}
	_, err := parseAttestation(quoted(t, 17))
	if err == nil || !strings.Contains(err.Error(), "selections of 17 banks; at most 16") {
		t.Errorf("17 banks: %v", err)
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

// The AK's own scheme decides, although the key could sign under each of them.
func TestVerify_AcceptsOnlyTheSchemeOfTheAK(t *testing.T) {
	key, err := rsa.GenerateKey(rand.Reader, 2048)
	if err != nil {
		t.Fatal(err)
	}
	message := []byte("quote")
	digest := sha256.Sum256(message)
	ssa, err := rsa.SignPKCS1v15(nil, key, crypto.SHA256, digest[:])
	if err != nil {
		t.Fatal(err)
	}
	pss, err := rsa.SignPSS(rand.Reader, key, crypto.SHA256, digest[:], nil)
	if err != nil {
		t.Fatal(err)
	}
	for _, own := range []uint16{algRSASSA, algRSAPSS} {
		ak := &AK{public: public{scheme: own, schemeHash: algSHA256, key: &key.PublicKey}}
		for scheme, sig := range map[uint16][]byte{algRSASSA: ssa, algRSAPSS: pss} {
			err := ak.verify(message, &signature{scheme: scheme, hash: algSHA256, rsa: sig})
			want := fmt.Sprintf("scheme 0x%04x with hash 0x000b; the AK's are 0x%04x and 0x000b", scheme, own)
			if scheme == own && err != nil || scheme != own && (err == nil || err.Error() != want) {
				t.Errorf("AK with 0x%04x, signature with 0x%04x: %v", own, scheme, err)
			}
		}
	}
}

func TestVerify_NamesNumbersOfTheWrongSize(t *testing.T) {
	ak, err := ParseAK(newECCPublic(t).bytes(t))
	if err != nil {
		t.Fatal(err)
	}
	for n, want := range map[int]string{32: "the signature is not the AK's", 33: "ECDSA numbers of the wrong size"} {
		one := append(make([]byte, n-1), 1)
		err := ak.verify([]byte("quote"), &signature{scheme: algECDSA, hash: algSHA256, r: one, s: one})
		if err == nil || err.Error() != want {
			t.Errorf("%d bytes: %v", n, err)
		}
	}
}

func TestDeviations_CorrectACopyOfTheCertificate(t *testing.T) {
	cert := x509.Certificate{Extensions: []pkix.Extension{{Id: oidBasicConstraints, Value: []byte{0x30, 0}}}}
	corrected := cert
	if !deviations[0].correct(&corrected) || !corrected.Extensions[0].Critical {
		t.Error("basicConstraints that are not critical do not count as a deviation")
	}
	if cert.Extensions[0].Critical {
		t.Error("the certificate itself was changed")
	}
	if again := corrected; deviations[0].correct(&again) {
		t.Error("the corrected form counts as a deviation")
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
