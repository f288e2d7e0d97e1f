// SPDX-License-Identifier: Apache-2.0

package uki_test

import (
	"bytes"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/mcs-attest/mcs-attest/pkg/eventlog"
	"github.com/mcs-attest/mcs-attest/pkg/measuredboot"
	"github.com/mcs-attest/mcs-attest/pkg/measuredboot/uki"
	"github.com/mcs-attest/mcs-attest/pkg/transcript"
)

// part is a section of a test image.
type part struct {
	name  string
	data  []byte
	extra uint32 // how much larger it is in memory
}

const align = 512

// image builds a PE32+ file with everything that firmware and stub read.
func image(parts ...part) []byte {
	le := binary.LittleEndian
	const pe, opt = 64, 64 + 24
	headers := make([]byte, 2*align)
	copy(headers, "MZ")
	le.PutUint32(headers[60:], pe)
	copy(headers[pe:], "PE\x00\x00")
	le.PutUint16(headers[pe+4:], 0x8664)
	le.PutUint16(headers[pe+6:], uint16(len(parts)))
	le.PutUint16(headers[pe+20:], 112+16*8)
	le.PutUint16(headers[pe+22:], 0x0206) // no relocations, executable, no debug information
	le.PutUint16(headers[opt:], 0x20B)
	le.PutUint32(headers[opt+16:], 0x1000) // entry point
	le.PutUint32(headers[opt+32:], 4096)
	le.PutUint32(headers[opt+36:], align)
	le.PutUint32(headers[opt+60:], uint32(len(headers)))
	le.PutUint16(headers[opt+68:], 10) // EFI application
	le.PutUint32(headers[opt+108:], 16)
	const table = opt + 112 + 16*8
	file := headers
	at := uint32(0x1000)
	for i, p := range parts {
		s := make([]byte, 40)
		copy(s[:8], p.name)
		le.PutUint32(s[8:], uint32(len(p.data))+p.extra)
		le.PutUint32(s[12:], at)
		raw := (len(p.data) + align - 1) / align * align
		le.PutUint32(s[16:], uint32(raw))
		le.PutUint32(s[20:], uint32(len(file)))
		le.PutUint32(s[36:], 0x40000040)
		copy(file[table+40*i:], s)
		file = append(file, p.data...)
		file = append(file, make([]byte, raw-len(p.data))...)
		at += (uint32(raw) + p.extra + 4095) / 4096 * 4096
	}
	le.PutUint32(file[opt+56:], at) // size of the image
	return file
}

// stubParts returns a stub of a systemd version that supports some sections.
func stubParts(version string, knows ...string) []part {
	return []part{
		{name: ".text", data: []byte("\x90code\x00" + strings.Join(knows, "\x00") + "\x00")},
		{name: ".sdmagic", data: []byte("#### LoaderInfo: systemd-stub " + version + " ####\x00")},
	}
}

// Sections that the stubs of some versions support (systemd, src/fundamental).
var (
	knows252 = []string{".linux", ".osrel", ".cmdline", ".initrd", ".splash", ".dtb", ".pcrsig", ".pcrpkey"}
	knows257 = append(slices.Clone(knows252), ".ucode", ".uname", ".sbat", ".profile", ".dtbauto", ".hwids")
)

// The content of the test image, in the order of the file.
var content = []part{
	{name: ".osrel", data: []byte("ID=test\n")},
	{name: ".cmdline", data: []byte("console=ttyS0")},
	{name: ".uname", data: []byte("6.1.0-56-cloud-amd64")},
	{name: ".sbat", data: []byte("sbat,1,SBAT Version,sbat,1\n")},
	{name: ".pcrpkey", data: []byte("-----BEGIN PUBLIC KEY-----\n")},
	{name: ".pcrsig", data: []byte("{}")},
	{name: ".initrd", data: bytes.Repeat([]byte("initrd"), 1000)},
	{name: ".linux", data: bytes.Repeat([]byte("kernel"), 1000)},
}

func measure(t *testing.T, file []byte) *measuredboot.ReferenceValues {
	t.Helper()
	r, err := measuredboot.FromUKI("test", bytes.NewReader(file), int64(len(file)))
	if err != nil {
		t.Fatal(err)
	}
	if err := r.Validate(); err != nil {
		t.Fatal(err)
	}
	return r
}

