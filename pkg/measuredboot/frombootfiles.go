// SPDX-License-Identifier: Apache-2.0

package measuredboot

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"path"
	"reflect"
	"slices"
	"strings"

	"github.com/mcs-attest/mcs-attest/pkg/measuredboot/grub"
	"github.com/mcs-attest/mcs-attest/pkg/measuredboot/uki"
)

// maxBootFile limits a file that is read into memory: a loader or a kernel.
const maxBootFile = 64 << 20

// Limits on an image.
const (
	maxScripts = 256     // configurations, environments and entries
	maxScript  = 1 << 20 // bytes of one of them
	maxPaths   = 1 << 14 // files of all kinds
	maxEntries = 256     // that load an initramfs
	maxRead    = 1 << 36 // bytes of all files; a file that several entries load counts each time
)

// FromBootFiles computes the reference values of an image that boots with shim and GRUB, one document
// for each entry of its configuration that loads a kernel and an initramfs, also for recovery entries. The
// file system has the files of the EFI system partition and of the boot partition, in one tree or in the
// folders in which they are mounted.
//
//   - The applications are EFI/*/shim*.efi (and BOOT*.EFI), EFI/*/grub*.efi, and the kernel.
//   - The files are each grub.cfg, the entries of the Boot Loader Specification that blscfg reads, and
//     other files that a command reads. The kernel and its initramfs archives are loaded after them.
//   - The commands are those of each grub.cfg, of the configuration inside of GRUB, and of the entry.
//     An entry whose root= the kernel mounts without an initramfs is an error.
//   - The MOK lists are those of a machine without keys of its own: shim's vendor certificate.
//
// Versions of one loader in several folders are alternatives. The image is untrusted: what is read of it has
// limits, and reading stops when ctx ends.
func FromBootFiles(ctx context.Context, name string, files fs.FS) ([]ReferenceValues, error) {
	s := &bootFiles{files: files, stopped: ctx.Err, left: maxRead, done: map[grub.File]bool{}, known: map[string]bool{},
		hashed: map[string]archives{}}
	if err := fs.WalkDir(files, ".", s.visit); err != nil {
		return nil, err
	}
	switch {
	case len(s.shim) == 0:
		return nil, errors.New("no shim: expected EFI/*/shimx64.efi or EFI/BOOT/BOOTX64.EFI")
	case len(s.grub) == 0:
		return nil, errors.New("no GRUB: expected EFI/*/grubx64.efi")
	}
	boot, err := s.boot()
	if err != nil {
		return nil, err
	}
	boot.Entries = distinct(boot.Entries)
	if len(boot.Entries) == 0 {
		return nil, errors.New("no grub.cfg and no entry loads a kernel with an initramfs")
	}
	if len(boot.Entries) > maxEntries {
		return nil, fmt.Errorf("%d entries load a kernel with an initramfs, more than %d", len(boot.Entries), maxEntries)
	}
	s.nameAlternatives()
	var out []ReferenceValues
	for i, entry := range boot.Entries {
		r := ReferenceValues{APIVersion: APIVersion, Kind: Kind, Metadata: Metadata{Name: name}, MOK: s.mok}
		if len(boot.Entries) > 1 {
			r.Metadata.Name = fmt.Sprintf("%s-%d", name, i+1)
		}
		r.Applications = append(append(r.Applications, s.shim...), s.grub...)
		r.Files = append(r.Files, s.configs...)
		if err := s.kernel(&r, entry); err != nil {
			return nil, err
		}
		commands := slices.Concat(boot.Commands, entry.Commands)
		slices.Sort(commands)
		for _, c := range slices.Compact(commands) {
			r.Commands = append(r.Commands, Words(c))
		}
		for _, c := range entry.CommandLines {
			if root := rootOfKernel(c); root != "" {
				return nil, fmt.Errorf("an entry loads %q with %s, which the kernel mounts itself if the initramfs was "+
					"deleted. Write root=UUID= and the UUID of the file system", entry.Kernel, root)
			}
			r.CommandLines = append(r.CommandLines, Words(c))
		}
		if err := r.Validate(); err != nil {
			return nil, err
		}
		out = append(out, r)
	}
	return out, nil
}

