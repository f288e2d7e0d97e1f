// SPDX-License-Identifier: Apache-2.0

package measuredboot_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-eventlog/testdata"

	"github.com/mcs-attest/mcs-attest/pkg/eventlog"
	"github.com/mcs-attest/mcs-attest/pkg/eventlog/eventlogtest"
	"github.com/mcs-attest/mcs-attest/pkg/measuredboot"
	"github.com/mcs-attest/mcs-attest/pkg/reason"
)

// firmwareOf returns the set of the firmware in a captured boot. The TPM's values confirm the log.
func firmwareOf(t testing.TB, name, capture string) measuredboot.ReferenceValues {
	t.Helper()
	c := eventlogtest.Load(t, capture)
	r, err := measuredboot.FromFirmwareLog(name, c.Log,
		map[uint16]map[int][]byte{eventlog.SHA256: c.PCRs("sha256", measuredboot.Strict.PCRs()...)})
	if err != nil {
		t.Fatal(err)
	}
	return *r
}

// The captures are from three builds of OVMF. Of the build without SMM there are several boots.
const (
	build2022      = eventlogtest.SecureBootUKIAltered // also the boot of strictBoot
	build2022SMM   = eventlogtest.SecureBootUKI
	build2022Fixed = eventlogtest.ShimGRUB // a security update, with SMM
)

// strictBoot returns a captured boot of a known image, under the profile strict. Its firmware set is from a boot of
// another virtual machine.
func strictBoot(t testing.TB) boot {
	t.Helper()
	c := eventlogtest.Load(t, eventlogtest.SecureBootUKI4Banks)
	return boot{
		profile: measuredboot.Strict,
		bank:    eventlog.SHA256,
		quoted:  c.PCRs("sha256", measuredboot.Strict.PCRs()...),
		log:     c.Log,
		refs: []measuredboot.ReferenceValues{references(t, eventlogtest.SecureBootUKI),
			firmwareOf(t, "ovmf-2022.11", build2022)},
	}
}

func TestStrictAcceptsAMachineWithTheFirmwareOfAnother(t *testing.T) {
	b := strictBoot(t)
	if r := passes(t, b); r.Firmware != "ovmf-2022.11" || r.Image != eventlogtest.SecureBootUKI {
		t.Errorf("got %+v", r)
	}
	// During an update of the firmware, both sets are accepted.
	b.refs = append(b.refs, firmwareOf(t, "ovmf-2022.11-smm", build2022SMM))
	passes(t, b)
	slices.Reverse(b.refs)
	if r := passes(t, b); r.Firmware != "ovmf-2022.11" {
		t.Errorf("got %+v", r)
	}
	grub := grubBoot(t)
	grub.profile, grub.refs = measuredboot.Strict, append(grub.refs, firmwareOf(t, "ovmf-fixed", build2022Fixed))
	if r := passes(t, grub); r.Firmware != "ovmf-fixed" || r.Image != "debian-12" {
		t.Errorf("got %+v", r)
	}
}

func TestStrictNeedsAFirmwareSetAndAnImage(t *testing.T) {
	b := strictBoot(t)
	image, set := b.refs[0], b.refs[1]
	b.refs = []measuredboot.ReferenceValues{image}
	if f := fails(t, b, reason.MeasuredBoot, "expected a firmware set of the reference values"); f.PCR != 0 {
		t.Errorf("got %+v", f)
	}
	b.refs = []measuredboot.ReferenceValues{set}
	fails(t, b, reason.MeasuredBoot, "PCR 11")
	grub := grubBoot(t)
	grub.profile = measuredboot.Strict
	grub.refs = []measuredboot.ReferenceValues{firmwareOf(t, "ovmf-fixed", build2022Fixed)}
	fails(t, grub, reason.MeasuredBoot, "PCR 4", "no reference values")
}

// A firmware set describes no image, so it must not stand for one whose PCR 11 is zero.
func TestFirmwareSetIsNotAnImage(t *testing.T) {
	b := shimGRUB(t)
	b.refs = []measuredboot.ReferenceValues{references(t, eventlogtest.SecureBootUKI)}
	fails(t, b, reason.MeasuredBoot, "the image is a UKI")
	b.refs = append(b.refs, firmwareOf(t, "ovmf-fixed", build2022Fixed))
	fails(t, b, reason.MeasuredBoot, "the image is a UKI")
}

