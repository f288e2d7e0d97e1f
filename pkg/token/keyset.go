// SPDX-License-Identifier: Apache-2.0

package token

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"time"

	"github.com/go-jose/go-jose/v4"

	"github.com/mcs-attest/mcs-attest/pkg/secret"
)

// Key is one signing key. It never prints its private part.
type Key struct {
	ID string // RFC 7638 thumbprint, base64url
	// PublishedAt is when the key was created and published to all replicas.
	PublishedAt time.Time
	// NotBefore is when replicas begin to sign with the key, or earlier if they have no other key
	// in use. They verify with it as soon as they have it.
	NotBefore time.Time
	// NotAfter is when its successor replaces it; zero if there is no successor. The key continues
	// to verify for the longest lifetime of a token plus the leeway.
	NotAfter time.Time

	private *ecdsa.PrivateKey
}

// KeySet is the set of signing keys that all replicas share: the current key, and for a time the
// previous or the next key. It is immutable: Rotate and Prune return a new set. The zero value
// verifies and signs nothing.
type KeySet struct{ Keys []Key }

// ErrNoKey means that the set has no key.
var ErrNoKey = errors.New("no token key")

// ErrRotating means that the next key has already been published.
var ErrRotating = errors.New("the next token key is already published and not yet in use")

// Current returns the key that signs at now: the newest key in use. If no key is in use yet,
// because the clock of the replica that created them is ahead, it returns the earliest.
func (s KeySet) Current(now time.Time) (Key, bool) {
	k, err := s.current(now)
	return k, err == nil
}

func (s KeySet) current(now time.Time) (Key, error) {
	if len(s.Keys) == 0 {
		return Key{}, ErrNoKey
	}
	best := s.Keys[0]
	for _, k := range s.Keys[1:] {
		inUse, ahead := !k.NotBefore.After(now), best.NotBefore.After(now)
		if inUse && (ahead || !k.NotBefore.Before(best.NotBefore)) || ahead && k.NotBefore.Before(best.NotBefore) {
			best = k
		}
	}
	return best, nil
}

// find returns the key with that id unless it has expired, even if Prune was not called.
func (s KeySet) find(id string, now time.Time) (Key, bool) {
	for _, k := range s.Keys {
		if k.ID == id {
			return k, !k.expired(now, MaxLifetime+Leeway)
		}
	}
	return Key{}, false
}

// tooEarly reports whether key signed a token, issued at that time, before its NotBefore
// although another key was in use.
func (s KeySet) tooEarly(key Key, issued time.Time) bool {
	return issued.Before(key.NotBefore.Add(-Leeway)) &&
		slices.ContainsFunc(s.Keys, func(k Key) bool { return !k.NotBefore.After(issued) })
}

func (k Key) expired(now time.Time, keep time.Duration) bool {
	return !k.NotAfter.IsZero() && now.After(k.NotAfter.Add(keep))
}

// Rotate adds a key that signs from now+publish on and retires the current key at that moment.
// Publish is the time that every replica has to receive the new key (10 minutes); it is 0 for an
// empty set. It returns ErrRotating if an earlier rotation is not complete. It also rejects a rotation
// after which [ParseKeySet] would not read the set.
//
// To replace a stolen key, start with an empty set. All tokens of the old set then become invalid,
// which interrupts provisioning for at most the lifetime of a token.
func (s KeySet) Rotate(now time.Time, rand io.Reader, publish time.Duration) (KeySet, error) {
	for _, k := range s.Keys {
		if k.NotBefore.After(now) {
			return s, fmt.Errorf("%w: %s from %s on", ErrRotating, k.ID, k.NotBefore.UTC().Format(time.RFC3339))
		}
	}
	if len(s.Keys) >= maxKeys {
		return s, fmt.Errorf("the set has %d token keys, which is the maximum: old ones are deleted some time after their "+
			"replacement", len(s.Keys))
	}
	next, err := newKey(rand, now, now.Add(publish))
	if err != nil {
		return s, err
	}
	keys := slices.Clone(s.Keys)
	for i := range keys {
		if keys[i].NotAfter.IsZero() || keys[i].NotAfter.After(next.NotBefore) {
			keys[i].NotAfter = next.NotBefore
		}
	}
	return KeySet{append(keys, next)}, nil
}

// newKey creates a key. Times have whole seconds, so that storing them does not change them.
func newKey(rand io.Reader, published, from time.Time) (Key, error) {
	private, err := ecdsa.GenerateKey(elliptic.P256(), rand)
	if err != nil {
		return Key{}, fmt.Errorf("create token key: %w", err)
	}
	id, err := thumbprint(private)
	if err != nil {
		return Key{}, err
	}
	return Key{ID: id, PublishedAt: published.UTC().Truncate(time.Second), NotBefore: from.UTC().Truncate(time.Second),
		private: private}, nil
}

