// SPDX-License-Identifier: Apache-2.0

package measuredboot_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-eventlog/testdata"

	"github.com/mcs-attest/mcs-attest/pkg/eventlog"
	"github.com/mcs-attest/mcs-attest/pkg/eventlog/eventlogtest"
	"github.com/mcs-attest/mcs-attest/pkg/measuredboot"
	"github.com/mcs-attest/mcs-attest/pkg/reason"
)

var secureBootPCRs = measuredboot.SecureBoot.PCRs()

// references returns the reference values of a captured UKI.
func references(t testing.TB, name string) measuredboot.ReferenceValues {
	t.Helper()
	raw, err := os.ReadFile("testdata/" + name + ".json")
	if err != nil {
		t.Fatal(err)
	}
	var r measuredboot.ReferenceValues
	dec := json.NewDecoder(bytes.NewReader(raw))
	dec.DisallowUnknownFields()
	if err := dec.Decode(&r); err != nil {
		t.Fatal(err)
	}
	if err := r.Validate(); err != nil {
		t.Fatal(err)
	}
	return r
}

// boot is one call of Appraise. The attack tests start from a valid one.
type boot struct {
	profile measuredboot.Profile
	bank    uint16
	quoted  map[int][]byte
	log     []byte
	refs    []measuredboot.ReferenceValues
}

func (b boot) appraise() (*measuredboot.Result, error) {
	return measuredboot.Appraise(b.profile, b.bank, b.quoted, b.log, b.refs)
}

// captured returns a valid boot of the UKI with Secure Boot.
func captured(t testing.TB, name string) boot {
	t.Helper()
	c := eventlogtest.Load(t, name)
	return boot{
		profile: measuredboot.SecureBoot,
		bank:    eventlog.SHA256,
		quoted:  c.PCRs("sha256", secureBootPCRs...),
		log:     c.Log,
		refs:    []measuredboot.ReferenceValues{references(t, eventlogtest.SecureBootUKI)},
	}
}

// happened changes the measurements, so that quote and log still agree.
func (b boot) happened(t testing.TB, change func([]eventlogtest.Event) []eventlogtest.Event) boot {
	t.Helper()
	b.log = eventlogtest.Edit(t, b.log, change)
	b.quoted = eventlogtest.Forge(t, b.log, b.bank, secureBootPCRs...)
	return b
}

// claimed changes only the log.
func (b boot) claimed(t testing.TB, change func([]eventlogtest.Event) []eventlogtest.Event) boot {
	t.Helper()
	b.log = eventlogtest.Edit(t, b.log, change)
	return b
}

// passes fails the test unless the valid case of an attack is accepted.
func passes(t *testing.T, b boot) *measuredboot.Result {
	t.Helper()
	r, err := b.appraise()
	if err != nil {
		t.Fatalf("the honest boot: %v", err)
	}
	return r
}

// fails requires a reason, and words in the message for the administrator.
func fails(t *testing.T, b boot, code reason.Code, words ...string) *measuredboot.Finding {
	t.Helper()
	r, err := b.appraise()
	d := reason.From(err)
	if d == nil || d.Code != code || r != nil {
		t.Fatalf("got %v, %v, expected %v", r, err, code)
	}
	for _, w := range words {
		if !strings.Contains(err.Error(), w) {
			t.Errorf("%q does not contain %q", err, w)
		}
	}
	var f *measuredboot.Finding
	if !errors.As(err, &f) && (code == reason.MeasuredBoot || code == reason.EventLogReplay || code == reason.PCRCapped) {
		t.Errorf("%v has no finding", err)
	}
	return f
}

// find returns the position of the first event in a PCR whose data contains s, as text or as
// UTF-16.
func find(t testing.TB, events []eventlogtest.Event, pcr uint32, s string) int {
	t.Helper()
	var wide []byte
	for _, c := range []byte(s) {
		wide = append(wide, c, 0)
	}
	i := slices.IndexFunc(events, func(e eventlogtest.Event) bool {
		return e.PCR == pcr && (bytes.Contains(e.Data, []byte(s)) || bytes.Contains(e.Data, wide))
	})
	if i < 0 {
		t.Fatalf("no event with %q in PCR %d", s, pcr)
	}
	return i
}

