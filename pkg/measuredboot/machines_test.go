// SPDX-License-Identifier: Apache-2.0

package measuredboot_test

import (
	"bytes"
	"encoding/binary"
	"slices"
	"testing"

	"github.com/google/go-eventlog/testdata"

	"github.com/mcs-attest/mcs-attest/pkg/eventlog"
	"github.com/mcs-attest/mcs-attest/pkg/eventlog/eventlogtest"
	"github.com/mcs-attest/mcs-attest/pkg/measuredboot"
	"github.com/mcs-attest/mcs-attest/pkg/reason"
)

// Vendors of variables, as the hexadecimal digits of the GUID in memory.
const (
	globalVendor   = "\x61\xdf\xe4\x8b\xca\x93\xd2\x11\xaa\x0d\x00\xe0\x98\x03\x2b\x8c"
	databaseVendor = "\xcb\xb2\x19\xd7\x3a\x3d\x96\x45\xa3\xbc\xda\xd0\x0e\x67\x65\x6f"
	shimVendor     = "\x50\xab\x5d\x60\x46\xe0\x00\x43\xab\xb6\x3d\xd8\x10\xdd\x8b\x23"
)

// variable returns a UEFI_VARIABLE_DATA.
func variable(vendor, name, value string) []byte {
	d := binary.LittleEndian.AppendUint64([]byte(vendor), uint64(len(name)))
	d = binary.LittleEndian.AppendUint64(d, uint64(len(value)))
	for _, c := range []byte(name) {
		d = append(d, c, 0)
	}
	return append(d, value...)
}

// valueOf returns the value of the variable in an event.
func valueOf(e eventlogtest.Event) string {
	return string(e.Data[32+2*binary.LittleEndian.Uint64(e.Data[16:]):])
}

// rhel8 is a real boot by shim 15 and GRUB with Secure Boot. shim measured its vendor certificate as
// "Shim".
func rhel8(t testing.TB) boot {
	t.Helper()
	raw := testdata.Rhel8EventLog
	return boot{measuredboot.SecureBoot, eventlog.SHA256,
		eventlogtest.Forge(t, raw, eventlog.SHA256, secureBootPCRs...), raw, nil}
}

// shimGRUB is the captured boot by shim 16.1 and GRUB.
func shimGRUB(t testing.TB) boot {
	t.Helper()
	b := captured(t, eventlogtest.ShimGRUB)
	b.refs = nil
	return b
}

// authority returns an event as firmware and shim measure them into PCR 7.
func authority(like eventlogtest.Event, data []byte) eventlogtest.Event {
	return eventlogtest.New(like, 7, eventlog.EFIVariableAuthority, data)
}

// TestSecureBootAcceptsEachShim replaces the event of shim 15 in a real log by the events of other
// versions, as the sources of shim measure them (verify.c and mok.c of each tag; rhboot/shim#714
// has logs of both forms). An entry of a list has the GUID of its owner before the certificate.
func TestSecureBootAcceptsEachShim(t *testing.T) {
	passes(t, rhel8(t))
	t.Run("16.1, captured", func(t *testing.T) {
		r := passes(t, shimGRUB(t))
		var names []string
		for _, a := range r.Authorities {
			names = append(names, a.Variable)
		}
		if !slices.Equal(names, []string{"db", "SbatLevel", "MokListRT"}) {
			t.Errorf("authorities %q", names)
		}
	})
	owned := func(e eventlogtest.Event) string { return shimVendor + valueOf(e) }
	sbat := variable(shimVendor, "SbatLevel", "sbat,1,2021030218\n")
	for name, c := range map[string]struct {
		last   string // authority
		events func(vendorCertificate eventlogtest.Event) [][]byte
	}{
		"15.2, vendor_db": {"vendor_db", func(e eventlogtest.Event) [][]byte {
			return [][]byte{variable(databaseVendor, "vendor_db", owned(e))}
		}},
		"15.4, vendor certificate": {"Shim", func(e eventlogtest.Event) [][]byte {
			return [][]byte{variable(shimVendor, "SBAT", "sbat,1,2021030218\n"), variable(shimVendor, "Shim", valueOf(e))}
		}},
		"15.6, a key of the machine's owner": {"MokList", func(e eventlogtest.Event) [][]byte {
			return [][]byte{sbat, variable(shimVendor, "MokListTrusted", "\x01"), variable(shimVendor, "MokList", owned(e))}
		}},
		"15.7 to 16.1, vendor certificate": {"MokListRT", func(e eventlogtest.Event) [][]byte {
			return [][]byte{sbat, variable(shimVendor, "MokListRT", owned(e))}
		}},
		"16.1, vendor_db": {"vendor_db", func(e eventlogtest.Event) [][]byte {
			return [][]byte{sbat, variable(databaseVendor, "vendor_db", owned(e))}
		}},
	} {
		t.Run(name, func(t *testing.T) {
			r := passes(t, rhel8(t).happened(t, withShim(t, c.events)))
			if last := r.Authorities[len(r.Authorities)-1].Variable; r.Authorities[0].Variable != "db" || last != c.last {
				t.Errorf("authorities %+v", r.Authorities)
			}
		})
	}
}

