// SPDX-License-Identifier: Apache-2.0

package env

import (
	"errors"
	"fmt"
	"io"

	"github.com/mcs-attest/mcs-attest/pkg/manifest"
	"github.com/mcs-attest/mcs-attest/verifier/internal/hint"
)

// Exit statuses of every command. A command with more documents them in its help.
const (
	ExitOK = 0
	// ExitFailed is a failure, or a verdict against what was asked about.
	ExitFailed = 1
	// ExitUsage is a wrong command line: nothing was done.
	ExitUsage = 2
	// ExitForeign, ExitUnknown and ExitLater are verdicts that are neither: not a matter for this
	// verifier, not found out, and denied only for now.
	ExitForeign = 3
	ExitUnknown = 4
	ExitLater   = 5
)

// ExitError is an error with an exit status of its own.
type ExitError struct {
	Err  error
	Code int
}

// Error implements error.
func (e *ExitError) Error() string { return e.Err.Error() }

// Unwrap returns the error without the status.
func (e *ExitError) Unwrap() error { return e.Err }

// Usage marks err as a wrong command line; nil stays nil.
func Usage(err error) error {
	if err == nil {
		return nil
	}
	return &ExitError{err, ExitUsage}
}

// Usagef returns a new error for a wrong command line.
func Usagef(format string, a ...any) error { return Usage(fmt.Errorf(format, a...)) }

// Report prints err and what to do about it, and returns the exit status. The text can be from a file or from a
// server, so it is made printable.
func Report(w io.Writer, err error) int {
	if err == nil {
		return ExitOK
	}
	fmt.Fprintln(w, "error:", manifest.Printable(err.Error()))
	if h, ok := errors.AsType[*hint.Error](err); ok {
		fmt.Fprintln(w, "hint:", manifest.Printable(h.Hint))
	}
	if exit, ok := errors.AsType[*ExitError](err); ok {
		return exit.Code
	}
	return ExitFailed
}
