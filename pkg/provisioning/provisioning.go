// SPDX-License-Identifier: Apache-2.0

// Package provisioning implements the provisioning token: one secret that all machines
// of a cluster share, for machines that can prove nothing else. The appraisal and the
// gate check it, and the provisioningtoken controller and the command rotate it. A client
// with the token receives the configs of the pools whose policy allows that. It names no
// machine, and is the weakest kind of evidence.
//
// # At rest
//
// The token is stored in a Secret with these keys, of which only the first is required.
// Without a cluster it is stored in a YAML or JSON file with the same keys:
//
//	token             the current token
//	previous-token    the previous token
//	previous-expires  when the previous token expires, RFC 3339
//
// A token is 43 to 512 characters of token68 (RFC 9110, section 11.2), so that it fits
// into a header. 32 random bytes in base64 are a valid token:
// "dd if=/dev/urandom bs=32 count=1 | base64". A trailing line break is not part of it.
//
// # Rotation
//
// [Tokens.Rotate] creates a new current token. The old one stays valid for a limited
// grace period, because machines may still boot with pointer configs that carry it.
// During that period it does not rotate again ([ErrRotating]), because a third token would
// lock out those machines. The same grace period applies if an administrator edits the
// token ([Edited]).
//
// Validity depends on the time of the request, not on the time of the last read.
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
	// MaxGrace is the longest grace period.
	MaxGrace = 7 * 24 * time.Hour

	// minLength is 32 bytes in base64 without padding.
	minLength = 43
	maxLength = 512
	// minDistinct rejects tokens that are not random, such as "aaaa...".
	minDistinct = 8
	randomBytes = 32
)

// Tokens are the current token and, during a grace period, the previous one. The zero
// value has neither.
type Tokens struct {
	Current, Previous secret.Bytes
	// PreviousExpires is the first moment at which Previous is no longer valid. It is kept
	// after that, because it shows when the token was last rotated.
	PreviousExpires time.Time
}

// Match is the result of comparing a presented token.
type Match int

// The matches. Only [Current] and [Previous] are valid.
const (
	None     Match = iota
	Current        // the current token
	Previous       // the previous one within its grace period
	Expired        // the previous one after its grace period
)

// Valid reports whether the presented token is valid.
func (m Match) Valid() bool { return m == Current || m == Previous }

// String returns the text form for the audit log and the metrics.
func (m Match) String() string {
	return [...]string{None: "none", Current: "current", Previous: "previous", Expired: "expired"}[m]
}

// ErrRotating is returned during the grace period of the previous token.
var ErrRotating = errors.New("the previous provisioning token is still valid")

// Check compares the presented token, which is untrusted, with both tokens. Its duration
// depends only on the length of the presented token: it compares hashes, and always both.
func (t Tokens) Check(now time.Time, presented []byte) Match {
	shown := sha256.Sum256(presented)
	match := None
	for _, c := range []struct {
		token secret.Bytes
		found Match
	}{{t.Previous, Previous}, {t.Current, Current}} {
		hash := sha256.Sum256(c.token.Expose())
		equal := subtle.ConstantTimeCompare(shown[:], hash[:])
		if c.token.Empty() { // whether it exists is not secret
			equal = 0
		}
		match = Match(subtle.ConstantTimeSelect(equal, int(c.found), int(match)))
	}
	if match == Previous && !now.Before(t.PreviousExpires) {
		return Expired
	}
	return match
}

// Valid returns the tokens that are valid at now, the current one first.
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

// New creates the first token.
func New(now time.Time, rand io.Reader) (Tokens, error) { return Tokens{}.Replace(now, rand) }

