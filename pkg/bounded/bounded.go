// SPDX-License-Identifier: Apache-2.0

// Package bounded reads input of a limited size: from a disk, a network or an archive.
package bounded

import (
	"bytes"
	"compress/gzip"
	"fmt"
	"io"
)

// Read reads all of r. It returns an error if r has more than limit bytes.
func Read(r io.Reader, limit int) ([]byte, error) {
	raw, err := io.ReadAll(io.LimitReader(r, int64(limit)+1))
	switch {
	case err != nil:
		return nil, err
	case len(raw) > limit:
		return nil, fmt.Errorf("it has more than %d bytes", limit)
	}
	return raw, nil
}

// Gunzip unpacks a gzip archive. It returns an error if the content has more than limit bytes.
func Gunzip(packed []byte, limit int) ([]byte, error) {
	r, err := gzip.NewReader(bytes.NewReader(packed))
	if err != nil {
		return nil, fmt.Errorf("it is not gzip: %w", err)
	}
	raw, err := Read(r, limit)
	if err != nil {
		return nil, fmt.Errorf("its unpacked content: %w", err)
	}
	return raw, nil
}
