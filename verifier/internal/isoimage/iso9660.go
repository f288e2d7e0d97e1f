// SPDX-License-Identifier: Apache-2.0

package isoimage

import (
	"bytes"
	"cmp"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"path"
)

// ISO 9660 (ECMA-119). The first 16 sectors are unused.
const (
	sectorSize      = 2048
	firstDescriptor = 16
	maxDescriptors  = 32

	primary        = 1
	lastDescriptor = 255
	standard       = "CD001"

	rootRecord   = 156 // in the primary descriptor
	minRecord    = 33  // of a directory record, without its name
	maxExtents   = 64  // of one file, with up to 4 GB each
	flagFolder   = 0x02
	flagsOther   = 0x04 | 0x08 | 0x10 // an associated file, or extended attributes
	flagContinue = 0x80               // the next record has more of this file
)

// volume is an ISO 9660 file system.
type volume struct {
	*budget
	r    io.ReaderAt
	size int64
	skip int // bytes of each system use area before its entries
}

func (v *volume) at(offset int64, n int) ([]byte, error) {
	b := make([]byte, n)
	if read, err := v.r.ReadAt(b, offset); read < n {
		return nil, fmt.Errorf("%d bytes at %d: %w", n, offset, err)
	}
	return b, nil
}

func (v *volume) sector(n int64) ([]byte, error) { return v.at(n*sectorSize, sectorSize) }

// read adds the files of the volume to root. It returns the sector of El Torito's boot catalog, or 0.
func (v *volume) read(root *file) (catalog int64, err error) {
	var top []byte
	for i := range int64(maxDescriptors) {
		d, err := v.sector(firstDescriptor + i)
		if err != nil {
			return 0, err
		}
		switch {
		case string(d[1:6]) != standard:
			return 0, errors.New("not an ISO 9660 image")
		case bytes.HasPrefix(d, []byte(elTorito)) && catalog == 0:
			catalog = int64(binary.LittleEndian.Uint32(d[catalogSector:]))
		case d[0] == primary && top == nil:
			if n := binary.LittleEndian.Uint16(d[128:]); n != sectorSize {
				return 0, fmt.Errorf("blocks of %d bytes are not supported", n)
			}
			top = d[rootRecord:]
		}
		if d[0] == lastDescriptor {
			break
		}
	}
	if top == nil {
		return 0, errors.New("no primary volume descriptor")
	}
	return catalog, v.folder(root, newExtent(top), 0)
}

// extent is a part of a file.
type extent struct{ at, size int64 }

func newExtent(record []byte) extent {
	at, size := binary.LittleEndian.Uint32(record[2:]), binary.LittleEndian.Uint32(record[10:])
	return extent{int64(at) * sectorSize, int64(size)}
}

// folder adds the files of a directory. A record does not go past its sector.
func (v *volume) folder(to *file, e extent, depth int) error {
	if depth > maxDepth {
		return fmt.Errorf("more than %d folders inside each other", maxDepth)
	}
	var extents []extent // of a file that continues
	for offset := int64(0); offset < e.size; offset += sectorSize {
		if err := v.spend(0, sectorSize, 0); err != nil {
			return err
		}
		sector, err := v.at(e.at+offset, sectorSize)
		if err != nil {
			return err
		}
		for len(sector) > 0 && sector[0] > 0 {
			n := int(sector[0])
			if n > len(sector) || n < minRecord+int(sector[min(minRecord, len(sector))-1]) {
				return fmt.Errorf("%s: a directory record has a wrong length", to.name)
			}
			record := sector[:n]
			sector = sector[n:]
			if extents, err = v.record(to, record, extents, depth); err != nil {
				return err
			}
		}
	}
	if len(extents) > 0 {
		return fmt.Errorf("%s: the last file does not end", to.name)
	}
	return nil
}

// record adds the file of one directory record. It returns the extents if the next record has more of the file.
func (v *volume) record(to *file, record []byte, extents []extent, depth int) ([]extent, error) {
	if err := v.spend(1, 0, 0); err != nil {
		return nil, err
	}
	flags, length := record[25], int(record[32])
	area := record[min(minRecord+length+1-length&1, len(record)):] // padded to an even number
	if length == 1 && record[minRecord] <= 1 {                     // this folder and its parent
		if depth == 0 && record[minRecord] == 0 {
			return nil, v.sharing(area)
		}
		return nil, nil
	}
	name, link, err := v.rockRidge(area)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", path.Join(to.name, name), err)
	}
	e := newExtent(record)
	switch {
	case len(extents) > 0 && (link || flags&flagFolder != 0):
		return nil, fmt.Errorf("%s: the file before it does not end", name)
	case link:
		return nil, nil
	case record[1] != 0 || record[26] != 0 || record[27] != 0 || flags&flagsOther != 0:
		return nil, fmt.Errorf("%s: associated and interleaved files and extended attributes are not supported", name)
	case e.at+e.size > v.size:
		return nil, fmt.Errorf("%s: the file is outside of the image", name)
	case flags&flagFolder != 0:
		child := newFolder(name)
		if err := to.add(child); err != nil {
			return nil, err
		}
		return nil, v.folder(child, e, depth+1)
	case flags&flagContinue != 0 && len(extents) < maxExtents:
		return append(extents, e), nil
	case flags&flagContinue != 0:
		return nil, fmt.Errorf("%s: more than %d extents", name, maxExtents)
	}
	extents = append(extents, e)
	f := &file{name: name, content: func() io.Reader {
		var all []io.Reader
		for _, e := range extents {
			all = append(all, io.NewSectionReader(v.r, e.at, e.size))
		}
		return io.MultiReader(all...)
	}}
	for _, e := range extents {
		f.size += e.size
	}
	return nil, cmp.Or(v.spend(0, 0, f.size), to.add(f))
}
