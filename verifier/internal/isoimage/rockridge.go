// SPDX-License-Identifier: Apache-2.0

package isoimage

import (
	"encoding/binary"
	"errors"
	"fmt"
)

// System use areas (IEEE P1281, SUSP 1.12) with the entries of Rock Ridge (IEEE P1282, RRIP 1.12).
const (
	suspHeader  = 4  // signature, length, version
	maxAreas    = 16 // of one file: each can continue in another place
	maxAreaSize = 4 * sectorSize
	nameCurrent = 0x02 | 0x04 // the name is that of this folder or of its parent
)

// sharing reads the entry SP of the root folder, which every image with Rock Ridge has.
func (v *volume) sharing(area []byte) error {
	if len(area) < 7 || string(area[:2]) != "SP" || area[4] != 0xBE || area[5] != 0xEF {
		return errors.New("no Rock Ridge names. Create the image with them, for example with 'xorrisofs -rational-rock'")
	}
	v.skip = int(area[6])
	return nil
}

// rockRidge returns the name of a file, and whether it is a symbolic link.
func (v *volume) rockRidge(area []byte) (name string, link bool, err error) {
	area = area[min(v.skip, len(area)):]
	for range maxAreas {
		var next []byte
		for len(area) >= suspHeader {
			n := int(area[2])
			if n < suspHeader || n > len(area) {
				return name, false, errors.New("an entry of the system use area has a wrong length")
			}
			entry := area[:n]
			area = area[n:]
			switch signature := string(entry[:2]); {
			case signature == "NM" && n > suspHeader && entry[4]&nameCurrent == 0:
				name += string(entry[suspHeader+1:])
			case signature == "SL":
				link = true
			case signature == "CL":
				return name, false, errors.New("folders that are relocated are not supported")
			case signature == "CE":
				if next, err = v.continuation(entry); err != nil {
					return name, false, err
				}
			case signature == "ST":
				area = nil
			}
		}
		if next == nil {
			return name, link, checkName(name)
		}
		area = next
	}
	return name, false, fmt.Errorf("more than %d system use areas", maxAreas)
}

// continuation reads the area to which an entry CE leads.
func (v *volume) continuation(entry []byte) ([]byte, error) {
	if len(entry) < 28 {
		return nil, errors.New("the entry CE is too short")
	}
	block, offset, n := binary.LittleEndian.Uint32(entry[4:]), binary.LittleEndian.Uint32(entry[12:]),
		binary.LittleEndian.Uint32(entry[20:])
	if n > maxAreaSize {
		return nil, fmt.Errorf("a system use area has %d bytes", n)
	}
	if err := v.spend(0, int(n), 0); err != nil {
		return nil, err
	}
	return v.at(int64(block)*sectorSize+int64(offset), int(n))
}
