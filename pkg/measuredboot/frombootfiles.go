// SPDX-License-Identifier: Apache-2.0

package measuredboot

import (
	"bytes"
	"crypto/sha256"
	"crypto/sha512"
	"debug/pe"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"path"
	"slices"
	"strings"

	"github.com/mcs-attest/mcs-attest/pkg/measuredboot/grub"
	"github.com/mcs-attest/mcs-attest/pkg/measuredboot/uki"
)

// maxBootFile limits a file that is read into memory: a loader or a configuration.
const maxBootFile = 64 << 20

// FromBootFiles computes the reference values of an image that boots with shim and GRUB, one document
// for each entry of its configuration that loads a kernel, also for recovery entries. The
// file system has the files of the EFI system partition and of the boot partition, in one tree or in the
// folders in which they are mounted.
//
//   - The applications are EFI/*/shim*.efi (and BOOT*.EFI), EFI/*/grub*.efi, and the kernel.
//   - The files are each grub.cfg. The kernel and its initramfs archives are loaded after them.
//   - The commands are those of each grub.cfg, and of the configuration inside of GRUB.
//   - The MOK lists are those of a machine without keys of its own: shim's vendor certificate.
//
// Versions of one loader in several folders are alternatives.
func FromBootFiles(name string, files fs.FS) ([]ReferenceValues, error) {
	s := &bootFiles{files: files}
	if err := fs.WalkDir(files, ".", s.visit); err != nil {
		return nil, err
	}
	switch {
	case len(s.shim) == 0:
		return nil, errors.New("no shim: expected EFI/*/shimx64.efi or EFI/BOOT/BOOTX64.EFI")
	case len(s.grub) == 0:
		return nil, errors.New("no GRUB: expected EFI/*/grubx64.efi")
	case s.entries:
		return nil, errors.New("loader/entries: entries of the Boot Loader Specification are not supported yet")
	}
	boot, err := grub.Read(s.scripts...)
	if err != nil {
		return nil, err
	}
	if len(boot.Entries) == 0 {
		return nil, errors.New("no grub.cfg loads a kernel")
	}
	var out []ReferenceValues
	for i, entry := range boot.Entries {
		if len(entry.Initrds) == 0 {
			return nil, fmt.Errorf("grub.cfg loads %q without an initramfs", entry.Kernel)
		}
		r := ReferenceValues{APIVersion: APIVersion, Kind: Kind, Metadata: Metadata{Name: name}, MOK: s.mok}
		if len(boot.Entries) > 1 {
			r.Metadata.Name = fmt.Sprintf("%s-%d", name, i+1)
		}
		r.Applications = append(append(r.Applications, s.shim...), s.grub...)
		r.Files = append(r.Files, s.configs...)
		if err := s.kernel(&r, entry); err != nil {
			return nil, err
		}
		for _, c := range boot.Commands {
			r.Commands = append(r.Commands, Words(c))
		}
		for _, c := range entry.CommandLines {
			r.CommandLines = append(r.CommandLines, Words(c))
		}
		if err := r.Validate(); err != nil {
			return nil, err
		}
		out = append(out, r)
	}
	return out, nil
}

// bootFiles is what a boot partition contains.
type bootFiles struct {
	files               fs.FS
	shim, grub, configs []Component
	mok                 []Component
	scripts             []grub.Script
	entries             bool // of the Boot Loader Specification
}

// visit adds one file.
func (s *bootFiles) visit(p string, d fs.DirEntry, err error) error {
	if err != nil || !d.Type().IsRegular() {
		return err
	}
	dir, base := path.Split(strings.ToLower(p))
	inEFI := path.Base(path.Dir(path.Dir(dir))) == "efi"
	switch {
	case strings.HasSuffix(dir, "loader/entries/") && strings.HasSuffix(base, ".conf"):
		s.entries = true
	case base == "grub.cfg":
		text, err := s.read(p)
		if err != nil {
			return err
		}
		s.scripts = append(s.scripts, grub.Script{Name: p, Text: string(text)})
		s.configs = append(s.configs, Component{"/" + p, digestsOf(text)})
	case inEFI && strings.HasSuffix(base, ".efi") && (strings.HasPrefix(base, "shim") || strings.HasPrefix(base, "boot")):
		return s.loadShim(p)
	case inEFI && strings.HasSuffix(base, ".efi") && strings.HasPrefix(base, "grub"):
		return s.loadGRUB(p)
	}
	return nil
}

func (s *bootFiles) loadShim(p string) error {
	image, err := s.read(p)
	if err != nil {
		return err
	}
	if err := add(&s.shim, "shim", image); err != nil {
		return fmt.Errorf("%s: %w", p, err)
	}
	lists, err := vendorLists(image)
	if err != nil {
		return fmt.Errorf("%s: %w", p, err)
	}
	for _, l := range lists {
		if !slices.ContainsFunc(s.mok, func(c Component) bool { return c.Name == l.Name && c.same(l.Digests) }) {
			s.mok = append(s.mok, l)
		}
	}
	return nil
}

func (s *bootFiles) loadGRUB(p string) error {
	image, err := s.read(p)
	if err != nil {
		return err
	}
	if err := add(&s.grub, "grub", image); err != nil {
		return fmt.Errorf("%s: %w", p, err)
	}
	scripts, err := grub.Embedded(bytes.NewReader(image))
	if err != nil {
		return fmt.Errorf("%s: %w", p, err)
	}
	s.scripts = append(s.scripts, scripts...)
	return nil
}

