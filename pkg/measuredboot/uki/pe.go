// SPDX-License-Identifier: Apache-2.0

package uki

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
)

// Limits. The Windows loader accepts 96 sections; the code of a stub has about 100 KB.
const (
	maxSections = 96
	maxHeaders  = 1 << 20
	maxZeros    = 1 << 20 // how much larger a section may be in memory than in the file
)

// peFile has the required parts of a PE image (Microsoft PE/COFF Specification).
type peFile struct {
	r           io.ReaderAt
	size        int64
	headers     int64 // SizeOfHeaders
	checksum    int64 // offset of the CheckSum field
	certEntry   int64 // offset of the certificate table's directory entry, 0 if there is none
	certSize    int64
	sections    []section
	sectionsEnd int64 // end of the section table
}

type section struct {
	name       string
	memorySize uint32 // VirtualSize: what the stub measures
	offset     uint32 // PointerToRawData
	fileSize   uint32 // SizeOfRawData
}

var errNotPE = errors.New("not a PE image")

// readAt reads exactly n bytes.
func readAt(r io.ReaderAt, off int64, n int) ([]byte, error) {
	b := make([]byte, n)
	if m, err := r.ReadAt(b, off); m < n {
		if err == nil || errors.Is(err, io.EOF) {
			err = io.ErrUnexpectedEOF
		}
		return nil, err
	}
	return b, nil
}

func parsePE(r io.ReaderAt, size int64) (*peFile, error) {
	dos, err := readAt(r, 0, 64)
	if err != nil || dos[0] != 'M' || dos[1] != 'Z' {
		return nil, errNotPE
	}
	pe := int64(binary.LittleEndian.Uint32(dos[60:]))
	coff, err := readAt(r, pe, 24)
	if err != nil || string(coff[:4]) != "PE\x00\x00" {
		return nil, errNotPE
	}
	nSections := int(binary.LittleEndian.Uint16(coff[6:]))
	optSize := int64(binary.LittleEndian.Uint16(coff[20:]))
	opt, err := readAt(r, pe+24, int(optSize))
	if err != nil || optSize < 96 {
		return nil, errNotPE
	}
	// Offsets in the optional header: CheckSum 64 and SizeOfHeaders 60 in both forms; the data
	// directories follow NumberOfRvaAndSizes.
	var dirs int64
	switch binary.LittleEndian.Uint16(opt) {
	case 0x10B: // PE32
		dirs = 96
	case 0x20B: // PE32+
		dirs = 112
	default:
		return nil, errNotPE
	}
	if optSize < dirs {
		return nil, errNotPE
	}
	f := &peFile{r: r, size: size, checksum: pe + 24 + 64, headers: int64(binary.LittleEndian.Uint32(opt[60:]))}
	const certificates = 4 // index of the certificate table
	if n := binary.LittleEndian.Uint32(opt[dirs-4:]); n > certificates && optSize >= dirs+8*(certificates+1) {
		f.certEntry = pe + 24 + dirs + 8*certificates
		e := opt[dirs+8*certificates:]
		at := int64(binary.LittleEndian.Uint32(e))
		f.certSize = int64(binary.LittleEndian.Uint32(e[4:]))
		if f.certSize > 0 && at+f.certSize != size {
			return nil, fmt.Errorf("the certificate table does not end the file: %d+%d of %d bytes", at, f.certSize, size)
		}
	}
	if nSections == 0 || nSections > maxSections {
		return nil, fmt.Errorf("%d sections, expected 1 to %d", nSections, maxSections)
	}
	f.sectionsEnd = pe + 24 + optSize + 40*int64(nSections)
	if f.headers < f.sectionsEnd || f.headers > size || f.headers > maxHeaders {
		return nil, fmt.Errorf("%d bytes of headers, in a file of %d", f.headers, size)
	}
	table, err := readAt(r, pe+24+optSize, 40*nSections)
	if err != nil {
		return nil, fmt.Errorf("read the section table: %w", err)
	}
	total := f.headers
	for ; len(table) > 0; table = table[40:] {
		s := section{
			name:       strings.TrimRight(string(table[:8]), "\x00"),
			memorySize: binary.LittleEndian.Uint32(table[8:]),
			fileSize:   binary.LittleEndian.Uint32(table[16:]),
			offset:     binary.LittleEndian.Uint32(table[20:]),
		}
		if s.fileSize > 0 && int64(s.offset)+int64(s.fileSize) > size-f.certSize {
			return nil, fmt.Errorf("section %q ends after the end of the file", s.name)
		}
		if total += int64(s.fileSize); total > size {
			return nil, errors.New("sections overlap")
		}
		f.sections = append(f.sections, s)
	}
	return f, nil
}

// hashImage writes the bytes that the Authenticode digest covers.
func (f *peFile) hashImage(w io.Writer) error {
	put := func(from, to int64) error {
		if to <= from {
			return nil
		}
		n, err := io.Copy(w, io.NewSectionReader(f.r, from, to-from))
		if err == nil && n != to-from {
			err = io.ErrUnexpectedEOF
		}
		return err
	}
	at := int64(0)
	skip := func(off, n int64) error {
		err := put(at, off)
		at = off + n
		return err
	}
	if err := skip(f.checksum, 4); err != nil {
		return err
	}
	if f.certEntry != 0 {
		if err := skip(f.certEntry, 8); err != nil {
			return err
		}
	}
	if err := put(at, f.headers); err != nil {
		return err
	}
	hashed := f.headers
	byOffset := slices.Clone(f.sections)
	slices.SortStableFunc(byOffset, func(a, b section) int { return int(int64(a.offset) - int64(b.offset)) })
	for _, s := range byOffset {
		if s.fileSize == 0 {
			continue
		}
		if err := put(int64(s.offset), int64(s.offset)+int64(s.fileSize)); err != nil {
			return err
		}
		hashed += int64(s.fileSize)
	}
	return put(hashed, f.size-f.certSize)
}

// hashSigned writes the bytes that the Authenticode digest covers once the image is signed. Signing
// tools first pad the file with zeros to a multiple of 8 bytes, because the certificate table must
// begin there (Microsoft PE/COFF Specification, "The Attribute Certificate Table").
func (f *peFile) hashSigned(w io.Writer) error {
	if err := f.hashImage(w); err != nil || f.certSize > 0 {
		return err
	}
	_, err := io.CopyN(w, zeros{}, -f.size&7)
	return err
}

// hashSection writes a section as in memory: its content in the file, then zeros.
func (f *peFile) hashSection(w io.Writer, s section) error {
	n := min(int64(s.memorySize), int64(s.fileSize))
	if int64(s.memorySize)-n > maxZeros {
		return fmt.Errorf("section %s has %d bytes in memory and %d in the file", s.name, s.memorySize, s.fileSize)
	}
	if m, err := io.Copy(w, io.NewSectionReader(f.r, int64(s.offset), n)); err != nil || m != n {
		return fmt.Errorf("read section %s: %w", s.name, errors.Join(err, io.ErrUnexpectedEOF))
	}
	_, err := io.CopyN(w, zeros{}, int64(s.memorySize)-n)
	return err
}

type zeros struct{}

func (zeros) Read(b []byte) (int, error) {
	clear(b)
	return len(b), nil
}
