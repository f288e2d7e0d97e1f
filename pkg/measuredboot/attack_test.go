// SPDX-License-Identifier: Apache-2.0

package measuredboot_test

import (
	"bytes"
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-eventlog/testdata"

	"github.com/mcs-attest/mcs-attest/pkg/eventlog"
	"github.com/mcs-attest/mcs-attest/pkg/eventlog/eventlogtest"
	"github.com/mcs-attest/mcs-attest/pkg/measuredboot"
	"github.com/mcs-attest/mcs-attest/pkg/reason"
)

type events = []eventlogtest.Event

func TestAttack_T26_ALogWithoutAnyEventOfAQuotedPCR(t *testing.T) {
	honest := captured(t, eventlogtest.SecureBootUKI)
	passes(t, honest)
	for _, left := range []uint32{0, 1, 2, 3, 4, 5, 6, 7, 11} {
		b := honest.claimed(t, func(e events) events {
			return slices.DeleteFunc(e, func(e eventlogtest.Event) bool { return e.PCR == left })
		})
		if f := fails(t, b, reason.EventLogReplay, "a log with 0 events for it"); f.PCR != int(left) {
			t.Errorf("PCR %d was left out, the finding is about %d", left, f.PCR)
		}
	}
	// The running system extends PCR 11 by a phase of the initramfs. No other PCR may differ from the log like that.
	phase := honest
	phase.quoted = maps.Clone(honest.quoted)
	phase.quoted[12] = eventlog.Extend(phase.bank, phase.quoted[12],
		eventlog.Hash(phase.bank, []byte(measuredboot.EnterInitrd)))
	if f := fails(t, phase, reason.EventLogReplay); f.PCR != 12 {
		t.Errorf("got %+v", f)
	}
	for i := range 35 {
		b := honest.claimed(t, func(e events) events { return slices.Delete(e, i, i+1) })
		if _, err := b.appraise(); (err == nil) != (i == 31 || i == 32) { // PCR 9 is not quoted
			t.Errorf("without event %d: %v", i+1, err)
		}
	}
}

func TestAttack_T26_EmptyLogOrOnlyAHeader(t *testing.T) {
	b := captured(t, eventlogtest.SecureBootUKI)
	passes(t, b)
	header, _ := eventlogtest.Split(t, b.log)
	b.log = nil
	fails(t, b, reason.EventLogMalformed, "empty")
	b.log = header
	fails(t, b, reason.EventLogReplay)
}

func TestAttack_T27_RelabelingHasNoEffect(t *testing.T) {
	honest := captured(t, eventlogtest.SecureBootUKI)
	want := passes(t, honest)
	for _, typ := range []uint32{eventlog.IPL, eventlog.Separator, eventlog.EFIAction, eventlog.EFIVariableAuthority,
		0x8401, 0} {
		b := honest.claimed(t, func(e events) events {
			for i := range e {
				if e[i].Type != eventlog.NoAction {
					e[i].Type = typ
				}
			}
			return e
		})
		got := passes(t, b)
		if len(got.Applications) != 1 || len(got.Authorities) != 1 ||
			!bytes.Equal(got.Applications[0], want.Applications[0]) {
			t.Errorf("as %s: %+v", eventlog.TypeName(typ), got)
		}
	}
	for i := range 35 {
		b := honest.claimed(t, func(e events) events { e[i].Type = eventlog.NoAction; return e })
		if _, err := b.appraise(); (err == nil) != (i == 31 || i == 32) {
			t.Errorf("event %d as EV_NO_ACTION: %v", i+1, err)
		}
	}
	// Without a started image, no label turns another event into an application.
	b := captured(t, eventlogtest.SecureBootUKI).happened(t, func(e events) events {
		return slices.DeleteFunc(e, func(e eventlogtest.Event) bool {
			return e.PCR == 4 && e.Type == eventlog.EFIBootServicesApplication
		})
	})
	fails(t, b, reason.MeasuredBoot, "PCR 4", "a boot application")
	fails(t, b.claimed(t, func(e events) events {
		for i := range e {
			if e[i].PCR == 4 {
				e[i].Type, e[i].Data = eventlog.EFIBootServicesApplication, []byte("device path")
			}
		}
		return e
	}), reason.MeasuredBoot, "PCR 4", "a boot application")
}

