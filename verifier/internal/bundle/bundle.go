// SPDX-License-Identifier: Apache-2.0

// Package bundle writes a support bundle: the data that another person needs to analyze a problem,
// without any secret.
//
// All content passes a [Scrubber], which removes secrets by their patterns (private keys, JWTs,
// authorizations, tokens, passwords, also inside base64), and by their values, if those are known. A
// file that still looks like a secret afterward is omitted. The file contents.txt lists what the bundle
// contains, what was removed, and what was unavailable.
package bundle

import (
	"archive/tar"
	"compress/gzip"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"time"
	"unicode"
)

// MaxFile is the maximum size of a file in a bundle.
const MaxFile = 32 << 20

// Bundle writes one bundle.
type Bundle struct {
	scrub   *Scrubber
	out     output
	names   map[string]bool
	lines   []string
	missed  []string
	removed int
}

// output writes an archive or a folder.
type output interface {
	file(name string, content []byte) error
	close() error
}

// Archive writes a tar.gz to w. All files are in the folder root.
func Archive(w io.Writer, root string, now time.Time, s *Scrubber) *Bundle {
	z := gzip.NewWriter(w)
	return &Bundle{scrub: s, names: map[string]bool{}, out: &archive{root: root, now: now, z: z, t: tar.NewWriter(z)}}
}

// Folder writes files below dir, which must be empty or not exist.
func Folder(dir string, s *Scrubber) (*Bundle, error) {
	if entries, err := os.ReadDir(dir); err == nil && len(entries) > 0 {
		return nil, fmt.Errorf("%s is not empty", dir)
	}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, fmt.Errorf("create folder: %w", err)
	}
	return &Bundle{scrub: s, names: map[string]bool{}, out: folderOutput(dir)}, nil
}

// Add adds a scrubbed file. It returns an error only if the write fails.
func (b *Bundle) Add(name string, content []byte) error {
	name = b.unique(clean(name))
	note := ""
	if len(content) > MaxFile {
		content, note = content[:MaxFile], fmt.Sprintf(", truncated to %d MiB", MaxFile>>20)
	}
	scrubbed, found := b.scrub.Scrub(content)
	if still := b.scrub.Leaks(scrubbed); len(still) > 0 {
		b.Missed(name, fmt.Errorf("omitted: it still looks like a secret (%s)", strings.Join(still, ", ")))
		return nil
	}
	for _, kind := range kinds(found) {
		note += fmt.Sprintf(", %s removed: %d", kind, found[kind])
		b.removed += found[kind]
	}
	b.lines = append(b.lines, fmt.Sprintf("%s: %d bytes%s", name, len(scrubbed), note))
	return b.out.file(name, scrubbed)
}

// Missed records what was unavailable.
func (b *Bundle) Missed(what string, err error) {
	text, _ := b.scrub.Scrub([]byte(err.Error()))
	b.missed = append(b.missed, clean(what)+": "+printable(string(text)))
}

// Summary returns the numbers of files and of removed secrets, and what was unavailable.
func (b *Bundle) Summary() (files, removed int, missed []string) {
	return len(b.lines), b.removed, b.missed
}

// Close writes the list of contents and ends the bundle.
func (b *Bundle) Close() error {
	text := "A support bundle of mcs-attest. Secrets were removed by pattern and by value;\nreview it yourself " +
		"before you share it.\n\n"
	text += strings.Join(b.lines, "\n") + "\n"
	if len(b.missed) > 0 {
		text += "\nNot included:\n" + strings.Join(b.missed, "\n") + "\n"
	}
	return errors.Join(b.out.file("contents.txt", []byte(text)), b.out.close())
}

// unique returns a name that was not written before.
func (b *Bundle) unique(name string) string {
	for n := 2; b.names[name] || name == "contents.txt"; n++ {
		name = fmt.Sprintf("%s.%d", strings.TrimSuffix(name, fmt.Sprintf(".%d", n-1)), n)
	}
	b.names[name] = true
	return name
}

// clean returns a name below the bundle's root, whatever the name of an object is.
func clean(name string) string {
	name = strings.TrimPrefix(path.Clean("/"+strings.ReplaceAll(printable(name), `\`, "_")), "/")
	if name == "" {
		return "unnamed"
	}
	return name
}

func printable(s string) string {
	return strings.Map(func(r rune) rune {
		if !unicode.IsPrint(r) {
			return '_'
		}
		return r
	}, s)
}

func kinds(found map[string]int) []string {
	return slices.Sorted(maps.Keys(found))
}

type archive struct {
	root string
	now  time.Time
	z    *gzip.Writer
	t    *tar.Writer
}

func (a *archive) file(name string, content []byte) error {
	err := a.t.WriteHeader(&tar.Header{Name: path.Join(a.root, name), Mode: 0o600, Size: int64(len(content)),
		ModTime: a.now, Typeflag: tar.TypeReg})
	if err == nil {
		_, err = a.t.Write(content)
	}
	if err != nil {
		return fmt.Errorf("write bundle: %w", err)
	}
	return nil
}

func (a *archive) close() error { return errors.Join(a.t.Close(), a.z.Close()) }

type folderOutput string

func (f folderOutput) file(name string, content []byte) error {
	full := filepath.Join(string(f), filepath.FromSlash(name))
	if err := os.MkdirAll(filepath.Dir(full), 0o700); err != nil {
		return fmt.Errorf("write bundle: %w", err)
	}
	if err := os.WriteFile(full, content, 0o600); err != nil {
		return fmt.Errorf("write bundle: %w", err)
	}
	return nil
}

func (folderOutput) close() error { return nil }
