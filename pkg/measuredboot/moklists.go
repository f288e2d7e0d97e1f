// SPDX-License-Identifier: Apache-2.0

package measuredboot

import (
	"bytes"
	"crypto/sha256"
	"debug/pe"
	"encoding/binary"
	"errors"
)

// Types of EFI_SIGNATURE_LIST (UEFI 2.10, 32.4.1).
var (
	certX509   = guid{0xa1, 0x59, 0xc0, 0xa5, 0xe4, 0x94, 0xa7, 0x4a, 0x87, 0xb5, 0xab, 0x15, 0x5c, 0x2b, 0xf0, 0x72}
	certSHA256 = guid{0x26, 0x16, 0xc4, 0xc1, 0x4c, 0x50, 0x92, 0x40, 0xac, 0xa9, 0x41, 0xf9, 0x36, 0x93, 0x43, 0x28}
)

// signatureList returns an EFI_SIGNATURE_LIST with one entry of shim.
func signatureList(kind guid, entry []byte) []byte {
	list := bytes.Clone(kind[:])
	list = binary.LittleEndian.AppendUint32(list, uint32(28+16+len(entry)))
	list = binary.LittleEndian.AppendUint32(list, 0)
	list = binary.LittleEndian.AppendUint32(list, uint32(16+len(entry)))
	return append(append(list, shimLock[:]...), entry...)
}

// vendorLists returns what shim measures into PCR 14 on a machine without machine owner keys (shim,
// mok.c): MokList with the vendor's certificate, MokListX with the vendor's revocations, and
// MokListTrusted, which is 01. A list without content has one entry of zeros. The shims of Red Hat and Fedora have no
// revocations.
func vendorLists(shim []byte) ([]Component, error) {
	f, err := pe.NewFile(bytes.NewReader(shim))
	if err != nil {
		return nil, err
	}
	section := f.Section(".vendor_cert")
	if section == nil {
		return nil, errors.New("not shim: no section .vendor_cert")
	}
	table, err := section.Data()
	if err != nil || len(table) < 16 {
		return nil, errors.New("section .vendor_cert is truncated")
	}
	field := func(size, offset int) ([]byte, error) {
		n, at := uint64(binary.LittleEndian.Uint32(table[size:])), uint64(binary.LittleEndian.Uint32(table[offset:]))
		if at+n > uint64(len(table)) {
			return nil, errors.New("section .vendor_cert is inconsistent")
		}
		return table[at : at+n], nil
	}
	cert, err := field(0, 8)
	if err != nil {
		return nil, err
	}
	revoked, err := field(4, 12)
	if err != nil {
		return nil, err
	}
	none := signatureList(certSHA256, make([]byte, sha256.Size))
	if len(revoked) == 0 {
		revoked = none
	}
	switch {
	case len(cert) == 0:
		cert = none
	case !bytes.HasPrefix(cert, certX509[:]) && !bytes.HasPrefix(cert, certSHA256[:]): // not a list yet
		cert = signatureList(certX509, cert)
	}
	return []Component{
		{Name: "MokList", Digests: digestsOf(cert)},
		{Name: "MokListX", Digests: digestsOf(revoked)},
		{Name: "MokListTrusted", Digests: digestsOf([]byte{1})},
	}, nil
}
