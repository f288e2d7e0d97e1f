package uki

import (
	"bytes"
	"crypto/sha256"
	"crypto/sha512"
	"errors"
	"fmt"
	"io"
	"strconv"
	"strings"

	"github.com/mcs-attest/mcs-attest/pkg/eventlog"
	"github.com/mcs-attest/mcs-attest/pkg/measuredboot"
)

// order is systemd-stub's order of measurement (systemd, src/fundamental/uki.h,
// "PLEASE DO NOT REORDER"). .pcrsig is known to the stub and never measured,
// since it signs the outcome.
var order = []string{
	".linux", ".osrel", ".cmdline", ".initrd", ".ucode", ".splash", ".dtb", ".uname",
	".sbat", ".pcrpkey", ".profile", ".dtbauto", ".hwids", ".efifw",
}

// bySelection are the sections of which the stub takes one that fits the hardware.
var bySelection = map[string]bool{".dtbauto": true, ".efifw": true}

// firstMeasuring is the first systemd version whose stub measures sections one by one.
const firstMeasuring = 252

// maxStub bounds the stub's own sections, which are read to look for strings.
const maxStub = 16 << 20

// Measure turns a UKI of size bytes into reference values: PCR 11 before the cap,
// without and with the phase enter-initrd, the sections it comes from, and the
// Authenticode digests of the UKI and of the kernel in it (which firmware without
// Secure Boot is also asked to start).
func Measure(name string, r io.ReaderAt, size int64) (*measuredboot.ReferenceValues, error) {
	f, err := parsePE(r, size)
	if err != nil {
		return nil, fmt.Errorf("read the UKI: %w", err)
	}
	stub, err := f.stub()
	if err != nil {
		return nil, err
	}
	refs := &measuredboot.ReferenceValues{
		APIVersion: measuredboot.APIVersion,
		Kind:       measuredboot.Kind,
		Metadata:   measuredboot.Metadata{Name: name},
		Stub:       "systemd-stub " + stub.version,
	}
	var linux section
	for _, want := range order {
		found := f.named(want)
		if len(found) == 0 || !stub.knows(want) {
			continue
		}
		if len(found) > 1 || bySelection[want] {
			return nil, fmt.Errorf("the UKI has %d section(s) %s, of which the stub chooses while booting: PCR 11 is not one value", len(found), want)
		}
		s := found[0]
		if s.memorySize == 0 {
			continue // the stub skips it, too
		}
		d, err := digests(func(w io.Writer) error { return f.hashSection(w, s) })
		if err != nil {
			return nil, err
		}
		refs.Sections = append(refs.Sections, measuredboot.Component{Name: want, Digests: d})
		if want == ".linux" {
			linux = s
		}
	}
	if linux.name == "" {
		return nil, errors.New("the UKI has no section .linux")
	}
	for _, phase := range []string{"", measuredboot.EnterInitrd} {
		v := measuredboot.PCRValue{Phase: phase}
		if v.SHA256, err = measuredboot.SectionsPCR11(eventlog.SHA256, refs.Sections, phase); err != nil {
			return nil, err
		}
		if v.SHA384, err = measuredboot.SectionsPCR11(eventlog.SHA384, refs.Sections, phase); err != nil {
			return nil, err
		}
		refs.PCR11 = append(refs.PCR11, v)
	}
	d, err := digests(f.hashImage)
	if err != nil {
		return nil, fmt.Errorf("digest of the UKI: %w", err)
	}
	refs.Applications = append(refs.Applications, measuredboot.Component{Name: "uki", Digests: d})
	n := int64(min(linux.memorySize, linux.fileSize))
	switch d, err := Authenticode(io.NewSectionReader(r, int64(linux.offset), n), n); {
	case err == nil:
		refs.Applications = append(refs.Applications, measuredboot.Component{Name: "linux", Digests: d})
	case !errors.Is(err, errNotPE):
		return nil, fmt.Errorf("section .linux: %w", err)
	}
	return refs, nil
}

// Authenticode is the digest by which firmware measures and signs a PE image of
// size bytes: shim, GRUB, a kernel, a UKI.
func Authenticode(r io.ReaderAt, size int64) (measuredboot.Digests, error) {
	f, err := parsePE(r, size)
	if err != nil {
		return measuredboot.Digests{}, err
	}
	return digests(f.hashImage)
}

func digests(write func(io.Writer) error) (measuredboot.Digests, error) {
	h256, h384 := sha256.New(), sha512.New384()
	if err := write(io.MultiWriter(h256, h384)); err != nil {
		return measuredboot.Digests{}, err
	}
	return measuredboot.Digests{SHA256: h256.Sum(nil), SHA384: h384.Sum(nil)}, nil
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

// stub is systemd-stub as found in a UKI.
type stub struct {
	version string
	code    [][]byte // its own sections
}

// stub reads the stub's own sections and its version, which is in .sdmagic as
// "#### LoaderInfo: systemd-stub VERSION ####".
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
		return nil, errors.New("not a UKI: no systemd-stub in it")
	}
	major := strings.FieldsFunc(st.version, func(r rune) bool { return r < '0' || r > '9' })
	if len(major) == 0 {
		return nil, fmt.Errorf("systemd-stub version %q", st.version)
	}
	if n, err := strconv.Atoi(major[0]); err != nil || n < firstMeasuring {
		return nil, fmt.Errorf("systemd-stub %s does not measure into PCR 11 as versions from %d on do", st.version, firstMeasuring)
	}
	if !st.knows(".linux") {
		return nil, fmt.Errorf("systemd-stub %s: cannot tell which sections it measures", st.version)
	}
	return &st, nil
}

// knows reports whether the stub's code has a section's name as a string.
func (s *stub) knows(name string) bool {
	for _, c := range s.code {
		if bytes.Contains(c, append([]byte(name), 0)) {
			return true
		}
	}
	return false
}
