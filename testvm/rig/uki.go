// SPDX-License-Identifier: Apache-2.0

package rig

import (
	"debug/pe"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/mcs-attest/mcs-attest/pkg/eventlog"
	"github.com/mcs-attest/mcs-attest/pkg/measuredboot"
)

// UKI is a unified kernel image on an EFI system partition: systemd's stub, the kernel, an
// initramfs and a command line in one signed file.
type UKI struct {
	Initrd Initrd
	// Cmdline is added to the usual command line, inside the image.
	Cmdline string
	// Unsigned omits the signature.
	Unsigned bool
	// SignPCR11 adds signatures of PCR 11 for each phase of the boot, and their public key.
	SignPCR11 bool
	// Credentials are stored next to the image, where the stub reads them and measures them into
	// PCR 12: name to content.
	Credentials map[string]string
}

const (
	efiStub = "/usr/lib/systemd/boot/efi/linuxx64.efi.stub"
	// Debian's snake-oil Secure Boot keys, whose passphrase is public.
	snakeOilKey  = "/usr/share/ovmf/PkKek-1-snakeoil.key"
	snakeOilCert = "/usr/share/ovmf/PkKek-1-snakeoil.pem"
	ovmf         = "/usr/share/OVMF/"
)

// firmware returns QEMU's options for OVMF, with a copy of the variables for this machine. If
// secure is true, the system management mode protects the variables. If other is true, it is the build
// for a flash of 2 MiB instead of 4.
func (n *Node) firmware(vars string, secure, other bool) (args []string, machine string) {
	n.r.t.Helper()
	code := ovmf + "OVMF_CODE_4M.fd"
	if secure {
		code = ovmf + "OVMF_CODE_4M.secboot.fd"
		machine = ",smm=on"
		args = []string{"-global", "driver=cfi.pflash01,property=secure,value=on", "-global", "ICH9-LPC.disable_s3=1"}
	}
	if other {
		code, vars = strings.Replace(code, "_4M", "", 1), strings.Replace(vars, "_4M", "", 1)
	}
	b, err := os.ReadFile(vars)
	n.r.fatal(err, "OVMF (package ovmf)")
	own := filepath.Join(n.dir, "vars.fd")
	r := n.r
	r.fatal(os.WriteFile(own, b, 0o644), "OVMF variables")
	return append(args,
		"-drive", "if=pflash,unit=0,format=raw,readonly=on,file="+code,
		"-drive", "if=pflash,unit=1,format=raw,file="+own), machine
}

// BuildUKI creates the image of a first boot, or returns it from the cache.
func (r *Rig) BuildUKI(u UKI) string { return r.buildUKI(u, false) }

// buildUKI creates the image of a first or later boot, which have different command lines.
func (r *Rig) buildUKI(u UKI, later bool) string {
	r.t.Helper()
	u.Initrd.Compress = true
	kernel, version := r.Kernel(u.Initrd.System)
	stub := filepath.Join(r.root(u.Initrd.System), efiStub)
	initrd := r.Build(u.Initrd)
	line := firstBoot("")
	if later {
		line = bareCmdline
	}
	if u.Cmdline != "" {
		line += " " + u.Cmdline
	}
	in := r.inputs("uki").file(stub).file(kernel).file(initrd).text(line, fmt.Sprint(u.Unsigned, u.SignPCR11)).
		file(snakeOilCert)
	return r.cached("uki", "unified kernel image", in, func(out string) {
		dir, err := os.MkdirTemp(r.dir, "uki-")
		r.fatal(err, "UKI")
		text := func(name, content string) string {
			path := filepath.Join(dir, name)
			r.fatal(os.WriteFile(path, []byte(content), 0o644), "UKI")
			return path
		}
		key := filepath.Join(dir, "key.pem")
		r.run(dir, nil, "openssl", "rsa", "-in", snakeOilKey, "-passin", "pass:snakeoil", "-out", key)
		names := []string{".osrel", ".cmdline", ".uname", ".linux", ".initrd"}
		sections := map[string]string{
			".osrel":   text("osrel", "ID=rig\nVERSION_ID=1\n"),
			".cmdline": text("cmdline", line),
			".uname":   text("uname", version),
			".linux":   kernel,
			".initrd":  initrd,
		}
		if u.SignPCR11 {
			public := filepath.Join(dir, "public.pem")
			r.run(dir, nil, "openssl", "rsa", "-in", key, "-pubout", "-out", public)
			sections[".pcrpkey"] = public
			sections[".pcrsig"] = text("pcrsig", r.signPCR11(dir, key, public, sections))
			names = append(names, ".pcrpkey", ".pcrsig")
		}
		// One after another after the stub's own sections, page by page.
		next := r.endOfImage(stub)
		var args []string
		for _, name := range names {
			info, err := os.Stat(sections[name])
			r.fatal(err, "UKI")
			args = append(args, "--add-section", name+"="+sections[name],
				"--change-section-vma", fmt.Sprintf("%s=%#x", name, next))
			next = pageAlign(next + uint64(info.Size()))
		}
		unsigned := filepath.Join(dir, "unsigned.efi")
		r.run(dir, nil, "objcopy", append(args, stub, unsigned)...)
		if u.Unsigned {
			r.fatal(os.Rename(unsigned, out), "UKI")
			return
		}
		r.run(dir, nil, "sbsign", "--key", key, "--cert", snakeOilCert, "--output", out, unsigned)
	})
}

func pageAlign(n uint64) uint64 { return (n + 4095) &^ 4095 }

func (r *Rig) endOfImage(path string) uint64 {
	r.t.Helper()
	f, err := pe.Open(path)
	r.fatal(err, "EFI stub (package systemd-boot-efi)")
	defer f.Close()
	header, ok := f.OptionalHeader.(*pe.OptionalHeader64)
	if !ok {
		r.t.Fatalf("%s is not a 64-bit image", path)
	}
	var end uint64
	for _, s := range f.Sections {
		end = max(end, header.ImageBase+uint64(s.VirtualAddress)+uint64(s.VirtualSize))
	}
	return pageAlign(end)
}

// files returns what the EFI system partition contains.
func (u UKI) files(r *Rig, later bool) map[string]string {
	r.t.Helper()
	files := map[string]string{"EFI/BOOT/BOOTX64.EFI": r.buildUKI(u, later)}
	for name, content := range u.Credentials {
		files["EFI/BOOT/BOOTX64.EFI.extra.d/"+name+".cred"] = r.text("credential", content)
	}
	return files
}

// LeftInitrd returns PCR 11 after an image, in which systemd-pcrphase extends it at both ends of the
// initramfs.
func (r *Rig) LeftInitrd(u UKI) string {
	r.t.Helper()
	file, err := os.Open(r.BuildUKI(u))
	r.fatal(err, "UKI")
	defer file.Close()
	info, err := file.Stat()
	r.fatal(err, "UKI")
	refs, err := measuredboot.FromUKI("good", file, info.Size())
	r.fatal(err, "UKI")
	entered, err := measuredboot.SectionsPCR11(eventlog.SHA256, refs.Sections, measuredboot.EnterInitrd)
	r.fatal(err, "UKI")
	left := eventlog.Extend(eventlog.SHA256, entered, eventlog.Hash(eventlog.SHA256, []byte("leave-initrd")))
	return fmt.Sprintf("%x", left)
}
