// SPDX-License-Identifier: Apache-2.0

// Package reason defines the closed set of reasons for a denial. The service, the
// gate, the approver and the commands use it.
//
// A [Code] has the same text in the RPC error, the metric label, the Event, the
// record's condition and the audit line. One table defines each code: whether it
// is final, what the caller may learn of it (its class), and the gate's HTTP
// status. No other package decides that.
//
// A denial is final only if its cause is in the caller's own proof, or was
// confirmed by a live read. All others are temporary (rule 12 of
// docs/security-rules.md).
package reason

import (
	"errors"
	"fmt"
	"maps"
	"net/http"
	"slices"

	mcsattestv1 "github.com/mcs-attest/mcs-attest/proto/mcsattest/v1"
)

// Code is one reason; its values are those of the contract's enum Reason.
type Code int32

// Denial is the error of a denied request. Callers receive at most its code; the
// detail and the cause are only for administrators.
type Denial struct {
	Code   Code
	Detail string // for the audit log; may contain untrusted text
	Err    error  // the cause, or nil
}

// Error returns the code, the detail and the cause, for administrators.
func (d *Denial) Error() string {
	s := d.Code.String()
	if d.Detail != "" {
		s += ": " + d.Detail
	}
	if d.Err != nil {
		s += ": " + d.Err.Error()
	}
	return s
}

// Unwrap returns the cause.
func (d *Denial) Unwrap() error { return d.Err }

// Deny returns a Denial.
func Deny(code Code, format string, a ...any) error {
	return &Denial{Code: code, Detail: fmt.Sprintf(format, a...)}
}

// Wrap returns a Denial with the cause err. Its code is always code, even if err is a Denial.
func Wrap(code Code, err error, format string, a ...any) error {
	return &Denial{Code: code, Detail: fmt.Sprintf(format, a...), Err: err}
}

// From returns the Denial in err. An error without one is the verifier's own
// failure, so it becomes [Internal], which is temporary. From(nil) is nil.
func From(err error) *Denial {
	if err == nil {
		return nil
	}
	if d, ok := errors.AsType[*Denial](err); ok {
		return d
	}
	return &Denial{Code: Internal, Err: err}
}

// Info is the table's entry for a code.
type Info struct {
	Name        string // the code's text form
	Class       mcsattestv1.DenialClass
	Temporary   bool
	GateStatus  int    // of the gate's response: 400, 401 or 403 if final, else 503
	BearerError string // RFC 6750, 3.1; empty unless a presented token is at fault
	Title       string // one sentence for administrators
	Hint        string // what to do about it
}

// Info returns the table's entry for c, or that of [Internal] if c is unknown.
func (c Code) Info() Info {
	if i, ok := table[c]; ok {
		return i
	}
	return table[Internal]
}

// String returns the code's text form, for example "EKNotEnrolled".
func (c Code) String() string {
	if i, ok := table[c]; ok {
		return i.Name
	}
	return fmt.Sprintf("Reason%d", int32(c))
}

// Temporary reports whether the same machine may succeed later.
func (c Code) Temporary() bool { return c.Info().Temporary }

// Codes returns every code in ascending order.
func Codes() []Code { return slices.Sorted(maps.Keys(table)) }

// Parse returns the code with the text form name.
func Parse(name string) (Code, bool) {
	for c, i := range table {
		if i.Name == name {
			return c, true
		}
	}
	return 0, false
}

func final(class mcsattestv1.DenialClass, name, title, hint string) Info {
	return Info{Name: name, Class: class, GateStatus: http.StatusUnauthorized, Title: title, Hint: hint}
}

func temporary(class mcsattestv1.DenialClass, name, title, hint string) Info {
	return Info{Name: name, Class: class, Temporary: true, GateStatus: http.StatusServiceUnavailable, Title: title,
		Hint: hint}
}

// status returns a final reason for which the gate answers with code instead of 401.
func status(code int, class mcsattestv1.DenialClass, name, title, hint string) Info {
	i := final(class, name, title, hint)
	i.GateStatus = code
	return i
}

func bearer(i Info, status int, code string) Info {
	i.GateStatus, i.BearerError = status, code
	return i
}