// Prune removes the keys that were retired more than keep ago. Callers use the longest lifetime of
// a token plus the leeway.
func (s KeySet) Prune(now time.Time, keep time.Duration) KeySet {
	return KeySet{slices.DeleteFunc(slices.Clone(s.Keys), func(k Key) bool { return k.expired(now, keep) })}
}

func thumbprint(k *ecdsa.PrivateKey) (string, error) {
	jwk := jose.JSONWebKey{Key: &k.PublicKey}
	sum, err := jwk.Thumbprint(crypto.SHA256)
	if err != nil {
		return "", fmt.Errorf("token key: %w", err)
	}
	return base64.RawURLEncoding.EncodeToString(sum), nil
}

// document is the stored form of a set: JSON, in a file with mode 0600 or in a Secret.
type document struct {
	Keys []documentKey `json:"keys"`
}

type documentKey struct {
	PublishedAt time.Time       `json:"publishedAt"`
	NotBefore   time.Time       `json:"notBefore"`
	NotAfter    *time.Time      `json:"notAfter,omitempty"`
	JWK         jose.JSONWebKey `json:"jwk"`
}

// EncodeSecret returns the stored form of the set, which contains the keys in clear text.
func (s KeySet) EncodeSecret() (secret.Bytes, error) {
	var d document
	for _, k := range s.Keys {
		e := documentKey{
			PublishedAt: k.PublishedAt.UTC(), NotBefore: k.NotBefore.UTC(),
			JWK: jose.JSONWebKey{Key: k.private, KeyID: k.ID, Algorithm: string(jose.ES256), Use: "sig"},
		}
		if !k.NotAfter.IsZero() {
			t := k.NotAfter.UTC()
			e.NotAfter = &t
		}
		d.Keys = append(d.Keys, e)
	}
	b, err := json.MarshalIndent(d, "", "  ")
	if err != nil {
		return secret.Bytes{}, fmt.Errorf("token keys: %w", err)
	}
	return secret.New(b), nil
}

// maxKeys is the maximum number of keys of a set.
const maxKeys = 16

// ParseKeySet reads the stored form of a set. Every key must be a P-256 private key whose kid is
// its thumbprint.
func ParseKeySet(raw []byte) (KeySet, error) {
	var d document
	if err := decodeStrict(raw, &d, "keys"); err != nil {
		return KeySet{}, fmt.Errorf("token keys: %w", err)
	}
	if len(d.Keys) == 0 {
		return KeySet{}, errors.New("token keys: the set is empty")
	}
	if len(d.Keys) > maxKeys {
		return KeySet{}, fmt.Errorf("token keys: %d, at most %d", len(d.Keys), maxKeys)
	}
	var s KeySet
	for i, e := range d.Keys {
		private, ok := e.JWK.Key.(*ecdsa.PrivateKey)
		if !ok || private.Curve != elliptic.P256() {
			return KeySet{}, fmt.Errorf("token keys: key %d: want a P-256 private key", i)
		}
		if !consistent(private) {
			return KeySet{}, fmt.Errorf("token keys: key %d: its private and public parts do not match", i)
		}
		id, err := thumbprint(private)
		if err != nil {
			return KeySet{}, fmt.Errorf("token keys: key %d: %w", i, err)
		}
		if e.JWK.KeyID != id {
			return KeySet{}, fmt.Errorf("token keys: key %d: kid is not its thumbprint %s", i, id)
		}
		if slices.ContainsFunc(s.Keys, func(k Key) bool { return k.ID == id }) {
			return KeySet{}, fmt.Errorf("token keys: key %d: %s occurs twice", i, id)
		}
		if e.NotBefore.IsZero() || e.NotAfter != nil && e.NotAfter.Before(e.NotBefore) {
			return KeySet{}, fmt.Errorf("token keys: key %d: want notBefore, and notAfter not before it", i)
		}
		k := Key{ID: id, PublishedAt: e.PublishedAt, NotBefore: e.NotBefore, private: private}
		if e.NotAfter != nil {
			k.NotAfter = *e.NotAfter
		}
		s.Keys = append(s.Keys, k)
	}
	return s, nil
}

// consistent reports whether the public key belongs to the private key, which go-jose does not
// check. If it did not, no signature of the key would verify.
func consistent(k *ecdsa.PrivateKey) bool {
	raw, err := k.Bytes()
	if err != nil {
		return false
	}
	own, err := ecdsa.ParseRawPrivateKey(k.Curve, raw)
	return err == nil && own.PublicKey.Equal(&k.PublicKey)
}

// Checker verifies tokens with the current keys.
type Checker struct{ Keys func() KeySet }

// Verify calls [KeySet.Verify] with the current keys.
func (c Checker) Verify(now time.Time, raw []byte) (Claims, error) { return c.Keys().Verify(now, raw) }
