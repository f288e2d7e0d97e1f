// SPDX-License-Identifier: Apache-2.0

package provisioning

import "time"

// Presence tells whether a provisioning token exists.
type Presence int

// The presences. With the zero value, callers wait.
const (
	Unknown Presence = iota // not read yet, or never readable
	Absent                  // it does not exist
	Present
)

// String returns the text form for a log.
func (p Presence) String() string {
	return [...]string{Unknown: "unknown", Absent: "absent", Present: "present"}[p]
}

// linger is how long a deleted token stays in force, so that a Secret can be replaced by
// deleting and creating it.
const linger = 10 * time.Second

// View is one replica's state of the token: the last valid tokens that it read, and what
// happened since. It is an immutable value; each method returns a new one. The zero View
// has read nothing.
//
// An invalid Secret never counts as absent: the last valid tokens stay in force, and
// without any, callers wait.
type View struct {
	tokens   Tokens
	presence Presence
	gone     time.Time // when it was deleted; zero if it exists
	err      error
}

// Read returns the View after data was read. If an administrator edited the token (see
// [Edited]), writeBack is what must be written back, so that replicas that start later use
// the same grace period. Otherwise it is nil.
func (v View) Read(now time.Time, data map[string][]byte, grace time.Duration) (next View, writeBack *Tokens) {
	read, err := Parse(data)
	if err != nil {
		return v.Malformed(now, err), nil
	}
	known, _ := v.At(now)
	tokens, edited := Edited(known, read, now, grace)
	if edited {
		writeBack = &tokens
	}
	return View{tokens: tokens, presence: Present}, writeBack
}

// Malformed returns the View after invalid data was read.
func (v View) Malformed(now time.Time, err error) View {
	tokens, presence := v.At(now)
	if presence != Present {
		return View{err: err}
	}
	return View{tokens: tokens, presence: Present, err: err}
}

// Failed returns the View after a failed read. The known tokens stay in force.
func (v View) Failed(err error) View {
	v.err = err
	return v
}

// Gone returns the View after a read that found no token.
func (v View) Gone(now time.Time) View {
	if v.presence != Present {
		return View{presence: Absent}
	}
	if v.gone.IsZero() {
		v.gone = now
	}
	v.err = nil
	return v
}

// At returns the state at now. The tokens are empty unless the presence is Present.
func (v View) At(now time.Time) (Tokens, Presence) {
	if !v.gone.IsZero() && now.Sub(v.gone) >= linger {
		return Tokens{}, Absent
	}
	return v.tokens, v.presence
}

// Err returns the error of the last read, or nil.
func (v View) Err() error { return v.err }
