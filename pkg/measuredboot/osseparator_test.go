// SPDX-License-Identifier: Apache-2.0

package measuredboot_test

import (
	"encoding/hex"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"testing"

	"github.com/mcs-attest/mcs-attest/pkg/eventlog"
	"github.com/mcs-attest/mcs-attest/pkg/eventlog/eventlogtest"
	"github.com/mcs-attest/mcs-attest/pkg/measuredboot"
	"github.com/mcs-attest/mcs-attest/pkg/reason"
)

// What systemd-pcrosseparator.service extends: the digests and PCRs in systemd's
// src/pcrlock/pcrlock.d/750-os-separator.pcrlock.
var (
	osSeparator = map[uint16]string{
		eventlog.SHA256: "ff5b9d73dad709633ae76adf444012b57e913a12ed7403c3931145862f35f841",
		eventlog.SHA384: "5f2a9be7b55475435f46c343bb8c224db427d4fc7cdca42ac02e50d61c67a8bf0b707f7e1527a5f65175efdf8b56ba24",
	}
	osSeparatorPCRs = []int{0, 1, 2, 3, 4, 5, 6, 7, 9, 12, 13, 14}
)

// separated returns a boot whose quoted PCRs have systemd's separator, without some PCRs.
func (b boot) separated(t testing.TB, without ...int) boot {
	t.Helper()
	digest, err := hex.DecodeString(osSeparator[b.bank])
	if err != nil {
		t.Fatal(err)
	}
	return b.extended(digest, slices.DeleteFunc(slices.Clone(osSeparatorPCRs), func(pcr int) bool {
		return slices.Contains(without, pcr)
	})...)
}

// extended returns a boot after the running system extended some quoted PCRs, which the log does not have.
func (b boot) extended(digest []byte, pcrs ...int) boot {
	b.quoted = maps.Clone(b.quoted)
	for _, pcr := range pcrs {
		if v, ok := b.quoted[pcr]; ok {
			b.quoted[pcr] = eventlog.Extend(b.bank, v, digest)
		}
	}
	return b
}

func word(s string) []byte { return eventlog.Hash(eventlog.SHA256, []byte(s)) }

// debian13 returns the captured boot of Debian 13's UKI, whose initramfs has systemd-pcrphase.
func debian13(t testing.TB, profile measuredboot.Profile) boot {
	t.Helper()
	c := eventlogtest.Load(t, eventlogtest.Debian13UKI)
	b := boot{profile, eventlog.SHA256, c.PCRs("sha256", profile.PCRs()...), c.Log,
		[]measuredboot.ReferenceValues{references(t, eventlogtest.Debian13UKI)}}
	b.quoted[11] = c.Later("enter-initrd")
	return b
}

func TestSecureBoot_AcceptsTheOSSeparator(t *testing.T) {
	before := debian13(t, measuredboot.SecureBoot)
	before.quoted[11] = eventlogtest.Load(t, eventlogtest.Debian13UKI).PCR("sha256", 11)
	sha384 := captured(t, eventlogtest.SecureBootUKI)
	banks := eventlogtest.Load(t, eventlogtest.SecureBootUKI4Banks)
	sha384.bank, sha384.quoted, sha384.log = eventlog.SHA384, banks.PCRs("sha384", secureBootPCRs...), banks.Log
	for name, b := range map[string]boot{
		"secure-boot":                         debian13(t, measuredboot.SecureBoot),
		"secure-boot, before systemd's phase": before,
		"secure-boot, bank sha384":            sha384,
		"release":                             debian13(t, measuredboot.Release),
		"strict":                              strictBoot(t),
	} {
		t.Run(name, func(t *testing.T) {
			want := passes(t, b)
			b = b.separated(t)
			quoted := maps.Clone(b.quoted)
			if got := passes(t, b); !reflect.DeepEqual(got, want) {
				t.Errorf("got %+v, without the separator %+v", got, want)
			}
			if !reflect.DeepEqual(b.quoted, quoted) {
				t.Error("the caller's values were changed")
			}
		})
	}
	t.Run("a rehearsal after the end of the initramfs", func(t *testing.T) {
		b := debian13(t, measuredboot.SecureBoot).separated(t)
		b.quoted[11] = eventlogtest.Load(t, eventlogtest.Debian13UKI).Later("leave-initrd")
		fails(t, b, reason.PCRCapped)
		b.quoted, _ = measuredboot.BeforeCap(b.bank, b.quoted, b.refs)
		passes(t, b)
	})
}

