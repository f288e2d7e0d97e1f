// SPDX-License-Identifier: Apache-2.0

package isoimage

import (
	"fmt"
	"io"
	"io/fs"
	"maps"
	"slices"
	"strings"
	"time"
)

// file is a regular file or a folder. It describes itself (fs.FileInfo).
type file struct {
	name    string
	size    int64
	content func() io.Reader // nil for a folder
	files   map[string]*file // of a folder
}

func newFolder(name string) *file { return &file{name: name, files: map[string]*file{}} }

// add adds a file to a folder.
func (f *file) add(child *file) error {
	if f.files[child.name] != nil {
		return fmt.Errorf("%s has two files with the name %s", f.name, child.name)
	}
	f.files[child.name] = child
	return nil
}

func (f *file) Name() string     { return f.name }
func (f *file) Size() int64      { return f.size }
func (f *file) IsDir() bool      { return f.files != nil }
func (*file) ModTime() time.Time { return time.Time{} }
func (*file) Sys() any           { return nil }

func (f *file) Mode() fs.FileMode {
	if f.IsDir() {
		return fs.ModeDir | 0o555
	}
	return 0o444
}

// tree is the file system of a folder.
type tree struct{ root *file }

// Open opens a file or a folder.
func (t tree) Open(name string) (fs.File, error) {
	if !fs.ValidPath(name) {
		return nil, &fs.PathError{Op: "open", Path: name, Err: fs.ErrInvalid}
	}
	f := t.root
	for part := range strings.SplitSeq(name, "/") {
		if name == "." {
			break
		}
		if f = f.files[part]; f == nil {
			return nil, &fs.PathError{Op: "open", Path: name, Err: fs.ErrNotExist}
		}
	}
	if !f.IsDir() {
		return &opened{f, f.content()}, nil
	}
	var left []fs.DirEntry
	for _, child := range slices.Sorted(maps.Keys(f.files)) {
		left = append(left, fs.FileInfoToDirEntry(f.files[child]))
	}
	return &openedFolder{opened{file: f}, left}, nil
}

// opened is an open regular file.
type opened struct {
	file    *file
	content io.Reader
}

func (o *opened) Stat() (fs.FileInfo, error) { return o.file, nil }
func (*opened) Close() error                 { return nil }

func (o *opened) Read(p []byte) (int, error) {
	if o.content == nil {
		return 0, &fs.PathError{Op: "read", Path: o.file.name, Err: fs.ErrInvalid}
	}
	return o.content.Read(p)
}

// openedFolder is an open folder.
type openedFolder struct {
	opened
	left []fs.DirEntry
}

// ReadDir returns up to n entries, or all if n is not positive.
func (o *openedFolder) ReadDir(n int) ([]fs.DirEntry, error) {
	if n <= 0 {
		n = len(o.left)
	} else if len(o.left) == 0 {
		return nil, io.EOF
	}
	n = min(n, len(o.left))
	out := o.left[:n:n]
	o.left = o.left[n:]
	return out, nil
}