// Downgraded firmware whose set was removed, or firmware that no administrator accepted.
func TestStrictDeniesFirmwareWithoutItsSet(t *testing.T) {
	b := strictBoot(t)
	b.refs[1] = firmwareOf(t, "ovmf-2022.11-smm", build2022SMM)
	f := fails(t, b, reason.MeasuredBoot, "EV_EFI_PLATFORM_FIRMWARE_BLOB", "of the firmware set ovmf-2022.11-smm")
	if f.PCR != 0 || f.Index != 2 {
		t.Errorf("got %+v", f)
	}
	// Of sets that are equally near, the finding names the first.
	b.refs = append(b.refs, firmwareOf(t, "same", build2022SMM))
	fails(t, b, reason.MeasuredBoot, "of the firmware set ovmf-2022.11-smm (the nearest of 2)")
	b.refs = b.refs[:2]
	// A set with one event fewer in common is not the nearest one, in any order.
	b.refs = append(b.refs, firmwareOf(t, "older", build2022SMM))
	b.refs[2].Firmware.Events[0].SHA256 = bytes.Repeat([]byte{1}, 32)
	fails(t, b, reason.MeasuredBoot, "of the firmware set ovmf-2022.11-smm (the nearest of 2)")
	slices.Reverse(b.refs)
	fails(t, b, reason.MeasuredBoot, "of the firmware set ovmf-2022.11-smm (the nearest of 2)")
}

func TestStrictDeniesFirmwareThatIsNotOfTheSet(t *testing.T) {
	// swap replaces the i-th event of a PCR by another measurement.
	swap := func(pcr uint32, i int) func(events) events {
		return func(e events) events {
			for at := range e {
				if e[at].PCR == pcr {
					if i == 0 {
						e[at] = another(e[at])
						return e
					}
					i--
				}
			}
			t.Fatal("no such event")
			return nil
		}
	}
	before := func(pcr uint32, typ uint32, data []byte) func(events) events {
		return func(e events) events {
			return slices.Insert(e, separatorOf(t, e, pcr), eventlogtest.New(e[0], pcr, typ, data))
		}
	}
	for name, c := range map[string]struct {
		change func(events) events
		pcr    int
		seen   string
	}{
		"another version in PCR 0":       {swap(0, 0), 0, "EV_S_CRTM_VERSION"},
		"another volume in PCR 0":        {swap(0, 1), 0, "EV_EFI_PLATFORM_FIRMWARE_BLOB"},
		"a setting in PCR 1":             {before(1, 0x0A, []byte("setup")), 1, "EV_PLATFORM_CONFIG_FLAGS"},
		"an unknown option ROM in PCR 2": {before(2, 0x80000004, []byte("option ROM")), 2, "EV_EFI_BOOT_SERVICES_DRIVER"},
		"a ROM after the separator, PCR 2": {func(e events) events {
			return append(e, eventlogtest.New(e[0], 2, 5, []byte("x")))
		}, 2, "no such event"},
		"a setting of a ROM in PCR 3": {before(3, 0x0A, []byte("setup")), 3, "EV_PLATFORM_CONFIG_FLAGS"},
		"an unknown event in PCR 5":   {before(5, eventlog.EFIAction, []byte("loader.conf")), 5, "EV_EFI_ACTION"},
		"an unknown event in PCR 6":   {before(6, eventlog.EFIAction, []byte("maker")), 6, "EV_EFI_ACTION"},
		"an event of PCR 0 is missing": {func(e events) events {
			i := slices.IndexFunc(e, func(e eventlogtest.Event) bool { return e.PCR == 0 })
			return slices.Delete(e, i, i+1)
		}, 0, "EV_EFI_PLATFORM_FIRMWARE_BLOB"},
	} {
		t.Run(name, func(t *testing.T) {
			b := strictBoot(t).booted(t, c.change)
			b.profile = measuredboot.Release
			passes(t, b)
			b.profile = measuredboot.Strict
			f := fails(t, b, reason.MeasuredBoot, c.seen, "of the firmware set ovmf-2022.11")
			if f.PCR != c.pcr || f.Index < 0 {
				t.Errorf("got %+v", f)
			}
		})
	}
}

// PCR 0 has the firmware of one accepted set, and PCR 1 the settings of another.
func TestStrictDeniesAMixtureOfTwoSets(t *testing.T) {
	settings := func(text string) func(events) events {
		return func(e events) events {
			return slices.Insert(e, separatorOf(t, e, 1), eventlogtest.New(e[0], 1, 0x0A, []byte(text)))
		}
	}
	code := func(e events) events {
		i := slices.IndexFunc(e, func(e eventlogtest.Event) bool { return e.PCR == 0 && e.Type == 0x80000008 })
		e[i] = another(e[i])
		return e
	}
	set := func(name string, b boot) measuredboot.ReferenceValues {
		r, err := measuredboot.FromFirmwareLog(name, b.log, map[uint16]map[int][]byte{b.bank: b.quoted})
		if err != nil {
			t.Fatal(err)
		}
		return *r
	}
	honest := strictBoot(t)
	older, newer := honest.booted(t, settings("older")), honest.booted(t, settings("newer")).booted(t, code)
	both := []measuredboot.ReferenceValues{honest.refs[0], set("older", older), set("newer", newer)}
	for _, b := range []boot{older, newer} {
		b.refs = both
		passes(t, b)
	}
	for name, b := range map[string]boot{
		"new code, old settings": honest.booted(t, settings("older")).booted(t, code),
		"old code, new settings": honest.booted(t, settings("newer")),
	} {
		t.Run(name, func(t *testing.T) {
			b.refs = both
			fails(t, b, reason.MeasuredBoot, "(the nearest of 2)")
		})
	}
}