// TestAttack_T28_PCR7 changes the measurements, so that quote and log agree. These are states of
// the firmware, or the work of software that extends PCR 7 later.
func TestAttack_T28_PCR7(t *testing.T) {
	honest := captured(t, eventlogtest.SecureBootUKI)
	passes(t, honest)
	again := func(name string) func(events) events {
		return func(e events) events {
			i := find(t, e, 7, name)
			return slices.Insert(e, i+1, e[i])
		}
	}
	without := func(name string) func(events) events {
		return func(e events) events { i := find(t, e, 7, name); return slices.Delete(e, i, i+1) }
	}
	withValue := func(name string, value []byte) func(events) events {
		return func(e events) events {
			i := find(t, e, 7, name)
			v := bytes.Clone(e[i].Data[:32+2*len(name)])
			v[24], v[25], v[26] = byte(len(value)), byte(len(value)>>8), 0
			e[i] = eventlogtest.New(e[i], 7, e[i].Type, append(v, value...))
			return e
		}
	}
	insertAt := func(where func(events) int, what func(events) eventlogtest.Event) func(events) events {
		return func(e events) events { return slices.Insert(e, where(e), what(e)) }
	}
	last := func(e events) int { return len(e) }
	afterSeparator := func(e events) int { return separatorOf(t, e, 7) + 1 }
	beforeSeparator := func(e events) int { return separatorOf(t, e, 7) }
	raw := func(data string) func(events) eventlogtest.Event {
		return func(e events) eventlogtest.Event { return eventlogtest.New(e[0], 7, eventlog.EFIAction, []byte(data)) }
	}
	copyOf := func(name string) func(events) eventlogtest.Event {
		return func(e events) eventlogtest.Event { return e[find(t, e, 7, name)] }
	}
	for name, c := range map[string]struct {
		change func(events) events
		words  string
	}{
		"SecureBoot is 00":    {withValue("SecureBoot", []byte{0}), "expected SecureBoot = 01, seen 00"},
		"SecureBoot is 02":    {withValue("SecureBoot", []byte{2}), "expected SecureBoot = 01, seen 02"},
		"SecureBoot is empty": {withValue("SecureBoot", nil), "seen an empty value"},
		"SecureBoot has 16 bytes": {withValue("SecureBoot", bytes.Repeat([]byte{0xAB}, 16)),
			"seen " + strings.Repeat("ab", 16)},
		"SecureBoot has 17 bytes": {withValue("SecureBoot", bytes.Repeat([]byte{0xAB}, 17)),
			"seen " + strings.Repeat("ab", 16) + "... (17 bytes)"},
		"SecureBoot has two bytes": {withValue("SecureBoot", []byte{1, 0}), "expected SecureBoot = 01, seen 0100"},
		"no platform key":          {withValue("PK", nil), "expected PK = a key"},
		"db is empty":              {withValue("db", nil), "expected db = a key"},
		"a second SecureBoot":      {again("SecureBoot"), "expected variable SecureBoot once"},
		"a second db":              {again("db"), "expected variable db once"},
		"no SecureBoot":            {without("SecureBoot"), "expected variable SecureBoot, seen the separator"},
		"no PK":                    {without("PK"), "expected variable PK"},
		"no KEK":                   {without("KEK"), "expected variable KEK"},
		"no dbx":                   {without("dbx"), "expected variable dbx"},
		"a second separator":       {insertAt(last, raw("\x00\x00\x00\x00")), "expected one separator, seen a second one"},
		"a second separator of the other kind": {insertAt(last, raw("\xff\xff\xff\xff")),
			"expected one separator, seen a second one"},
		"a separator of the kind for errors": {insertAt(last, raw("\x01\x00\x00\x00")), "failed measurement"},
		"an unknown string before the separator": {insertAt(beforeSeparator, raw("UEFI Debug Mode")),
			`seen "UEFI Debug Mode"`},
		"an unknown string after the separator": {insertAt(last, raw("hello")), `seen "hello"`},
		"a policy variable after the separator": {insertAt(afterSeparator, copyOf("PK")),
			`expected an authority after the separator, seen variable "PK"`},
		"SecureBoot moved behind the separator": {insertAt(afterSeparator, copyOf("SecureBoot")),
			`expected an authority after the separator, seen variable "SecureBoot"`},
		"an authority moved before the separator": {func(e events) events {
			a := e[21]
			return slices.Insert(slices.Delete(e, 21, 22), separatorOf(t, e, 7), a)
		}, "expected an authority of db that authorized a started image"},
		"an authority moved between the variables": {insertAt(func(e events) int { return find(t, e, 7, "dbx") },
			func(e events) eventlogtest.Event { return e[21] }), "expected variable db once"},
		"a digest without data that it is of": {func(e events) events {
			i := find(t, e, 7, "PK")
			e[i].Data = e[i].Data[:40]
			return e
		}, "not the digest of its data"},
		"a variable with a byte behind it": {func(e events) events {
			i := find(t, e, 7, "PK")
			e[i] = eventlogtest.New(e[i], 7, e[i].Type, append(bytes.Clone(e[i].Data), 0))
			return e
		}, "the digest of the UEFI variable"},
		"a PK of another vendor": {func(e events) events {
			i := find(t, e, 7, "PK")
			d := bytes.Clone(e[i].Data)
			d[0] ^= 1
			e[i] = eventlogtest.New(e[i], 7, e[i].Type, d)
			return e
		}, "a variable of the Secure Boot policy"},
		"a db in the wrong namespace as authority": {func(e events) events {
			d := bytes.Clone(e[21].Data)
			d[0] ^= 1
			e[21] = eventlogtest.New(e[21], 7, e[21].Type, d)
			return e
		}, "an authority after the separator"},
		"a variable without a name": {insertAt(beforeSeparator, func(e events) eventlogtest.Event {
			return eventlogtest.New(e[0], 7, 0x80000001, named(e, "", 0))
		}), "the digest of the UEFI variable"},
		"a variable with the first character": {insertAt(beforeSeparator, func(e events) eventlogtest.Event {
			return eventlogtest.New(e[0], 7, 0x80000001, named(e, "!", 0))
		}), `a variable of the Secure Boot policy, seen variable "!"`},
		"a variable with a space": {insertAt(beforeSeparator, func(e events) eventlogtest.Event {
			return eventlogtest.New(e[0], 7, 0x80000001, named(e, "a b", 0))
		}), "the digest of the UEFI variable"},
		"a variable with the last character": {insertAt(beforeSeparator, func(e events) eventlogtest.Event {
			return eventlogtest.New(e[0], 7, 0x80000001, named(e, "~", 0))
		}), `a variable of the Secure Boot policy, seen variable "~"`},
		"a variable with a control character": {insertAt(beforeSeparator, func(e events) eventlogtest.Event {
			return eventlogtest.New(e[0], 7, 0x80000001, named(e, "a\x7f", 0))
		}), "the digest of the UEFI variable"},
		"a variable with the longest name": {insertAt(beforeSeparator, func(e events) eventlogtest.Event {
			return eventlogtest.New(e[0], 7, 0x80000001, named(e, strings.Repeat("x", 64), 0))
		}), `a variable of the Secure Boot policy, seen variable "xxx`},
		"a variable with a longer name": {insertAt(beforeSeparator, func(e events) eventlogtest.Event {
			return eventlogtest.New(e[0], 7, 0x80000001, named(e, strings.Repeat("x", 65), 0))
		}), "the digest of the UEFI variable"},
		"a variable of 31 bytes": {insertAt(beforeSeparator, raw(strings.Repeat("x", 31))),
			"the digest of the UEFI variable"},
		"the sizes of a variable without a name": {insertAt(beforeSeparator, raw(strings.Repeat("\x00", 32))),
			"the digest of the UEFI variable"},
		"a variable that ends in its name": {insertAt(beforeSeparator, func(e events) eventlogtest.Event {
			d := named(e, "ab", 0)[:35]
			copy(d[24:], "\xff\xff\xff\xff\xff\xff\xff\xff") // so that the sizes add up to that of the data
			return eventlogtest.New(e[0], 7, 0x80000001, d)
		}), "the digest of the UEFI variable"},
		"setup mode": {insertAt(beforeSeparator, func(e events) eventlogtest.Event {
			return eventlogtest.New(e[0], 7, 0x80000001, named(e, "SetupMode", 1))
		}), "SetupMode = 00"},
		"audit mode": {insertAt(beforeSeparator, func(e events) eventlogtest.Event {
			return eventlogtest.New(e[0], 7, 0x80000001, named(e, "AuditMode", 1))
		}), "AuditMode = 00"},
		"a variable of unknown name that states 4 GiB": {insertAt(beforeSeparator, func(e events) eventlogtest.Event {
			d := named(e, "X", 0)
			d[28] = 1
			return eventlogtest.New(e[0], 7, 0x80000001, d)
		}), "the digest of the UEFI variable"},
		"a variable whose name has 2^63 characters": {insertAt(beforeSeparator, func(e events) eventlogtest.Event {
			d := named(e, "X", 0)
			d[23] = 0x80
			return eventlogtest.New(e[0], 7, 0x80000001, d)
		}), "the digest of the UEFI variable"},
	} {
		t.Run(name, func(t *testing.T) {
			f := fails(t, honest.happened(t, c.change), reason.MeasuredBoot, c.words)
			if f != nil && f.PCR != 7 {
				t.Errorf("the finding is about PCR %d", f.PCR)
			}
		})
	}
}