func separatorOf(t testing.TB, events []eventlogtest.Event, pcr uint32) int {
	t.Helper()
	i := slices.IndexFunc(events, func(e eventlogtest.Event) bool { return e.PCR == pcr && e.Type == eventlog.Separator })
	if i < 0 {
		t.Fatalf("no separator in PCR %d", pcr)
	}
	return i
}

func TestSecureBootAcceptsASignedUKI(t *testing.T) {
	r := passes(t, captured(t, eventlogtest.SecureBootUKI))
	refs := references(t, eventlogtest.SecureBootUKI)
	if r.Image != eventlogtest.SecureBootUKI || r.Phase != "" || r.Profile != measuredboot.SecureBoot {
		t.Errorf("got %+v", r)
	}
	if len(r.Authorities) != 1 || r.Authorities[0].Variable != "db" {
		t.Errorf("authorities %v", r.Authorities)
	}
	// OVMF measured what Measure computed from the file.
	if len(r.Applications) != 1 || !bytes.Equal(r.Applications[0], refs.Applications[0].SHA256) {
		t.Errorf("applications %x", r.Applications)
	}
}

func TestSecureBootAcceptsEveryBankExceptSHA1(t *testing.T) {
	c := eventlogtest.Load(t, eventlogtest.SecureBootUKI4Banks)
	for name, bank := range map[string]uint16{"sha256": eventlog.SHA256, "sha384": eventlog.SHA384} {
		b := captured(t, eventlogtest.SecureBootUKI)
		b.bank, b.quoted, b.log = bank, c.PCRs(name, secureBootPCRs...), c.Log
		passes(t, b)
	}
}

func TestSecureBootAcceptsThePhaseEnterInitrd(t *testing.T) {
	c := eventlogtest.Load(t, eventlogtest.SecureBootUKICapped)
	b := captured(t, eventlogtest.SecureBootUKICapped)
	b.refs = append(b.refs, references(t, eventlogtest.SecureBootUKICapped))
	if r := passes(t, b); r.Phase != "" || r.Image != eventlogtest.SecureBootUKICapped {
		t.Errorf("got %+v", r)
	}
	b.quoted[11] = c.Later("enter-initrd")
	if r := passes(t, b); r.Phase != measuredboot.EnterInitrd {
		t.Errorf("got %+v", r)
	}
	b.profile = measuredboot.IdentityOnly
	if r := passes(t, b); r.Phase != measuredboot.EnterInitrd {
		t.Errorf("got %+v", r)
	}
}

// The stub of systemd 257 also measures .uname and .sbat. Debian's dracut extends PCR 11 at both ends of
// the initramfs, and only there the evidence is accepted.
func TestSecureBootAcceptsAUKIOfSystemd257OnlyInItsInitramfs(t *testing.T) {
	c := eventlogtest.Load(t, eventlogtest.Debian13UKI)
	refs := references(t, eventlogtest.Debian13UKI)
	var sections []string
	for _, s := range refs.Sections {
		sections = append(sections, s.Name)
	}
	want := []string{".linux", ".osrel", ".cmdline", ".initrd", ".uname", ".sbat"}
	if !slices.Equal(sections, want) {
		t.Errorf("the sections are %q, expected %q", sections, want)
	}
	b := captured(t, eventlogtest.Debian13UKI)
	fails(t, b, reason.MeasuredBoot, "PCR 11")
	b.refs = append(b.refs, refs)
	r := passes(t, b)
	if r.Image != eventlogtest.Debian13UKI || r.Phase != "" {
		t.Errorf("got %+v", r)
	}
	if len(r.Applications) != 1 || !bytes.Equal(r.Applications[0], refs.Applications[0].SHA256) {
		t.Errorf("applications %x", r.Applications)
	}
	b.quoted[11] = c.Later("enter-initrd")
	if r := passes(t, b); r.Phase != measuredboot.EnterInitrd {
		t.Errorf("got %+v", r)
	}
	b.quoted[11] = c.Later("leave-initrd")
	for _, profile := range []measuredboot.Profile{measuredboot.SecureBoot, measuredboot.IdentityOnly} {
		b.profile = profile
		fails(t, b, reason.PCRCapped, "PCR 11")
	}
}