func sections(r *measuredboot.ReferenceValues) string {
	var names []string
	for _, s := range r.Sections {
		names = append(names, s.Name)
	}
	return strings.Join(names, " ")
}

func TestMeasure_UsesTheOrderAndSectionsOfTheStub(t *testing.T) {
	for version, c := range map[string]struct {
		knows []string
		want  string
	}{
		"252.39-1~deb12u2": {knows252, ".linux .osrel .cmdline .initrd .pcrpkey"},
		// a backport
		"252-46.el9_5": {append(slices.Clone(knows252), ".uname"), ".linux .osrel .cmdline .initrd .uname .pcrpkey"},
		"257.9-1.fc42": {knows257, ".linux .osrel .cmdline .initrd .uname .sbat .pcrpkey"},
	} {
		r := measure(t, image(append(stubParts(version, c.knows...), content...)...))
		if got := sections(r); got != c.want || r.Stub != "systemd-stub "+version {
			t.Errorf("%s: %s measures %s", version, r.Stub, got)
		}
	}
}

// TestPCR11_EqualsSystemdMeasure compares with systemd-measure 252.39 on the same content:
//
//	systemd-measure calculate --bank=sha256 --bank=sha384 --phase= --phase=enter-initrd
//	  --linux= --osrel= --cmdline= --initrd= --pcrpkey=
//
// The results are recorded. If the tool is installed, it is run again.
func TestPCR11_EqualsSystemdMeasure(t *testing.T) {
	want := "11:sha256=" + recorded256 + "\n11:sha384=" + recorded384 + "\n11:sha256=" + recordedInitrd256 +
		"\n11:sha384=" + recordedInitrd384 + "\n"
	r := measure(t, image(append(stubParts("252.39", knows252...), content...)...))
	var got strings.Builder
	for _, v := range r.PCR11 {
		for _, bank := range []uint16{eventlog.SHA256, eventlog.SHA384} {
			got.WriteString("11:" + transcript.BankName(bank) + "=" + hex.EncodeToString(v.In(bank)) + "\n")
		}
	}
	if got.String() != want {
		t.Errorf("got\n%sexpected\n%s", got.String(), want)
	}
	const tool = "/lib/systemd/systemd-measure"
	if _, err := os.Stat(tool); err != nil {
		return
	}
	args := []string{"calculate", "--bank=sha256", "--bank=sha384", "--phase=", "--phase=enter-initrd"}
	dir := t.TempDir()
	for _, p := range content {
		if !slices.Contains(knows252, p.name) || p.name == ".pcrsig" {
			continue
		}
		path := filepath.Join(dir, p.name)
		if err := os.WriteFile(path, p.data, 0o600); err != nil {
			t.Fatal(err)
		}
		args = append(args, "--"+p.name[1:]+"="+path)
	}
	out, err := exec.Command(tool, args...).Output()
	if err != nil {
		t.Fatal(err)
	}
	if string(out) != got.String() {
		t.Errorf("systemd-measure says\n%s", out)
	}
}

func TestMeasure_SectionAsInMemory(t *testing.T) {
	padded := slices.Clone(content)
	padded[0].extra = 3
	r := measure(t, image(append(stubParts("252.39", knows252...), padded...)...))
	want := sha256.Sum256([]byte("ID=test\n\x00\x00\x00"))
	if !bytes.Equal(r.Sections[1].SHA256, want[:]) {
		t.Errorf("%s is %x", r.Sections[1].Name, r.Sections[1].SHA256)
	}
}

func TestMeasure_IgnoresAnEmptySection(t *testing.T) {
	r := measure(t,
		image(append(stubParts("252.39", knows252...), append(slices.Clone(content), part{name: ".splash"})...)...))
	if strings.Contains(sections(r), ".splash") {
		t.Error(sections(r))
	}
}

