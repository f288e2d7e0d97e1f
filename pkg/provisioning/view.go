package provisioning

import "time"

// Presence is whether there is a provisioning token.
type Presence int

// The presences. The zero value allows no conclusion: whoever asks waits.
const (
	Unknown Presence = iota // not read yet, or never readable
	Absent                  // there is none
	Present
)

// String is the presence for a log.
func (p Presence) String() string {
	return [...]string{Unknown: "unknown", Absent: "absent", Present: "present"}[p]
}

// linger is how long a token that has gone goes on as it was: whoever replaces a
// Secret by deleting it first means no moment without one.
const linger = 10 * time.Second

// View is what one replica knows of the token at rest: what it read last that
// could be used. It is a value, and each step returns another. The zero View has
// read nothing.
//
// A Secret that is there and broken never counts as none: the last good tokens
// stay in force, and without such everyone waits.
type View struct {
	tokens   Tokens
	presence Presence
	gone     time.Time // since when there is none any more; zero: it is there
	err      error
}

// Read takes what is at rest now. Where an administrator has edited it (see
// [Edited]) writeBack is what should be there instead, so that a replica that
// starts later honours the same grace; nil otherwise.
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

// Malformed takes note that there is something, and that it is no token.
func (v View) Malformed(now time.Time, err error) View {
	tokens, presence := v.At(now)
	if presence != Present {
		return View{err: err}
	}
	return View{tokens: tokens, presence: Present, err: err}
}

// Failed takes note that nothing could be read; what was known still holds.
func (v View) Failed(err error) View {
	v.err = err
	return v
}

// Gone takes note that there is none.
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

// At is what holds at now. The tokens are empty unless they are present.
func (v View) At(now time.Time) (Tokens, Presence) {
	if v.presence == Present && !v.gone.IsZero() && now.Sub(v.gone) >= linger {
		return Tokens{}, Absent
	}
	return v.tokens, v.presence
}

// Err is what was wrong with what was read last, or nil.
func (v View) Err() error { return v.err }
