// SPDX-License-Identifier: Apache-2.0

// Package keys has the two kinds of keys that all replicas of a verifier share: those that sign tokens,
// and those that seal challenges and report tickets. They are created, rotated and stored together.
//
// One process creates the keys, and dates them by its clock. Each replica uses the newest key that is
// valid by its own clock, or else the earliest key. So no clock leaves a replica without a key, and no
// replica has to create one. A recently published key is used early only if no other key is in use.
// Every replica verifies and opens with all keys.
package keys

import (
	"crypto/rand"
	"fmt"
	"slices"
	"time"

	"github.com/mcs-attest/mcs-attest/pkg/seal"
	"github.com/mcs-attest/mcs-attest/pkg/token"
)

const (
	// KeepSealed is how long a replaced sealing key is kept: the longest lifetime of a challenge, a
	// report ticket, and the clock skew.
	KeepSealed = 2*time.Hour + 15*time.Minute

	// KeepTokens is how long a replaced signing key is kept: the longest lifetime of a token and the
	// replicas' leeway.
	KeepTokens = time.Hour + 5*time.Minute
)

const (
	// ClockSkew is the maximum error of a replica's clock.
	ClockSkew = 5 * time.Minute
	// backdate is the time by which the first keys are dated back.
	backdate = 2 * ClockSkew
	// mostAhead is the maximum time that a key may be dated ahead before a rotation deletes it. A key
	// that is dated less far ahead becomes valid without a rotation.
	mostAhead = 24 * time.Hour
)

// The names of the stored keys: files below keys/, or keys of a Secret.
const (
	TokenFile = "token.json"
	SealFile  = "seal.json"
	// ProvisioningFile is the provisioning token. It exists only as a file.
	ProvisioningFile = "machineconfig-auth"
)

// Pair has the keys of both kinds. It is a value. The zero value has no keys.
type Pair struct {
	Tokens token.KeySet
	Seals  seal.Ring
}

// Parse parses stored keys.
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

// Data returns the keys in the stored form. They are not encrypted.
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

// Rotate adds a key of each kind, which is used after publish, and deletes those that are no longer
// needed. From the zero Pair it creates the first keys. If keys were stolen, that voids everything made
// before. The first keys are dated back some minutes, so that a replica with a slow clock can use them.
// Their time of publication is not dated back.
//
// A key that is dated more than a day ahead is deleted: the clock of the replica that created it was
// wrong, and the key would prevent every rotation until that day. If all keys are, the replicas use the
// earliest. It stays, with the current date.
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

// MadeBefore reports whether any key is older than at.
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

// Ahead returns the latest time at which a key becomes valid, if the key is dated further ahead than
// publish and the replicas' leeway explain. Otherwise, it returns zero.
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

// redated returns the keys without those that are dated more than a day ahead. If a kind has no other,
// the earliest stays and becomes valid now.
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

// within returns the keys that become valid at limit or before.
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

// Due returns when a Pair with this rotation interval must be rotated: that long after the publication
// of its newest key. A key that is dated more than a day ahead does not count.
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

// Rotating reports whether a key is published but not valid yet. A key that is dated more than a day
// ahead does not count.
func (p Pair) Rotating(now time.Time) bool {
	return slices.ContainsFunc(p.within(now.Add(mostAhead)).Tokens.Keys,
		func(k token.Key) bool { return k.NotBefore.After(now) })
}

// IDs returns the ids of all keys.
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