func TestSecureBoot_DeniesAnOSSeparatorThatIsIncompleteOrRepeated(t *testing.T) {
	honest := debian13(t, measuredboot.Release)
	passes(t, honest.separated(t))
	for _, pcr := range osSeparatorPCRs {
		want := pcr
		if pcr == 0 {
			want = 1 // PCR 0 shows no separator, so PCR 1 should not have it
		}
		if f := fails(t, honest.separated(t, pcr), reason.EventLogReplay); f.PCR != want {
			t.Errorf("not in PCR %d: %v", pcr, f)
		}
		without := slices.DeleteFunc(slices.Clone(osSeparatorPCRs), func(other int) bool { return other == pcr })
		fails(t, honest.separated(t, without...), reason.EventLogReplay)
		fails(t, honest.separated(t).extended(word("os-separator"), pcr), reason.EventLogReplay)
	}
	for name, b := range map[string]boot{
		"twice":                   honest.separated(t).separated(t),
		"with a NUL":              honest.extended(word("os-separator\x00"), osSeparatorPCRs...),
		"another word":            honest.extended(word("enter-initrd"), osSeparatorPCRs...),
		"also in PCR 8":           honest.separated(t).extended(word("os-separator"), 8),
		"another event after it":  honest.separated(t).extended(word("loader"), 4),
		"another event before it": honest.extended(word("loader"), 4).separated(t),
	} {
		t.Run(name, func(t *testing.T) { fails(t, b, reason.EventLogReplay) })
	}
	t.Run("also in PCR 11", func(t *testing.T) {
		fails(t, honest.separated(t).extended(word("os-separator"), 11), reason.MeasuredBoot, "PCR 11")
	})
	t.Run("in the log", func(t *testing.T) {
		b := honest.claimed(t, func(e events) events {
			for _, pcr := range osSeparatorPCRs {
				e = append(e, eventlogtest.New(e[0], uint32(pcr), eventlog.IPL, []byte("os-separator")))
			}
			return e
		})
		fails(t, b.separated(t), reason.MeasuredBoot, "PCR 7")
		fails(t, b.separated(t).separated(t), reason.MeasuredBoot, "PCR 7")
	})
}

// PCR 11 is zero with shim and GRUB, so it does not prove that an image with the separator's unit runs.
func TestSecureBoot_DeniesTheOSSeparatorWithoutAUKI(t *testing.T) {
	for name, b := range map[string]boot{"shim and GRUB": shimGRUB(t), "release": grubBoot(t)} {
		passes(t, b)
		if f := fails(t, b.separated(t), reason.EventLogReplay); f.PCR != 0 {
			t.Errorf("%s: %v", name, f)
		}
	}
	unknown := debian13(t, measuredboot.SecureBoot)
	unknown.refs = nil
	fails(t, unknown.separated(t), reason.MeasuredBoot, "PCR 11")
}

// The checks apply to the values before the separator.
func TestAttack_T33_TheOSSeparatorHidesNoCommandLine(t *testing.T) {
	honest := captured(t, eventlogtest.SecureBootUKI)
	passes(t, honest.separated(t))
	for _, pcr := range []uint32{12, 13} {
		b := honest.happened(t, func(e events) events {
			return append(e, eventlogtest.New(e[0], pcr, eventlog.IPL, []byte("an add-on")))
		})
		if f := fails(t, b.separated(t), reason.MeasuredBoot, "from outside the image"); f.PCR != int(pcr) {
			t.Errorf("got %+v", f)
		}
	}
}

// A separator is not a measurement by the firmware.
func TestAttack_T30_OnlyTheOSSeparatorWasMeasured(t *testing.T) {
	honest := captured(t, eventlogtest.SecureBootUKI)
	passes(t, honest.separated(t))
	b := honest.happened(t, func(e events) events {
		return slices.DeleteFunc(e, func(e eventlogtest.Event) bool { return e.PCR < 8 })
	})
	fails(t, b.separated(t), reason.MeasuredBoot, "PCR 0", "measurements by the firmware")
}

