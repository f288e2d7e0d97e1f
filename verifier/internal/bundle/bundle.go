// Package bundle writes a support bundle: what a person elsewhere needs to
// understand what went wrong, without one secret in it.
//
// Everything that goes in passes a [Scrubber], which takes secrets out by their
// shapes (private keys, JWTs, authorizations, tokens, passwords, also inside
// base64) and by their values, where those were given to it. What still looks
// like a secret afterwards is left out as a whole. The bundle says in
// contents.txt what is in it, what was taken out, and what could not be had.
package bundle

import (
	"archive/tar"
	"compress/gzip"
	"errors"
	"fmt"
	"io"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"time"
	"unicode"
)

// MaxFile bounds one file of a bundle.
const MaxFile = 32 << 20

// Bundle is a bundle in the making.
type Bundle struct {
	scrub  *Scrubber
	out    sink
	names  map[string]bool
	lines  []string
	missed []string
	taken  int
}

// sink is an archive or a folder.
type sink interface {
	file(name string, content []byte) error
	close() error
}

// Archive writes a tar.gz to w; everything in it lies in the folder root.
func Archive(w io.Writer, root string, now time.Time, s *Scrubber) *Bundle {
	z := gzip.NewWriter(w)
	return &Bundle{scrub: s, names: map[string]bool{}, out: &archive{root: root, now: now, z: z, t: tar.NewWriter(z)}}
}

// Folder writes files below dir, which must not exist yet or be empty.
func Folder(dir string, s *Scrubber) (*Bundle, error) {
	if entries, err := os.ReadDir(dir); err == nil && len(entries) > 0 {
		return nil, fmt.Errorf("%s is not empty", dir)
	}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, fmt.Errorf("make folder: %w", err)
	}
	return &Bundle{scrub: s, names: map[string]bool{}, out: folderSink(dir)}, nil
}

// Add puts a file in, scrubbed. Only a failure to write is an error.
func (b *Bundle) Add(name string, content []byte) error {
	name = b.unique(clean(name))
	note := ""
	if len(content) > MaxFile {
		content, note = content[:MaxFile], fmt.Sprintf(", cut at %d MiB", MaxFile>>20)
	}
	scrubbed, found := b.scrub.Scrub(content)
	if still := b.scrub.Leaks(scrubbed); len(still) > 0 {
		b.Missed(name, fmt.Errorf("left out: it still looks like a secret (%s)", strings.Join(still, ", ")))
		return nil
	}
	for _, kind := range kinds(found) {
		note += fmt.Sprintf(", %s taken out: %d", kind, found[kind])
		b.taken += found[kind]
	}
	b.lines = append(b.lines, fmt.Sprintf("%s: %d bytes%s", name, len(scrubbed), note))
	return b.out.file(name, scrubbed)
}

// Missed notes what could not be had.
func (b *Bundle) Missed(what string, err error) {
	text, _ := b.scrub.Scrub([]byte(err.Error()))
	b.missed = append(b.missed, clean(what)+": "+printable(string(text)))
}

// Summary is what a person at the terminal wants to know.
func (b *Bundle) Summary() (files, taken int, missed []string) {
	return len(b.lines), b.taken, b.missed
}

// Close writes the list of contents and ends the bundle.
func (b *Bundle) Close() error {
	text := "A support bundle of mcs-attest. Secrets were taken out by shape and by value;\nlook through it yourself " +
		"before you give it away.\n\n"
	text += strings.Join(b.lines, "\n") + "\n"
	if len(b.missed) > 0 {
		text += "\nNot in it:\n" + strings.Join(b.missed, "\n") + "\n"
	}
	return errors.Join(b.out.file("contents.txt", []byte(text)), b.out.close())
}

// unique never writes a name twice.
func (b *Bundle) unique(name string) string {
	for n := 2; b.names[name] || name == "contents.txt"; n++ {
		name = fmt.Sprintf("%s.%d", strings.TrimSuffix(name, fmt.Sprintf(".%d", n-1)), n)
	}
	b.names[name] = true
	return name
}

// clean keeps a name below the bundle's root, whatever an object is called.
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
	var out []string
	for k := range found {
		out = append(out, k)
	}
	slices.Sort(out)
	return out
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

type folderSink string

func (f folderSink) file(name string, content []byte) error {
	full := filepath.Join(string(f), filepath.FromSlash(name))
	if err := os.MkdirAll(filepath.Dir(full), 0o700); err != nil {
		return fmt.Errorf("write bundle: %w", err)
	}
	if err := os.WriteFile(full, content, 0o600); err != nil {
		return fmt.Errorf("write bundle: %w", err)
	}
	return nil
}

func (folderSink) close() error { return nil }