// TestSecureBootAcceptsRealMachines uses logs of real machines. Shim and GRUB do not extend PCR 11,
// so no reference values are needed.
func TestSecureBootAcceptsRealMachines(t *testing.T) {
	for name, raw := range map[string][]byte{
		"RHEL 8 with shim and GRUB on GCE":                                            testdata.Rhel8EventLog,
		"Container-Optimized OS on GCE":                                               testdata.Cos101AmdSevEventLog,
		"the same, whose BootOrder is 0001, 0000, the bytes of the mark for an error": testdata.Cos121AmdSevEventLog,

		"the same, after 16 boot options that failed": testdata.Cos125IntelTdxSecureBootA4HighGpu8GEventLog,
	} {
		t.Run(name, func(t *testing.T) {
			quoted := eventlogtest.Forge(t, raw, eventlog.SHA256, secureBootPCRs...)
			b := boot{measuredboot.SecureBoot, eventlog.SHA256, quoted, raw, nil}
			if r := passes(t, b); len(r.Applications) == 0 || len(r.Authorities) == 0 {
				t.Errorf("got %+v", r)
			}
		})
	}
}

// None of these machines had Secure Boot on, or PCR 7 has an unknown event. The message must name
// the reason.
func TestSecureBootReportsWhyRealMachinesFail(t *testing.T) {
	for name, c := range map[string]struct {
		raw   []byte
		words string
	}{
		"Secure Boot off": {testdata.Ubuntu2104NoSecureBootEventLog,
			"PCR 7, event 3 (EV_EFI_VARIABLE_DRIVER_CONFIG): expected SecureBoot = 01, seen 00"},
		"a variable that is empty": {testdata.ArchLinuxWorkstationEventLog, "expected SecureBoot = 01, seen an empty value"},
		"a Dell server with Secure Boot off": {testdata.GdcHost,
			"PCR 7, event 9 (EV_EFI_VARIABLE_DRIVER_CONFIG): expected SecureBoot = 01, seen 00"},
		"a workstation with four zero bytes measured twice": {testdata.GlinuxAlexEventLog,
			"PCR 7, event 7 (EV_EFI_VARIABLE_DRIVER_CONFIG): expected SecureBoot = 01, seen 00"},
	} {
		t.Run(name, func(t *testing.T) {
			quoted := eventlogtest.Forge(t, c.raw, eventlog.SHA256, secureBootPCRs...)
			fails(t, boot{measuredboot.SecureBoot, eventlog.SHA256, quoted, c.raw, nil}, reason.MeasuredBoot, c.words)
		})
	}
}

func TestSecureBootOffIsDeniedNamingTheEvent(t *testing.T) {
	f := fails(t, captured(t, eventlogtest.UKI), reason.MeasuredBoot, "SecureBoot = 01", "seen 00")
	if f.PCR != 7 || f.Index != 4 || f.Type != "EV_EFI_VARIABLE_DRIVER_CONFIG" {
		t.Errorf("got %+v", f)
	}
}

func TestSecureBootDeniesSeaBIOS(t *testing.T) {
	b := captured(t, eventlogtest.SeaBIOS)
	b.refs = nil
	f := fails(t, b, reason.MeasuredBoot, "variable SecureBoot", "separator")
	if f.PCR != 7 {
		t.Errorf("got %+v", f)
	}
}