// rootsOfInitramfs begin the values of root= that only programs in an initramfs understand (dracut.cmdline(7)).
var rootsOfInitramfs = []string{"UUID=", "LABEL=", "/dev/mapper/", "/dev/disk/", "live:", "nfs:", "nfs4:", "iscsi:",
	"nbd:", "fcoe:", "nvmf:", "http://", "https://", "dhcp"}

// rootOfKernel returns the parameter root= of a command line, or "" if the kernel needs an initramfs for it
// (Linux, init/do_mounts.c and block/early-lookup.c). GRUB also boots if it cannot read the
// initramfs. The system in root= could then extend what GRUB would have measured.
func rootOfKernel(commandLine string) string {
	for _, word := range strings.Split(commandLine, " ") {
		value, ok := strings.CutPrefix(word, "root=")
		begins := func(prefix string) bool { return strings.HasPrefix(value, prefix) }
		if ok && value != "" && !slices.ContainsFunc(rootsOfInitramfs, begins) {
			return word
		}
	}
	return ""
}

// distinct returns the entries that load an initramfs, and the first of entries that load the same. A
// machine that boots without an initramfs has no agent.
func distinct(entries []grub.Entry) (out []grub.Entry) {
	for _, e := range entries {
		same := func(other grub.Entry) bool { return reflect.DeepEqual(e, other) }
		if len(e.Initrds) > 0 && !slices.ContainsFunc(out, same) {
			out = append(out, e)
		}
	}
	return out
}

// bootFiles is what a boot partition contains.
type bootFiles struct {
	files               fs.FS
	stopped             func() error        // the error of the caller's context
	left                int64               // number of bytes that may still be read
	hashed              map[string]archives // by their paths
	paths               []string            // of all regular files
	done                map[grub.File]bool  // paths that are compared with all files
	known               map[string]bool     // files that are in configs
	shim, grub, configs []Component
	mok                 []Component
	scripts             []grub.Script
}

// ownReads are files that GRUB reads without a command: lists of its modules when it starts, and
// translations and fonts for its menu.
var ownReads = []grub.File{
	{Path: "*/*-efi/*.lst", Format: grub.Data},
	{Path: "*/locale/*.mo", Format: grub.Data},
	{Path: "*/fonts/*.pf2", Format: grub.Data},
}

// boot returns what GRUB can measure. A file that a command reads can have commands, too.
func (s *bootFiles) boot() (*grub.Boot, error) {
	for {
		boot, err := grub.Read(s.scripts...)
		if err != nil {
			return nil, err
		}
		before := len(s.configs)
		for _, f := range slices.Concat(boot.Files, ownReads) {
			if err := s.add(f); err != nil {
				return nil, err
			}
		}
		if len(s.configs) == before {
			return boot, nil
		}
	}
}

// add adds the files of a path that GRUB reads. Such a file is optional, because the command can be in a
// condition. Only the entries are always read.
func (s *bootFiles) add(f grub.File) error {
	if s.done[f] {
		return nil
	}
	s.done[f] = true
	pattern := strings.TrimPrefix(strings.TrimPrefix(withoutDevice(f.Path), "*"), "/")
	segments := strings.Count(pattern, "/")
	inBoot := strings.TrimPrefix(pattern, "boot/")
	for _, p := range s.paths {
		ok, err := path.Match(pattern, lastSegments(p, segments))
		if err != nil {
			return fmt.Errorf("path %q: %w", f.Path, err)
		}
		if ok = ok || p == inBoot; !ok || s.known[p] {
			continue
		}
		if err := s.script(p, f.Format, f.Format != grub.LoaderEntry); err != nil {
			return err
		}
	}
	return nil
}

// withoutDevice returns a path of GRUB without its device, which is unknown here.
func withoutDevice(p string) string {
	if _, after, ok := strings.Cut(p, ")"); ok && strings.HasPrefix(p, "(") {
		return after
	}
	return p
}

// lastSegments returns the end of a path, from the nth slash from the right.
func lastSegments(p string, n int) string {
	at := len(p)
	for ; n >= 0 && at >= 0; n-- {
		at = strings.LastIndexByte(p[:at], '/')
	}
	return p[at+1:]
}

