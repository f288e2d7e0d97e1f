// SPDX-License-Identifier: Apache-2.0

package ocilayout

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path"
	"strings"
	"testing"
	"testing/fstest"
)

// file is an entry of a layer. A link has a target; a content is that of a regular file.
type file struct {
	name, content, target string
	kind                  byte
	sparse                bool
}

const gzipped = "application/vnd.oci.image.layer.v1.tar+gzip"

func layer(t testing.TB, files ...file) []byte {
	t.Helper()
	var out bytes.Buffer
	z := gzip.NewWriter(&out)
	if _, err := z.Write(archive(t, files...)); err != nil {
		t.Fatal(err)
	}
	if err := z.Close(); err != nil {
		t.Fatal(err)
	}
	return out.Bytes()
}

func archive(t testing.TB, files ...file) []byte {
	t.Helper()
	var out bytes.Buffer
	w := tar.NewWriter(&out)
	for _, f := range files {
		h := &tar.Header{Name: f.name, Typeflag: f.kind, Linkname: f.target, Size: int64(len(f.content)), Mode: 0o644}
		if h.Typeflag == 0 {
			h.Typeflag = tar.TypeReg
		}
		if f.sparse {
			h.PAXRecords = map[string]string{"XNU.sparse.major": "1"} // the writer removes the real name
		}
		if err := w.WriteHeader(h); err != nil {
			t.Fatal(err)
		}
		if _, err := w.Write([]byte(f.content)); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return bytes.ReplaceAll(out.Bytes(), []byte("XNU.sparse"), []byte("GNU.sparse"))
}

// image returns a layout with an index, which has one manifest.
func image(t testing.TB, mediaType string, layers ...[]byte) fstest.MapFS {
	t.Helper()
	out := fstest.MapFS{}
	put := func(b []byte, mediaType string) descriptor {
		d := fmt.Sprintf("%x", sha256.Sum256(b))
		out["blobs/sha256/"+d] = &fstest.MapFile{Data: b}
		return descriptor{mediaType, "sha256:" + d}
	}
	encode := func(d document) []byte {
		b, err := json.Marshal(d)
		if err != nil {
			t.Fatal(err)
		}
		return b
	}
	var m document
	for _, l := range layers {
		m.Layers = append(m.Layers, put(l, mediaType))
	}
	out["index.json"] = &fstest.MapFile{Data: encode(document{Manifests: []descriptor{put(encode(m), "")}})}
	return out
}

// extract returns the contents of the extracted files.
func extract(t testing.TB, layout fs.FS) (map[string]string, error) {
	t.Helper()
	dir := t.TempDir()
	to, err := os.OpenRoot(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer to.Close()
	if err := Extract(t.Context(), layout, to, func(p string) bool { return path.Ext(p) == ".efi" }); err != nil {
		return nil, err
	}
	got := map[string]string{}
	err = fs.WalkDir(os.DirFS(dir), ".", func(p string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		b, err := os.ReadFile(path.Join(dir, p))
		got[p] = string(b)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return got, nil
}

func TestExtract(t *testing.T) {
	for name, c := range map[string]struct {
		layers [][]byte
		want   map[string]string
	}{
		"wanted files": {
			[][]byte{layer(t, file{name: "./boot/a.efi", content: "a"}, file{name: "etc/passwd", content: "x"})},
			map[string]string{"boot/a.efi": "a"},
		},
		"an upper layer": {
			[][]byte{layer(t, file{name: "a.efi", content: "old"}, file{name: "b.efi", content: "b"}),
				layer(t, file{name: "a.efi", content: "new"})},
			map[string]string{"a.efi": "new", "b.efi": "b"},
		},
		"deleted in an upper layer": {
			[][]byte{
				layer(t, file{name: "a.efi", content: "a"}, file{name: "d/b.efi", content: "b"},
					file{name: "e/c.efi", content: "c"}, file{name: "e/f/d.efi", content: "d"}),
				layer(t, file{name: ".wh.a.efi"}, file{name: ".wh.d"}, file{name: "e/new.efi", content: "new"},
					file{name: "e/.wh..wh..opq"}),
			},
			map[string]string{"e/new.efi": "new"},
		},
		"hard links of OSTree": {
			[][]byte{layer(t, file{name: "sysroot/objects/1.file", content: "uki"},
				file{name: "usr/a.efi", target: "/sysroot/objects/1.file", kind: tar.TypeLink},
				file{name: "usr/b.efi", target: "sysroot/objects/1.file", kind: tar.TypeLink})},
			map[string]string{"usr/a.efi": "uki", "usr/b.efi": "uki"},
		},
		"a symbolic link instead of a file": {
			[][]byte{layer(t, file{name: "a.efi", content: "a"}), layer(t, file{name: "a.efi", target: "/etc/passwd",
				kind: tar.TypeSymlink})},
			map[string]string{},
		},
		"a symbolic link instead of a folder": {
			[][]byte{layer(t, file{name: "d/e/a.efi", content: "a"}, file{name: "d2/b.efi", content: "b"}),
				layer(t, file{name: "d", target: "/usr", kind: tar.TypeSymlink})},
			map[string]string{"d2/b.efi": "b"},
		},
		"a file instead of a folder": {
			[][]byte{layer(t, file{name: "d/a.efi", content: "a"}), layer(t, file{name: "d", content: "x"})},
			map[string]string{},
		},
		"a folder instead of a file": {
			[][]byte{layer(t, file{name: "a.efi", content: "a"}), layer(t, file{name: "a.efi/", kind: tar.TypeDir})},
			map[string]string{},
		},
		"a folder again": {
			[][]byte{layer(t, file{name: "d/a.efi", content: "a"}), layer(t, file{name: "d/", kind: tar.TypeDir})},
			map[string]string{"d/a.efi": "a"},
		},
		"all of the lower layers deleted": {
			[][]byte{layer(t, file{name: "a.efi", content: "a"}, file{name: "d/b.efi", content: "b"}),
				layer(t, file{name: ".wh..wh..opq"}, file{name: "c.efi", content: "c"})},
			map[string]string{"c.efi": "c"},
		},
		"a hard link that the same layer replaces": {
			[][]byte{layer(t, file{name: "x", content: "old"}, file{name: "a.efi", target: "x", kind: tar.TypeLink},
				file{name: "d/b.efi", target: "x", kind: tar.TypeLink}, file{name: "a.efi", content: "new"},
				file{name: "d", target: "/usr", kind: tar.TypeSymlink})},
			map[string]string{"a.efi": "new"},
		},
		"a hard link to a symbolic link": {
			[][]byte{layer(t, file{name: "x", target: "/usr", kind: tar.TypeSymlink},
				file{name: "a.efi", target: "x", kind: tar.TypeLink})},
			map[string]string{},
		},
		"paths out of the image": {
			[][]byte{layer(t, file{name: "../../../x.efi", content: "x"}, file{name: "/abs.efi", content: "abs"},
				file{name: "b/../../y.efi", content: "y"})},
			map[string]string{"x.efi": "x", "abs.efi": "abs", "y.efi": "y"},
		},
		"the same file twice": {
			[][]byte{layer(t, file{name: "a.efi", content: "1"}, file{name: "a.efi", content: "2"})},
			map[string]string{"a.efi": "2"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			got, err := extract(t, image(t, gzipped, c.layers...))
			if err != nil || !maps.Equal(got, c.want) {
				t.Errorf("got %q, %v, expected %q", got, err, c.want)
			}
		})
	}
}

func TestExtract_Denies(t *testing.T) {
	good := func() fstest.MapFS { return image(t, gzipped, layer(t, file{name: "a.efi", content: "a"})) }
	for name, c := range map[string]struct {
		layout func() fstest.MapFS
		want   string
	}{
		"no layout": {func() fstest.MapFS { return fstest.MapFS{} }, "not an OCI image layout"},
		"an altered blob": {func() fstest.MapFS {
			l := good()
			other := image(t, gzipped, layer(t, file{name: "a.efi", content: "other"}))
			var from, to string
			for name, f := range l {
				if bytes.HasPrefix(f.Data, []byte{0x1f, 0x8b}) {
					to = name
				}
			}
			for name, f := range other {
				if bytes.HasPrefix(f.Data, []byte{0x1f, 0x8b}) {
					from = name
				}
			}
			l[to] = other[from]
			return l
		}, "the digest is "},
		"two images": {func() fstest.MapFS {
			l := good()
			l["index.json"].Data = []byte(`{"manifests":[{},{}]}`)
			return l
		}, "2 images in the layout"},
		"a digest that is a path": {func() fstest.MapFS {
			l := good()
			l["index.json"].Data = []byte(`{"manifests":[{"digest":"sha256:../../x"}]}`)
			return l
		}, "is not supported"},
		"zstd": {func() fstest.MapFS {
			return image(t, "application/vnd.oci.image.layer.v1.tar+zstd", layer(t))
		}, "skopeo copy"},
		"no gzip": {func() fstest.MapFS { return image(t, gzipped, []byte("x")) }, "layer sha256:"},
		"a large index": {func() fstest.MapFS {
			l := good()
			l["index.json"].Data = bytes.Repeat([]byte{' '}, maxDocument+1)
			return l
		}, "more than"},
		"many files": {func() fstest.MapFS {
			var files []file
			for i := range maxFiles + 1 {
				files = append(files, file{name: fmt.Sprintf("%d.efi", i)})
			}
			return image(t, gzipped, layer(t, files...))
		}, "files of the image are wanted"},
		"many links": {func() fstest.MapFS {
			files := []file{{name: "x", content: "x"}}
			for i := range maxFiles + 1 {
				files = append(files, file{name: fmt.Sprintf("%d.efi", i), target: "x", kind: tar.TypeLink})
			}
			return image(t, gzipped, layer(t, files...))
		}, "files of the image are wanted"},
		"a hard link to a file of a lower layer": {func() fstest.MapFS {
			return image(t, gzipped, layer(t, file{name: "x", content: "x"}, file{name: "a.efi", content: "a"}),
				layer(t, file{name: "a.efi", target: "x", kind: tar.TypeLink}))
		}, "a.efi is a hard link to x, which is not a file of the same layer"},
		"a sparse file": {func() fstest.MapFS {
			return image(t, gzipped, layer(t, file{name: "a.efi", sparse: true}))
		}, "sparse"},
		"a folder that is a file": {func() fstest.MapFS {
			return image(t, gzipped, layer(t, file{name: "a.efi", content: "a"}, file{name: "a.efi/b.efi", content: "b"}))
		}, "a.efi"},
	} {
		t.Run(name, func(t *testing.T) {
			if got, err := extract(t, c.layout()); err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("got %q, %v", got, err)
			}
		})
	}
}

// A manifest can name one small blob many times.
func TestExtract_LimitsTheWholeImage(t *testing.T) {
	raw := layer(t, file{name: "a.efi", content: "a"})
	layout := image(t, gzipped, raw, raw, raw)
	m, err := manifest(layout)
	if err != nil {
		t.Fatal(err)
	}
	to, err := os.OpenRoot(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	defer to.Close()
	size := int64(len(archive(t, file{name: "a.efi", content: "a"})))
	for unpacked, want := range map[int64]bool{3*size + 1: true, 3 * size: false, size + 1: false} {
		x := &extraction{layout: layout, to: to, wanted: func(string) bool { return false }, files: map[string]int{},
			unpacked: unpacked}
		if err := x.extractAll(t.Context(), m.Layers); (err == nil) != want {
			t.Errorf("%d bytes of %d: %v", unpacked, 3*size, err)
		}
	}
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	if err := Extract(ended, layout, to, func(string) bool { return true }); !errors.Is(err, context.Canceled) {
		t.Errorf("after an interrupt: %v", err)
	}
}

// FuzzExtract gives the attacker a layer. Nothing is written outside of the folder, because a root of
// the os package is used; here only a failure to clean up, a panic and large files are found.
func FuzzExtract(f *testing.F) {
	f.Add(archive(f, file{name: "a.efi", content: "a"}, file{name: ".wh.a.efi"}))
	f.Add(archive(f, file{name: "x", content: "a"}, file{name: "b.efi", target: "x", kind: tar.TypeLink}))
	f.Fuzz(func(t *testing.T, raw []byte) {
		got, err := extract(t, image(t, "application/vnd.oci.image.layer.v1.tar", raw))
		for name, content := range got {
			if err != nil || path.Ext(name) != ".efi" || len(content) > len(raw) {
				t.Errorf("%q has %d bytes, %v", name, len(content), err)
			}
		}
	})
}
