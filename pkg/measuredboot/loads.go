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
	whole := newHashes()
	for i, p := range entry.Initrds {
		at, err := s.locate(p)
		if err != nil {
			return err
		}
		d, err := s.archive(at, whole)
		if err != nil {
			return err
		}
		r.Loads = append(r.Loads, Component{Name: "/" + at, Digests: d})
		if i > 0 {
			r.Initrd = whole.sum()
		}
	}
	return nil
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
	size, err = io.Copy(io.MultiWriter(h, to), f)
	return h.sum(), size, err
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