// nameAlternatives gives one name to the configurations in folders of EFI. GRUB reads one of them. A live image has
// them in the EFI system partition and in its other file system. Which one GRUB reads depends on the firmware.
func (s *bootFiles) nameAlternatives() {
	var inEFI []*Component
	for i := range s.configs {
		c := &s.configs[i]
		dir, base := path.Split(strings.ToLower(c.Name))
		if base == "grub.cfg" && path.Base(path.Dir(path.Dir(dir))) == "efi" {
			inEFI = append(inEFI, c)
		}
	}
	if len(inEFI) > 1 {
		name := path.Join(path.Dir(path.Dir(inEFI[0].Name)), "*", path.Base(inEFI[0].Name))
		for _, c := range inEFI {
			c.Name = name
		}
	}
}

// script adds one file that GRUB reads before the kernel.
func (s *bootFiles) script(p string, format grub.Format, optional bool) error {
	var text bytes.Buffer
	to := io.Discard
	if format != grub.Data {
		to = &limited{&text, maxScript}
	}
	d, _, err := s.digest(p, to)
	if err != nil {
		return fmt.Errorf("%s: %w", p, err)
	}
	s.known[p] = true
	s.configs = append(s.configs, Component{Name: "/" + p, Digests: d, Optional: optional})
	if format == grub.Data {
		return nil
	}
	s.scripts = append(s.scripts, grub.Script{Name: p, Text: text.String(), Format: format})
	if len(s.scripts) > maxScripts {
		return fmt.Errorf("%s: GRUB reads more than %d configurations and entries", p, maxScripts)
	}
	return nil
}

// limited is a writer of a limited number of bytes.
type limited struct {
	io.Writer
	left int
}

func (l *limited) Write(b []byte) (int, error) {
	if l.left -= len(b); l.left < 0 {
		return 0, fmt.Errorf("more than %d bytes", maxScript)
	}
	return l.Writer.Write(b)
}

// visit adds one file.
func (s *bootFiles) visit(p string, d fs.DirEntry, err error) error {
	if err = cmp.Or(err, s.stopped()); err != nil {
		return err
	}
	dir, base := path.Split(strings.ToLower(p))
	if d.Type()&fs.ModeSymlink != 0 && base == "loader" { // OSTree's link to loader.0 or loader.1
		return s.linked(p)
	}
	if !d.Type().IsRegular() {
		return nil
	}
	if s.paths = append(s.paths, p); len(s.paths) > maxPaths {
		return fmt.Errorf("the image has more than %d files. Give the folder that it mounts at /boot", maxPaths)
	}
	inEFI := path.Base(path.Dir(path.Dir(dir))) == "efi"
	switch {
	case base == "grub.cfg":
		return s.script(p, grub.Config, false)
	case inEFI && strings.HasSuffix(base, ".efi") && (strings.HasPrefix(base, "shim") || strings.HasPrefix(base, "boot")):
		return s.loadShim(p)
	case inEFI && strings.HasSuffix(base, ".efi") && strings.HasPrefix(base, "grub"):
		return s.loadGRUB(p)
	}
	return nil
}

// linked adds the entries in a folder to which a link inside of the image leads.
func (s *bootFiles) linked(p string) error {
	entries, err := fs.ReadDir(s.files, path.Join(p, "entries"))
	if err != nil {
		return fmt.Errorf("the link %s: %w", p, err)
	}
	for _, e := range entries {
		if e.Type().IsRegular() {
			s.paths = append(s.paths, path.Join(p, "entries", e.Name()))
		}
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
	if err := add(&s.grub, grubLoader, image); err != nil {
		return fmt.Errorf("%s: %w", p, err)
	}
	scripts, err := grub.Embedded(bytes.NewReader(image))
	if err != nil {
		return fmt.Errorf("%s: %w", p, err)
	}
	s.scripts = append(s.scripts, scripts...)
	return nil
}

func (s *bootFiles) read(p string) ([]byte, error) {
	f, err := s.files.Open(p)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	b, err := io.ReadAll(io.LimitReader(imageReader{f, s}, maxBootFile+1))
	if len(b) > maxBootFile {
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
	c := Component{Name: name, Digests: Digests{SHA256: d.SHA256, SHA384: d.SHA384}}
	if !slices.ContainsFunc(*list, func(have Component) bool { return have.same(c.Digests) }) {
		*list = append(*list, c)
	}
	return nil
}

func (d Digests) same(other Digests) bool { return bytes.Equal(d.SHA256, other.SHA256) }
