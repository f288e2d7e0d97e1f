// SPDX-License-Identifier: Apache-2.0

package grub

import (
	"debug/pe"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"strings"
)

const (
	modulesMagic  = 0x676d696d // "mimg" (GRUB, include/grub/kernel.h)
	objectMemdisk = 1
	objectConfig  = 2
	maxModules    = 32 << 20
)

var errNotGRUB = errors.New("not an EFI image of GRUB")

// Embedded returns the configurations inside an EFI image of GRUB: its own, and those of its memory disk.
// GRUB executes them before the grub.cfg of the boot partition. Its rescue parser, which executes the
// first, measures nothing; the superset is harmless.
func Embedded(r io.ReaderAt) ([]Script, error) {
	f, err := pe.NewFile(r)
	if err != nil {
		return nil, errNotGRUB
	}
	s := f.Section("mods")
	if s == nil || s.Size > maxModules {
		return nil, errNotGRUB
	}
	mods, err := s.Data()
	if err != nil || len(mods) < 24 || binary.LittleEndian.Uint32(mods) != modulesMagic {
		return nil, errNotGRUB
	}
	at, size := binary.LittleEndian.Uint64(mods[8:]), binary.LittleEndian.Uint64(mods[16:])
	if at > size || size > uint64(len(mods)) {
		return nil, errNotGRUB
	}
	var out []Script
	for rest := mods[at:size]; len(rest) >= 8; {
		kind, n := binary.LittleEndian.Uint32(rest), binary.LittleEndian.Uint32(rest[4:])
		if n < 8 || uint64(n) > uint64(len(rest)) {
			return nil, errNotGRUB
		}
		content := rest[8:n]
		rest = rest[n:]
		switch kind {
		case objectConfig:
			text, _, _ := strings.Cut(string(content), "\x00")
			out = append(out, Script{Name: "the embedded configuration", Text: text})
		case objectMemdisk:
			scripts, err := memdisk(content)
			if err != nil {
				return nil, fmt.Errorf("the memory disk: %w", err)
			}
			out = append(out, scripts...)
		}
	}
	return out, nil
}

// memdisk returns the files *.CFG in the root folder of a FAT12 or FAT16 file system (Microsoft FAT
// Specification 1.03), which distributions embed.
func memdisk(disk []byte) ([]Script, error) {
	errFAT := errors.New("not a FAT12 or FAT16 file system")
	if len(disk) < 512 || disk[510] != 0x55 || disk[511] != 0xAA {
		return nil, errFAT
	}
	u16 := func(at int) int { return int(binary.LittleEndian.Uint16(disk[at:])) }
	sector, perCluster, reserved := u16(11), int(disk[13]), u16(14)
	fats, entries, sectors, perFAT := int(disk[16]), u16(17), u16(19), u16(22)
	if sectors == 0 {
		sectors = int(binary.LittleEndian.Uint32(disk[32:]))
	}
	root := (reserved + fats*perFAT) * sector
	data := root + (entries*32+sector-1)/max(sector, 1)*sector
	if sector == 0 || perCluster == 0 || perFAT == 0 || data > len(disk) {
		return nil, errFAT
	}
	wide := (sectors-data/sector)/perCluster >= 4085 // FAT16
	next := func(cluster int) int {
		at := reserved*sector + cluster*3/2
		if wide {
			at = reserved*sector + cluster*2
		}
		if at+2 > len(disk) {
			return 0
		}
		v := u16(at)
		switch {
		case wide:
			return v
		case cluster%2 == 1:
			return v >> 4
		}
		return v & 0xFFF
	}
	var out []Script
	left := len(disk) // a damaged disk has more files than it has space
	for i := range entries {
		e := disk[root+32*i : root+32*i+32]
		if e[0] == 0 {
			break
		}
		if e[0] == 0xE5 || e[11]&0x18 != 0 || string(e[8:11]) != "CFG" {
			continue
		}
		size := int(binary.LittleEndian.Uint32(e[28:]))
		if left -= size; left < 0 {
			return nil, errFAT
		}
		var content []byte
		for cluster := int(binary.LittleEndian.Uint16(e[26:])); len(content) < size; cluster = next(cluster) {
			at := data + (cluster-2)*perCluster*sector
			if cluster < 2 || at+perCluster*sector > len(disk) {
				return nil, errFAT
			}
			content = append(content, disk[at:at+perCluster*sector]...)
		}
		name := strings.TrimRight(string(e[:8]), " ") + ".CFG"
		out = append(out, Script{Name: "(memdisk)/" + strings.ToLower(name), Text: string(content[:size])})
	}
	return out, nil
}
