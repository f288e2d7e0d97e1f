// SPDX-License-Identifier: Apache-2.0

package measuredboot

import (
	"crypto/sha256"
	"crypto/sha512"
	"fmt"
	"hash"
	"io"
	"io/fs"
	"strings"

	"github.com/mcs-attest/mcs-attest/pkg/measuredboot/grub"
)

// kernel adds the files of an entry.
func (s *bootFiles) kernel(r *ReferenceValues, entry grub.Entry) error {
	name, image, err := s.find(entry.Kernel)
	if err != nil {
		return err
	}
	if err := add(&r.Applications, kernel, image); err != nil {
		return fmt.Errorf("%s: %w", name, err)
	}
	r.Loads = append(r.Loads, Component{Name: name, Digests: digestsOf(image)})
	paths := make([]string, len(entry.Initrds))
	for i, p := range entry.Initrds {
		if paths[i], err = s.locate(p); err != nil {
			return err
		}
	}
	a, err := s.archives(paths)
	r.Loads, r.Initrd = append(r.Loads, a.loads...), a.whole
	return err
}

// archives are the initramfs archives of an entry.
type archives struct {
	loads []Component
	whole Digests // of all archives as one file, if there are several
}

// archives hashes initramfs archives. Entries with the same archives cause one read.
func (s *bootFiles) archives(paths []string) (a archives, err error) {
	key := strings.Join(paths, "\x00")
	if a, ok := s.hashed[key]; ok {
		return a, nil
	}
	whole := newHashes()
	for _, p := range paths {
		d, err := s.archive(p, whole)
		if err != nil {
			return archives{}, err
		}
		a.loads = append(a.loads, Component{Name: "/" + p, Digests: d})
	}
	if len(paths) > 1 {
		a.whole = whole.sum()
	}
	s.hashed[key] = a
	return a, nil
}

// hashes are the hashes of all banks of reference values.
type hashes struct {
	io.Writer
	sha256, sha384 hash.Hash
	size           int64
}

func newHashes() *hashes {
	h := &hashes{sha256: sha256.New(), sha384: sha512.New384()}
	h.Writer = io.MultiWriter(h.sha256, h.sha384)
	return h
}

func (h *hashes) sum() Digests { return Digests{SHA256: h.sha256.Sum(nil), SHA384: h.sha384.Sum(nil)} }

func digestsOf(b []byte) Digests {
	h := newHashes()
	_, _ = h.Write(b) // a hash never fails
	return h.sum()
}

// archive hashes an initramfs archive. It also adds the archive to those before it, from the next multiple
// of 4 bytes on (GRUB, grub-core/loader/linux.c).
func (s *bootFiles) archive(p string, whole *hashes) (Digests, error) {
	padding := make([]byte, -whole.size&3)
	_, _ = whole.Write(padding) // a hash never fails
	d, n, err := s.digest(p, whole)
	whole.size += int64(len(padding)) + n
	return d, err
}

// digest hashes a file of any size, and copies it to a writer.
func (s *bootFiles) digest(p string, to io.Writer) (d Digests, size int64, err error) {
	f, err := s.files.Open(p)
	if err != nil {
		return Digests{}, 0, err
	}
	defer f.Close()
	h := newHashes()
	size, err = io.Copy(io.MultiWriter(h, to), imageReader{f, s})
	return h.sum(), size, err
}

// imageReader reads a file of the image until the caller's context ends. It limits what is read of all files,
// because an image can name a file repeatedly, and a sparse file has any size.
type imageReader struct {
	io.Reader
	s *bootFiles
}

func (r imageReader) Read(b []byte) (int, error) {
	if err := r.s.stopped(); err != nil {
		return 0, err
	}
	n, err := r.Reader.Read(b)
	if r.s.left -= int64(n); r.s.left < 0 {
		return 0, fmt.Errorf("the files that the image loads have more than %d bytes", maxRead)
	}
	return n, err
}

// locate returns the file for a path of GRUB, whose device is unknown here.
func (s *bootFiles) locate(p string) (string, error) {
	p = strings.TrimPrefix(withoutDevice(p), "/")
	for _, pattern := range []string{p, "boot/" + p, strings.TrimPrefix(p, "boot/")} {
		found, err := fs.Glob(s.files, pattern)
		if err != nil {
			return "", fmt.Errorf("path %q: %w", p, err)
		}
		switch len(found) {
		case 0:
		case 1:
			if info, err := fs.Stat(s.files, found[0]); err != nil || !info.Mode().IsRegular() {
				return "", fmt.Errorf("path %q of an entry: %s is not a regular file inside of the folder", p, found[0])
			}
			return found[0], nil
		default:
			return "", fmt.Errorf("path %q of an entry stands for %d files", p, len(found))
		}
	}
	return "", fmt.Errorf("an entry loads %q, which does not exist", p)
}

func (s *bootFiles) find(p string) (name string, content []byte, err error) {
	at, err := s.locate(p)
	if err != nil {
		return "", nil, err
	}
	content, err = s.read(at)
	return "/" + at, content, err
}