// A log that is edited without the TPM, so that it looks like the accepted firmware.
func TestStrictDeniesALogThatWasEdited(t *testing.T) {
	setting := []byte("\x01\x02") // could be the value of BootOrder
	measured := func(e events) events {
		return slices.Insert(e, separatorOf(t, e, 1), eventlogtest.New(e[0], 1, 0x0A, setting))
	}
	b := strictBoot(t).booted(t, measured)
	fails(t, b, reason.MeasuredBoot, "PCR 1")
	left := b.claimed(t, func(e events) events {
		i := slices.IndexFunc(e, func(e eventlogtest.Event) bool { return e.PCR == 1 && bytes.Equal(e.Data, setting) })
		return slices.Delete(e, i, i+1)
	})
	if f := fails(t, left, reason.EventLogReplay); f.PCR != 1 {
		t.Errorf("got %+v", f)
	}
	for name, data := range map[string][]byte{
		"as BootOrder":     variable(globalVendor, "BootOrder", string(setting)),
		"as a boot option": variable(globalVendor, "Boot0007", string(setting)),
		"as a complete boot option": variable(globalVendor, "Boot0007",
			"\x01\x00\x00\x00\x04\x00A\x00\x00\x00\x7f\xff\x04\x00"),
		"as a variable of another maker": variable(databaseVendor, "BootOrder", string(setting)),
		"as a partition table":           append([]byte("EFI PART"), setting...),
	} {
		t.Run(name, func(t *testing.T) {
			f := fails(t, b.claimed(t, func(e events) events {
				i := slices.IndexFunc(e, func(e eventlogtest.Event) bool { return e.PCR == 1 && bytes.Equal(e.Data, setting) })
				e[i].Data, e[i].Type = data, 0x80000002
				return e
			}), reason.MeasuredBoot, "of the firmware set ovmf-2022.11")
			if f.PCR != 1 {
				t.Errorf("got %+v", f)
			}
		})
	}
	// A partition table in PCR 5 is one only with its digest.
	table := strictBoot(t).booted(t, func(e events) events {
		return slices.Insert(e, separatorOf(t, e, 5), eventlogtest.New(e[0], 5, 0x80000006, setting))
	}).claimed(t, func(e events) events {
		i := slices.IndexFunc(e, func(e eventlogtest.Event) bool { return e.PCR == 5 && bytes.Equal(e.Data, setting) })
		e[i].Data = append([]byte("EFI PART"), setting...)
		return e
	})
	if f := fails(t, table, reason.MeasuredBoot, "of the firmware set ovmf-2022.11"); f.PCR != 5 {
		t.Errorf("got %+v", f)
	}
	// A changed setting of the set cannot become a boot option either: the set misses it.
	with := strictBoot(t).booted(t, measured)
	r, err := measuredboot.FromFirmwareLog("with", with.log, map[uint16]map[int][]byte{with.bank: with.quoted})
	if err != nil {
		t.Fatal(err)
	}
	with.refs[1] = *r
	passes(t, with)
	changed := strictBoot(t)
	changed.refs = with.refs
	changed = changed.booted(t, func(e events) events {
		e = slices.DeleteFunc(e, func(e eventlogtest.Event) bool { return e.PCR == 1 && e.Type != eventlog.Separator })
		m := eventlogtest.New(e[0], 1, 0x80000002, []byte("\x01\x03"))
		m.Data = variable(globalVendor, "BootOrder", "\x01\x03")
		return slices.Insert(e, separatorOf(t, e, 1), m)
	})
	if f := fails(t, changed, reason.MeasuredBoot, "of the firmware set with"); f.PCR != 1 {
		t.Errorf("got %+v", f)
	}
}

