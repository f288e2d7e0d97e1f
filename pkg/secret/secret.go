// SPDX-License-Identifier: Apache-2.0

// Package secret contains a type for bytes that must never be printed.
//
// A value of type [Bytes] is "[redacted]" for every formatter, logger and encoder of the standard
// library. Only Expose returns the bytes, so a search for that word finds every place where a
// secret can leave the program.
package secret

import (
	"fmt"
	"log/slog"
)

const redacted = "[redacted]"

// Bytes is a secret. The zero value is an empty secret.
type Bytes struct{ b []byte }

// New takes ownership of b.
func New(b []byte) Bytes { return Bytes{b} }

// Expose returns the secret itself. The caller must not keep or print it.
func (s Bytes) Expose() []byte { return s.b }

// Empty reports whether the secret is empty.
func (s Bytes) Empty() bool { return len(s.b) == 0 }

// Format redacts the secret for every fmt verb.
func (s Bytes) Format(f fmt.State, _ rune) { _, _ = f.Write([]byte(redacted)) }

// String redacts the secret.
func (s Bytes) String() string { return redacted }

// LogValue redacts the secret for log/slog.
func (s Bytes) LogValue() slog.Value { return slog.StringValue(redacted) }

// MarshalText redacts the secret for encoding/json, encoding/xml and YAML encoders.
func (s Bytes) MarshalText() ([]byte, error) { return []byte(redacted), nil }
