// SPDX-License-Identifier: Apache-2.0

package measuredboot_test

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"os"
	"strings"
	"testing"

	"github.com/mcs-attest/mcs-attest/pkg/eventlog"
	"github.com/mcs-attest/mcs-attest/pkg/eventlog/eventlogtest"
	"github.com/mcs-attest/mcs-attest/pkg/measuredboot"
	"github.com/mcs-attest/mcs-attest/pkg/measuredboot/uki"
	"github.com/mcs-attest/mcs-attest/pkg/reason"
)

func TestReferenceValuesAreWhatTheBootMeasured(t *testing.T) {
	for _, name := range []string{eventlogtest.SecureBootUKI, eventlogtest.SecureBootUKICapped,
		eventlogtest.Debian13UKI} {
		r := references(t, name)
		got, err := measuredboot.SectionsPCR11(eventlog.SHA256, r.Sections, "")
		if err != nil {
			t.Fatal(err)
		}
		c := eventlogtest.Load(t, name)
		if string(got) != string(c.PCR("sha256", 11)) || string(got) != string(r.PCR11[0].SHA256) {
			t.Errorf("%s: PCR 11 would be %x, the TPM had %x", name, got, c.PCR("sha256", 11))
		}
	}
	// Without Secure Boot the stub starts the kernel through the firmware, which measures it.
	c := eventlogtest.Load(t, eventlogtest.UKI)
	want := references(t, eventlogtest.SecureBootUKI).Applications[1]
	_, events := eventlogtest.Split(t, c.Log)
	last := -1
	for i, e := range events {
		if e.PCR == 4 {
			last = i
		}
	}
	if want.Name != "linux" || string(events[last].Digests[0].Value) != string(want.SHA256) {
		t.Errorf("the kernel's digest is %x, measured was %x", want.SHA256, events[last].Digests[0].Value)
	}
}

// The image of the tests of package uki has a kernel that is no program. The second image has that image as its kernel.
func TestFromUKI(t *testing.T) {
	le := binary.LittleEndian
	signed, err := os.ReadFile("uki/testdata/signed.efi")
	if err != nil {
		t.Fatal(err)
	}
	const entry = 64 + 24 + 112 + 4*8 // of the certificate table, which is at the end
	whole := bytes.Clone(signed[:le.Uint32(signed[entry:])])
	clear(whole[entry : entry+8])
	header := whole[bytes.Index(whole, []byte(".linux\x00\x00")):]
	le.PutUint32(header[8:], uint32(len(signed))) // in memory
	le.PutUint32(header[16:], uint32(len(signed)))
	le.PutUint32(header[20:], uint32(len(whole)))
	whole = append(whole, signed...)

	for name, c := range map[string]struct {
		image, kernel []byte
		applications  map[string][]byte
	}{
		"a kernel that is no program": {signed, bytes.Repeat([]byte("kernel"), 1000), map[string][]byte{"uki": signed}},
		"a kernel":                    {whole, signed, map[string][]byte{"uki": whole, "linux": signed}},
	} {
		r, err := measuredboot.FromUKI("test", bytes.NewReader(c.image), int64(len(c.image)))
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		if err := r.Validate(); err != nil || r.Metadata.Name != "test" || r.Stub != "systemd-stub 252.39" {
			t.Errorf("%s: got %+v, %v", name, r, err)
		}
		if s := r.Sections[0]; s.Name != ".linux" || !bytes.Equal(s.SHA256, eventlog.Hash(eventlog.SHA256, c.kernel)) ||
			!bytes.Equal(s.SHA384, eventlog.Hash(eventlog.SHA384, c.kernel)) {
			t.Errorf("%s: the first section is %+v", name, s)
		}
		for _, a := range r.Applications {
			image := c.applications[a.Name]
			d, err := uki.Authenticode(bytes.NewReader(image), int64(len(image)))
			if err != nil || !bytes.Equal(a.SHA256, d.SHA256) || !bytes.Equal(a.SHA384, d.SHA384) {
				t.Errorf("%s: %s is %x, expected %x, %v", name, a.Name, a.SHA256, d.SHA256, err)
			}
		}
		if len(r.Applications) != len(c.applications) {
			t.Errorf("%s: %d applications", name, len(r.Applications))
		}
		if len(r.PCR11) != 2 || r.PCR11[0].Phase != "" || r.PCR11[1].Phase != measuredboot.EnterInitrd {
			t.Fatalf("%s: PCR 11 is %+v", name, r.PCR11)
		}
		for _, v := range r.PCR11 {
			for _, bank := range []uint16{eventlog.SHA256, eventlog.SHA384} {
				want, err := measuredboot.SectionsPCR11(bank, r.Sections, v.Phase)
				if err != nil || !bytes.Equal(v.In(bank), want) {
					t.Errorf("%s: PCR 11 in phase %q is %x, expected %x, %v", name, v.Phase, v.In(bank), want, err)
				}
			}
		}
	}
	if r, err := measuredboot.FromUKI("test", bytes.NewReader(nil), 0); r != nil || err == nil ||
		!strings.Contains(err.Error(), "not a PE image") {
		t.Errorf("an empty file: %v, %v", r, err)
	}
}

