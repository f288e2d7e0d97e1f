// Package secret holds bytes that must never be printed.
//
// A value of type [Bytes] answers "[redacted]" to every formatter, logger and
// encoder of the standard library. The bytes come out through Expose alone, so
// a search for that word finds every place where a secret leaves the program.
package secret

import (
	"fmt"
	"log/slog"
)

const redacted = "[redacted]"

// Bytes is a secret. The zero value is an empty one.
type Bytes struct{ b []byte }

// New takes ownership of b.
func New(b []byte) Bytes { return Bytes{b} }

// Expose returns the secret itself; the caller must not keep or print it.
func (s Bytes) Expose() []byte { return s.b }

// Empty reports whether there is no secret at all.
func (s Bytes) Empty() bool { return len(s.b) == 0 }

// Format redacts under every fmt verb.
func (s Bytes) Format(f fmt.State, _ rune) { _, _ = f.Write([]byte(redacted)) }

// String redacts.
func (s Bytes) String() string { return redacted }

// LogValue redacts in log/slog.
func (s Bytes) LogValue() slog.Value { return slog.StringValue(redacted) }

// MarshalText redacts in encoding/json, encoding/xml and YAML encoders.
func (s Bytes) MarshalText() ([]byte, error) { return []byte(redacted), nil }
