// SPDX-License-Identifier: Apache-2.0

package measuredboot_test

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/mcs-attest/mcs-attest/pkg/eventlog"
	"github.com/mcs-attest/mcs-attest/pkg/eventlog/eventlogtest"
	"github.com/mcs-attest/mcs-attest/pkg/measuredboot"
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

func TestValidate_SectionsAreOptional(t *testing.T) {
	b := captured(t, eventlogtest.SecureBootUKI)
	b.refs[0].Sections = nil
	passes(t, b)
	b = captured(t, eventlogtest.SecureBootUKIAltered)
	b.refs[0].Sections = nil
	fails(t, b, reason.MeasuredBoot, "PCR 11: expected a value of the reference values")
}
