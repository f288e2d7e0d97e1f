// SPDX-License-Identifier: Apache-2.0

package gcpidentity

import (
	"bytes"
	"context"
	"crypto"
	"crypto/rsa"
	"encoding/base64"
	"errors"
	"fmt"
	"math/big"
	"slices"

	"github.com/go-jose/go-jose/v4"
	"github.com/go-jose/go-jose/v4/json"

	"github.com/mcs-attest/mcs-attest/pkg/anchors"
	"github.com/mcs-attest/mcs-attest/pkg/jsonspan"
	"github.com/mcs-attest/mcs-attest/pkg/reason"
)

// Limits of a key set. Google's has two to four keys, in 2 kB.
const (
	MaxKeySet = 64 << 10
	maxKeys   = 32
)

// KeySet maps ids to keys. It is read-only.
type KeySet map[string]*rsa.PublicKey

// entry is one member of "keys" and its position.
type entry struct {
	jwk
	offset int64
	key    *rsa.PublicKey
	fault  error // set if the key cannot sign a token
}

type jwk struct {
	Type      string          `json:"kty"`
	ID        string          `json:"kid"`
	Algorithm string          `json:"alg"`
	Use       string          `json:"use"`
	N         string          `json:"n"`
	E         string          `json:"e"`
	D         json.RawMessage `json:"d"`
	K         json.RawMessage `json:"k"`
}

// errPrivate reports a set with a private key, which must never be published.
var errPrivate = errors.New("a private or symmetric key")

// ParseKeySet parses a JWK set (RFC 7517, 5) as Google publishes it. As the RFC requires, it
// ignores a key that is not for RS256 signatures, or that is not RSA of 2048 to 4096 bits with
// exponent 65537. It rejects the set if it exceeds the limits, contains a private key, has a kid
// twice, or has no usable key.
func ParseKeySet(raw []byte) (KeySet, error) {
	entries, err := parseSet(raw)
	if err != nil {
		return nil, err
	}
	set := KeySet{}
	for _, e := range entries {
		switch {
		case errors.Is(e.fault, errPrivate):
			return nil, e.fault
		case e.fault != nil:
			continue
		case set[e.ID] != nil:
			return nil, fmt.Errorf("kid %q occurs twice", e.ID)
		}
		set[e.ID] = e.key
	}
	if len(set) == 0 {
		return nil, errors.New("it has no key that signs identity tokens")
	}
	return set, nil
}

// Key returns the key with that id.
func (s KeySet) Key(_ context.Context, kid string) (crypto.PublicKey, error) {
	if k, ok := s[kid]; ok {
		return k, nil
	}
	return nil, reason.Deny(reason.DocumentUntrusted, "key %.128q is not one of Google's %d", kid, len(s))
}

// parseSet parses {"keys":[...]}.
func parseSet(raw []byte) ([]entry, error) {
	if len(raw) > MaxKeySet {
		return nil, fmt.Errorf("%d bytes, want at most %d", len(raw), MaxKeySet)
	}
	// This decoder accepts one spelling of a name and rejects duplicates. Package jsonspan has the positions.
	var members map[string]json.RawMessage
	if err := json.Unmarshal(raw, &members); err != nil {
		return nil, err
	}
	if _, ok := members["keys"]; !ok {
		return nil, errors.New(`no member "keys"`)
	}
	set, _ := jsonspan.Parse(raw)
	keys, err := set.Get("keys") // an error if a name differs only in case
	if err != nil {
		return nil, err
	}
	if !keys.Is('[') {
		return nil, errors.New(`"keys" is not an array`)
	}
	var entries []entry
	for one := range keys.Elements() {
		if len(entries) == maxKeys {
			return nil, fmt.Errorf("more than %d keys", maxKeys)
		}
		e := entry{offset: int64(one.Start)}
		if e.fault = json.Unmarshal(one.Raw(), &e.jwk); e.fault == nil {
			e.key, e.fault = e.public()
		}
		entries = append(entries, e)
	}
	return entries, nil
}