// named returns a variable in the namespace of SecureBoot.
func named(e events, name string, value byte) []byte {
	const fixed = 32
	d := make([]byte, fixed, fixed+2*len(name)+1)
	for _, x := range e { // the first event in PCR 7 is SecureBoot
		if x.PCR == 7 {
			copy(d, x.Data[:16])
			break
		}
	}
	d[16], d[24] = byte(len(name)), 1
	for _, c := range []byte(name) {
		d = append(d, c, 0)
	}
	return append(d, value)
}

func TestAttack_T28_SeparatorsOfTheOtherPCRs(t *testing.T) {
	honest := captured(t, eventlogtest.SecureBootUKI)
	passes(t, honest)
	for pcr := range uint32(8) {
		b := honest.happened(t, func(e events) events { return append(e, e[separatorOf(t, e, pcr)]) })
		if f := fails(t, b, reason.MeasuredBoot, "a second one"); f.PCR != int(pcr) || f.Index != 36 {
			t.Errorf("PCR %d: %+v", pcr, f)
		}
		b = honest.happened(t, func(e events) events { i := separatorOf(t, e, pcr); return slices.Delete(e, i, i+1) })
		if _, err := b.appraise(); err == nil || reason.From(err).Code != reason.MeasuredBoot {
			t.Errorf("PCR %d without a separator: %v", pcr, err)
		}
	}
}

// In PCRs 4 and 7, the type of the second event does not matter: the TPM does not measure it.
func TestAttack_T28_ASecondSeparatorOfAnotherType(t *testing.T) {
	honest := captured(t, eventlogtest.SecureBootUKI)
	passes(t, honest)
	for _, pcr := range []uint32{4, 7} {
		b := honest.happened(t, func(e events) events {
			again := e[separatorOf(t, e, pcr)]
			again.Type = eventlog.IPL
			return append(e, again)
		})
		if f := fails(t, b, reason.MeasuredBoot, "a second one"); f.PCR != int(pcr) {
			t.Errorf("PCR %d: %+v", pcr, f)
		}
	}
}

// Only the TPM's measurements of PCRs 0-7 count. Elsewhere, and in events that are not measured, the same bytes mean
// nothing.
func TestSecureBootIgnoresWhatIsNotMeasuredByTheFirmware(t *testing.T) {
	honest := captured(t, eventlogtest.SecureBootUKI)
	want := passes(t, honest)
	for name, data := range map[string]string{
		"a separator": "\x00\x00\x00\x00", "the mark for an error": "\x01\x00\x00\x00", "a text": "text",
	} {
		for _, pcr := range []uint32{4, 7} {
			got := passes(t, honest.claimed(t, func(e events) events {
				return append(e, eventlogtest.New(e[0], pcr, eventlog.NoAction, []byte(data)))
			}))
			if len(got.Applications) != len(want.Applications) || len(got.Authorities) != len(want.Authorities) {
				t.Errorf("%s: got %+v", name, got)
			}
		}
		passes(t, honest.happened(t, func(e events) events {
			return append(e, eventlogtest.New(e[0], 8, eventlog.IPL, []byte(data)))
		}))
	}
	// The event of an extension is the first that is measured.
	b := honest.happened(t, func(e events) events {
		return append(e, eventlogtest.New(e[0], 12, eventlog.NoAction, []byte("x")),
			eventlogtest.New(e[0], 12, eventlog.IPL, []byte("x")))
	})
	if f := fails(t, b, reason.MeasuredBoot, "from outside the image"); f.Index != 37 {
		t.Errorf("got %+v", f)
	}
}