// sbsign 0.9.4 wrote the digest of the image into the signature that it appended. The unsigned file
// differs from the signed file only in checksum, certificate table and padding.
func TestAuthenticode_EqualsTheSignedDigest(t *testing.T) {
	signed, err := os.ReadFile("testdata/signed.efi")
	if err != nil {
		t.Fatal(err)
	}
	d, err := uki.Authenticode(bytes.NewReader(signed), int64(len(signed)))
	if err != nil {
		t.Fatal(err)
	}
	unsigned := image(append(stubParts("252.39", knows252...), content...)...)
	if !bytes.Contains(signed[len(unsigned):], d.SHA256) {
		t.Errorf("the signature is not over %x", d.SHA256)
	}
	again, err := uki.Authenticode(bytes.NewReader(unsigned), int64(len(unsigned)))
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(again.SHA256, d.SHA256) || !bytes.Equal(again.SHA384, d.SHA384) {
		t.Errorf("unsigned %x, signed %x", again.SHA256, d.SHA256)
	}
	if a, b := measure(t, signed), measure(t, unsigned); !bytes.Equal(a.PCR11[0].SHA256, b.PCR11[0].SHA256) {
		t.Error("signing changed PCR 11")
	}
}

// A signing tool pads the file before it appends the signature, and signs the padding: sbsign 0.9.4
// and osslsigncode 2.9 sign exactly these digests. Reference values are often computed from the
// unsigned image, and the signed one boots.
func TestMeasure_UnsignedImageHasTheDigestOfTheSignedOne(t *testing.T) {
	aligned := image(append(stubParts("252.39", knows252...), content...)...)
	for extra := range 17 {
		unsigned := append(slices.Clone(aligned), bytes.Repeat([]byte{0xA5}, extra)...)
		signed := withCertificates(unsigned)
		a, err := uki.Measure(bytes.NewReader(unsigned), int64(len(unsigned)))
		if err != nil {
			t.Fatal(err)
		}
		b, err := uki.Measure(bytes.NewReader(signed), int64(len(signed)))
		if err != nil {
			t.Fatal(err)
		}
		if !bytes.Equal(a.Self.SHA256, b.Self.SHA256) || !bytes.Equal(a.Self.SHA384, b.Self.SHA384) {
			t.Errorf("%d bytes after the last section: unsigned %x, signed %x", extra, a.Self.SHA256, b.Self.SHA256)
		}
		// Firmware measures an unsigned image as it is, without padding.
		asIs, err := uki.Authenticode(bytes.NewReader(unsigned), int64(len(unsigned)))
		if err != nil {
			t.Fatal(err)
		}
		if same := bytes.Equal(asIs.SHA256, a.Self.SHA256); same != (extra%8 == 0) {
			t.Errorf("%d bytes after the last section: the padding made no difference", extra)
		}
	}
}

// withCertificates pads an image and appends a certificate table, as sbsign and pesign do.
func withCertificates(unsigned []byte) []byte {
	const entry = 88 + 112 + 8*4
	signed := append(slices.Clone(unsigned), make([]byte, (8-len(unsigned)%8)%8)...)
	binary.LittleEndian.PutUint32(signed[entry:], uint32(len(signed)))
	table := bytes.Repeat([]byte{0x5A}, 64)
	binary.LittleEndian.PutUint32(signed[entry+4:], uint32(len(table)))
	return append(signed, table...)
}

func TestMeasure_DigestOfTheKernel(t *testing.T) {
	kernel := image(part{name: ".text", data: []byte("kernel")})
	parts := slices.Clone(content)
	parts[len(parts)-1] = part{name: ".linux", data: kernel}
	r := measure(t, image(append(stubParts("252.39", knows252...), parts...)...))
	want, err := uki.Authenticode(bytes.NewReader(kernel), int64(len(kernel)))
	if err != nil {
		t.Fatal(err)
	}
	if len(r.Applications) != 2 || r.Applications[1].Name != "linux" ||
		!bytes.Equal(r.Applications[1].SHA256, want.SHA256) {
		t.Errorf("got %v", r.Applications)
	}
}

