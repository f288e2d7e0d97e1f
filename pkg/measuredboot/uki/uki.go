// SPDX-License-Identifier: Apache-2.0

package uki

import (
	"bytes"
	"crypto/sha256"
	"crypto/sha512"
	"errors"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
)

// order is the order in which systemd-stub measures (systemd, src/fundamental/uki.h, "PLEASE DO NOT
// REORDER"). The stub never measures .pcrsig, because that section signs the result.
var order = []string{
	".linux", ".osrel", ".cmdline", ".initrd", ".ucode", ".splash", ".dtb", ".uname",
	".sbat", ".pcrpkey", ".profile", ".dtbauto", ".hwids", ".efifw",
}

// bySelection are the sections from which the stub selects one for the hardware.
var bySelection = map[string]bool{".dtbauto": true, ".efifw": true}

// firstMeasuring is the first systemd version whose stub measures sections one by one.
const firstMeasuring = 252

// maxStub limits the size of the stub's own sections, which are searched for strings.
const maxStub = 16 << 20

// Image describes what a boot of a UKI measures.
type Image struct {
	Stub     string    // version that systemd-stub states
	Sections []Section // in the order in which they are measured into PCR 11
	Self     Digests   // Authenticode digest of the UKI (PCR 4); of an unsigned one, as a signature will have it
	Linux    *Digests  // of its kernel, which firmware starts if Secure Boot is off; nil if it is not a PE image
}

// Section is a section as in memory.
type Section struct {
	Name string
	Digests
}

// Digests are the digests of one item in the two banks of reference values.
type Digests struct {
	SHA256, SHA384 []byte
}

// Measure reads a UKI of size bytes.
func Measure(r io.ReaderAt, size int64) (*Image, error) {
	f, err := parsePE(r, size)
	if err != nil {
		return nil, fmt.Errorf("read the UKI: %w", err)
	}
	stub, err := f.stub()
	if err != nil {
		return nil, err
	}
	m := &Image{Stub: stub.version}
	var linux section
	for _, want := range order {
		found := f.named(want)
		if len(found) == 0 || !stub.names(want) {
			continue
		}
		if len(found) > 1 || bySelection[want] {
			return nil,
				fmt.Errorf("the UKI has %d section(s) %s, from which the stub selects during the boot: PCR 11 is not one value",
					len(found), want)
		}
		s := found[0]
		if s.memorySize == 0 {
			continue // the stub also skips it
		}
		d, err := digests(func(w io.Writer) error { return f.hashSection(w, s) })
		if err != nil {
			return nil, err
		}
		m.Sections = append(m.Sections, Section{want, d})
		if want == ".linux" {
			linux = s
		}
	}
	if linux.name == "" {
		return nil, errors.New("the UKI has no section .linux")
	}
	if m.Self, err = digests(f.hashSigned); err != nil {
		return nil, fmt.Errorf("digest of the UKI: %w", err)
	}
	n := int64(min(linux.memorySize, linux.fileSize))
	switch d, err := Authenticode(io.NewSectionReader(r, int64(linux.offset), n), n); {
	case err == nil:
		m.Linux = &d
	case !errors.Is(err, errNotPE):
		return nil, fmt.Errorf("section .linux: %w", err)
	}
	return m, nil
}

// Authenticode returns the digest by which firmware measures and verifies a PE image of size bytes,
// as it is: shim, GRUB, a kernel, a UKI.
func Authenticode(r io.ReaderAt, size int64) (Digests, error) {
	f, err := parsePE(r, size)
	if err != nil {
		return Digests{}, err
	}
	return digests(f.hashImage)
}

func digests(write func(io.Writer) error) (Digests, error) {
	h256, h384 := sha256.New(), sha512.New384()
	if err := write(io.MultiWriter(h256, h384)); err != nil {
		return Digests{}, err
	}
	return Digests{SHA256: h256.Sum(nil), SHA384: h384.Sum(nil)}, nil
}

func (f *peFile) named(name string) []section {
	var found []section
	for _, s := range f.sections {
		if s.name == name {
			found = append(found, s)
		}
	}
	return found
}

// stub is the systemd-stub in a UKI.
type stub struct {
	version string
	code    [][]byte // its own sections
}

// stub returns the stub's own sections and its version, which is in .sdmagic as "#### LoaderInfo:
// systemd-stub VERSION ####".
func (f *peFile) stub() (*stub, error) {
	var st stub
	total := 0
	isOurs := map[string]bool{".pcrsig": true}
	for _, name := range order {
		isOurs[name] = true
	}
	for _, s := range f.sections {
		if isOurs[s.name] || s.fileSize == 0 {
			continue
		}
		if total += int(s.fileSize); total > maxStub {
			return nil, fmt.Errorf("the boot stub has more than %d bytes of code", maxStub)
		}
		b, err := readAt(f.r, int64(s.offset), int(s.fileSize))
		if err != nil {
			return nil, fmt.Errorf("read section %s: %w", s.name, err)
		}
		st.code = append(st.code, b)
		if s.name != ".sdmagic" {
			continue
		}
		_, after, ok := bytes.Cut(b, []byte("LoaderInfo: systemd-stub "))
		version, _, ok2 := bytes.Cut(after, []byte(" ####"))
		if ok && ok2 && len(version) < 64 {
			st.version = string(version)
		}
	}
	if st.version == "" {
		return nil, errors.New("not a UKI: it contains no systemd-stub")
	}
	major := strings.FieldsFunc(st.version, func(r rune) bool { return r < '0' || r > '9' })
	if len(major) == 0 {
		return nil, fmt.Errorf("systemd-stub version %q", st.version)
	}
	if n, err := strconv.Atoi(major[0]); err != nil || n < firstMeasuring {
		return nil, fmt.Errorf("systemd-stub %s does not measure into PCR 11 like version %d and later", st.version,
			firstMeasuring)
	}
	if !st.names(".linux") {
		return nil, fmt.Errorf("systemd-stub %s: cannot determine which sections it measures", st.version)
	}
	return &st, nil
}

// names reports whether the stub's code contains the name of a section.
func (s *stub) names(name string) bool {
	return slices.ContainsFunc(s.code, func(c []byte) bool { return bytes.Contains(c, append([]byte(name), 0)) })
}