// Replace creates a new token and immediately invalidates all others, for example after a theft.
func (t Tokens) Replace(now time.Time, rand io.Reader) (Tokens, error) {
	raw := make([]byte, randomBytes)
	if _, err := io.ReadFull(rand, raw); err != nil {
		return t, fmt.Errorf("create provisioning token: %w", err)
	}
	// base64url without padding needs no escape in a URL, in YAML or in a shell.
	next := Tokens{Current: secret.New([]byte(base64.RawURLEncoding.EncodeToString(raw)))}
	// A changed previous-expires tells readers that this is not an edit by hand, and that
	// no grace period is intended.
	next.PreviousExpires = now.UTC().Truncate(time.Second)
	if next.PreviousExpires.Equal(t.PreviousExpires) {
		next.PreviousExpires = next.PreviousExpires.Add(-time.Second)
	}
	return next, nil
}

// Rotate creates a new current token and keeps the old one valid for the grace period. It
// fails with ErrRotating while the previous grace period lasts.
func (t Tokens) Rotate(now time.Time, rand io.Reader, grace time.Duration) (Tokens, error) {
	if grace <= 0 || grace > MaxGrace {
		return t, fmt.Errorf("grace period of %v: must be more than 0 and at most %v", grace, MaxGrace)
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

// end returns the end of a grace period, rounded up to the whole seconds that the Secret stores.
func end(now time.Time, grace time.Duration) time.Time {
	return now.Add(grace + time.Second - 1).UTC().Truncate(time.Second)
}

// Edited handles an administrator's edit of the current token: the former current token
// stays valid for the grace period. It returns read unchanged if the token did not change,
// or if previous-expires changed too, as after Rotate and Replace.
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

// Equal reports whether t and o have the same tokens and the same PreviousExpires.
func (t Tokens) Equal(o Tokens) bool {
	return same(t.Current, o.Current) && same(t.Previous, o.Previous) && t.PreviousExpires.Equal(o.PreviousExpires)
}

func same(a, b secret.Bytes) bool { return subtle.ConstantTimeCompare(a.Expose(), b.Expose()) == 1 }

// Due returns when the token must be rotated next, with the interval every. ok is false if
// every is 0. made is when a token that was never rotated was created.
func (t Tokens) Due(made time.Time, every, grace time.Duration) (at time.Time, ok bool) {
	if every <= 0 || t.Current.Empty() {
		return time.Time{}, false
	}
	last := made
	rotated := t.PreviousExpires
	if !t.Previous.Empty() {
		rotated = rotated.Add(-grace)
	}
	if rotated.After(last) {
		last = rotated
	}
	at = last.Add(every)
	if t.PreviousExpires.After(at) {
		at = t.PreviousExpires
	}
	return at, true
}

// ID returns a short identifier, with which administrators compare tokens. It reveals
// little of the token and is not logged.
func ID(token secret.Bytes) string {
	sum := sha256.Sum256(append([]byte("mcs-attest/provisioning-token/id/v1\x00"), token.Expose()...))
	return hex.EncodeToString(sum[:3])
}

// check rejects an invalid token. Its errors do not contain any part of it.
func check(key string, token []byte) error {
	seen := map[byte]struct{}{}
	padding := false
	for _, c := range token {
		switch {
		case c == '\n' || c == '\r':
			return fmt.Errorf("%s: the token contains a line break; write it in one line (base64 -w0)", key)
		case !token68(c) || padding && c != '=':
			return fmt.Errorf("%s: the token contains a character that an Authorization header does not allow; valid are "+
				"letters, digits, - . _ ~ + / and, at the end, =", key)
		}
		padding = c == '='
		seen[c] = struct{}{}
	}
	switch {
	case len(token) < minLength:
		return fmt.Errorf("%s: the token has %d characters, which is too short; 32 random bytes in base64 have %d: "+
			"dd if=/dev/urandom bs=32 count=1 | base64", key, len(token), minLength+1)
	case len(token) > maxLength:
		return fmt.Errorf("%s: the token has %d characters; at most %d are allowed", key, len(token), maxLength)
	case len(seen) < minDistinct:
		return fmt.Errorf("%s: the token has only %d different characters, so it is not random", key, len(seen))
	}
	return nil
}

func token68(c byte) bool {
	return 'a' <= c && c <= 'z' || 'A' <= c && c <= 'Z' || '0' <= c && c <= '9' || strings.IndexByte("-._~+/=", c) >= 0
}
