// SPDX-License-Identifier: Apache-2.0

// Package ocilayout extracts files from a container image that is stored as an OCI image layout, for
// commands that compute reference values from an image.
//
// The image is hostile: no file is written outside of the destination, and all sizes are bounded.
package ocilayout

import (
	"archive/tar"
	"compress/gzip"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"path"
	"strings"
)

// Limits on an image. Those of operating systems have about 100 layers, and 100 000 files in 3 GB.
const (
	maxDocument = 4 << 20
	maxLayers   = 1000
	maxEntries  = 4 << 20  // of all layers
	maxFiles    = 1000     // that are extracted
	maxBytes    = 8 << 30  // of extracted files
	maxUnpacked = 64 << 30 // of all layers, in bytes
)

// Extract writes those files of an image to a folder whose path in the image is wanted. It verifies the
// digests of all blobs. Links are files with the content of their target if they are hard links, as
// OSTree has them; other links are not extracted.
func Extract(ctx context.Context, layout fs.FS, to *os.Root, wanted func(path string) bool) error {
	m, err := manifest(layout)
	if err != nil {
		return err
	}
	if len(m.Layers) > maxLayers {
		return fmt.Errorf("the image has more than %d layers", maxLayers)
	}
	x := &extraction{layout: layout, to: to, wanted: wanted, files: map[string]int{}, unpacked: maxUnpacked}
	return x.extractAll(ctx, m.Layers)
}

func (x *extraction) extractAll(ctx context.Context, layers []descriptor) error {
	for i, l := range layers {
		x.layer = i
		if err := x.extract(ctx, l); err != nil {
			return fmt.Errorf("layer %s: %w", l.Digest, err)
		}
	}
	return nil
}

// descriptor describes a blob (OCI Image Format Specification, descriptor.md).
type descriptor struct {
	MediaType string `json:"mediaType"`
	Digest    string `json:"digest"`
}

// document is an index or a manifest of the image.
type document struct {
	Manifests []descriptor `json:"manifests"`
	Layers    []descriptor `json:"layers"`
}

// manifest returns the only manifest of the layout.
func manifest(layout fs.FS) (*document, error) {
	f, err := layout.Open("index.json")
	if err != nil {
		return nil, fmt.Errorf("not an OCI image layout: %w", err)
	}
	defer f.Close()
	d, err := decode(f)
	if err != nil {
		return nil, fmt.Errorf("index.json: %w", err)
	}
	for range 3 { // an index can contain an index
		if len(d.Layers) > 0 {
			return d, nil
		}
		if len(d.Manifests) != 1 {
			return nil, fmt.Errorf("%d images in the layout, expected 1. Copy one architecture of one image",
				len(d.Manifests))
		}
		b, err := open(layout, d.Manifests[0].Digest)
		if err != nil {
			return nil, err
		}
		d, err = decode(b)
		if err = errors.Join(err, b.verify(), b.Close()); err != nil {
			return nil, fmt.Errorf("manifest: %w", err)
		}
	}
	return nil, errors.New("no manifest with layers")
}

func decode(r io.Reader) (*document, error) {
	text, err := io.ReadAll(io.LimitReader(r, maxDocument+1))
	if err != nil {
		return nil, err
	}
	if len(text) > maxDocument {
		return nil, fmt.Errorf("more than %d bytes", maxDocument)
	}
	var d document
	return &d, json.Unmarshal(text, &d)
}

// blob is a file whose digest is compared after it was read.
type blob struct {
	io.Reader
	io.Closer
	verify func() error
}

func open(layout fs.FS, digest string) (*blob, error) {
	text, ok := strings.CutPrefix(digest, "sha256:")
	if want, err := hex.DecodeString(text); !ok || err != nil || len(want) != sha256.Size {
		return nil, fmt.Errorf("digest %q is not supported", digest)
	}
	f, err := layout.Open("blobs/sha256/" + text)
	if err != nil {
		return nil, err
	}
	h := sha256.New()
	r := io.TeeReader(f, h)
	return &blob{r, f, func() error {
		if _, err := io.Copy(io.Discard, r); err != nil {
			return err
		}
		if got := hex.EncodeToString(h.Sum(nil)); got != text {
			return fmt.Errorf("the digest is %s, expected %s", got, text)
		}
		return nil
	}}, nil
}

// extraction is the state of one image.
type extraction struct {
	layout  fs.FS
	to      *os.Root
	wanted  func(string) bool
	files   map[string]int    // that are extracted, and their layer
	links   map[string]string // wanted hard links of this layer, and their targets
	layer   int
	entries int
	bytes   int64
	// unpacked is how many bytes all further layers may have. A manifest can name one blob many times.
	unpacked int64
}