func TestIdentityOnlyNeedsNoLog(t *testing.T) {
	for name, c := range map[string]struct {
		capture string
		refs    bool
	}{
		"SeaBIOS and a kernel, PCR 11 is zero":        {eventlogtest.SeaBIOS, false},
		"the same, where the policy names references": {eventlogtest.SeaBIOS, true},
		"a UKI of the reference values":               {eventlogtest.UKI, true},
	} {
		t.Run(name, func(t *testing.T) {
			b := captured(t, c.capture)
			b.profile, b.log = measuredboot.IdentityOnly, nil
			b.quoted = map[int][]byte{11: b.quoted[11]}
			if !c.refs {
				b.refs = nil
			}
			passes(t, b)
		})
	}
	t.Run("a UKI without reference values is denied", func(t *testing.T) {
		b := captured(t, eventlogtest.UKI)
		b.profile, b.log, b.refs = "", nil, nil
		fails(t, b, reason.MeasuredBoot, "PCR 11", "the policy names no reference values")
	})
}

func TestAppraise_DeniesAQuoteThatDoesNotFitTheProfile(t *testing.T) {
	for name, change := range map[string]func(*boot){
		"a PCR is missing":          func(b *boot) { delete(b.quoted, 13) },
		"a value of another bank":   func(b *boot) { b.quoted[3] = make([]byte, 48) },
		"an empty value":            func(b *boot) { b.quoted[11] = nil },
		"a PCR that does not exist": func(b *boot) { b.quoted[24] = make([]byte, 32) },
		"a PCR below zero":          func(b *boot) { b.quoted[-1] = make([]byte, 32) },
		"nothing is quoted":         func(b *boot) { b.quoted = nil },
		"bank SHA-1, without values": func(b *boot) {
			b.profile, b.bank, b.quoted = measuredboot.IdentityOnly, 0x0004, map[int][]byte{11: {}}
		},
		"bank SHA-1": func(b *boot) { b.bank = 0x0004 },
	} {
		t.Run(name, func(t *testing.T) {
			b := captured(t, eventlogtest.SecureBootUKI)
			change(&b)
			fails(t, b, reason.PCRSelection)
		})
	}
}

func TestProfiles(t *testing.T) {
	for _, name := range []string{"", "identity-only", "secure-boot", "release", "strict"} {
		p, err := measuredboot.ParseProfile(name)
		if err != nil || !slices.Contains(p.PCRs(), 11) {
			t.Errorf("%q: %v, %v", name, p, err)
		}
	}
	for profile, want := range map[measuredboot.Profile][]int{
		"": {11}, measuredboot.IdentityOnly: {11},
		measuredboot.SecureBoot: {0, 1, 2, 3, 4, 5, 6, 7, 11, 12, 13},
		measuredboot.Release:    {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 11, 12, 13, 14},
		measuredboot.Strict:     {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 11, 12, 13, 14},
	} {
		if got := profile.PCRs(); !slices.Equal(got, want) {
			t.Errorf("%q: PCRs %v, expected %v", profile, got, want)
		}
	}
	b := captured(t, eventlogtest.SecureBootUKI)
	b.profile = "paranoid"
	fails(t, b, reason.Internal)
	if _, err := measuredboot.ParseProfile("paranoid"); err == nil {
		t.Error("an unknown profile was read")
	}
	if measuredboot.IdentityOnly.NeedsEventLog() || !measuredboot.Strict.NeedsEventLog() {
		t.Error("only identity-only needs no log")
	}
}

// Only the banks sha256 and sha384 have reference values.
func TestSecureBootDeniesAUKIInABankWithoutReferenceValues(t *testing.T) {
	c := eventlogtest.Load(t, eventlogtest.SecureBootUKI4Banks)
	b := captured(t, eventlogtest.SecureBootUKI)
	b.log, b.quoted = c.Log, c.PCRs("sha256", secureBootPCRs...)
	passes(t, b)
	b.bank, b.quoted = eventlog.SHA512, eventlogtest.Forge(t, c.Log, eventlog.SHA512, secureBootPCRs...)
	if f := fails(t, b, reason.MeasuredBoot, "of ovmf-secureboot-uki"); f.PCR != 11 {
		t.Errorf("got %+v", f)
	}
	b.log = nil
	fails(t, b, reason.MeasuredBoot, "PCR 11: expected a value of the reference values")
}

