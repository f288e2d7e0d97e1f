// SPDX-License-Identifier: Apache-2.0

package seal

import (
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"time"

	"golang.org/x/crypto/chacha20poly1305"

	"github.com/mcs-attest/mcs-attest/pkg/secret"
)

// Key is one sealing key.
type Key struct {
	ID     [keyIDSize]byte
	Secret secret.Bytes // 32 bytes
	// NotBefore is when replicas begin to seal with the key, or earlier if they have no other key
	// in use. They open with it as soon as they have it.
	NotBefore time.Time
}

// Ring is the set of keys that all replicas share. The zero value opens and seals nothing.
type Ring struct{ Keys []Key }

// ErrNoKey means that the ring has no key.
var ErrNoKey = errors.New("no sealing key")

// Current returns the key that seals at now: the newest key in use. See current.
func (r Ring) Current(now time.Time) (Key, bool) {
	k, err := r.current(now)
	return k, err == nil
}

// current returns the key that seals at now: the newest key in use. If no key is in use yet,
// because the clock of the replica that created them is ahead, it returns the earliest.
func (r Ring) current(now time.Time) (Key, error) {
	if len(r.Keys) == 0 {
		return Key{}, ErrNoKey
	}
	best := r.Keys[0]
	for _, k := range r.Keys[1:] {
		inUse, ahead := !k.NotBefore.After(now), best.NotBefore.After(now)
		if inUse && (ahead || k.NotBefore.After(best.NotBefore)) || ahead && k.NotBefore.Before(best.NotBefore) {
			best = k
		}
	}
	return best, nil
}

// Rotate adds a key that seals from now+publish on, and removes keys whose successor has been in
// use for longer than keep. Publish is the time that every replica has to receive the new key (10
// minutes). Keep is the longest lifetime of a challenge plus the replicas' clock skew.
func (r Ring) Rotate(rand io.Reader, now time.Time, publish, keep time.Duration) (Ring, error) {
	raw := make([]byte, keyIDSize+chacha20poly1305.KeySize)
	if _, err := io.ReadFull(rand, raw); err != nil {
		return r, fmt.Errorf("create sealing key: %w", err)
	}
	k := Key{ID: [keyIDSize]byte(raw), Secret: secret.New(raw[keyIDSize:]), NotBefore: now.Add(publish)}
	keys := append(slices.Clone(r.Keys), k)
	slices.SortFunc(keys, func(a, b Key) int { return a.NotBefore.Compare(b.NotBefore) })
	first := 0
	for i := 1; i < len(keys); i++ {
		if now.Sub(keys[i].NotBefore) > keep {
			first = i
		}
	}
	return Ring{Keys: keys[first:]}, nil
}

// document is the stored form of a ring: JSON, in a file with mode 0600 or in a Secret.
type document struct {
	Keys []documentKey `json:"keys"`
}

type documentKey struct {
	ID        string    `json:"id"`        // hex
	Key       []byte    `json:"key"`       // base64
	NotBefore time.Time `json:"notBefore"` // RFC 3339
}

// EncodeSecret returns the stored form of the ring, which contains the keys in clear text.
func (r Ring) EncodeSecret() (secret.Bytes, error) {
	var d document
	for _, k := range r.Keys {
		d.Keys = append(d.Keys, documentKey{hex.EncodeToString(k.ID[:]), k.Secret.Expose(), k.NotBefore.UTC()})
	}
	b, err := json.MarshalIndent(d, "", "  ")
	return secret.New(b), err
}

// ParseRing reads the stored form of a ring.
func ParseRing(raw []byte) (Ring, error) {
	var d document
	if err := json.Unmarshal(raw, &d); err != nil {
		return Ring{}, fmt.Errorf("sealing keys: %w", err)
	}
	var r Ring
	for i, k := range d.Keys {
		id, err := hex.DecodeString(k.ID)
		if err != nil || len(id) != keyIDSize {
			return Ring{}, fmt.Errorf("sealing keys: key %d: id must be %d bytes in hex", i, keyIDSize)
		}
		if len(k.Key) != chacha20poly1305.KeySize {
			return Ring{}, fmt.Errorf("sealing keys: key %d: must be %d bytes, is %d", i, chacha20poly1305.KeySize, len(k.Key))
		}
		r.Keys = append(r.Keys, Key{[keyIDSize]byte(id), secret.New(k.Key), k.NotBefore})
	}
	if len(r.Keys) == 0 {
		return Ring{}, errors.New("sealing keys: the ring is empty")
	}
	return r, nil
}