// extract applies one layer (OCI Image Format Specification, layer.md). An entry that is no folder hides the folder of
// that name, and all that is in it, even if the entry itself is not wanted. The target of a hard link is before the
// link, so such a layer is read again.
func (x *extraction) extract(ctx context.Context, l descriptor) error {
	x.links = map[string]string{}
	err := x.read(ctx, l, func(h *tar.Header, name string, content io.Reader) error {
		dir, base := path.Split(name)
		deleted, isWhiteout := strings.CutPrefix(base, ".wh.")
		var hidden func(file string, lower bool) bool
		switch {
		case base == ".wh..wh..opq":
			hidden = func(file string, lower bool) bool { return lower && strings.HasPrefix(file, dir) }
		case isWhiteout:
			deleted = dir + deleted
			hidden = func(file string, lower bool) bool {
				return file == deleted || lower && strings.HasPrefix(file, deleted+"/")
			}
		case h.Typeflag == tar.TypeDir:
			hidden = func(file string, _ bool) bool { return file == name }
		default:
			hidden = func(file string, _ bool) bool { return file == name || strings.HasPrefix(file, name+"/") }
		}
		if err := x.remove(hidden); err != nil || isWhiteout || !x.wanted(name) {
			return err
		}
		for key := range h.PAXRecords {
			if strings.HasPrefix(key, "GNU.sparse.") {
				return fmt.Errorf("%s is a sparse file, which is not supported", name)
			}
		}
		if h.Typeflag != tar.TypeReg && h.Typeflag != tar.TypeLink {
			return nil
		}
		if len(x.files)+len(x.links) >= maxFiles {
			return fmt.Errorf("more than %d files of the image are wanted", maxFiles)
		}
		if h.Typeflag == tar.TypeLink {
			x.links[name] = clean(h.Linkname)
			return nil
		}
		return x.write(name, content)
	})
	if err != nil || len(x.links) == 0 {
		return err
	}
	return x.link(ctx, l)
}

// link writes the hard links of a layer.
func (x *extraction) link(ctx context.Context, l descriptor) error {
	names := map[string][]string{} // by their target
	for name, target := range x.links {
		names[target] = append(names[target], name)
	}
	err := x.read(ctx, l, func(h *tar.Header, target string, content io.Reader) error {
		links := names[target]
		if len(links) == 0 || h.Typeflag == tar.TypeLink {
			return nil
		}
		delete(names, target)
		if h.Typeflag != tar.TypeReg {
			return nil // for example, a symbolic link
		}
		if err := x.write(links[0], content); err != nil {
			return err
		}
		for _, name := range links[1:] {
			if err := x.create(name, func() error { return x.to.Link(links[0], name) }); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		return err
	}
	for target, links := range names {
		return fmt.Errorf("%s is a hard link to %s, which is not a file of the same layer", links[0], target)
	}
	return nil
}

// read calls f for each entry of a layer.
func (x *extraction) read(ctx context.Context, l descriptor, f func(*tar.Header, string, io.Reader) error) error {
	b, err := open(x.layout, l.Digest)
	if err != nil {
		return err
	}
	defer b.Close()
	var r io.Reader = b
	switch {
	case strings.HasSuffix(l.MediaType, "+gzip"), strings.HasSuffix(l.MediaType, ".gzip"):
		if r, err = gzip.NewReader(b); err != nil {
			return err
		}
	case !strings.HasSuffix(l.MediaType, ".tar"):
		return fmt.Errorf("media type %q is not supported. Use 'skopeo copy --dest-compress-format gzip'", l.MediaType)
	}
	limited := &io.LimitedReader{R: interruptible{ctx, r}, N: x.unpacked}
	archive := tar.NewReader(limited)
	for {
		h, err := archive.Next()
		if err == io.EOF {
			break
		}
		if err != nil {
			return err
		}
		if x.entries++; x.entries > maxEntries {
			return fmt.Errorf("the image has more than %d files", maxEntries)
		}
		if err := f(h, clean(h.Name), archive); err != nil {
			return err
		}
	}
	if x.unpacked = limited.N; x.unpacked == 0 {
		return fmt.Errorf("the image has more than %d bytes", int64(maxUnpacked))
	}
	return b.verify()
}

// interruptible is a Reader that fails when the context has ended.
type interruptible struct {
	ctx context.Context
	io.Reader
}

// Read reads from the Reader, unless the context has ended.
func (r interruptible) Read(p []byte) (int, error) {
	if err := r.ctx.Err(); err != nil {
		return 0, fmt.Errorf("interrupted: %w", err)
	}
	return r.Reader.Read(p)
}

// clean returns a path of an archive without a leading slash, and without a way out of the image.
func clean(name string) string { return path.Clean("/" + name)[1:] }

// remove deletes the files that are hidden. lower reports whether a file is of a lower layer.
func (x *extraction) remove(hidden func(file string, lower bool) bool) error {
	maps.DeleteFunc(x.links, func(name, _ string) bool { return hidden(name, false) })
	for file, layer := range x.files {
		if !hidden(file, layer < x.layer) {
			continue
		}
		delete(x.files, file)
		if err := x.to.Remove(file); err != nil {
			return err
		}
	}
	return nil
}

func (x *extraction) write(name string, content io.Reader) error {
	return x.create(name, func() error {
		f, err := x.to.OpenFile(name, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600)
		if err != nil {
			return err
		}
		n, err := io.Copy(f, io.LimitReader(content, maxBytes-x.bytes+1))
		if x.bytes += n; x.bytes > maxBytes {
			err = fmt.Errorf("more than %d bytes", int64(maxBytes))
		}
		return errors.Join(err, f.Close())
	})
}

func (x *extraction) create(name string, create func() error) error {
	x.files[name] = x.layer
	if err := x.to.MkdirAll(path.Dir(name), 0o700); err != nil {
		return err
	}
	return create()
}
