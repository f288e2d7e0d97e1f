// SPDX-License-Identifier: Apache-2.0

package measuredboot

import (
	"bytes"
	"cmp"
	"encoding/hex"
	"fmt"
	"slices"

	"github.com/mcs-attest/mcs-attest/pkg/eventlog"
	"github.com/mcs-attest/mcs-attest/pkg/transcript"
)

// The type of a reference value document.
const (
	APIVersion = "mcs-attest.dev/v1alpha1"
	Kind       = "ReferenceValues"
)

// ReferenceValues are the digests of one OS image's components, or of one version of a model's
// firmware (RFC 9334, 8.3). Those of an image are computed from the image, never from a machine. A boot must
// match one document of each kind as a whole. Several documents are alternatives, so an update adds a
// document.
type ReferenceValues struct {
	APIVersion string   `json:"apiVersion"`
	Kind       string   `json:"kind"`
	Metadata   Metadata `json:"metadata"`

	// Stub names the boot stub that measures the sections, for example "systemd-stub 252.39". Informational.
	Stub string `json:"stub,omitempty"`

	// PCR11 has the values of PCR 11 while the initramfs runs, before the cap or the phase
	// leave-initrd. An empty list means that the image does not extend PCR 11 (shim and GRUB), so it
	// is zero.
	PCR11 []PCRValue `json:"pcr11,omitempty"`

	// Sections are what systemd-stub measures into PCR 11, in its order. They let a denial name the
	// section that differs. If both are present, PCR11 must follow from Sections.
	Sections []Component `json:"sections,omitempty"`

	// PCR12 and PCR13 are the accepted values of PCR 12 (command line and credentials from outside
	// the UKI) and PCR 13 (system extensions). An empty list means zero.
	PCR12 []Digests `json:"pcr12,omitempty"`
	PCR13 []Digests `json:"pcr13,omitempty"`

	// Applications, Files, Commands, CommandLines and MOK are for profile release. With PCR11,
	// profile secure-boot also needs the applications. Components with the same name are
	// alternatives, for example two versions of shim during an update. One of each name must be measured.
	//
	// Applications are the Authenticode digests of the started images (PCR 4): shim, GRUB, kernel,
	// or the UKI and the loaders before it.
	Applications []Component `json:"applications,omitempty"`

	// Files are what the boot loader reads before the kernel (PCR 9): its configuration. Loads are the
	// kernel and then its initramfs archives, in their order; they are the last files in PCR 9.
	Files []Component `json:"files,omitempty"`
	Loads []Component `json:"loads,omitempty"`

	// Initrd has the digests of all initramfs archives as one file, if there are several. The EFI stub of
	// Linux measures them after the loads (PCR 9).
	Initrd Digests `json:"initrd,omitzero"`

	// Commands are what GRUB executes (PCR 8), and CommandLines what it gives to the kernel, from the
	// kernel's path on (PCR 8).
	Commands     []Words `json:"commands,omitempty"`
	CommandLines []Words `json:"commandLines,omitempty"`

	// MOK has the lists of machine owner keys that shim measures (PCR 14).
	MOK []Component `json:"mok,omitempty"`

	// Firmware is for profile strict. A document that has it describes no image, and has none of the
	// fields above.
	Firmware *Firmware `json:"firmware,omitempty"`
}

// Metadata has the name of the document, by which a policy selects it.
type Metadata struct {
	Name string `json:"name"`
}

// Component is a measured component.
type Component struct {
	Name    string `json:"name"`
	Digests `json:",inline"`

	// Optional is for files that GRUB reads only under a condition.
	Optional bool `json:"optional,omitempty"`
}

// PCRValue is the value of a PCR at a phase of the boot.
type PCRValue struct {
	Phase   string `json:"phase,omitempty"` // "" or "enter-initrd"
	Digests `json:",inline"`
}

// Digests are one digest or PCR value per bank. An empty bank matches nothing.
type Digests struct {
	SHA256 Hex `json:"sha256,omitempty"`
	SHA384 Hex `json:"sha384,omitempty"`
}

// In returns the digest for a bank, or nil.
func (d Digests) In(bank uint16) []byte {
	switch bank {
	case eventlog.SHA256:
		return d.SHA256
	case eventlog.SHA384:
		return d.SHA384
	}
	return nil
}

func (d Digests) validate(field string, i int) error {
	if len(d.SHA256) == 0 && len(d.SHA384) == 0 {
		return fmt.Errorf("%s[%d]: neither sha256 nor sha384", field, i)
	}
	if n := len(d.SHA256); n != 0 && n != 32 {
		return fmt.Errorf("%s[%d].sha256: %d bytes, expected 32", field, i, n)
	}
	if n := len(d.SHA384); n != 0 && n != 48 {
		return fmt.Errorf("%s[%d].sha384: %d bytes, expected 48", field, i, n)
	}
	return nil
}

func (d Digests) is(bank uint16, value []byte) bool {
	want := d.In(bank)
	return len(want) > 0 && bytes.Equal(want, value)
}

// Hex is bytes that are encoded as hexadecimal text.
type Hex []byte

// MarshalText encodes in lower case.
func (h Hex) MarshalText() ([]byte, error) { return []byte(hex.EncodeToString(h)), nil }

