package measuredboot

import (
	"bytes"
	"encoding/hex"
	"fmt"

	"github.com/mcs-attest/mcs-attest/pkg/eventlog"
)

// The type of a reference value document.
const (
	APIVersion = "mcs-attest.dev/v1alpha1"
	Kind       = "ReferenceValues"
)

// ReferenceValues are the digests of one OS image's components (RFC 9334, 8.3),
// computed from the image, never learned from a machine. A boot must fit one
// document as a whole; several documents are alternatives, so an update is one
// document more.
type ReferenceValues struct {
	APIVersion string   `json:"apiVersion"`
	Kind       string   `json:"kind"`
	Metadata   Metadata `json:"metadata"`

	// Stub names the boot stub that measures the sections, for example "systemd-stub 252.39". Informational.
	Stub string `json:"stub,omitempty"`

	// PCR11 are the values of PCR 11 while the initramfs runs, before the cap.
	// None means that the image does not touch PCR 11 (shim and GRUB): it is zero.
	PCR11 []PCRValue `json:"pcr11,omitempty"`

	// Sections are what systemd-stub measures into PCR 11, in its order. They
	// let a refusal name the section that differs. With both, PCR11 must follow from them.
	Sections []Component `json:"sections,omitempty"`

	// PCR12 and PCR13 are accepted values of PCR 12 (command line and credentials
	// from outside the UKI) and PCR 13 (system extensions). None means zero.
	PCR12 []Digests `json:"pcr12,omitempty"`
	PCR13 []Digests `json:"pcr13,omitempty"`

	// Applications are the Authenticode digests of what is started (PCR 4): shim,
	// GRUB, kernel, or the UKI. For profile release.
	Applications []Component `json:"applications,omitempty"`
}

// Metadata has the document's name, by which a policy selects it.
type Metadata struct {
	Name string `json:"name"`
}

// Component is a measured thing.
type Component struct {
	Name    string `json:"name"`
	Digests `json:",inline"`
}

// PCRValue is a PCR's value at a phase of the boot.
type PCRValue struct {
	Phase   string `json:"phase,omitempty"` // "" or "enter-initrd"
	Digests `json:",inline"`
}

// Digests are one digest or PCR value per bank. A bank that is empty matches nothing.
type Digests struct {
	SHA256 Hex `json:"sha256,omitempty"`
	SHA384 Hex `json:"sha384,omitempty"`
}

// In is the digest for a bank, nil if there is none.
func (d Digests) In(bank uint16) []byte {
	switch bank {
	case eventlog.SHA256:
		return d.SHA256
	case eventlog.SHA384:
		return d.SHA384
	}
	return nil
}

func (d Digests) is(bank uint16, value []byte) bool {
	want := d.In(bank)
	return len(want) > 0 && bytes.Equal(want, value)
}

// Hex is bytes whose text form is hexadecimal.
type Hex []byte

// MarshalText writes lower case.
func (h Hex) MarshalText() ([]byte, error) { return []byte(hex.EncodeToString(h)), nil }

// UnmarshalText reads either case.
func (h *Hex) UnmarshalText(text []byte) error {
	b, err := hex.DecodeString(string(text))
	if err != nil {
		return fmt.Errorf("%q is not hexadecimal", text)
	}
	*h = b
	return nil
}

// Validate finds what an administrator should know before the document is used.
func (r *ReferenceValues) Validate() error {
	if r.APIVersion != APIVersion || r.Kind != Kind {
		return fmt.Errorf("apiVersion %q, kind %q: expected %q, %q", r.APIVersion, r.Kind, APIVersion, Kind)
	}
	if r.Metadata.Name == "" {
		return fmt.Errorf("metadata.name is empty: a policy selects reference values by name")
	}
	check := func(field string, i int, d Digests) error {
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
	for i, v := range r.PCR11 {
		if err := check("pcr11", i, v.Digests); err != nil {
			return err
		}
		if v.Phase != "" && v.Phase != EnterInitrd {
			return fmt.Errorf("pcr11[%d].phase %q: the initramfs attests in phase \"\" or %q", i, v.Phase, EnterInitrd)
		}
		if err := r.followsFromSections(i, v); err != nil {
			return err
		}
	}
	for field, list := range map[string][]Digests{"pcr12": r.PCR12, "pcr13": r.PCR13} {
		for i, d := range list {
			if err := check(field, i, d); err != nil {
				return err
			}
		}
	}
	for field, list := range map[string][]Component{"sections": r.Sections, "applications": r.Applications} {
		for i, c := range list {
			if c.Name == "" {
				return fmt.Errorf("%s[%d]: no name", field, i)
			}
			if err := check(field, i, c.Digests); err != nil {
				return err
			}
		}
	}
	return nil
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
			return fmt.Errorf("pcr11[%d].%s: %x does not follow from the sections, which give %x", i, eventlog.BankName(bank),
				have, want)
		}
	}
	return nil
}

// SectionsPCR11 is the value of PCR 11 after systemd-stub has measured sections:
// for each, the digest of its name with a NUL, then of its content. A phase that
// is not empty is extended after them, as systemd-pcrphase does.
func SectionsPCR11(bank uint16, sections []Component, phase string) ([]byte, error) {
	v := make([]byte, eventlog.Size(bank))
	for _, s := range sections {
		d := s.In(bank)
		if len(d) == 0 {
			return nil, fmt.Errorf("section %s has no %s digest", s.Name, eventlog.BankName(bank))
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

// fits reports whether a value is in a list; an empty list stands for zero.
func fits(bank uint16, list []Digests, value []byte) bool {
	if len(list) == 0 {
		return isZero(value)
	}
	for _, d := range list {
		if d.is(bank, value) {
			return true
		}
	}
	return false
}

// phase11 finds the value of PCR 11 among the document's.
func (r *ReferenceValues) phase11(bank uint16, value []byte) (phase string, ok bool) {
	if len(r.PCR11) == 0 {
		return "", isZero(value)
	}
	for _, v := range r.PCR11 {
		if v.is(bank, value) {
			return v.Phase, true
		}
	}
	return "", false
}