// withShim replaces the event of shim's vendor certificate.
func withShim(t testing.TB, change func(eventlogtest.Event) [][]byte) func(events) events {
	return func(e events) events {
		i := find(t, e, 7, "Shim")
		var with events
		for _, data := range change(e[i]) {
			with = append(with, authority(e[i], data))
		}
		return slices.Replace(e, i, i+1, with...)
	}
}

func TestSecureBootDeniesOtherEventsOfShim(t *testing.T) {
	passes(t, rhel8(t))
	for name, data := range map[string][]byte{
		"shim that verifies nothing (MokSBState)": variable(shimVendor, "MokSBState", "\x01"),
		"an image that dbx rejects":               variable(databaseVendor, "dbx", shimVendor+"hash"),
		"an image that MokListX rejects":          variable(shimVendor, "MokListX", shimVendor+"hash"),
		"MokListRT of another vendor":             variable(databaseVendor, "MokListRT", shimVendor+"certificate"),
		"vendor_db of another vendor":             variable(shimVendor, "vendor_db", shimVendor+"certificate"),
		"a development build's SbatLevel":         variable(shimVendor, "SbatLevel_DEVEL", "sbat,1"),
	} {
		t.Run(name, func(t *testing.T) {
			f := fails(t, rhel8(t).happened(t, func(e events) events { return append(e, authority(e[0], data)) }),
				reason.MeasuredBoot, "expected an authority after the separator")
			if f.PCR != 7 {
				t.Errorf("got %+v", f)
			}
		})
	}
}

// Some firmware measures PCR 7's separator together with the others, after it has verified drivers of
// add-on cards. The events before the separator are then the authorities of these drivers
// (canonical/secboot#410, systemd/systemd#43139).
func TestSecureBootAcceptsAuthoritiesOfDriversBeforeALateSeparator(t *testing.T) {
	// late moves the separator of PCR 7 behind that of PCR 6, and adds an authority before it.
	late := func(authority func(events) eventlogtest.Event) func(events) events {
		return func(e events) events {
			a := authority(e)
			i := separatorOf(t, e, 7)
			separator := e[i]
			e = slices.Delete(e, i, i+1)
			return slices.Insert(e, separatorOf(t, e, 6)+1, a, separator)
		}
	}
	byAnotherKey := late(func(e events) eventlogtest.Event {
		return authority(e[0], variable(databaseVendor, "db", shimVendor+"certificate of a card's maker"))
	})
	ofTheBootLoader := func(e events) eventlogtest.Event { return e[authorityOf(t, e)] }
	// Firmware measures each authority once, so the boot loader's is the driver's.
	once := func(e events) events {
		e = late(ofTheBootLoader)(e)
		i := separatorOf(t, e, 7) + 1
		i += authorityOf(t, e[i:])
		return slices.Delete(e, i, i+1)
	}
	if r := passes(t, rhel8(t).happened(t, byAnotherKey)); len(r.Authorities) != 2 || r.Authorities[0].Variable != "db" {
		t.Errorf("got %+v", r.Authorities)
	}
	passes(t, captured(t, eventlogtest.SecureBootUKI).happened(t, byAnotherKey))
	if r := passes(t, rhel8(t).happened(t, once)); len(r.Authorities) != 1 || r.Authorities[0].Variable != "Shim" {
		t.Errorf("got %+v", r.Authorities)
	}
	// Which events of shim show that it started an image.
	for name, of := range map[string]struct {
		vendor     string
		authorizes bool
	}{
		"Shim": {shimVendor, true}, "MokList": {shimVendor, true}, "MokListRT": {shimVendor, true},
		"vendor_db": {databaseVendor, true}, "SbatLevel": {shimVendor, false}, "SBAT": {shimVendor, false},
		"MokListTrusted": {shimVendor, false},
	} {
		b := rhel8(t).happened(t, once).happened(t, withShim(t, func(eventlogtest.Event) [][]byte {
			return [][]byte{variable(of.vendor, name, "x"), variable(shimVendor, "SbatLevel", "sbat,1,2021030218\n")}
		}))
		if _, err := b.appraise(); (err == nil) != of.authorizes {
			t.Errorf("%s: %v", name, err)
		}
	}
	t.Run("an authority of shim does not replace that of db", func(t *testing.T) {
		fails(t, rhel8(t).happened(t, func(e events) events {
			i := authorityOf(t, e)
			return slices.Delete(e, i, i+1)
		}), reason.MeasuredBoot, "an authority of db")
	})
	t.Run("no image after the drivers was authorized", func(t *testing.T) {
		b := captured(t, eventlogtest.SecureBootUKI).happened(t, once)
		fails(t, b, reason.MeasuredBoot, "an authority of db", "none, although SecureBoot is 01")
		// shim measures this one without an image.
		fails(t, b.happened(t, func(e events) events {
			return append(e, authority(e[0], variable(shimVendor, "SbatLevel", "sbat,1,2021030218\n")))
		}), reason.MeasuredBoot, "an authority of db")
	})
	t.Run("an authority of shim before the separator", func(t *testing.T) {
		fails(t, rhel8(t).happened(t, late(func(e events) eventlogtest.Event { return e[find(t, e, 7, "Shim")] })),
			reason.MeasuredBoot, "a variable of the Secure Boot policy")
	})
}

