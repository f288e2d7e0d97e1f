// SPDX-License-Identifier: Apache-2.0

// Package hint adds a remedy to an error. Commands print it on a line below the error.
package hint

import "fmt"

// Error is an error with a remedy.
type Error struct {
	Err  error
	Hint string
}

// Error implements error. It does not return the remedy.
func (e *Error) Error() string { return e.Err.Error() }

// Unwrap returns the error without the remedy.
func (e *Error) Unwrap() error { return e.Err }

// New returns err with a remedy.
func New(err error, format string, a ...any) error { return &Error{err, fmt.Sprintf(format, a...)} }
