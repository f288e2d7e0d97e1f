// Package hint adds to an error a line on what to do about it. Commands print the line below the error.
package hint

import "fmt"

// Error is an error with its remedy.
type Error struct {
	Err  error
	Hint string
}

// Error implements error: the remedy is not in it.
func (e *Error) Error() string { return e.Err.Error() }

// Unwrap returns the error without the remedy.
func (e *Error) Unwrap() error { return e.Err }

// New returns err with a remedy.
func New(err error, format string, a ...any) error { return &Error{err, fmt.Sprintf(format, a...)} }