// authorityOf returns the position of the first authority of db.
func authorityOf(t testing.TB, e events) int {
	t.Helper()
	i := slices.IndexFunc(e, func(e eventlogtest.Event) bool {
		return e.PCR == 7 && e.Type == eventlog.EFIVariableAuthority
	})
	if i < 0 {
		t.Fatal("no authority")
	}
	return i
}

// Firmware measures only the value of BootOrder. 0001, 0000 has the bytes of the mark for a failed
// measurement. TestSecureBootAcceptsRealMachines has a real log with it.
func TestAttack_T28_AnErrorMarkIsNotABootOrder(t *testing.T) {
	const mark = "\x01\x00\x00\x00"
	honest := captured(t, eventlogtest.SecureBootUKI)
	measured := func(pcr uint32, data []byte) func(events) events {
		return func(e events) events {
			m := eventlogtest.New(e[0], pcr, 0x80000002, []byte(mark))
			m.Data = data
			return slices.Insert(e, separatorOf(t, e, pcr), m)
		}
	}
	order := variable(globalVendor, "BootOrder", mark)
	passes(t, honest.happened(t, measured(1, order)))
	for name, change := range map[string]func(events) events{
		"the mark itself":              measured(1, []byte(mark)),
		"the mark with a text":         measured(1, []byte("SMBIOS tables")),
		"another variable":             measured(1, variable(globalVendor, "BootNext", mark)),
		"BootOrder of another vendor":  measured(1, variable(databaseVendor, "BootOrder", mark)),
		"BootOrder with another value": measured(1, variable(globalVendor, "BootOrder", "\x00\x00\x01\x00")),
		"BootOrder in PCR 4":           measured(4, order),
		"BootOrder in PCR 5":           measured(5, order),
		"the mark in all PCRs, as BootOrder": func(e events) events {
			for pcr := range uint32(8) {
				e = measured(pcr, order)(e)
			}
			return e
		},
	} {
		t.Run(name, func(t *testing.T) {
			fails(t, honest.happened(t, change), reason.MeasuredBoot, "the firmware's mark for a failed measurement")
		})
	}
}

func TestSecureBootAcceptsAnHCRTM(t *testing.T) {
	b := captured(t, eventlogtest.SecureBootUKI).happened(t, func(e events) events {
		return slices.Insert(e, 0, eventlogtest.New(e[0], 0, eventlog.HCRTM, []byte("HCRTM")))
	})
	if r := passes(t, b); r.Locality != 4 {
		t.Errorf("started at %d", r.Locality)
	}
	// A later program cannot reset PCR 0 to 4, so a false type does not help it.
	relabeled := captured(t, eventlogtest.SecureBootUKI).claimed(t, func(e events) events {
		i := slices.IndexFunc(e, func(e eventlogtest.Event) bool { return e.PCR == 0 && e.Type != eventlog.NoAction })
		e[i].Type = eventlog.HCRTM
		return e
	})
	if f := fails(t, relabeled, reason.EventLogReplay); f.PCR != 0 {
		t.Errorf("got %+v", f)
	}
}

// TestOraclesAcceptTheSameMachines compares the honest boots of this file with go-attestation.
func TestOraclesAcceptTheSameMachines(t *testing.T) {
	order := boot{measuredboot.SecureBoot, eventlog.SHA256,
		eventlogtest.Forge(t, testdata.Cos121AmdSevEventLog, eventlog.SHA256, secureBootPCRs...),
		bytes.Clone(testdata.Cos121AmdSevEventLog), nil}
	for name, b := range map[string]boot{"shim 16.1": shimGRUB(t), "BootOrder 0001, 0000": order} {
		if s, err := byGoAttestation(b); err != nil || !s.Enabled {
			t.Errorf("%s: go-attestation says %+v, %v", name, s, err)
		}
	}
}
