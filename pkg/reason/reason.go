// Package reason holds the closed set of reasons for which something is denied.
//
// A [Code] is the same word in the RPC error, the metric label, the Event, the
// record's condition and the audit line. One table says what each code means:
// whether it is final, what the caller may learn of it (its class), and which
// HTTP status the gate answers with. Nothing else in the tree decides that.
//
// Final is only what lies in the caller's own proof or was seen on a live read;
// everything else is temporary (DESIGN, section 19, rule 12).
package reason

import (
	"errors"
	"fmt"
	"net/http"

	mcsattestv1 "github.com/mcs-attest/mcs-attest/proto/mcsattest/v1"
)

// Code is one reason; its values are those of the contract's enum Reason.
type Code int32

// Denial is a refusal: a code for everyone, and a detail for the operator alone.
// It is always returned as an error.
type Denial struct {
	Code   Code
	Detail string // for the audit log; may hold untrusted text
	Err    error  // the cause, or nil
}

// Error is for the operator's eyes.
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

// Wrap returns a Denial with a cause. Its code is code, whatever err's was.
func Wrap(code Code, err error, format string, a ...any) error {
	return &Denial{Code: code, Detail: fmt.Sprintf(format, a...), Err: err}
}

// From finds the Denial in err. An error without one is our own fault, never
// the caller's: it becomes [Internal], which is temporary. From(nil) is nil.
func From(err error) *Denial {
	if err == nil {
		return nil
	}
	var d *Denial
	if errors.As(err, &d) {
		return d
	}
	return &Denial{Code: Internal, Err: err}
}

// Info is what the table says of a code.
type Info struct {
	Name        string // the code's text form
	Class       mcsattestv1.DenialClass
	Temporary   bool
	GateStatus  int    // what the gate answers: 400, 401 or 403 where final, else 503
	BearerError string // RFC 6750, 3.1; empty where no token was presented or none is at fault
	Title       string // one sentence for the operator
	Hint        string // what to do about it
}

// Info returns the table's entry. A code that is not in the table is answered as [Internal].
func (c Code) Info() Info {
	if i, ok := table[c]; ok {
		return i
	}
	return table[Internal]
}

// String is the code's text form, for example "EKNotEnrolled".
func (c Code) String() string {
	if i, ok := table[c]; ok {
		return i.Name
	}
	return fmt.Sprintf("Reason%d", int32(c))
}

// Temporary reports whether the same machine may succeed later.
func (c Code) Temporary() bool { return c.Info().Temporary }

// Codes lists every code in ascending order.
func Codes() []Code { return append([]Code(nil), all...) }

// Parse reads the text form.
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

// status is a final reason whose status at the gate is another than 401.
func status(code int, class mcsattestv1.DenialClass, name, title, hint string) Info {
	i := final(class, name, title, hint)
	i.GateStatus = code
	return i
}

func bearer(i Info, status int, code string) Info {
	i.GateStatus, i.BearerError = status, code
	return i
}
