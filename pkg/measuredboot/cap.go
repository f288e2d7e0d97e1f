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

// laterPhases follow during the boot. An initramfs attests before them: where systemd-pcrphase runs,
// leave-initrd ends the initramfs as the cap does elsewhere.
var laterPhases = []string{"leave-initrd", "sysinit", "ready"}

// CapDigest returns the digest to extend into PCR 11 of a bank: the hash of [CapLabel]. It is nil
// for a bank that cannot be appraised.
func CapDigest(bank uint16) []byte { return eventlog.Hash(bank, []byte(CapLabel)) }

// leftFrom reports whether value results from start by the end of the initramfs: a cap, systemd's
// phase leave-initrd, or both, and then the later phases of the boot. The initramfs may have been
// capped twice, before or after the phase enter-initrd.
func leftFrom(bank uint16, start, value []byte) bool {
	phase := func(v []byte, name string) []byte {
		return eventlog.Extend(bank, v, eventlog.Hash(bank, []byte(name)))
	}
	for _, v := range [][]byte{start, phase(start, EnterInitrd)} {
		for caps := range 3 {
			if caps > 0 {
				if v = eventlog.Extend(bank, v, CapDigest(bank)); bytes.Equal(v, value) {
					return true
				}
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