// kernel adds the files of an entry.
func (s *bootFiles) kernel(r *ReferenceValues, entry grub.Entry) error {
	name, image, err := s.find(entry.Kernel)
	if err != nil {
		return err
	}
	if err := add(&r.Applications, "kernel", image); err != nil {
		return fmt.Errorf("%s: %w", name, err)
	}
	r.Loads = append(r.Loads, Component{name, digestsOf(image)})
	for _, p := range entry.Initrds {
		name, d, err := s.digest(p)
		if err != nil {
			return err
		}
		r.Loads = append(r.Loads, Component{name, d})
	}
	return nil
}

// locate returns the file for a path of GRUB, whose device is unknown here.
func (s *bootFiles) locate(p string) (string, error) {
	if _, after, ok := strings.Cut(p, ")"); ok && strings.HasPrefix(p, "(") {
		p = after
	}
	for _, pattern := range []string{strings.TrimPrefix(p, "/"), "boot/" + strings.TrimPrefix(p, "/")} {
		found, err := fs.Glob(s.files, pattern)
		if err != nil {
			return "", fmt.Errorf("path %q: %w", p, err)
		}
		switch len(found) {
		case 0:
		case 1:
			if info, err := fs.Stat(s.files, found[0]); err != nil || !info.Mode().IsRegular() {
				return "", fmt.Errorf("path %q in grub.cfg: %s is not a regular file inside of the folder", p, found[0])
			}
			return found[0], nil
		default:
			return "", fmt.Errorf("path %q in grub.cfg stands for %d files", p, len(found))
		}
	}
	return "", fmt.Errorf("grub.cfg loads %q, which does not exist", p)
}

func (s *bootFiles) find(p string) (name string, content []byte, err error) {
	at, err := s.locate(p)
	if err != nil {
		return "", nil, err
	}
	content, err = s.read(at)
	return "/" + at, content, err
}

// digest hashes a file of any size.
func (s *bootFiles) digest(p string) (name string, d Digests, err error) {
	at, err := s.locate(p)
	if err != nil {
		return "", Digests{}, err
	}
	f, err := s.files.Open(at)
	if err != nil {
		return "", Digests{}, err
	}
	defer f.Close()
	h256, h384 := sha256.New(), sha512.New384()
	if _, err := io.Copy(io.MultiWriter(h256, h384), f); err != nil {
		return "", Digests{}, err
	}
	return "/" + at, Digests{SHA256: h256.Sum(nil), SHA384: h384.Sum(nil)}, nil
}

func (s *bootFiles) read(p string) ([]byte, error) {
	f, err := s.files.Open(p)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	b, err := io.ReadAll(io.LimitReader(f, maxBootFile+1))
	if err == nil && len(b) > maxBootFile {
		err = fmt.Errorf("%s has more than %d bytes", p, maxBootFile)
	}
	return b, err
}

// add adds the Authenticode digest of an image, if the list does not have it.
func add(list *[]Component, name string, image []byte) error {
	d, err := uki.Authenticode(bytes.NewReader(image), int64(len(image)))
	if err != nil {
		return err
	}
	c := Component{name, Digests{SHA256: d.SHA256, SHA384: d.SHA384}}
	if !slices.ContainsFunc(*list, func(have Component) bool { return have.same(c.Digests) }) {
		*list = append(*list, c)
	}
	return nil
}

func (d Digests) same(other Digests) bool { return bytes.Equal(d.SHA256, other.SHA256) }

func digestsOf(b []byte) Digests {
	h256, h384 := sha256.Sum256(b), sha512.Sum384(b)
	return Digests{SHA256: h256[:], SHA384: h384[:]}
}

// Types of EFI_SIGNATURE_LIST (UEFI 2.10, 32.4.1).
var certX509 = guid{0xa1, 0x59, 0xc0, 0xa5, 0xe4, 0x94, 0xa7, 0x4a, 0x87, 0xb5, 0xab, 0x15, 0x5c, 0x2b, 0xf0, 0x72}

// vendorLists returns what shim measures into PCR 14 on a machine without machine owner keys (shim,
// mok.c): MokList with the vendor's certificate, MokListX with the vendor's revocations, and
// MokListTrusted, which is 01.
func vendorLists(shim []byte) ([]Component, error) {
	f, err := pe.NewFile(bytes.NewReader(shim))
	if err != nil {
		return nil, err
	}
	section := f.Section(".vendor_cert")
	if section == nil {
		return nil, errors.New("not shim: no section .vendor_cert")
	}
	table, err := section.Data()
	if err != nil || len(table) < 16 {
		return nil, errors.New("section .vendor_cert is truncated")
	}
	field := func(size, offset int) ([]byte, error) {
		n, at := uint64(binary.LittleEndian.Uint32(table[size:])), uint64(binary.LittleEndian.Uint32(table[offset:]))
		if at+n > uint64(len(table)) {
			return nil, errors.New("section .vendor_cert is inconsistent")
		}
		return table[at : at+n], nil
	}
	cert, err := field(0, 8)
	if err != nil {
		return nil, err
	}
	revoked, err := field(4, 12)
	if err != nil {
		return nil, err
	}
	if bytes.HasPrefix(cert, certX509[:]) { // a list already
		return mokLists(cert, revoked), nil
	}
	list := append([]byte(nil), certX509[:]...)
	list = binary.LittleEndian.AppendUint32(list, uint32(28+16+len(cert)))
	list = binary.LittleEndian.AppendUint32(list, 0)
	list = binary.LittleEndian.AppendUint32(list, uint32(16+len(cert)))
	return mokLists(append(append(list, shimLock[:]...), cert...), revoked), nil
}

func mokLists(trusted, revoked []byte) []Component {
	return []Component{
		{"MokList", digestsOf(trusted)}, {"MokListX", digestsOf(revoked)}, {"MokListTrusted", digestsOf([]byte{1})},
	}
}
