// SPDX-License-Identifier: Apache-2.0

package measuredboot

import (
	"bytes"
	"maps"

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

// BeforeCap returns quoted PCR values with the value that PCR 11 had while the initramfs ran, if this value was
// zero or is a reference value. Only a rehearsal, which grants nothing, may ignore the end of the initramfs.
// capped reports whether the initramfs ended as it should. If it is false, the values are those quoted.
func BeforeCap(bank uint16, quoted map[int][]byte, refs []ReferenceValues) (values map[int][]byte, capped bool) {
	size := eventlog.Size(bank)
	if value := quoted[11]; size == 0 || len(value) != size {
		return quoted, false
	}
	for _, start := range starts(bank, refs) {
		if leftFrom(bank, start, quoted[11]) {
			values = maps.Clone(quoted)
			values[11] = start
			return values, true
		}
	}
	return quoted, false
}

// starts returns the values that PCR 11 may have when the initramfs starts.
func starts(bank uint16, refs []ReferenceValues) [][]byte {
	all := [][]byte{make([]byte, eventlog.Size(bank))}
	for _, r := range refs {
		for _, v := range r.PCR11 {
			if v.Phase == "" {
				all = append(all, v.In(bank))
			}
		}
	}
	return all
}

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
