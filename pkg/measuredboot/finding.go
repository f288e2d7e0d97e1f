// SPDX-License-Identifier: Apache-2.0

package measuredboot

import (
	"errors"
	"fmt"

	"github.com/mcs-attest/mcs-attest/pkg/eventlog"
	"github.com/mcs-attest/mcs-attest/pkg/reason"
)

// Finding is the reason for which a boot is not acceptable: the first unexpected value or event. It
// is the cause inside a denial; find it with errors.As.
type Finding struct {
	PCR      int
	Index    int    // the event's position in the log, -1 if no single event is at fault
	Type     string // the event type's name as the log claims it, empty without an event
	Expected string
	Seen     string // text from the log is quoted and truncated

	// freshness is true for a finding about the cap, which fails even under a profile that only
	// warns.
	freshness bool
}

// Error returns one line for the administrator.
func (f *Finding) Error() string {
	if f.Index < 0 {
		return fmt.Sprintf("PCR %d: expected %s, seen %s", f.PCR, f.Expected, f.Seen)
	}
	return fmt.Sprintf("PCR %d, event %d (%s): expected %s, seen %s", f.PCR, f.Index, f.Type, f.Expected, f.Seen)
}

// MayWarn reports whether a profile with action Warn may let err pass. It may for a boot that is
// not acceptable or not explained. It may not if PCR 11 does not prove that the initramfs still
// runs, or if err does not concern the boot.
func MayWarn(err error) bool {
	switch d := reason.From(err); {
	case d == nil:
		return false
	case d.Code == reason.MeasuredBoot:
		var f *Finding
		return errors.As(err, &f) && !f.freshness
	default:
		return d.Code == reason.EventLogMalformed || d.Code == reason.EventLogReplay
	}
}

func onPCR(pcr int, expected, seen string) *Finding {
	return &Finding{PCR: pcr, Index: -1, Expected: expected, Seen: seen}
}

func onEvent(e *eventlog.Event, expected, seen string) *Finding {
	return &Finding{PCR: e.PCR, Index: e.Index, Type: eventlog.TypeName(e.Type), Expected: expected, Seen: seen}
}

// quoted formats text from the log.
func quoted(s string) string {
	const most = 160 // the path of a deployed kernel has 140
	if len(s) > most {
		return fmt.Sprintf("%.*q...", most, s)
	}
	return fmt.Sprintf("%q", s)
}

// hexValue formats a digest; all zeros become a word.
func hexValue(d []byte) string {
	if isZero(d) {
		return "zeros"
	}
	return fmt.Sprintf("%x", d)
}

func isZero(d []byte) bool {
	for _, b := range d {
		if b != 0 {
			return false
		}
	}
	return true
}
