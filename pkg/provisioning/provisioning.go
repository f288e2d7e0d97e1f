// Package provisioning is the provisioning token: one secret that all machines
// of a cluster share, for installations in which a machine can prove nothing
// else. Whoever knows it receives the configs of the pools that say so, and it
// names no machine. It is the weakest evidence there is.
//
// # At rest
//
// A Secret with these keys, of which "kubectl create secret generic" needs to
// write the first alone; or, without a cluster, a YAML or JSON file of the same:
//
//	token             the current token
//	previous-token    the one before it
//	previous-expires  when that one ends, RFC 3339
//
// A token is 43 to 512 characters of token68 (RFC 9110, section 11.2), as a
// header carries it. 32 random bytes in base64 are such a token, whoever made
// them: "dd if=/dev/urandom bs=32 count=1 | base64". A line break behind it is
// not part of it.
//
// # Two tokens, and no third
//
// [Tokens.Rotate] makes a new current token; the old one stays valid for a
// bounded grace, since pointer configs that carry it are under way. Until that
// is over it does not rotate again ([ErrRotating]): a third token would lock out
// the machines that carry the first. An administrator who writes another token
// by hand has the same grace ([Edited]).
//
// What is valid is judged by the time of the request, never by the time at which
// something was read.
package provisioning

import (
	"crypto/sha256"
	"crypto/subtle"
	"encoding/base64"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/mcs-attest/mcs-attest/pkg/secret"
)

// The keys of the Secret.
const (
	KeyToken           = "token"
	KeyPrevious        = "previous-token"
	KeyPreviousExpires = "previous-expires"
)

const (
	// DefaultGrace is how long a replaced token stays valid.
	DefaultGrace = time.Hour
	// MaxGrace bounds it.
	MaxGrace = 7 * 24 * time.Hour

	// minLength is 32 bytes in base64 without padding.
	minLength = 43
	maxLength = 512
	// minDistinct refuses what no random source writes: "aaaa..." and counting.
	minDistinct = 8
	randomBytes = 32
)

// Tokens are the current token and, for a while, the one before it. It is a
// value; the zero value holds none.
type Tokens struct {
	Current, Previous secret.Bytes
	// PreviousExpires is the first moment at which Previous is no longer valid.
	// It stays when that has passed, to tell when the token was last rotated.
	PreviousExpires time.Time
}

// Match says which token was shown.
type Match int

// The matches. Only [Current] and [Previous] are valid ones.
const (
	None     Match = iota
	Current        // the current token
	Previous       // the previous one within its grace
	Expired        // the previous one after it
)

// Valid reports whether what was shown opens anything.
func (m Match) Valid() bool { return m == Current || m == Previous }

// String is the match for the audit log and the metrics.
func (m Match) String() string {
	return [...]string{None: "none", Current: "current", Previous: "previous", Expired: "expired"}[m]
}

// ErrRotating says that the previous token is still in its grace.
var ErrRotating = errors.New("the previous provisioning token is still valid")

// Check compares what a caller presents, which is untrusted and may be anything,
// with both tokens. The time it takes depends on the length of what was
// presented and on nothing that is secret: hashes are compared, and both always.
func (t Tokens) Check(now time.Time, presented []byte) Match {
	shown := sha256.Sum256(presented)
	match := None
	for _, c := range []struct {
		token secret.Bytes
		found Match
	}{{t.Previous, Previous}, {t.Current, Current}} {
		hash := sha256.Sum256(c.token.Expose())
		equal := subtle.ConstantTimeCompare(shown[:], hash[:])
		if c.token.Empty() { // whether there is one is no secret
			equal = 0
		}
		match = Match(subtle.ConstantTimeSelect(equal, int(c.found), int(match)))
	}
	if match == Previous && !now.Before(t.PreviousExpires) {
		return Expired
	}
	return match
}

// Valid are the tokens that are valid at now, the current one first.
func (t Tokens) Valid(now time.Time) []secret.Bytes {
	var all []secret.Bytes
	if !t.Current.Empty() {
		all = append(all, t.Current)
	}
	if t.inGrace(now) {
		all = append(all, t.Previous)
	}
	return all
}

func (t Tokens) inGrace(now time.Time) bool {
	return !t.Previous.Empty() && now.Before(t.PreviousExpires)
}

// New makes a first token.
func New(now time.Time, rand io.Reader) (Tokens, error) { return Tokens{}.Replace(now, rand) }