// public returns the key of a JWK that may sign identity tokens.
func (k *jwk) public() (*rsa.PublicKey, error) {
	switch {
	case k.D != nil || k.K != nil:
		return nil, errPrivate
	case k.Type != "RSA":
		return nil, fmt.Errorf("kty %.20q, want RSA", k.Type)
	case k.Use != "" && k.Use != "sig":
		return nil, fmt.Errorf("use %.20q, want sig", k.Use)
	case k.Algorithm != "" && k.Algorithm != string(jose.RS256):
		return nil, fmt.Errorf("alg %.20q, want RS256", k.Algorithm)
	case !printable(k.ID):
		return nil, fmt.Errorf("kid %.20q", k.ID)
	case k.E != "AQAB":
		return nil, fmt.Errorf("e %.20q, want AQAB", k.E)
	}
	n, err := base64.RawURLEncoding.Strict().DecodeString(k.N)
	if err != nil {
		return nil, fmt.Errorf("n: %w", err)
	}
	key := &rsa.PublicKey{N: new(big.Int).SetBytes(n), E: 65537}
	if bits := key.N.BitLen(); bits < minRSABits || bits > maxRSABits || key.N.Bit(0) == 0 {
		return nil, fmt.Errorf("RSA of %d bits, want an odd modulus of %d to %d", bits, minRSABits, maxRSABits)
	}
	return key, nil
}

// StaticKeys are keys from an administrator's files, for verifiers that cannot reach Google. They
// are read-only.
type StaticKeys struct{ all []StaticKey }

// StaticKey is one key with its source.
type StaticKey struct {
	ID   string
	Key  *rsa.PublicKey
	File string
	Line int
}

// ParseKeys parses an administrator's file: a JWK set as Google publishes it, to which a member
// "provenance" may have been added. It is stricter than [ParseKeySet]: every key must be able to
// sign identity tokens. The error is an *anchors.Error.
func ParseKeys(file string, raw []byte) (*StaticKeys, error) {
	fault := func(line int, what, want string) error {
		return &anchors.Error{File: file, Line: line, What: what, Want: want}
	}
	const copyAgain = "the answer of https://www.googleapis.com/oauth2/v3/certs, unchanged"
	entries, err := parseSet(raw)
	if err != nil {
		var syntax *json.SyntaxError
		line := 0
		if errors.As(err, &syntax) {
			line = lineOf(raw, syntax.Offset)
		}
		return nil, fault(line, "not a set of keys: "+err.Error(), copyAgain)
	}
	if len(entries) == 0 {
		return nil, fault(0, "no key in it", copyAgain)
	}
	s := &StaticKeys{}
	for _, e := range entries {
		line := lineOf(raw, e.offset)
		switch {
		case errors.Is(e.fault, errPrivate):
			return nil, fault(line, "a private or symmetric key",
				"only Google's public keys are allowed; remove it, and replace it if others could read this file")
		case e.fault != nil:
			return nil, fault(line, "not a key that signs identity tokens: "+e.fault.Error(), copyAgain)
		case slices.ContainsFunc(s.all, func(k StaticKey) bool { return k.ID == e.ID }):
			return nil, fault(line, fmt.Sprintf("kid %q occurs twice", e.ID), copyAgain)
		}
		s.all = append(s.all, StaticKey{ID: e.ID, Key: e.key, File: file, Line: line})
	}
	return s, nil
}

// JoinKeys returns the keys of several files. One kid with two keys is an *anchors.Error; the same
// key in two files counts once.
func JoinKeys(sets ...*StaticKeys) (*StaticKeys, error) {
	joined := &StaticKeys{}
	for _, s := range sets {
		for _, k := range s.All() {
			i := slices.IndexFunc(joined.all, func(o StaticKey) bool { return o.ID == k.ID })
			switch {
			case i < 0:
				joined.all = append(joined.all, k)
			case !joined.all[i].Key.Equal(k.Key):
				o := joined.all[i]
				return nil, &anchors.Error{File: k.File, Line: k.Line, Want: "keep the one that Google publishes",
					What: fmt.Sprintf("the kid %q already belongs to another key in %s:%d", k.ID, o.File, o.Line)}
			}
		}
	}
	return joined, nil
}

// All returns the keys in the order of the file. For a nil set it returns none.
func (s *StaticKeys) All() []StaticKey {
	if s == nil {
		return nil
	}
	return slices.Clone(s.all)
}

// Key returns the key with that id. A missing key may be one that Google started to use later: the
// error is ProviderUnavailable, until an administrator adds the key.
func (s *StaticKeys) Key(_ context.Context, kid string) (crypto.PublicKey, error) {
	all := []StaticKey(nil)
	if s != nil {
		all = s.all
	}
	for i := range all {
		if all[i].ID == kid {
			return all[i].Key, nil
		}
	}
	return nil, reason.Deny(reason.ProviderUnavailable, "key %.128q is not one of the %d in google-keys/: store Google's "+
		"new key set there, the answer of https://www.googleapis.com/oauth2/v3/certs", kid, len(all))
}

func lineOf(raw []byte, offset int64) int {
	return 1 + bytes.Count(raw[:min(offset, int64(len(raw)))], []byte("\n"))
}