func TestBeforeCap(t *testing.T) {
	refs := references(t, eventlogtest.SecureBootUKI)
	all := []measuredboot.ReferenceValues{refs}
	start, running := refs.PCR11[0].SHA256, refs.PCR11[1].SHA256
	then := func(v []byte, steps ...string) []byte {
		for _, s := range steps {
			v = eventlog.Extend(eventlog.SHA256, v, eventlog.Hash(eventlog.SHA256, []byte(s)))
		}
		return v
	}
	zeros := make([]byte, 32)
	onlyRunning := refs
	onlyRunning.PCR11 = refs.PCR11[1:]
	for name, c := range map[string]struct {
		bank  uint16
		value []byte
		refs  []measuredboot.ReferenceValues
		want  []byte // nil if the initramfs did not end
	}{
		"an image without a UKI":          {eventlog.SHA256, then(zeros, measuredboot.CapLabel), nil, zeros},
		"the same, with reference values": {eventlog.SHA256, then(zeros, "leave-initrd"), all, zeros},
		"a UKI":                           {eventlog.SHA256, then(start, measuredboot.CapLabel), all, start},
		"a UKI with systemd-pcrphase": {eventlog.SHA256, then(running, "leave-initrd", "sysinit"),
			all, start},
		"a UKI that the policy does not name": {eventlog.SHA256, then(start, measuredboot.CapLabel), nil, nil},
		"an initramfs that still runs":        {eventlog.SHA256, running, all, nil},
		"a document only with the phase, which is no start": {eventlog.SHA256, then(running, measuredboot.CapLabel),
			[]measuredboot.ReferenceValues{onlyRunning}, nil},
		"a value that is too short": {eventlog.SHA256, start[:31], all, nil},
		"no value":                  {eventlog.SHA256, nil, all, nil},
		"a bank that is not appraised, without a value": {0x0004, nil, nil, nil},
		"a bank that is not appraised":                  {0x0004, make([]byte, 20), nil, nil},
	} {
		t.Run(name, func(t *testing.T) {
			quoted := map[int][]byte{7: {7}, 11: c.value}
			values, capped := measuredboot.BeforeCap(c.bank, quoted, c.refs)
			if !bytes.Equal(quoted[11], c.value) || !bytes.Equal(values[7], quoted[7]) || len(values) != 2 {
				t.Errorf("quoted %x, values %x", quoted, values)
			}
			want := c.want
			if want == nil {
				want = c.value
			}
			if capped != (c.want != nil) || !bytes.Equal(values[11], want) {
				t.Errorf("got %x, %t", values[11], capped)
			}
		})
	}
}

func TestMayWarn_OnlyForTheBootItself(t *testing.T) {
	capped := eventlogtest.Load(t, eventlogtest.SecureBootUKICapped)
	for name, c := range map[string]struct {
		boot boot
		warn bool
	}{
		"Secure Boot is off": {captured(t, eventlogtest.UKI), true},
		"the log is empty":   {func() boot { b := captured(t, eventlogtest.SecureBootUKI); b.log = nil; return b }(), true},
		"the log is another machine's": {func() boot {
			b := captured(t, eventlogtest.SecureBootUKI)
			b.log = captured(t, eventlogtest.UKI).log
			return b
		}(), true},
		"an unknown UKI": {captured(t, eventlogtest.SecureBootUKIAltered), false},
		"PCR 11 is capped": {func() boot {
			b := captured(t, eventlogtest.SecureBootUKI)
			b.quoted[11] = capped.Later("capped")
			return b
		}(), false},
		"a PCR is not quoted": {func() boot {
			b := captured(t, eventlogtest.SecureBootUKI)
			delete(b.quoted, 0)
			return b
		}(), false},
		"nothing is wrong at all": {captured(t, eventlogtest.SecureBootUKI), false},
	} {
		_, err := c.boot.appraise()
		if got := measuredboot.MayWarn(err); got != c.warn {
			t.Errorf("%s: %t (%v)", name, got, err)
		}
	}
	if measuredboot.MayWarn(reason.Deny(reason.MeasuredBoot, "of unknown origin")) {
		t.Error("a denial without a finding")
	}
}