// Boot options differ between honest machines. What only has the name of one is an event like any other.
func TestStrictIgnoresOnlyWholeBootOptions(t *testing.T) {
	const end = "\x7f\xff\x04\x00"
	option := func(paths string) string {
		return "\x01\x00\x00\x00" + string([]byte{byte(len(paths)), 0}) + "A\x00\x00\x00" + paths
	}
	for name, c := range map[string]struct {
		variables []string // name and value, in turn
		ignored   bool
	}{
		"a boot option":                       {[]string{"Boot0009", option(end)}, true},
		"without a description":               {[]string{"Boot0009", "\x01\x00\x00\x00\x04\x00\x00\x00" + end}, true},
		"two paths, and optional data":        {[]string{"BootABCD", option("\x01\x02\x05\x00x"+end) + "data"}, true},
		"a second BootOrder":                  {[]string{"BootOrder", "\x01\x00\x02\x00"}, false},
		"two options":                         {[]string{"Boot0009", option(end), "Boot0008", option(end)}, true},
		"one option twice":                    {[]string{"Boot0009", option(end), "Boot0009", option(end)}, false},
		"a name that is none":                 {[]string{"Boot000g", option(end)}, false},
		"a longer name":                       {[]string{"Boot00090", option(end)}, false},
		"nothing":                             {[]string{"Boot0009", ""}, false},
		"five bytes":                          {[]string{"Boot0009", option(end)[:5]}, false},
		"only the lengths":                    {[]string{"Boot0009", option(end)[:6]}, false},
		"a description without end":           {[]string{"Boot0009", option(end)[:8]}, false},
		"no path":                             {[]string{"Boot0009", option("")}, false},
		"a path of three bytes":               {[]string{"Boot0009", option(end[:3])}, false},
		"a path that is longer than the rest": {[]string{"Boot0009", option(end + end)[:14]}, false},
		"an element of three bytes":           {[]string{"Boot0009", option("\x01\x02\x03\x00" + end)}, false},
		"an element that is longer":           {[]string{"Boot0009", option("\x7f\xff\x05\x00")}, false},
		"an element of three bytes that overlaps the next": {
			[]string{"Boot0009", option("\x01\x02\x03" + "\x00\xff\x04\x00" + end)}, false},
		"a byte at the end":          {[]string{"Boot0009", option(end + "\x7f")}, false},
		"half an element at the end": {[]string{"Boot0009", option(end + "\x7f\xff")}, false},
		"a path without its end":     {[]string{"Boot0009", option("\x01\x02\x04\x00")}, false},
	} {
		b := strictBoot(t).booted(t, func(e events) events {
			for i := 0; i < len(c.variables); i += 2 {
				m := eventlogtest.New(e[0], 1, 0x80000002, variable(globalVendor, c.variables[i], c.variables[i+1]))
				e = slices.Insert(e, separatorOf(t, e, 1), m)
			}
			return e
		})
		_, err := b.appraise()
		if (err == nil) != c.ignored || err != nil && !strings.Contains(err.Error(), "of the firmware set ovmf-2022.11") {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// BootOrder has two bytes for each option, and only the variables of the UEFI specification count.
func TestStrictIgnoresOnlyTheBootOrder(t *testing.T) {
	const option = "\x01\x00\x00\x00\x04\x00A\x00\x00\x00\x7f\xff\x04\x00"
	for name, c := range map[string]struct {
		with    []byte
		ignored bool
	}{
		"one option":                      {variable(globalVendor, "BootOrder", "\x01\x00"), true},
		"two options":                     {variable(globalVendor, "BootOrder", "\x01\x00\x02\x00"), true},
		"half an option":                  {variable(globalVendor, "BootOrder", "\x01\x00\x02"), false},
		"of another vendor":               {variable(databaseVendor, "BootOrder", "\x01\x00"), false},
		"a boot option of another vendor": {variable(databaseVendor, "Boot0009", option), false},
	} {
		b := strictBoot(t).booted(t, func(e events) events {
			i := slices.IndexFunc(e, func(e eventlogtest.Event) bool {
				return e.PCR == 1 && strings.Contains(text(e), "BootOrder")
			})
			e[i] = eventlogtest.New(e[i], 1, e[i].Type, c.with)
			return e
		})
		_, err := b.appraise()
		if (err == nil) != c.ignored || err != nil && !strings.Contains(err.Error(), "of the firmware set ovmf-2022.11") {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// The set of a platform that starts its TPM at locality 3. Software that resets the TPM starts it at 0, and can leave
// the locality out of the log, so that the log replays.
func TestAttack_T31_AnAcceptedFirmwareStartsTheTPMAtItsLocality(t *testing.T) {
	started := func(e events) events {
		m := eventlogtest.New(e[0], 0, eventlog.NoAction, nil)
		for i := range m.Digests {
			clear(m.Digests[i].Value)
		}
		m.Data = []byte("StartupLocality\x00\x03")
		return slices.Insert(e, 0, m)
	}
	honest := strictBoot(t)
	platform := honest.booted(t, started)
	r, err := measuredboot.FromFirmwareLog("platform", platform.log,
		map[uint16]map[int][]byte{platform.bank: platform.quoted})
	if err != nil {
		t.Fatal(err)
	}
	platform.refs[1] = *r
	if passes(t, platform); r.Firmware.Locality != 3 {
		t.Errorf("got %+v", r.Firmware)
	}
	honest.refs = platform.refs
	if f := fails(t, honest, reason.MeasuredBoot, "a start of the TPM at locality 3", "locality 0"); f.PCR != 0 {
		t.Errorf("got %+v", f)
	}
}

// realMachines are logs of real machines whose events of PCRs 0-3, 5 and 6 are all kinds that are known.
func realMachines() map[string][]byte {
	return map[string][]byte{
		"a server":       testdata.GdcHost,
		"a workstation":  testdata.ArchLinuxWorkstationEventLog,
		"Compute Engine": testdata.Rhel8EventLog,
	}
}

func TestFirmwareSetsAreTheSameForMachinesThatDifferOnlyInBootOptionsAndDisks(t *testing.T) {
	for name, raw := range realMachines() {
		t.Run(name, func(t *testing.T) {
			set := fromLog(t, raw)
			for _, e := range set.Firmware.Events {
				if strings.Contains(e.Event, "Boot0") || strings.Contains(e.Event, "BootOrder") ||
					strings.Contains(e.Event, "GPT") || strings.Contains(e.Event, "Exit Boot") {
					t.Errorf("the set has %+v", e)
				}
			}
			other := fromLog(t, eventlogtest.Edit(t, raw, func(e events) events {
				options, gpt := 0, 0
				for i := range e {
					switch {
					case e[i].PCR == 1 && strings.Contains(text(e[i]), "Boot000"):
						e[i] = anotherOption(t, e[i])
						options++
					case e[i].PCR == 5 && bytes.HasPrefix(e[i].Data, []byte("EFI PART")):
						e[i] = eventlogtest.New(e[i], 5, e[i].Type, append(e[i].Data[:60], bytes.Repeat([]byte{7}, 80)...))
						gpt++
					}
				}
				if options < 2 || gpt < 1 {
					t.Fatalf("%d boot options, %d partition tables", options, gpt)
				}
				failed := eventlogtest.New(e[0], 5, eventlog.EFIAction, []byte("Exit Boot Services Returned with Failure"))
				return append(e, failed)
			}))
			if a, b := asJSON(t, set), asJSON(t, other); a != b {
				t.Errorf("got\n%s\nand\n%s", a, b)
			}
		})
	}
	if set := fromLog(t, testdata.GdcHost); set.Firmware.Locality != 3 || len(set.Firmware.Events) < 50 ||
		set.Firmware.Events[1].Event != "EV_S_CRTM_VERSION 2.3.5" {
		t.Errorf("got %s", asJSON(t, set))
	}
}

func TestFirmwareSetHasEachBankOfALog(t *testing.T) {
	c := eventlogtest.Load(t, eventlogtest.SecureBootUKI4Banks)
	set := fromLog(t, c.Log)
	for _, e := range set.Firmware.Events {
		if len(e.SHA256) != 32 || len(e.SHA384) != 48 {
			t.Errorf("%+v", e)
		}
	}
	b := strictBoot(t)
	b.bank, b.quoted = eventlog.SHA384, c.PCRs("sha384", measuredboot.Strict.PCRs()...)
	b.refs[1] = set
	passes(t, b)
	// A quote proves only its bank.
	e := firmwareOf(t, "x", eventlogtest.SecureBootUKI4Banks).Firmware.Events[0]
	if len(e.SHA384) > 0 || len(e.SHA256) != 32 {
		t.Errorf("%+v", e)
	}
}

// The value of a boot option explains only one bank, so only the other bank has the event in its set.
func TestFromFirmwareLogDeniesBanksWithDifferentEvents(t *testing.T) {
	c := eventlogtest.Load(t, eventlogtest.SecureBootUKI4Banks)
	raw := eventlogtest.Edit(t, c.Log, func(e events) events {
		i := slices.IndexFunc(e, func(e eventlogtest.Event) bool { return e.PCR == 1 && strings.Contains(text(e), "Boot0") })
		digests := another(e[i]).Digests
		for j, d := range digests {
			if d.Algorithm == eventlog.SHA384 {
				e[i].Digests[j] = d
			}
		}
		return e
	})
	r, err := measuredboot.FromFirmwareLog("x", raw, nil)
	n := len(fromLog(t, c.Log).Firmware.Events)
	want := fmt.Sprintf("the log has %d events of the firmware in one bank and %d in another", n, n+1)
	if r != nil || err == nil || err.Error() != want {
		t.Errorf("got %v, %v, expected %s", r, err, want)
	}
}

// The events of a set have a text for the administrator: a name, or a text in ASCII or UTF-16.
func TestFirmwareSetDescribesItsEvents(t *testing.T) {
	const typ = "EV_PLATFORM_CONFIG_FLAGS"
	longest := strings.Repeat("x", 64)
	for data, want := range map[string]string{
		string(variable(globalVendor, "Lang", "eng")): typ + " Lang",
		"":                   typ,
		"\x00\x00":           typ,
		"a":                  typ + " a",
		"a\x00":              typ + " a",
		"abcd":               typ + " abcd",
		"a b~\x00":           typ + " a b~",
		"a\x00b\x00":         typ + " ab",
		"a\x00b\x00\x00\x00": typ + " ab",
		"a\x00b":             typ,
		"a\x1f":              typ,
		"a\x7f":              typ,
		longest:              typ + " " + longest,
		longest + "x":        typ,
	} {
		b := strictBoot(t).booted(t, func(e events) events {
			return slices.Insert(e, separatorOf(t, e, 6), eventlogtest.New(e[0], 6, 0x0A, []byte(data)))
		})
		set := fromLog(t, b.log)
		i := slices.IndexFunc(set.Firmware.Events, func(e measuredboot.FirmwareEvent) bool { return e.PCR == 6 })
		if got := set.Firmware.Events[i].Event; got != want {
			t.Errorf("%q: got %q, expected %q", data, got, want)
		}
	}
}

func TestFromFirmwareLogNeedsThePCRsOfTheFirmwareAndAName(t *testing.T) {
	c := eventlogtest.Load(t, eventlogtest.SecureBootUKI)
	quoted := map[uint16]map[int][]byte{eventlog.SHA256: c.PCRs("sha256", 0, 1, 2, 3, 4, 5, 6, 7)}
	if _, err := measuredboot.FromFirmwareLog("x", c.Log, quoted); err != nil {
		t.Error(err)
	}
	if _, err := measuredboot.FromFirmwareLog("", c.Log, quoted); err == nil ||
		!strings.Contains(err.Error(), "metadata.name is empty") {
		t.Errorf("without a name: %v", err)
	}
}

func TestFromFirmwareLogDeniesALogThatProvesNothing(t *testing.T) {
	c := eventlogtest.Load(t, eventlogtest.SecureBootUKI)
	quoted := func() map[uint16]map[int][]byte {
		return map[uint16]map[int][]byte{eventlog.SHA256: c.PCRs("sha256", measuredboot.Strict.PCRs()...)}
	}
	wrong, few, none := quoted(), quoted(), map[uint16]map[int][]byte{}
	wrong[eventlog.SHA256][2][0] ^= 1
	delete(few[eventlog.SHA256], 2)
	for name, v := range map[string]struct {
		log    []byte
		quoted map[uint16]map[int][]byte
		want   string
	}{
		"another value of PCR 2": {c.Log, wrong, "PCR 2: expected the quoted value"},
		"PCR 2 is not quoted":    {c.Log, few, "the quote does not have PCR 2: use evidence of the profile secure-boot"},
		"no bank is quoted":      {c.Log, none, "no quote of bank sha256 or sha384"},
		"no log":                 {nil, quoted(), "the event log is empty"},
		"no log and no quote":    {nil, nil, "the event log is empty"},
		"a log without a separator": {eventlogtest.Edit(t, c.Log, func(e events) events {
			i := separatorOf(t, e, 2)
			return slices.Delete(e, i, i+1)
		}), nil, "PCR 2: expected measurements by the firmware"},
	} {
		t.Run(name, func(t *testing.T) {
			r, err := measuredboot.FromFirmwareLog("x", v.log, v.quoted)
			if err == nil || r != nil || !strings.Contains(err.Error(), v.want) {
				t.Errorf("got %v, %v", r, err)
			}
		})
	}
}

func TestAdministratorMayExceptASettingOfAFirmwareSet(t *testing.T) {
	setting := func(serial string) func(events) events {
		return func(e events) events {
			return slices.Insert(e, separatorOf(t, e, 1), eventlogtest.New(e[0], 1, 0x80000009, []byte(serial)))
		}
	}
	b := strictBoot(t).booted(t, setting("serial 1"))
	set := fromLog(t, b.log)
	i := slices.IndexFunc(set.Firmware.Events, func(e measuredboot.FirmwareEvent) bool {
		return strings.Contains(e.Event, "HANDOFF_TABLES")
	})
	set.Firmware.Events[i].Digests, set.Firmware.Events[i].AnyDigest = measuredboot.Digests{}, true
	b.refs[1] = set
	passes(t, b)
	other := strictBoot(t).booted(t, setting("serial 2"))
	other.refs = b.refs
	passes(t, other)
	none := strictBoot(t)
	none.refs = b.refs
	fails(t, none, reason.MeasuredBoot, "PCR 1", "of the firmware set x")

	// A finding describes what is missing by the text of the set.
	last := func(set measuredboot.ReferenceValues) *measuredboot.FirmwareEvent {
		for i := len(set.Firmware.Events) - 1; ; i-- {
			if e := &set.Firmware.Events[i]; e.PCR == 1 {
				return e
			}
		}
	}
	missing := strictBoot(t)
	set = fromLog(t, missing.log)
	more := *last(set)
	set.Firmware.Events = append(set.Firmware.Events, more)
	missing.refs[1] = set
	separator := fmt.Sprintf("%x", more.SHA256)
	fails(t, missing, reason.MeasuredBoot, `expected "EV_SEPARATOR" with `+separator+" of", "seen no more events")
	last(set).Event = ""
	fails(t, missing, reason.MeasuredBoot, "expected an event with "+separator+" of")
	last(set).Digests, last(set).AnyDigest = measuredboot.Digests{}, true
	fails(t, missing, reason.MeasuredBoot, "expected an event with any digest of", "seen no more events")
}

func TestFirmwareSetsThatAreAccepted(t *testing.T) {
	for _, locality := range []byte{0, 3, 4} {
		r := firmwareOf(t, "x", eventlogtest.SecureBootUKI)
		r.Firmware.Locality = locality
		if err := r.Validate(); err != nil {
			t.Errorf("locality %d: %v", locality, err)
		}
	}
	for pcr, settings := range map[int]bool{0: false, 1: true, 2: false, 3: true, 5: true, 6: true} {
		r := firmwareOf(t, "x", eventlogtest.SecureBootUKI)
		i := slices.IndexFunc(r.Firmware.Events, func(e measuredboot.FirmwareEvent) bool { return e.PCR == pcr })
		r.Firmware.Events[i].Digests, r.Firmware.Events[i].AnyDigest = measuredboot.Digests{}, true
		if err := r.Validate(); (err == nil) != settings {
			t.Errorf("any digest in PCR %d: %v", pcr, err)
		}
	}
}

// A firmware set has no value of an image, not one.
func TestFirmwareSetsHaveNoValueOfAnImage(t *testing.T) {
	digests := measuredboot.Digests{SHA256: bytes.Repeat([]byte{7}, 32)}
	components := []measuredboot.Component{{Name: "x", Digests: digests}}
	for name, change := range map[string]func(*measuredboot.ReferenceValues){
		"stub":         func(r *measuredboot.ReferenceValues) { r.Stub = "systemd-stub 252" },
		"pcr11":        func(r *measuredboot.ReferenceValues) { r.PCR11 = []measuredboot.PCRValue{{Digests: digests}} },
		"sections":     func(r *measuredboot.ReferenceValues) { r.Sections = components },
		"pcr12":        func(r *measuredboot.ReferenceValues) { r.PCR12 = []measuredboot.Digests{digests} },
		"pcr13":        func(r *measuredboot.ReferenceValues) { r.PCR13 = []measuredboot.Digests{digests} },
		"applications": func(r *measuredboot.ReferenceValues) { r.Applications = components },
		"files":        func(r *measuredboot.ReferenceValues) { r.Files = components },
		"loads":        func(r *measuredboot.ReferenceValues) { r.Loads = components },
		"initrd":       func(r *measuredboot.ReferenceValues) { r.Initrd = digests },
		"initrd, in the other bank": func(r *measuredboot.ReferenceValues) {
			r.Initrd = measuredboot.Digests{SHA384: bytes.Repeat([]byte{7}, 48)}
		},
		"commands":     func(r *measuredboot.ReferenceValues) { r.Commands = []measuredboot.Words{"boot"} },
		"commandLines": func(r *measuredboot.ReferenceValues) { r.CommandLines = []measuredboot.Words{"/vmlinuz"} },
		"mok":          func(r *measuredboot.ReferenceValues) { r.MOK = components },
	} {
		r := firmwareOf(t, "x", eventlogtest.SecureBootUKI)
		change(&r)
		if err := r.Validate(); err == nil || !strings.HasPrefix(err.Error(), "firmware: the document also has values") {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestFirmwareSetsThatAreNotAccepted(t *testing.T) {
	for want, change := range map[string]func(*measuredboot.ReferenceValues){
		"firmware.locality: 5 is not 0, 3 or 4": func(r *measuredboot.ReferenceValues) { r.Firmware.Locality = 5 },
		"firmware.locality: 2 is not 0, 3 or 4": func(r *measuredboot.ReferenceValues) { r.Firmware.Locality = 2 },
		"firmware.events: none of PCR 6": func(r *measuredboot.ReferenceValues) {
			r.Firmware.Events = slices.DeleteFunc(r.Firmware.Events,
				func(e measuredboot.FirmwareEvent) bool { return e.PCR == 6 })
		},
		"firmware.events[0].pcr: 7 is not one of": func(r *measuredboot.ReferenceValues) { r.Firmware.Events[0].PCR = 7 },
		"firmware.events[0].anyDigest: PCR 0 measures code": func(r *measuredboot.ReferenceValues) {
			r.Firmware.Events[0].Digests, r.Firmware.Events[0].AnyDigest = measuredboot.Digests{}, true
		},
		"firmware.events[0].anyDigest: the event also has a digest": func(r *measuredboot.ReferenceValues) {
			r.Firmware.Events[0].PCR, r.Firmware.Events[0].AnyDigest = 1, true
		},
		"firmware.events[1].anyDigest: the event also has a digest": func(r *measuredboot.ReferenceValues) {
			r.Firmware.Events[1].PCR, r.Firmware.Events[1].AnyDigest = 1, true
			r.Firmware.Events[1].Digests = measuredboot.Digests{SHA384: make([]byte, 48)}
		},
		"firmware.events[2].anyDigest: the event also has a digest": func(r *measuredboot.ReferenceValues) {
			r.Firmware.Events[2].PCR, r.Firmware.Events[2].AnyDigest = 1, true
			r.Firmware.Events[2].SHA256 = r.Firmware.Events[2].SHA256[:1]
		},
		"firmware.events[0]: neither sha256 nor sha384": func(r *measuredboot.ReferenceValues) {
			r.Firmware.Events[0].Digests = measuredboot.Digests{}
		},
	} {
		r := firmwareOf(t, "x", eventlogtest.SecureBootUKI)
		change(&r)
		if err := r.Validate(); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("got %v, expected %q", err, want)
		}
	}
}

// FuzzStrict gives the attacker full control of the log. It is accepted only if each event of PCRs 0, 2 and 6 is one
// of the set.
func FuzzStrict(f *testing.F) {
	b := strictBoot(f)
	f.Add(b.log)
	known := map[string]bool{}
	for _, e := range b.refs[1].Firmware.Events {
		known[string(e.SHA256)] = true
	}
	f.Fuzz(func(t *testing.T, raw []byte) {
		log, err := eventlog.Parse(raw, eventlog.SHA256)
		if err != nil {
			return
		}
		replayed := log.Replay()
		quoted := map[int][]byte{}
		for _, i := range measuredboot.Strict.PCRs() {
			quoted[i] = bytes.Clone(replayed.Value(i))
		}
		if _, err := measuredboot.Appraise(measuredboot.Strict, eventlog.SHA256, quoted, raw, b.refs); err != nil {
			return
		}
		for _, e := range log.Events {
			if (e.PCR == 0 || e.PCR == 2 || e.PCR == 6) && e.Extends() && !known[string(e.Digest)] {
				t.Fatalf("accepted event %d with an unknown digest", e.Index)
			}
		}
	})
}

// fromLog returns the set of a log without a quote.
func fromLog(t testing.TB, raw []byte) measuredboot.ReferenceValues {
	t.Helper()
	r, err := measuredboot.FromFirmwareLog("x", raw, nil)
	if err != nil {
		t.Fatal(err)
	}
	return *r
}

func asJSON(t testing.TB, v any) string {
	t.Helper()
	raw, err := json.MarshalIndent(v, "", " ")
	if err != nil {
		t.Fatal(err)
	}
	return string(raw)
}

// text returns the data of an event without NULs, so that UTF-16 can be searched.
func text(e eventlogtest.Event) string { return string(bytes.ReplaceAll(e.Data, []byte{0}, nil)) }

// anotherOption changes the attributes of a boot option. The digest is that of the variable or of its value, as in e.
func anotherOption(t testing.TB, e eventlogtest.Event) eventlogtest.Event {
	t.Helper()
	whole := slices.ContainsFunc(e.Digests, func(d eventlogtest.Digest) bool {
		return d.Algorithm == eventlog.SHA256 && bytes.Equal(d.Value, eventlog.Hash(eventlog.SHA256, e.Data))
	})
	data := bytes.Clone(e.Data)
	value := data[len(data)-len(valueOf(e)):]
	value[0] ^= 8
	measured := value
	if whole {
		measured = data
	}
	e = eventlogtest.New(e, e.PCR, e.Type, measured)
	e.Data = data
	return e
}
