// Package keys is the two kinds of keys that all replicas of a verifier share:
// those that sign tokens and those that seal challenges and report tickets. They
// are made, rotated and kept together.
//
// One process makes the keys, and dates them by its clock. Each replica uses the newest key whose time has come by
// its own clock. If that is none, it uses the earliest key. So no replica is without a key because of a clock, and no
// replica has to make one. A key that was published a moment ago is used early only where no other key is in use.
// Every replica verifies and opens with each key that it has.
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
	// mostAhead is how far ahead a key may be dated before a rotation drops it. A key
	// that is dated less far ahead comes into use by itself.
	mostAhead = 24 * time.Hour
)

// The keys at rest: files below keys/, or keys of a Secret.
const (
	TokenFile = "token.json"
	SealFile  = "seal.json"
	// ProvisioningFile is the provisioning token, only as a file.
	ProvisioningFile = "machineconfig-auth"
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
//
// A key that is dated more than a day ahead is dropped: the replica that made it had a
// clock that was wrong, and the key would stop every rotation until that day. If all keys
// are, the earliest is what the replicas use: it stays, dated now.
func (p Pair) Rotate(now time.Time, publish time.Duration) (Pair, error) {
	published, first := now, len(p.Tokens.Keys)+len(p.Seals.Keys) == 0
	p = p.redated(now)
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

// Ahead returns the latest time at which a key comes into use that is dated further
// ahead than a publication and the replicas' leeway explain; zero if there is none.
func (p Pair) Ahead(now time.Time, publish time.Duration) (at time.Time) {
	limit := now.Add(publish + ClockSkew)
	for _, k := range p.Tokens.Keys {
		if k.NotBefore.After(limit) && k.NotBefore.After(at) {
			at = k.NotBefore
		}
	}
	for _, k := range p.Seals.Keys {
		if k.NotBefore.After(limit) && k.NotBefore.After(at) {
			at = k.NotBefore
		}
	}
	return at
}

// redated are the keys without those that are dated more than a day ahead. Of a kind that has no other, the
// earliest stays, and is in use since now.
func (p Pair) redated(now time.Time) Pair {
	rest := p.within(now.Add(mostAhead))
	now = now.UTC().Truncate(time.Second)
	if k, ok := p.Tokens.Current(now); ok && len(rest.Tokens.Keys) == 0 {
		k.PublishedAt, k.NotBefore, k.NotAfter = now, now, time.Time{}
		rest.Tokens.Keys = append(rest.Tokens.Keys, k)
	}
	if k, ok := p.Seals.Current(now); ok && len(rest.Seals.Keys) == 0 {
		k.NotBefore = now
		rest.Seals.Keys = append(rest.Seals.Keys, k)
	}
	return rest
}

// within are the keys that come into use at limit or before.
func (p Pair) within(limit time.Time) (rest Pair) {
	for _, k := range p.Tokens.Keys {
		if !k.NotBefore.After(limit) {
			rest.Tokens.Keys = append(rest.Tokens.Keys, k)
		}
	}
	for _, k := range p.Seals.Keys {
		if !k.NotBefore.After(limit) {
			rest.Seals.Keys = append(rest.Seals.Keys, k)
		}
	}
	return rest
}

// Due is when a Pair that is rotated every so often shall be: that long after its
// newest key was published. A key that is dated more than a day ahead does not count.
func (p Pair) Due(now time.Time, every time.Duration) time.Time {
	var newest time.Time
	for _, k := range p.within(now.Add(mostAhead)).Tokens.Keys {
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

// Rotating reports whether a key is published and not in use yet, one that is dated more
// than a day ahead aside.
func (p Pair) Rotating(now time.Time) bool {
	for _, k := range p.within(now.Add(mostAhead)).Tokens.Keys {
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
