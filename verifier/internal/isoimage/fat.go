// SPDX-License-Identifier: Apache-2.0

package isoimage

import (
	"cmp"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"strings"
	"unicode/utf16"
)

// FAT (Microsoft, FAT: General Overview of On-Disk Format, 1.03; ECMA-107).
const (
	bootSector  = 512
	slotSize    = 32 // of a directory entry
	maxFAT12    = 4085
	maxFAT16    = 65525
	maxClusters = 1 << 28
	// No directory is larger.
	maxDirectory = 65536 * slotSize

	attrVolume   = 0x08
	attrFolder   = 0x10
	attrLongName = 0x0F

	lowerName, lowerExtension = 0x08, 0x10
)

// fat is a FAT file system.
type fat struct {
	*budget
	r            io.ReaderAt
	bits         int64 // of an entry of the table
	table        int64 // position of the table
	data         int64 // position of cluster 2
	clusterSize  int64
	clusterCount int64
}

// readFAT adds the files of the file system to a folder.
func readFAT(b *budget, r io.ReaderAt, to *file) error {
	boot := make([]byte, bootSector)
	if _, err := r.ReadAt(boot, 0); err != nil {
		return err
	}
	u16 := func(at int) int64 { return int64(binary.LittleEndian.Uint16(boot[at:])) }
	u32 := func(at int) int64 { return int64(binary.LittleEndian.Uint32(boot[at:])) }
	sector, rootSlots := u16(11), u16(17)
	if u16(510) != 0xAA55 || sector < 512 || sector > 4096 || sector&(sector-1) != 0 || boot[13] == 0 {
		return errors.New("not a FAT file system")
	}
	table := cmp.Or(u16(22), u32(36))
	rootAt := sector * (u16(14) + int64(boot[16])*table)
	v := &fat{budget: b, r: r, table: sector * u16(14), clusterSize: sector * int64(boot[13])}
	v.data = rootAt + (rootSlots*slotSize+sector-1)/sector*sector
	v.clusterCount = (sector*cmp.Or(u16(19), u32(32)) - v.data) / v.clusterSize
	switch {
	case v.clusterCount < 1 || v.clusterCount > maxClusters:
		return fmt.Errorf("%d clusters", v.clusterCount)
	case v.clusterCount < maxFAT12:
		v.bits = 12
	case v.clusterCount < maxFAT16:
		v.bits = 16
	default:
		v.bits = 32
	}
	var root io.Reader = io.NewSectionReader(r, rootAt, rootSlots*slotSize)
	if v.bits == 32 {
		root = &chain{fat: v, cluster: u32(44), left: maxDirectory, ends: true}
	}
	return v.folder(to, root, 1)
}

// following returns the cluster after n, or 0 after the last one.
func (v *fat) following(n int64) (int64, error) {
	entry := make([]byte, 4)
	if _, err := v.r.ReadAt(entry, v.table+n*v.bits/8); err != nil {
		return 0, err // the clusters are behind the table, so there are 4 bytes
	}
	next := int64(binary.LittleEndian.Uint32(entry))
	if v.bits == 12 && n&1 == 1 {
		next >>= 4
	}
	mask := int64(1)<<min(v.bits, 28) - 1 // FAT32 uses 28 bits
	if next &= mask; next >= mask&^7 {
		return 0, nil
	}
	return next, nil
}

// chain reads the clusters of a file, or of a directory, which ends with its last cluster.
type chain struct {
	*fat
	cluster int64
	offset  int64 // in the cluster
	left    int64 // bytes of the file
	ends    bool
}