// UnmarshalText accepts upper and lower case.
func (h *Hex) UnmarshalText(text []byte) error {
	b, err := hex.DecodeString(string(text))
	if err != nil {
		return fmt.Errorf("%q is not hexadecimal", text)
	}
	*h = b
	return nil
}

// Validate reports errors that an administrator should fix before the document is used.
func (r *ReferenceValues) Validate() error {
	if r.APIVersion != APIVersion || r.Kind != Kind {
		return fmt.Errorf("apiVersion %q, kind %q: expected %q, %q", r.APIVersion, r.Kind, APIVersion, Kind)
	}
	if r.Metadata.Name == "" {
		return fmt.Errorf("metadata.name is empty: policies select reference values by name")
	}
	for i, v := range r.PCR11 {
		if err := v.validate("pcr11", i); err != nil {
			return err
		}
		if v.Phase != "" && v.Phase != EnterInitrd {
			return fmt.Errorf("pcr11[%d].phase %q: the initramfs attests in phase \"\" or %q", i, v.Phase, EnterInitrd)
		}
		if err := r.followsFromSections(i, v); err != nil {
			return err
		}
		if err := r.beforeTheEnd(i, v); err != nil {
			return err
		}
	}
	for field, list := range map[string][]Digests{"pcr12": r.PCR12, "pcr13": r.PCR13} {
		for i, d := range list {
			if err := d.validate(field, i); err != nil {
				return err
			}
		}
	}
	for field, list := range map[string][]Component{
		"sections": r.Sections, "applications": r.Applications, "files": r.Files, "loads": r.Loads, "mok": r.MOK,
	} {
		for i, c := range list {
			if c.Name == "" {
				return fmt.Errorf("%s[%d]: no name", field, i)
			}
			if c.Optional && field != "files" {
				return fmt.Errorf("%s[%d]: only files can be optional", field, i)
			}
			if err := c.validate(field, i); err != nil {
				return err
			}
		}
	}
	if len(r.Initrd.SHA256)+len(r.Initrd.SHA384) > 0 {
		if err := r.Initrd.validate("initrd", 0); err != nil {
			return err
		}
	}
	return cmp.Or(r.validateFirmware(), r.validateGRUB())
}

func (r *ReferenceValues) followsFromSections(i int, v PCRValue) error {
	if len(r.Sections) == 0 {
		return nil
	}
	for _, bank := range []uint16{eventlog.SHA256, eventlog.SHA384} {
		have := v.In(bank)
		if len(have) == 0 {
			continue
		}
		want, err := SectionsPCR11(bank, r.Sections, v.Phase)
		if err != nil {
			return err
		}
		if !bytes.Equal(have, want) {
			return fmt.Errorf("pcr11[%d].%s: %x does not follow from the sections, which give %x", i, transcript.BankName(bank),
				have, want)
		}
	}
	return nil
}

// beforeTheEnd rejects a value from after the initramfs. 'systemd-measure calculate' prints one for
// each phase, and with a later one root on the running system would attest.
func (r *ReferenceValues) beforeTheEnd(i int, v PCRValue) error {
	for _, bank := range []uint16{eventlog.SHA256, eventlog.SHA384} {
		starts := [][]byte{make([]byte, eventlog.Size(bank))}
		for _, other := range r.PCR11 {
			starts = append(starts, other.In(bank))
		}
		for _, start := range starts {
			if leftFrom(bank, start, v.In(bank)) {
				return fmt.Errorf("pcr11[%d].%s: %x is the value after the initramfs (phase leave-initrd, or the cap)", i,
					transcript.BankName(bank), v.In(bank))
			}
		}
	}
	return nil
}

// SectionsPCR11 returns the value of PCR 11 after systemd-stub has measured sections: for each, the
// digest of its name with a NUL, then of its content. If phase is not empty, it is extended
// afterwards, as systemd-pcrphase does.
func SectionsPCR11(bank uint16, sections []Component, phase string) ([]byte, error) {
	v := make([]byte, eventlog.Size(bank))
	for _, s := range sections {
		d := s.In(bank)
		if len(d) == 0 {
			return nil, fmt.Errorf("section %s has no %s digest", s.Name, transcript.BankName(bank))
		}
		v = eventlog.Extend(bank, v, sectionName(bank, s.Name))
		v = eventlog.Extend(bank, v, d)
	}
	if phase != "" {
		v = eventlog.Extend(bank, v, eventlog.Hash(bank, []byte(phase)))
	}
	return v, nil
}

func sectionName(bank uint16, name string) []byte {
	return eventlog.Hash(bank, append([]byte(name), 0))
}

// fits reports whether a value is in a list; an empty list means zero.
func fits(bank uint16, list []Digests, value []byte) bool {
	if len(list) == 0 {
		return isZero(value)
	}
	return slices.ContainsFunc(list, func(d Digests) bool { return d.is(bank, value) })
}

// phase11 returns the phase for which the document has this value of PCR 11.
func (r *ReferenceValues) phase11(bank uint16, value []byte) (phase string, ok bool) {
	if !r.ofUKI() {
		return "", isZero(value)
	}
	for _, v := range r.PCR11 {
		if v.is(bank, value) {
			return v.Phase, true
		}
	}
	return "", false
}