// Replace makes a new token and voids every other at once, for when one was stolen.
func (t Tokens) Replace(now time.Time, rand io.Reader) (Tokens, error) {
	raw := make([]byte, randomBytes)
	if _, err := io.ReadFull(rand, raw); err != nil {
		return t, fmt.Errorf("make provisioning token: %w", err)
	}
	// base64url without padding needs no escape in a URL, in YAML or in a shell.
	next := Tokens{Current: secret.New([]byte(base64.RawURLEncoding.EncodeToString(raw)))}
	// Another previous-expires than before tells whoever reads it that this is
	// no edit by hand, and that the grace was not forgotten.
	next.PreviousExpires = now.UTC().Truncate(time.Second)
	if next.PreviousExpires.Equal(t.PreviousExpires) {
		next.PreviousExpires = next.PreviousExpires.Add(-time.Second)
	}
	return next, nil
}

// Rotate makes a new current token and keeps the old one for grace. It fails
// with ErrRotating while the last rotation's grace is not over.
func (t Tokens) Rotate(now time.Time, rand io.Reader, grace time.Duration) (Tokens, error) {
	if grace <= 0 || grace > MaxGrace {
		return t, fmt.Errorf("grace of %v: must be more than 0 and at most %v", grace, MaxGrace)
	}
	if t.inGrace(now) {
		return t, fmt.Errorf("%w, until %s", ErrRotating, t.PreviousExpires.UTC().Format(time.RFC3339))
	}
	next, err := t.Replace(now, rand)
	if err != nil {
		return t, err
	}
	next.Previous, next.PreviousExpires = t.Current, end(now, grace)
	return next, nil
}

// end rounds up: whole seconds survive the journey through a Secret.
func end(now time.Time, grace time.Duration) time.Time {
	return now.Add(grace + time.Second - 1).UTC().Truncate(time.Second)
}

// Edited is what an administrator meant who wrote another current token: the
// one that was current stays valid for grace. It returns read unchanged if
// nothing was edited, and if whoever changed the token also said what becomes of
// the previous one, as Rotate and Replace do by writing another previous-expires.
func Edited(known, read Tokens, now time.Time, grace time.Duration) (tokens Tokens, edited bool) {
	if known.Current.Empty() || same(known.Current, read.Current) {
		return read, false
	}
	if !read.PreviousExpires.IsZero() && !read.PreviousExpires.Equal(known.PreviousExpires) {
		return read, false
	}
	read.Previous, read.PreviousExpires = known.Current, end(now, grace)
	return read, true
}

// Equal reports whether both have the same tokens and the same end of the grace.
func (t Tokens) Equal(o Tokens) bool {
	return same(t.Current, o.Current) && same(t.Previous, o.Previous) && t.PreviousExpires.Equal(o.PreviousExpires)
}

func same(a, b secret.Bytes) bool { return subtle.ConstantTimeCompare(a.Expose(), b.Expose()) == 1 }

// Due is when the token shall be rotated that is rotated every so often; never
// if every is 0. Made is when a token that was never rotated came to be.
func (t Tokens) Due(made time.Time, every, grace time.Duration) (at time.Time, ok bool) {
	if every <= 0 || t.Current.Empty() {
		return time.Time{}, false
	}
	last := made
	rotated := t.PreviousExpires
	if !t.Previous.Empty() {
		rotated = rotated.Add(-grace)
	}
	if !t.PreviousExpires.IsZero() && rotated.After(last) {
		last = rotated
	}
	at = last.Add(every)
	if !t.Previous.Empty() && t.PreviousExpires.After(at) {
		at = t.PreviousExpires
	}
	return at, true
}

// ID names a token to an administrator who compares two. It is short enough to
// say little, and goes into no log.
func ID(token secret.Bytes) string {
	sum := sha256.Sum256(append([]byte("mcs-attest/provisioning-token/id/v1\x00"), token.Expose()...))
	return hex.EncodeToString(sum[:3])
}

// check refuses what is no token. Its errors hold nothing of it.
func check(key string, token []byte) error {
	seen := map[byte]bool{}
	padding := false
	for _, c := range token {
		switch {
		case c == '\n' || c == '\r':
			return fmt.Errorf("%s: a line break inside; a token is one line (base64 -w0)", key)
		case !token68(c) || padding && c != '=':
			return fmt.Errorf("%s: a character that cannot be in an Authorization header; a token has letters, digits, - . _ "+
				"~ + / and, at its end, =", key)
		}
		padding = padding || c == '='
		seen[c] = true
	}
	switch {
	case len(token) < minLength:
		return fmt.Errorf("%s: %d characters are too few; 32 random bytes in base64 are %d: dd if=/dev/urandom bs=32 "+
			"count=1 | base64", key, len(token), minLength+1)
	case len(token) > maxLength:
		return fmt.Errorf("%s: %d characters are too many; at most %d", key, len(token), maxLength)
	case len(seen) < minDistinct:
		return fmt.Errorf("%s: %d different characters are too few; it was not made at random", key, len(seen))
	}
	return nil
}

func token68(c byte) bool {
	return 'a' <= c && c <= 'z' || 'A' <= c && c <= 'Z' || '0' <= c && c <= '9' || strings.IndexByte("-._~+/=", c) >= 0
}
