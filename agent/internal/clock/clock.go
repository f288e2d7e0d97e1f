// SPDX-License-Identifier: Apache-2.0

// Package clock sets the machine's clock on a first boot whose clock is years off. The agent needs no
// clock, but Ignition does: by a wrong clock, no certificate of the server is valid.
//
// The time is that of the verifier that has just admitted this machine: the Date header of its answer
// (RFC 9110, 6.6.1), which TLS authenticates. [Clock.Correct] uses it under these conditions:
//
//   - By the machine's clock, the server's certificates are not valid. Otherwise Ignition succeeds.
//   - By the server's time, they are valid.
//   - The server's time is not before this program was built, and not before an authority of the pointer
//     config was made.
//   - The clock goes back only if it is after the end of every authority of the pointer config. By
//     another clock, an expired certificate may have been stolen.
package clock

import (
	"crypto/x509"
	"errors"
	"slices"
	"time"

	"golang.org/x/sys/unix"

	"github.com/mcs-attest/mcs-attest/agent/internal/console"
)

// Clock is the machine's clock. All fields are required.
type Clock struct {
	Console *console.Console
	// Built is when this program was built. With the zero value the clock is never set.
	Built time.Time
	// Authorities are those of the pointer config.
	Authorities []*x509.Certificate
	Now         func() time.Time
	Set         func(time.Time) error
}

// Correct sets the clock to served, the time of a server with the verified chains, under the conditions
// of the package comment. It reports on the console what it did, or why it did nothing.
func (c *Clock) Correct(served time.Time, chains [][]*x509.Certificate) {
	now := c.Now().UTC()
	if valid(chains, now) {
		return
	}
	err := c.check(now, served, chains)
	if err == nil {
		err = c.Set(served)
	}
	if err != nil {
		c.Console.Step("by this machine's clock (%s) the server's certificate is not valid; the clock stays: %v",
			now.Format(time.RFC3339), err)
		c.Console.Hint("set the clock in the firmware's setup; Ignition may not be able to fetch the config")
		return
	}
	c.Console.Step("set this machine's clock from %s to %s, the verifier's time: the server's certificate was not valid",
		now.Format(time.RFC3339), served.UTC().Format(time.RFC3339))
}

// check returns why the clock may not be set to served.
func (c *Clock) check(now, served time.Time, chains [][]*x509.Certificate) error {
	switch {
	case c.Built.IsZero():
		return errors.New("this build of the agent has no date")
	case served.IsZero():
		return errors.New("the server sent no time")
	case served.Before(c.Built):
		return errors.New("the server's time is before this program was built")
	case slices.ContainsFunc(c.Authorities, func(a *x509.Certificate) bool { return served.Before(a.NotBefore) }):
		return errors.New("the server's time is before an authority of the pointer config was made")
	case !valid(chains, served):
		return errors.New("the server's certificate is not valid by the server's time either")
	case served.Before(now) &&
		slices.ContainsFunc(c.Authorities, func(a *x509.Certificate) bool { return !now.After(a.NotAfter) }):
		return errors.New("it is ahead of the server's, and may be correct: the certificate may have expired")
	}
	return nil
}

// valid reports whether each certificate of one of the chains is valid at a time.
func valid(chains [][]*x509.Certificate, at time.Time) bool {
	return slices.ContainsFunc(chains, func(chain []*x509.Certificate) bool {
		return !slices.ContainsFunc(chain, func(c *x509.Certificate) bool {
			return at.Before(c.NotBefore) || at.After(c.NotAfter)
		})
	})
}

// Set sets the system's clock, and not the hardware's.
func Set(t time.Time) error {
	ts := unix.NsecToTimespec(t.UnixNano())
	return unix.ClockSettime(unix.CLOCK_REALTIME, &ts)
}