// Firmware measures four zero bytes as an item, before or after the separator. Only a second separator is a claim of
// later software.
func TestAttack_T28_ZerosThatAreNoSeparator(t *testing.T) {
	honest := captured(t, eventlogtest.SecureBootUKI)
	const zeros = "\x00\x00\x00\x00"
	for name, c := range map[string]struct {
		before, after []uint32 // types of events with the separator's digest, before and after it
		passes        bool
	}{
		"an item before":              {[]uint32{8}, nil, true},
		"an item after":               {nil, []uint32{8}, true},
		"items on both sides":         {[]uint32{8}, []uint32{8, 8}, true},
		"a separator after":           {nil, []uint32{eventlog.Separator}, false},
		"an item, then a separator":   {nil, []uint32{8, eventlog.Separator}, false},
		"items, and one more at last": {[]uint32{8}, []uint32{8, eventlog.Separator}, false},
	} {
		b := honest.happened(t, func(e events) events {
			i := separatorOf(t, e, 0)
			for _, typ := range c.after {
				e = append(e, eventlogtest.New(e[0], 0, typ, []byte(zeros)))
			}
			for _, typ := range c.before {
				e = slices.Insert(e, i, eventlogtest.New(e[0], 0, typ, []byte(zeros)))
			}
			return e
		})
		if _, err := b.appraise(); (err == nil) != c.passes || err != nil && !strings.Contains(err.Error(), "a second one") {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// A text of the firmware in PCR 4 has only printable characters. Anything else could be an image.
func TestSecureBootCountsATextInPCR4AsNoApplication(t *testing.T) {
	// A started image stays one if the log has a text as its data.
	if r := passes(t, captured(t, eventlogtest.SecureBootUKI).claimed(t, func(e events) events {
		for i := range e {
			if e[i].PCR == 4 {
				e[i].Data = []byte("text")
			}
		}
		return e
	})); len(r.Applications) != 1 {
		t.Errorf("got %+v", r)
	}
	for text, isText := range map[string]bool{
		"a text of a firmware": true, "~ maker": true, "a\x1f": false, "a\x7f": false, "a\u00e9": false,
	} {
		b := captured(t, eventlogtest.SecureBootUKI).happened(t, func(e events) events {
			e = slices.DeleteFunc(e, func(e eventlogtest.Event) bool {
				return e.PCR == 4 && e.Type == eventlog.EFIBootServicesApplication
			})
			return append(e, eventlogtest.New(e[0], 4, eventlog.EFIAction, []byte(text)))
		})
		if isText {
			fails(t, b, reason.MeasuredBoot, "PCR 4: expected a boot application")
		} else {
			fails(t, b, reason.MeasuredBoot, "an image of ovmf-secureboot-uki")
		}
	}
}

func TestAttack_T28_StartupLocalityThatIsNotFirst(t *testing.T) {
	honest := captured(t, eventlogtest.SecureBootUKI)
	passes(t, honest)
	b := honest.claimed(t, func(e events) events {
		return slices.Insert(e, 1, eventlogtest.New(e[0], 0, eventlog.NoAction, []byte("StartupLocality\x00\x03")))
	})
	fails(t, b, reason.EventLogMalformed, "StartupLocality after PCR 0 was extended")
}

func TestAttack_T28_DigestOfOneBankWithDataOfAnother(t *testing.T) {
	c := eventlogtest.Load(t, eventlogtest.SecureBootUKI4Banks)
	honest := captured(t, eventlogtest.SecureBootUKI)
	honest.log, honest.quoted = c.Log, c.PCRs("sha256", secureBootPCRs...)
	passes(t, honest)
	// Secure Boot was off in the quoted bank; the data and every other bank say that it was on.
	b := honest.happened(t, func(e events) events {
		i := find(t, e, 7, "SecureBoot")
		off := bytes.Clone(e[i].Data)
		off[len(off)-1] = 0
		for j, d := range eventlogtest.New(e[i], 7, 0, off).Digests {
			if d.Algorithm == eventlog.SHA256 {
				e[i].Digests[j] = d
			}
		}
		return e
	})
	fails(t, b, reason.MeasuredBoot, "PCR 7, event 4", "not the digest of its data")
	b.bank = eventlog.SHA384
	b.quoted = eventlogtest.Forge(t, b.log, eventlog.SHA384, secureBootPCRs...)
	passes(t, b)
}

func TestAttack_T29_UnknownTypesAndHugeListsAreNotParsed(t *testing.T) {
	honest := captured(t, eventlogtest.SecureBootUKI)
	passes(t, honest)
	// A signature list in db that states 4 GiB, and one of size zero: they are never parsed.
	for _, list := range [][]byte{
		append(make([]byte, 16), 0xFF, 0xFF, 0xFF, 0xFF, 0, 0, 0, 0, 8, 0, 0, 0),
		make([]byte, 28),
	} {
		passes(t, honest.happened(t, func(e events) events {
			i := slices.IndexFunc(e, func(x eventlogtest.Event) bool {
				return x.PCR == 7 && len(x.Data) > 36 && x.Data[16] == 2 && x.Data[32] == 'd'
			})
			d := bytes.Clone(e[i].Data[:36])
			d[24], d[25] = byte(len(list)), 0
			e[i] = eventlogtest.New(e[i], 7, e[i].Type, append(d, list...))
			return e
		}))
	}
	passes(t, honest.happened(t, func(e events) events {
		return slices.Insert(e, 3, eventlogtest.New(e[0], 2, 0x8401, []byte("vendor")),
			eventlogtest.New(e[0], 6, 0xFFFFFFFF, nil))
	}))
}

func TestAttack_T30_NothingWasMeasured(t *testing.T) {
	honest := captured(t, eventlogtest.SecureBootUKI)
	passes(t, honest)
	for pcr := range 8 {
		b := honest.happened(t, func(e events) events {
			return slices.DeleteFunc(e, func(e eventlogtest.Event) bool { return int(e.PCR) == pcr })
		})
		if f := fails(t, b, reason.MeasuredBoot, "expected measurements by the firmware, seen zeros"); f.PCR != pcr {
			t.Errorf("PCR %d: %+v", pcr, f)
		}
	}
	b := honest
	header, _ := eventlogtest.Split(t, b.log)
	b.log = header
	b.quoted = eventlogtest.Forge(t, header, b.bank, secureBootPCRs...)
	b.refs = nil
	fails(t, b, reason.MeasuredBoot, "PCR 0", "seen zeros")
	honest.bank = 0x0004
	fails(t, honest, reason.PCRSelection, "sha1")
}

func TestAttack_T31_TheGoodLogAfterATPMReset(t *testing.T) {
	// The platform starts its TPM at locality 3, which only firmware can do. Software that resets
	// the TPM later and extends the digests of the good log starts at 0.
	raw := testdata.GlinuxAlexEventLog
	quoted := eventlogtest.Forge(t, raw, eventlog.SHA256, secureBootPCRs...)
	b := boot{measuredboot.SecureBoot, eventlog.SHA256, quoted, raw, nil}
	fails(t, b, reason.MeasuredBoot, "PCR 7") // the log replays, but this machine has no authority event
	again := eventlogtest.Edit(t, raw, func(e events) events {
		return slices.DeleteFunc(e, func(e eventlogtest.Event) bool {
			return bytes.HasPrefix(e.Data, []byte("StartupLocality"))
		})
	})
	b.quoted = eventlogtest.Forge(t, again, eventlog.SHA256, secureBootPCRs...)
	if f := fails(t, b, reason.EventLogReplay); f.PCR != 0 {
		t.Errorf("got %+v", f)
	}
}

func TestAttack_T32_AfterTheCapNothingAttests(t *testing.T) {
	c := eventlogtest.Load(t, eventlogtest.SecureBootUKICapped)
	b := captured(t, eventlogtest.SecureBootUKICapped)
	b.refs = []measuredboot.ReferenceValues{references(t, eventlogtest.SecureBootUKICapped)}
	for _, p := range []measuredboot.Profile{measuredboot.SecureBoot, measuredboot.IdentityOnly} {
		b.profile = p
		b.quoted[11] = c.PCR("sha256", 11)
		passes(t, b)
		for _, stage := range []string{"capped", "leave-initrd"} {
			b.quoted[11] = c.Later(stage)
			fails(t, b, reason.PCRCapped, "PCR 11")
		}
	}
	t.Run("nor after systemd's own end of the initramfs, without a cap", func(t *testing.T) {
		b := b
		for _, p := range []measuredboot.Profile{measuredboot.SecureBoot, measuredboot.IdentityOnly} {
			b.profile, b.quoted = p, maps.Clone(b.quoted)
			for _, phases := range [][]string{{"enter-initrd"}, {"enter-initrd", "leave-initrd"}, {"leave-initrd"},
				{"enter-initrd", "leave-initrd", "sysinit"}, {"enter-initrd", "leave-initrd", "sysinit", "ready"}} {
				v := c.PCR("sha256", 11)
				for _, phase := range phases {
					v = eventlog.Extend(b.bank, v, eventlog.Hash(b.bank, []byte(phase)))
				}
				b.quoted[11] = v
				if len(phases) == 1 && phases[0] == measuredboot.EnterInitrd {
					passes(t, b)
				} else {
					fails(t, b, reason.PCRCapped, "PCR 11")
				}
			}
		}
	})
	t.Run("nor without a log, as far as the value shows it", func(t *testing.T) {
		b := b
		b.profile, b.log = measuredboot.IdentityOnly, nil
		for steps, code := range map[string]reason.Code{
			"cap": reason.PCRCapped, "cap cap": reason.PCRCapped, "cap cap cap": reason.MeasuredBoot,
			"enter-initrd cap": reason.PCRCapped, "enter-initrd cap cap": reason.PCRCapped,
			"enter-initrd enter-initrd cap": reason.MeasuredBoot, "cap leave-initrd": reason.PCRCapped,
			"leave-initrd cap": reason.MeasuredBoot, "leave-initrd": reason.PCRCapped,
			"leave-initrd sysinit": reason.PCRCapped, "leave-initrd ready": reason.MeasuredBoot,
			"sysinit": reason.MeasuredBoot,
			"enter-initrd leave-initrd sysinit ready":         reason.PCRCapped,
			"enter-initrd cap cap leave-initrd sysinit ready": reason.PCRCapped,
			"something else": reason.MeasuredBoot,
		} {
			v := c.PCR("sha256", 11)
			for step := range strings.FieldsSeq(steps) {
				digest := eventlog.Hash(b.bank, []byte(step))
				if step == "cap" {
					digest = measuredboot.CapDigest(b.bank)
				}
				v = eventlog.Extend(b.bank, v, digest)
			}
			b.quoted = map[int][]byte{11: v}
			if _, err := b.appraise(); reason.From(err) == nil || reason.From(err).Code != code || measuredboot.MayWarn(err) {
				t.Errorf("%s: %v, expected %v", steps, err, code)
			}
		}
	})
	t.Run("a log that explains the cap does not help", func(t *testing.T) {
		b := b
		b.profile = measuredboot.SecureBoot
		b.log = eventlogtest.Edit(t, c.Log, func(e events) events {
			return append(e, eventlogtest.New(e[0], 11, eventlog.IPL, []byte(measuredboot.EnterInitrd)),
				eventlogtest.New(e[0], 11, eventlog.IPL, []byte(measuredboot.CapLabel)))
		})
		b.quoted = eventlogtest.Forge(t, b.log, b.bank, secureBootPCRs...)
		fails(t, b, reason.PCRCapped)
		b.refs = nil
		if _, err := b.appraise(); err == nil || measuredboot.MayWarn(err) {
			t.Errorf("without reference values: %v", err)
		}
	})
	t.Run("nor does a boot without a UKI", func(t *testing.T) {
		b := captured(t, eventlogtest.SeaBIOS)
		b.profile = measuredboot.IdentityOnly
		passes(t, b)
		b.quoted[11] = eventlog.Extend(b.bank, b.quoted[11], measuredboot.CapDigest(b.bank))
		b.log = nil
		fails(t, b, reason.PCRCapped)
	})
}

func TestAttack_T33_AlteredInitramfs(t *testing.T) {
	passes(t, captured(t, eventlogtest.SecureBootUKI))
	b := captured(t, eventlogtest.SecureBootUKIAltered)
	f := fails(t, b, reason.MeasuredBoot, "the content of section .initrd of ovmf-secureboot-uki")
	if f.PCR != 11 || f.Index != 31 || f.Type != "EV_IPL" {
		t.Errorf("got %+v", f)
	}
	b.quoted[11] = eventlog.Extend(b.bank, b.quoted[11], eventlog.Hash(b.bank, []byte(measuredboot.EnterInitrd)))
	fails(t, b, reason.MeasuredBoot, "the content of section .initrd of ovmf-secureboot-uki")
	b.profile, b.log = measuredboot.IdentityOnly, nil
	fails(t, b, reason.MeasuredBoot, "PCR 11")
}

// The finding names what differs, as far as the log explains the quoted value.
func TestAttack_T33_TheFindingIsTheFirstDifference(t *testing.T) {
	honest := captured(t, eventlogtest.SecureBootUKI)
	passes(t, honest)
	firstOfUKI := func(e events) int {
		return slices.IndexFunc(e, func(e eventlogtest.Event) bool { return e.PCR == 11 })
	}
	renamed := honest.happened(t, func(e events) events {
		i := firstOfUKI(e)
		e[i] = eventlogtest.New(e[i], 11, e[i].Type, []byte(".other\x00"))
		return e
	})
	fails(t, renamed, reason.MeasuredBoot, "the name of section .linux of ovmf-secureboot-uki")
	more := honest.happened(t, func(e events) events {
		return append(e, eventlogtest.New(e[0], 11, eventlog.IPL, []byte(".other\x00")))
	})
	fails(t, more, reason.MeasuredBoot, "no more measurements of ovmf-secureboot-uki")
	// Of several documents, the finding is about the one that has most in common with the boot. Of equal ones, the first.
	altered := captured(t, eventlogtest.SecureBootUKIAltered)
	other, same := references(t, eventlogtest.SecureBootUKI), references(t, eventlogtest.SecureBootUKI)
	other.Metadata.Name, same.Metadata.Name = "other", "same"
	other.Sections[0].Name = ".other"
	nearest := "the content of section .initrd of ovmf-secureboot-uki"
	altered.refs = []measuredboot.ReferenceValues{other, altered.refs[0], same}
	fails(t, altered, reason.MeasuredBoot, nearest)
	altered.refs = []measuredboot.ReferenceValues{altered.refs[1], other, same}
	fails(t, altered, reason.MeasuredBoot, nearest)
	other.Sections = nil
	altered.refs = []measuredboot.ReferenceValues{other, altered.refs[0]}
	fails(t, altered, reason.MeasuredBoot, nearest)
	// A boot that stops within the sections differs in no event.
	fewer := honest.happened(t, func(e events) events {
		for i := len(e) - 1; ; i-- {
			if e[i].PCR == 11 {
				return slices.Delete(e, i, i+1)
			}
		}
	})
	if f := fails(t, fewer, reason.MeasuredBoot, "a value of the reference values"); f.Index != -1 {
		t.Errorf("%+v", f)
	}
	// Events that are not measured are not counted.
	unmeasured := renamed.claimed(t, func(e events) events {
		i := firstOfUKI(e)
		skipped := e[i]
		skipped.Type = eventlog.NoAction
		return slices.Insert(e, i, skipped)
	})
	name := fails(t, renamed, reason.MeasuredBoot, "the name of section .linux of ovmf-secureboot-uki")
	f := fails(t, unmeasured, reason.MeasuredBoot, "the name of section .linux of ovmf-secureboot-uki")
	if f.Index != name.Index+1 {
		t.Errorf("%+v, expected the index after that of %+v", f, name)
	}
	second := honest.happened(t, func(e events) events {
		i := firstOfUKI(e) + 2
		e[i] = eventlogtest.New(e[i], 11, e[i].Type, []byte(".other\x00"))
		return e
	})
	fails(t, second, reason.MeasuredBoot, "the name of section .osrel of ovmf-secureboot-uki")
	// A log that does not explain the quoted value names no event.
	unexplained := renamed
	unexplained.quoted = maps.Clone(renamed.quoted)
	unexplained.quoted[11] = bytes.Repeat([]byte{7}, 32)
	if f := fails(t, unexplained, reason.MeasuredBoot, "a value of the reference values"); f.Index != -1 ||
		f.Seen != strings.Repeat("07", 32) {
		t.Errorf("%+v", f)
	}
	// The log of another boot explains nothing.
	honest.quoted[11] = renamed.quoted[11]
	if f := fails(t, honest, reason.MeasuredBoot, "a value of the reference values"); f.Index != -1 {
		t.Errorf("%+v", f)
	}
	// A capped image that no reference values have is known by its log.
	unknown := captured(t, eventlogtest.SecureBootUKI)
	unknown.refs = nil
	unknown.quoted[11] = eventlog.Extend(unknown.bank, unknown.quoted[11], measuredboot.CapDigest(unknown.bank))
	fails(t, unknown, reason.PCRCapped)
}

// A document may list values of PCRs 12 and 13. Another value is not accepted, nor is zero.
func TestAttack_T33_ListedValuesOfPCR12And13(t *testing.T) {
	listed := measuredboot.Digests{SHA256: bytes.Repeat([]byte{7}, 32)}
	for _, pcr := range []int{12, 13} {
		b := captured(t, eventlogtest.SecureBootUKI).happened(t, func(e events) events {
			return append(e, eventlogtest.New(e[0], uint32(pcr), eventlog.IPL, []byte("x")))
		})
		fails(t, b, reason.MeasuredBoot, "from outside the image")
		set := func(all ...measuredboot.Digests) {
			if pcr == 12 {
				b.refs[0].PCR12 = all
			} else {
				b.refs[0].PCR13 = all
			}
		}
		set(listed)
		if f := fails(t, b, reason.MeasuredBoot, "a value of the reference values"); f.PCR != pcr {
			t.Errorf("%+v", f)
		}
		set(listed, measuredboot.Digests{SHA256: b.quoted[pcr]})
		passes(t, b)
		zero := captured(t, eventlogtest.SecureBootUKI)
		zero.refs = b.refs
		fails(t, zero, reason.MeasuredBoot, "a value of the reference values", "seen zeros")
	}
}

func TestAttack_T33_AlteredCommandLine(t *testing.T) {
	honest := captured(t, eventlogtest.SecureBootUKI)
	passes(t, honest)
	extra := func(pcr uint32) func(events) events {
		return func(e events) events {
			return append(e, eventlogtest.New(e[0], pcr, eventlog.IPL, []byte("r\x00d\x00.\x00b\x00r\x00e\x00a\x00k\x00")))
		}
	}
	if f := fails(t, honest.happened(t, extra(12)), reason.MeasuredBoot,
		"no command line or credentials from outside the image"); f.PCR != 12 || f.Index != 36 {
		t.Errorf("got %+v", f)
	}
	if f := fails(t, honest.happened(t, extra(13)), reason.MeasuredBoot,
		"no system extensions from outside the image"); f.PCR != 13 {
		t.Errorf("got %+v", f)
	}
	// The stub really extends PCR 12 when it receives a command line.
	b := captured(t, eventlogtest.UKICmdlineOverride)
	if b.quoted[12] == nil || bytes.Equal(b.quoted[12], make([]byte, 32)) {
		t.Error("the capture has nothing in PCR 12")
	}
	fails(t, b, reason.MeasuredBoot)
}

func TestAttack_T33_AnotherSignedBootLoader(t *testing.T) {
	passes(t, captured(t, eventlogtest.SecureBootUKI))
	_, public := eventlogtest.Split(t, eventlogtest.Load(t, eventlogtest.SecureBootUKI).Log)
	for name, raw := range map[string][]byte{
		"RHEL 8": testdata.Rhel8EventLog, "Debian": eventlogtest.Load(t, eventlogtest.ShimGRUB).Log,
	} {
		// Signed by a key in db, with Secure Boot on, but not the image: PCR 11 is zero.
		b := boot{measuredboot.SecureBoot, eventlog.SHA256,
			eventlogtest.Forge(t, raw, eventlog.SHA256, secureBootPCRs...), raw,
			[]measuredboot.ReferenceValues{references(t, eventlogtest.SecureBootUKI)}}
		fails(t, b, reason.MeasuredBoot, "PCR 11", "the image is a UKI", "seen zeros")
		// Its initramfs extends PCR 11 with the public digests of the UKI, and also PCR 4.
		extended := func(pcrs ...uint32) boot {
			return b.happened(t, func(e events) events {
				for _, x := range public {
					if slices.Contains(pcrs, x.PCR) && (x.PCR != 4 || x.Type == eventlog.EFIBootServicesApplication) {
						e = append(e, x)
					}
				}
				return e
			})
		}
		for _, pretended := range []boot{extended(11), extended(4, 11)} {
			if f := fails(t, pretended, reason.MeasuredBoot, "an image of ovmf-secureboot-uki"); f.PCR != 4 || f.Index < 0 {
				t.Errorf("%s: %+v", name, f)
			}
		}
	}
}

// A loader before the UKI must be one of the document. systemd-boot also extends PCR 12.
func TestAttack_T33_ALoaderBeforeTheUKI(t *testing.T) {
	b := captured(t, eventlogtest.SecureBootSDBoot)
	if f := fails(t, b, reason.MeasuredBoot); f.PCR != 12 {
		t.Errorf("got %+v", f)
	}
	b.refs = []measuredboot.ReferenceValues{withSDBoot(t, b)}
	passes(t, b)
	refs := b.refs[0].Applications
	for missing, f := range map[string]string{
		"uki":          "an image of ovmf-secureboot-uki",
		"systemd-boot": "an image of ovmf-secureboot-uki",
	} {
		b.refs[0].Applications = slices.DeleteFunc(slices.Clone(refs),
			func(c measuredboot.Component) bool { return c.Name == missing })
		if f := fails(t, b, reason.MeasuredBoot, f); f.PCR != 4 {
			t.Errorf("without %s: %+v", missing, f)
		}
	}
	b.refs[0].Applications = append(refs, measuredboot.Component{Name: "shim", Digests: refs[1].Digests})
	fails(t, b, reason.MeasuredBoot, `an image of ovmf-secureboot-uki, "shim", seen none`)
}

// A UKI may have any name: no GRUB has to start before it.
func TestReleaseNeedsNoGRUBBeforeAUKI(t *testing.T) {
	b := captured(t, eventlogtest.SecureBootUKI)
	b.profile = measuredboot.Release
	b.quoted = eventlogtest.Load(t, eventlogtest.SecureBootUKI).PCRs("sha256", measuredboot.Release.PCRs()...)
	b.refs = []measuredboot.ReferenceValues{references(t, eventlogtest.SecureBootUKI)}
	passes(t, b)
	for i, c := range b.refs[0].Applications {
		if c.Name == "uki" {
			b.refs[0].Applications[i].Name = "kernel"
		}
	}
	passes(t, b)
}

// withSDBoot returns the reference values of the UKI that the captured systemd-boot started.
func withSDBoot(t testing.TB, b boot) measuredboot.ReferenceValues {
	t.Helper()
	refs := references(t, eventlogtest.SecureBootUKI)
	refs.PCR12 = []measuredboot.Digests{{SHA256: b.quoted[12]}}
	log, err := eventlog.Parse(b.log, b.bank)
	if err != nil {
		t.Fatal(err)
	}
	_, e := eventlogtest.Split(t, b.log)
	loader := log.Events[find(t, e, 4, "BOOTX64.EFI")]
	refs.Applications = append(refs.Applications,
		measuredboot.Component{Name: "systemd-boot", Digests: measuredboot.Digests{SHA256: loader.Digest}})
	return refs
}

func TestAttack_T33_TheValuesMustBeOfOneImage(t *testing.T) {
	b := captured(t, eventlogtest.SecureBootSDBoot)
	b.refs = []measuredboot.ReferenceValues{references(t, eventlogtest.SecureBootUKI), withSDBoot(t, b)}
	passes(t, b)
	b.refs = []measuredboot.ReferenceValues{references(t, eventlogtest.SecureBootUKI)}
	other := references(t, eventlogtest.SecureBootUKICapped)
	other.PCR12 = []measuredboot.Digests{{SHA256: b.quoted[12]}}
	b.refs = append(b.refs, other)
	if f := fails(t, b, reason.MeasuredBoot); f.PCR != 12 {
		t.Errorf("got %+v", f)
	}
}

// TestSecureBoot_AcceptsADirectlyStartedKernelThatExtendsTheEventsOfAUKI documents what T36 does not
// stop (docs/threat-model.md, "Direct kernel boot"). OVMF starts an unsigned kernel of -kernel and
// measures nothing. This kernel extends the public events of a signed UKI.
func TestSecureBoot_AcceptsADirectlyStartedKernelThatExtendsTheEventsOfAUKI(t *testing.T) {
	_, public := eventlogtest.Split(t, eventlogtest.Load(t, eventlogtest.SecureBootUKI).Log)
	b := captured(t, eventlogtest.UnsignedKernel)
	fails(t, b, reason.MeasuredBoot, "an authority of db")
	pretended := b.happened(t, func(e events) events {
		for _, x := range public {
			if x.PCR == 11 || x.Type == eventlog.EFIVariableAuthority || x.Type == eventlog.EFIBootServicesApplication {
				e = append(e, x)
			}
		}
		return e
	})
	if r := passes(t, pretended); r.Image != eventlogtest.SecureBootUKI {
		t.Errorf("taken for %q", r.Image)
	}
}

func TestAttack_T36_SecureBootIsOneButWasNotUsed(t *testing.T) {
	passes(t, captured(t, eventlogtest.SecureBootUKI))
	b := captured(t, eventlogtest.UnsignedKernel)
	b.refs = nil
	f := fails(t, b, reason.MeasuredBoot, "an authority of db", "none, although SecureBoot is 01")
	if f.PCR != 7 {
		t.Errorf("got %+v", f)
	}
	// Authorities that authorized no image do not count.
	sbat := captured(t, eventlogtest.UnsignedKernel).happened(t, func(e events) events {
		return append(e, eventlogtest.New(e[0], 7, eventlog.EFIVariableAuthority,
			variable(shimVendor, "SbatLevel", "sbat,1,2021030218")),
			eventlogtest.New(e[0], 7, eventlog.EFIVariableAuthority, variable(shimVendor, "MokListTrusted", "\x01")))
	})
	sbat.refs = nil
	fails(t, sbat, reason.MeasuredBoot, "an authority of db")
	// Neither does an authority without a started image.
	started := captured(t, eventlogtest.SecureBootUKI).happened(t, func(e events) events {
		return slices.DeleteFunc(e, func(e eventlogtest.Event) bool {
			return e.PCR == 4 && e.Type == eventlog.EFIBootServicesApplication
		})
	})
	fails(t, started, reason.MeasuredBoot, "PCR 4", "a boot application")
}