func (c *chain) Read(p []byte) (int, error) {
	if c.left == 0 {
		return 0, io.EOF
	}
	if c.offset == c.clusterSize {
		next, err := c.following(c.cluster)
		if err != nil {
			return 0, err
		}
		if next == 0 && c.ends {
			return 0, io.EOF
		}
		c.cluster, c.offset = next, 0
	}
	if c.cluster < 2 || c.cluster >= c.clusterCount+2 {
		return 0, fmt.Errorf("cluster %d does not exist", c.cluster)
	}
	n := int(min(int64(len(p)), c.left, c.clusterSize-c.offset))
	if read, err := c.r.ReadAt(p[:n], c.data+(c.cluster-2)*c.clusterSize+c.offset); read < n {
		return 0, fmt.Errorf("cluster %d: %w", c.cluster, cmp.Or(err, io.ErrUnexpectedEOF))
	}
	c.offset += int64(n)
	c.left -= int64(n)
	return n, nil
}

// folder adds the files of a directory.
func (v *fat) folder(to *file, r io.Reader, depth int) error {
	if depth > maxDepth {
		return fmt.Errorf("more than %d folders inside each other", maxDepth)
	}
	slot, long := make([]byte, slotSize), longName{}
	for {
		if err := v.spend(0, slotSize, 0); err != nil {
			return err
		}
		if _, err := io.ReadFull(r, slot); err == io.EOF {
			return nil
		} else if err != nil {
			return fmt.Errorf("%s: %w", to.name, err)
		}
		switch attributes := slot[11]; {
		case slot[0] == 0:
			return nil
		case slot[0] == 0xE5: // deleted
			long = longName{}
		case attributes&0x3F == attrLongName:
			long.add(slot)
		case attributes&attrVolume != 0:
			long = longName{}
		default:
			name := long.of(slot)
			long = longName{}
			if name == "." || name == ".." {
				continue
			}
			if err := v.entry(to, slot, name, depth); err != nil {
				return err
			}
		}
	}
}

// entry adds a file.
func (v *fat) entry(to *file, slot []byte, name string, depth int) error {
	if err := checkName(name); err != nil {
		return err
	}
	first := int64(binary.LittleEndian.Uint16(slot[26:]))
	if v.bits == 32 {
		first |= int64(binary.LittleEndian.Uint16(slot[20:])) << 16
	}
	if slot[11]&attrFolder != 0 {
		child := newFolder(name)
		if err := cmp.Or(v.spend(1, 0, 0), to.add(child)); err != nil {
			return err
		}
		return v.folder(child, &chain{fat: v, cluster: first, left: maxDirectory, ends: true}, depth+1)
	}
	size := int64(binary.LittleEndian.Uint32(slot[28:]))
	if err := v.spend(1, 0, size); err != nil {
		return err
	}
	return to.add(&file{name: name, size: size, content: func() io.Reader {
		return &chain{fat: v, cluster: first, left: size}
	}})
}

// longName collects the parts of a long name, which are before the entry of the file, the last part first.
type longName struct {
	units    []uint16
	left     byte // parts that follow
	checksum byte
}

func (l *longName) add(slot []byte) {
	if order := slot[0]; order&0x40 != 0 {
		*l = longName{left: order & 0x3F, checksum: slot[13]}
	} else if order != l.left || slot[13] != l.checksum {
		*l = longName{}
	}
	if l.left == 0 {
		return
	}
	l.left--
	var part []uint16
	for _, at := range []int{1, 3, 5, 7, 9, 14, 16, 18, 20, 22, 24, 28, 30} {
		unit := binary.LittleEndian.Uint16(slot[at:])
		if unit == 0 {
			break
		}
		part = append(part, unit)
	}
	l.units = append(part, l.units...)
}

// of returns the name of an entry: the long one if it belongs to the entry, or the short one as Linux writes it.
func (l *longName) of(slot []byte) string {
	var sum byte
	for _, c := range slot[:11] {
		sum = sum>>1 | sum<<7
		sum += c
	}
	if len(l.units) > 0 && l.left == 0 && l.checksum == sum {
		return string(utf16.Decode(l.units))
	}
	base, extension := strings.TrimRight(string(slot[:8]), " "), strings.TrimRight(string(slot[8:11]), " ")
	if slot[12]&lowerName != 0 {
		base = strings.ToLower(base)
	}
	if slot[12]&lowerExtension != 0 {
		extension = strings.ToLower(extension)
	}
	if extension == "" {
		return base
	}
	return base + "." + extension
}
