// SPDX-License-Identifier: Apache-2.0

package measuredboot

import (
	"github.com/mcs-attest/mcs-attest/pkg/eventlog"
	"github.com/mcs-attest/mcs-attest/pkg/reason"
)

// The functions in this file are single steps of [Appraise]. A command compares each of them with what another
// library says about the same log. No decision rests on one of them.

// Explains requires that a log is well-formed (EventLogMalformed) and that its replay gives every quoted value
// (EventLogReplay). As in [Appraise], the running system may have extended a phase and its separator.
func Explains(bank uint16, quoted map[int][]byte, rawLog []byte) error {
	_, err := explained(bank, quoted, rawLog)
	return err
}

// UsesSecureBoot requires that a log explains the quoted values, of which PCRs 0-7 must be some, and that Secure
// Boot was enabled and used (MeasuredBoot).
func UsesSecureBoot(bank uint16, quoted map[int][]byte, rawLog []byte) error {
	b, err := explained(bank, quoted, rawLog)
	if err != nil {
		return err
	}
	for _, c := range []check{firmwareMeasured, separators, secureBootPolicy} {
		if f := c(b); f != nil {
			return reason.Wrap(reason.MeasuredBoot, f, "Secure Boot")
		}
	}
	return nil
}

func explained(bank uint16, quoted map[int][]byte, rawLog []byte) (*boot, error) {
	log, err := eventlog.Parse(rawLog, bank)
	if err != nil {
		return nil, err
	}
	b := &boot{bank: bank, quoted: quoted, log: log, result: &Result{Bank: bank}}
	if f := b.replay(); f != nil {
		return nil, reason.Wrap(reason.EventLogReplay, f, "event log")
	}
	return b, nil
}
