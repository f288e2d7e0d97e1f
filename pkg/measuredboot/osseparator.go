// SPDX-License-Identifier: Apache-2.0

package measuredboot

import (
	"bytes"

	"github.com/mcs-attest/mcs-attest/pkg/eventlog"
)

// osSeparator is the text whose digest systemd-pcrosseparator.service extends in the initramfs, once
// into each of [osSeparatorPCRs] of every enabled bank (systemd 261, systemd-pcrphase.service(8) and
// src/pcrlock/pcrlock.d/750-os-separator.pcrlock). The firmware's log does not have it.
const osSeparator = "os-separator"

var osSeparatorPCRs = []int{0, 1, 2, 3, 4, 5, 6, 7, 9, 12, 13, 14}

// separatedByOS reports whether the quoted PCRs must have systemd's separator after the replayed
// values. PCR 0 decides for all of them: if systemd cannot extend one, it reboots the machine.
//
// Without a UKI no separator is accepted, so PCR 11 must not be zero. [Appraise] has compared PCR 11
// with the reference values of UKIs before. The separator stays until a reset, so only PCR 11 proves
// that the initramfs still runs.
func (b *boot) separatedByOS(replayed *eventlog.PCRs) bool {
	return !isZero(b.quoted[11]) && bytes.Equal(b.quoted[0], afterOSSeparator(b.bank, replayed.Value(0)))
}

func afterOSSeparator(bank uint16, value []byte) []byte {
	return eventlog.Extend(bank, value, eventlog.Hash(bank, []byte(osSeparator)))
}
