// SPDX-License-Identifier: Apache-2.0

package measuredboot

import (
	"bytes"

	"github.com/mcs-attest/mcs-attest/pkg/eventlog"
)

// CapLabel is the text whose digest is extended into PCR 11 to cap it.
const CapLabel = "mcs-attest: capped"

// EnterInitrd is the first phase that systemd-pcrphase extends into PCR 11
// (systemd-pcrphase.service(8)).
const EnterInitrd = "enter-initrd"

// laterPhases follow during the boot. An initramfs attests before them.
var laterPhases = []string{"leave-initrd", "sysinit", "ready"}

// CapDigest returns the digest to extend into PCR 11 of a bank: the hash of [CapLabel]. It is nil
// for a bank that cannot be appraised.
func CapDigest(bank uint16) []byte { return eventlog.Hash(bank, []byte(CapLabel)) }

// cappedFrom reports whether value results from start by one or two caps, before or after the phase
// enter-initrd, and the later phases of the boot. It only distinguishes a capped machine from an
// unknown image in the denial.
func cappedFrom(bank uint16, start, value []byte) bool {
	phase := func(v []byte, name string) []byte {
		return eventlog.Extend(bank, v, eventlog.Hash(bank, []byte(name)))
	}
	for _, first := range [][]byte{start, phase(start, EnterInitrd)} {
		v := first
		for range 2 {
			v = eventlog.Extend(bank, v, CapDigest(bank))
			if bytes.Equal(v, value) {
				return true
			}
			w := v
			for _, name := range laterPhases {
				if w = phase(w, name); bytes.Equal(w, value) {
					return true
				}
			}
		}
	}
	return false
}
