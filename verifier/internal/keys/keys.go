// Package keys is the two kinds of keys that all replicas of a verifier share:
// those that sign tokens and those that seal challenges and report tickets. They
// are made, rotated and kept together.
package keys

import (
	"crypto/rand"
	"fmt"
	"time"

	"github.com/mcs-attest/mcs-attest/pkg/seal"
	"github.com/mcs-attest/mcs-attest/pkg/token"
)

const (
	// KeepSealed is how long a replaced sealing key must still open: the longest
	// challenge, a report ticket, and the clocks' difference.
	KeepSealed = 2*time.Hour + 15*time.Minute

	// KeepTokens is how long a replaced signing key must still verify: the longest
	// token and the replicas' leeway.
	KeepTokens = time.Hour + 5*time.Minute
)

const (
	// ClockSkew is how far a replica's clock may be off.
	ClockSkew = 5 * time.Minute
	// backdate is how much older the first keys claim to be than they are.
	backdate = 2 * ClockSkew
)

// The keys at rest: files below keys/, or keys of a Secret.
const (
	TokenFile = "token.json"
	SealFile  = "seal.json"
)

// Pair is the keys of both kinds. It is a value; the zero value holds none.
type Pair struct {
	Tokens token.KeySet
	Seals  seal.Ring
}

// Parse reads the keys at rest.
func Parse(data map[string][]byte) (Pair, error) {
	var p Pair
	var err error
	if p.Tokens, err = token.ParseKeySet(data[TokenFile]); err != nil {
		return Pair{}, fmt.Errorf("%s: %w", TokenFile, err)
	}
	if p.Seals, err = seal.ParseRing(data[SealFile]); err != nil {
		return Pair{}, fmt.Errorf("%s: %w", SealFile, err)
	}
	return p, nil
}

// Data is the keys at rest. They are secrets in clear.
func (p Pair) Data() (map[string][]byte, error) {
	tokens, err := p.Tokens.EncodeSecret()
	if err != nil {
		return nil, err
	}
	seals, err := p.Seals.EncodeSecret()
	if err != nil {
		return nil, err
	}
	return map[string][]byte{TokenFile: tokens.Expose(), SealFile: seals.Expose()}, nil
}

// Rotate adds a key of each kind, in use after publish, and drops what nothing
// can need any more. From the zero Pair it makes the first keys, or, where keys
// were stolen, those that void everything made before; they are in use since some
// minutes ago, so that a replica whose clock is behind has keys to use. When they
// were published is told as it is.
func (p Pair) Rotate(now time.Time, publish time.Duration) (Pair, error) {
	published, first := now, len(p.Tokens.Keys)+len(p.Seals.Keys) == 0
	if first {
		now = now.Add(-backdate)
	}
	var next Pair
	var err error
	if next.Tokens, err = p.Tokens.Prune(now, KeepTokens).Rotate(now, rand.Reader, publish); err != nil {
		return p, err
	}
	if next.Seals, err = p.Seals.Rotate(rand.Reader, now, publish, KeepSealed); err != nil {
		return p, err
	}
	if first {
		next.Tokens.Keys[0].PublishedAt = published.UTC().Truncate(time.Second)
	}
	return next, nil
}

// MadeBefore reports whether some key is older than at.
func (p Pair) MadeBefore(at time.Time) bool {
	for _, k := range p.Tokens.Keys {
		made := k.PublishedAt
		if made.IsZero() {
			made = k.NotBefore
		}
		if made.Before(at) {
			return true
		}
	}
	for _, k := range p.Seals.Keys {
		if k.NotBefore.Before(at.Add(-backdate)) {
			return true
		}
	}
	return false
}

// Due is when a Pair that is rotated every so often shall be: that long after its
// newest key was published.
func (p Pair) Due(every time.Duration) time.Time {
	var newest time.Time
	for _, k := range p.Tokens.Keys {
		at := k.PublishedAt
		if at.IsZero() {
			at = k.NotBefore
		}
		if at.After(newest) {
			newest = at
		}
	}
	return newest.Add(every)
}

// Rotating reports whether a key is published and not in use yet.
func (p Pair) Rotating(now time.Time) bool {
	for _, k := range p.Tokens.Keys {
		if k.NotBefore.After(now) {
			return true
		}
	}
	return false
}

// IDs name all keys.
func (p Pair) IDs() []string {
	var all []string
	for _, k := range p.Tokens.Keys {
		all = append(all, k.ID)
	}
	for _, k := range p.Seals.Keys {
		all = append(all, fmt.Sprintf("%x", k.ID))
	}
	return all
}