func TestMeasure_RejectsUnpredictableImages(t *testing.T) {
	with := func(version string, knows []string, extra ...part) []byte {
		return image(append(append(stubParts(version, knows...), content...), extra...)...)
	}
	good := with("257", knows257)
	patch := func(at int, b ...byte) []byte {
		f := slices.Clone(good)
		copy(f[at:], b)
		return f
	}
	const pe, opt, table = 64, 88, 88 + 240
	for name, c := range map[string]struct {
		file []byte
		says string
	}{
		"an empty file":                 {nil, "not a PE image"},
		"a shell script":                {[]byte("#!/bin/sh\n" + strings.Repeat("#", 100)), "not a PE image"},
		"a truncated file":              {good[:len(good)-1], "ends after the end of the file"},
		"truncated headers":             {good[:300], "not a PE image"},
		"a PE header far away":          {patch(60, 0xFF, 0xFF, 0xFF, 0xFF), "not a PE image"},
		"no sections":                   {patch(pe+6, 0, 0), "sections"},
		"65535 sections":                {patch(pe+6, 0xFF, 0xFF), "sections"},
		"headers of 4 GiB":              {patch(opt+60, 0xFF, 0xFF, 0xFF, 0xFF), "bytes of headers"},
		"headers shorter than they are": {patch(opt+60, 1, 0, 0, 0), "bytes of headers"},
		"certificates in the middle":    {patch(opt+112+4*8, 0, 2, 0, 0, 8, 0, 0, 0), "certificate table"},
		"a section behind the end":      {patch(table+20, 0xFF, 0xFF, 0xFF, 0xFF), "ends after the end of the file"},
		"a section over another":        {patch(table+16, 0, 0x40, 0, 0), "sections overlap"},
		"a section of 4 GiB in memory": {with("257", knows257,
			part{name: ".splash", data: []byte("BM"), extra: 1 << 31}), "section .splash has 2147483650 bytes in memory"},
		"a PE image without a stub":           {image(content...), "no systemd-stub"},
		"a stub from before it was a pattern": {with("251.4", knows252), "does not measure"},
		"a stub without section names":        {with("258", nil), "cannot determine"},
		"a UKI without a kernel": {image(append(stubParts("252", knows252...), content[0])...),
			"no section .linux"},
		"two command lines": {with("257", knows257, part{name: ".cmdline", data: []byte("rd.break")}),
			"2 section(s) .cmdline"},
		"several profiles": {with("257", knows257, part{name: ".profile", data: []byte("A")},
			part{name: ".profile", data: []byte("B")}), "2 section(s) .profile"},
		"a device tree chosen by hardware": {with("257", knows257, part{name: ".dtbauto", data: []byte("A")}),
			"1 section(s) .dtbauto"},
	} {
		t.Run(name, func(t *testing.T) {
			r, err := uki.Measure(bytes.NewReader(c.file), int64(len(c.file)))
			if err == nil || !strings.Contains(err.Error(), c.says) {
				t.Errorf("got %v, %v", r, err)
			}
		})
	}
	measure(t, good)
}

// FuzzMeasure searches for panics and for documents that contradict themselves.
func FuzzMeasure(f *testing.F) {
	signed, err := os.ReadFile("testdata/signed.efi")
	if err != nil {
		f.Fatal(err)
	}
	f.Add(signed)
	f.Add(image(append(stubParts("257", knows257...), content...)...))
	f.Add(image(append(stubParts("252", knows252...), part{name: ".linux", data: image(part{name: ".text"})})...))
	f.Fuzz(func(t *testing.T, file []byte) {
		r, err := measuredboot.FromUKI("fuzz", bytes.NewReader(file), int64(len(file)))
		if err != nil {
			return
		}
		if err := r.Validate(); err != nil {
			t.Error(err)
		}
	})
}

const (
	recorded256       = "35c8464d327195fd9c98fb6963639b7ec0ecd4690869fdb12abd4a1a4ec18446"
	recorded384       = "3c571911677a4ca4d7804c5df30a2608a5e349ff467341b97f36e9b01dc4a28c68c8bc24149287d90c208da0c12c8dbe"
	recordedInitrd256 = "e2774021f3b5d01942905ed8c1e42e24eec28bd4cf86380134272188570b5bad"
	recordedInitrd384 = "32186ec1a250a4f870370695cd7ac48dc2fcf2e7cb453a4ebe344e56165e6560309d7549a575a1cb952a9e46faf2feaf"
)