func TestValidate_RejectsInvalidReferenceValues(t *testing.T) {
	for name, c := range map[string]struct {
		change func(*measuredboot.ReferenceValues)
		says   string
	}{
		"another kind":    {func(r *measuredboot.ReferenceValues) { r.Kind = "Policy" }, `kind "Policy"`},
		"another version": {func(r *measuredboot.ReferenceValues) { r.APIVersion = "v1" }, `apiVersion "v1"`},
		"no name":         {func(r *measuredboot.ReferenceValues) { r.Metadata.Name = "" }, "metadata.name is empty"},
		"a value without a digest": {func(r *measuredboot.ReferenceValues) {
			r.PCR11[0].Digests = measuredboot.Digests{}
		}, "pcr11[0]: neither"},
		"a value that is too short": {func(r *measuredboot.ReferenceValues) {
			r.PCR11[1].SHA256 = r.PCR11[1].SHA256[:31]
		}, "pcr11[1].sha256: 31 bytes, expected 32"},
		"a value of the wrong bank": {func(r *measuredboot.ReferenceValues) {
			r.PCR11[0].SHA384 = r.PCR11[0].SHA256
		}, "pcr11[0].sha384: 32 bytes, expected 48"},
		"a phase after the initramfs": {func(r *measuredboot.ReferenceValues) { r.PCR11[1].Phase = "ready" },
			`phase "ready"`},
		"a value of a later phase, without its name": {func(r *measuredboot.ReferenceValues) {
			r.Sections = nil
			left := eventlog.Extend(eventlog.SHA256, r.PCR11[1].SHA256,
				eventlog.Hash(eventlog.SHA256, []byte("leave-initrd")))
			r.PCR11 = append(r.PCR11, measuredboot.PCRValue{Digests: measuredboot.Digests{SHA256: left}})
		}, "pcr11[2].sha256: "},
		"a value after the cap": {func(r *measuredboot.ReferenceValues) {
			r.Sections = nil
			r.PCR11[1].SHA384 = eventlog.Extend(eventlog.SHA384, make([]byte, 48), measuredboot.CapDigest(eventlog.SHA384))
		}, "is the value after the initramfs"},
		"a value that is not of the sections": {func(r *measuredboot.ReferenceValues) {
			r.PCR11[0].SHA256 = r.PCR11[1].SHA256
		}, "does not follow from the sections"},
		"a section without the bank": {func(r *measuredboot.ReferenceValues) { r.Sections[1].SHA384 = nil },
			"section .osrel has no sha384 digest"},
		"a component without a name": {func(r *measuredboot.ReferenceValues) { r.Applications[0].Name = "" },
			"applications[0]: no name"},
		"an optional component that is no file": {func(r *measuredboot.ReferenceValues) {
			r.Applications[0].Optional = true
		}, "applications[0]: only files can be optional"},
		"a component without digests": {func(r *measuredboot.ReferenceValues) {
			r.Applications[1].Digests = measuredboot.Digests{}
		}, "applications[1]: neither sha256 nor sha384"},
		"a short digest of all archives, bank sha256": {func(r *measuredboot.ReferenceValues) {
			r.Initrd.SHA256 = make([]byte, 31)
		}, "initrd[0].sha256: 31 bytes, expected 32"},
		"a short digest of all archives, bank sha384": {func(r *measuredboot.ReferenceValues) {
			r.Initrd.SHA384 = make([]byte, 1)
		}, "initrd[0].sha384: 1 bytes, expected 48"},
		"an extension without digests": {func(r *measuredboot.ReferenceValues) {
			r.PCR13 = make([]measuredboot.Digests, 1)
		}, "pcr13[0]: neither"},
		"a command line value without digests": {func(r *measuredboot.ReferenceValues) {
			r.PCR12 = make([]measuredboot.Digests, 1)
		}, "pcr12[0]: neither"},
	} {
		t.Run(name, func(t *testing.T) {
			r := references(t, eventlogtest.SecureBootUKI)
			c.change(&r)
			if err := r.Validate(); err == nil || !strings.Contains(err.Error(), c.says) {
				t.Errorf("got %v", err)
			}
		})
	}
	var r measuredboot.ReferenceValues
	if err := json.Unmarshal([]byte(`{"pcr12":[{"sha256":"zz"}]}`), &r); err == nil ||
		!strings.Contains(err.Error(), "hexadecimal") {
		t.Errorf("got %v", err)
	}
}

func TestValidate_OneBankIsEnough(t *testing.T) {
	for _, change := range []func(*measuredboot.Digests){
		func(d *measuredboot.Digests) { d.SHA256 = nil },
		func(d *measuredboot.Digests) { d.SHA384 = nil },
	} {
		r := references(t, eventlogtest.SecureBootUKI)
		for i := range r.PCR11 {
			change(&r.PCR11[i].Digests)
		}
		for i := range r.Applications {
			change(&r.Applications[i].Digests)
		}
		if err := r.Validate(); err != nil {
			t.Error(err)
		}
	}
}

func TestValidate_SectionsAreOptional(t *testing.T) {
	b := captured(t, eventlogtest.SecureBootUKI)
	b.refs[0].Sections = nil
	passes(t, b)
	b = captured(t, eventlogtest.SecureBootUKIAltered)
	b.refs[0].Sections = nil
	fails(t, b, reason.MeasuredBoot, "PCR 11: expected a value of the reference values")
}