// A joined node has the separator in its PCRs, too. PCR 11 decides when the initramfs has ended.
func TestAttack_T32_TheOSSeparatorAfterTheInitramfs(t *testing.T) {
	c := eventlogtest.Load(t, eventlogtest.Debian13UKI)
	for _, profile := range []measuredboot.Profile{measuredboot.SecureBoot, measuredboot.Release} {
		honest := debian13(t, profile).separated(t)
		passes(t, honest)
		capped := honest.extended(measuredboot.CapDigest(honest.bank), 11)
		fails(t, capped, reason.PCRCapped, "PCR 11")
		left := honest
		left.quoted = maps.Clone(honest.quoted)
		left.quoted[11] = c.Later("leave-initrd")
		fails(t, left, reason.PCRCapped, "PCR 11")
		for _, phase := range []string{"sysinit", "ready"} {
			left = left.extended(word(phase), 11)
			fails(t, left, reason.PCRCapped, "PCR 11")
		}
	}
}

// Units of systemd that extend PCR 9 in the initramfs are a documented limit of the profiles release and strict.
func TestRelease_NamesThePCRThatSystemdExtendsFurther(t *testing.T) {
	b := debian13(t, measuredboot.Release).separated(t).extended(word("nvpcr-separator"), 9)
	if f := fails(t, b, reason.EventLogReplay, "and systemd's separator"); f.PCR != 9 {
		t.Errorf("got %+v", f)
	}
	b.profile = measuredboot.SecureBoot
	delete(b.quoted, 9)
	passes(t, b)
}

func TestFirmwareSet_IsThatFromBeforeTheOSSeparator(t *testing.T) {
	b := strictBoot(t)
	set := func(b boot) (*measuredboot.ReferenceValues, error) {
		return measuredboot.FromFirmwareLog("ovmf", b.log, map[uint16]map[int][]byte{b.bank: b.quoted})
	}
	want, err := set(b)
	if err != nil {
		t.Fatal(err)
	}
	if got, err := set(b.separated(t)); err != nil || !reflect.DeepEqual(got, want) {
		t.Errorf("got %+v, %v", got, err)
	}
	for name, b := range map[string]boot{
		"not in PCR 5":  b.separated(t, 5),
		"without a UKI": grubBoot(t).separated(t),
	} {
		if got, err := set(b); err == nil {
			t.Errorf("%s: got %+v", name, got)
		}
	}
}

func TestParts_AcceptTheOSSeparator(t *testing.T) {
	explains := func(b boot) error { return measuredboot.Explains(b.bank, b.quoted, b.log) }
	protected := func(b boot) error { return measuredboot.UsesSecureBoot(b.bank, b.quoted, b.log) }
	for i, part := range []func(boot) error{explains, protected} {
		if err := part(debian13(t, measuredboot.SecureBoot).separated(t)); err != nil {
			t.Errorf("part %d: %v", i, err)
		}
		for name, b := range map[string]boot{
			"not in PCR 7":  debian13(t, measuredboot.SecureBoot).separated(t, 7),
			"without a UKI": shimGRUB(t).separated(t),
		} {
			if d := reason.From(part(b)); d == nil || d.Code != reason.EventLogReplay {
				t.Errorf("part %d, %s: %v", i, name, d)
			}
		}
	}
	off := captured(t, eventlogtest.UKI).separated(t)
	if err := fmt.Sprint(explains(off), protected(off)); explains(off) != nil || protected(off) == nil {
		t.Error(err)
	}
}

// The libraries that a second opinion asks do not recognize the separator.
func TestOracles_DenyTheOSSeparator(t *testing.T) {
	b := captured(t, eventlogtest.SecureBootUKI).separated(t)
	passes(t, b)
	if s, err := byGoAttestation(b); err == nil {
		t.Errorf("go-attestation now returns %+v", s)
	}
	if s, err := byGoEventlog(b); err == nil {
		t.Errorf("go-eventlog now returns %v", s.GetSecureBoot())
	}
}
