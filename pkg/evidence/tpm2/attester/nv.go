// SPDX-License-Identifier: Apache-2.0

package attester

import (
	"cmp"
	"crypto"
	"crypto/rsa"
	"crypto/x509"
	"encoding/asn1"
	"encoding/binary"
	"errors"
	"fmt"
	"slices"

	"github.com/google/go-tpm/tpm2"
	"github.com/google/go-tpm/tpm2/transport"
)

const (
	// maxNVSize limits the content of one index in bytes; Intel's chains are the largest.
	maxNVSize = 16 << 10
	// maxCertificates is the contract's limit for a chain.
	maxCertificates = 8
	maxHandles      = 256
)

// nvIndexes lists the NV indexes that belong to the EK profile or contain a platform's AK. It needs
// one command unless the TPM has hundreds of indexes.
func nvIndexes(t transport.TPM) ([]uint32, error) {
	var all []uint32
	seen := 0
	for next := uint32(nvFirst); ; {
		rsp, err := tpm2.GetCapability{Capability: tpm2.TPMCapHandles, Property: next, PropertyCount: maxHandles}.Execute(t)
		if err != nil {
			return nil, fmt.Errorf("listing NV indexes: %w", err)
		}
		handles, err := rsp.CapabilityData.Data.Handles()
		if err != nil {
			return nil, fmt.Errorf("listing NV indexes: %w", err)
		}
		for _, h := range handles.Handle {
			index := h.HandleValue()
			if index > akLast {
				return all, nil
			}
			if index <= nvChainLast || ofAKSlot(index) {
				all = append(all, index)
			}
			next = index + 1
		}
		seen += len(handles.Handle)
		if !rsp.MoreData || len(handles.Handle) == 0 || seen >= maxHandles {
			return all, nil
		}
	}
}

// nvRead reads a whole index.
func nvRead(t transport.TPM, index uint32) ([]byte, error) {
	pub, err := tpm2.NVReadPublic{NVIndex: tpm2.TPMHandle(index)}.Execute(t)
	if err != nil {
		return nil, fmt.Errorf("NV index 0x%08x: %w", index, err)
	}
	area, err := pub.NVPublic.Contents()
	if err != nil {
		return nil, fmt.Errorf("NV index 0x%08x: %w", index, err)
	}
	size := int(area.DataSize)
	if size > maxNVSize {
		return nil, unfit{fmt.Errorf("NV index 0x%08x has %d bytes; the limit is %d", index, size, maxNVSize)}
	}
	// The index authorizes its own reading. An index without that attribute is read with the
	// owner's (empty) authorization.
	auth := tpm2.TPMHandle(index)
	if !area.Attributes.AuthRead {
		auth = tpm2.TPMRHOwner
	}
	// The largest chunk is TPM_PT_NV_BUFFER_MAX, 1024 on nearly every TPM. Trying this value first
	// saves a command.
	chunk := 1024
	data := make([]byte, 0, size)
	for len(data) < size {
		rsp, err := tpm2.NVRead{
			AuthHandle: tpm2.AuthHandle{Handle: auth, Name: pub.NVName, Auth: tpm2.PasswordAuth(nil)},
			NVIndex:    tpm2.NamedHandle{Handle: tpm2.TPMHandle(index), Name: pub.NVName},
			Size:       uint16(min(chunk, size-len(data))),
			Offset:     uint16(len(data)),
		}.Execute(t)
		if (errors.Is(err, tpm2.TPMRCValue) || errors.Is(err, tpm2.TPMRCSize)) && chunk > 128 {
			chunk /= 2
			continue
		}
		if err != nil {
			return nil, fmt.Errorf("reading NV index 0x%08x: %w", index, err)
		}
		if len(rsp.Data.Buffer) == 0 {
			return nil, unfit{fmt.Errorf("reading NV index 0x%08x: no data at offset %d", index, len(data))}
		}
		data = append(data, rsp.Data.Buffer...)
	}
	return data, nil
}

// splitDER returns the DER structures at the start of data. NV indexes are padded, and the index of
// a chain contains several structures. Intel writes the header 10 01 00 and a big-endian u16 length
// (TCG PC Client Specific Implementation, 1.2, 7.4.5) before a certificate.
func splitDER(data []byte, most int) [][]byte {
	var out [][]byte
	for len(data) > 0 && len(out) < most {
		if len(data) > 5 && data[0] == 0x10 && data[1] == 0x01 && data[2] == 0x00 {
			n := int(binary.BigEndian.Uint16(data[3:5]))
			if n > len(data)-5 {
				return out
			}
			data = data[5:]
		}
		var raw asn1.RawValue
		rest, err := asn1.Unmarshal(data, &raw)
		if err != nil || raw.Tag != asn1.TagSequence || !raw.IsCompound || raw.Class != asn1.ClassUniversal {
			return out
		}
		out = append(out, raw.FullBytes)
		data = rest
	}
	return out
}

// chain reads the intermediate certificates that some manufacturers store in NV.
func chain(t transport.TPM, indexes []uint32, most int) ([][]byte, error) {
	var data []byte
	for _, i := range slices.SortedFunc(slices.Values(indexes), cmp.Compare[uint32]) {
		if i < nvChainFirst || i > nvChainLast {
			continue
		}
		part, err := nvRead(t, i)
		if err != nil {
			return nil, err
		}
		// A certificate may continue in the next index.
		data = append(data, part...)
		if len(data) > maxCertificates*maxNVSize {
			break
		}
	}
	return splitDER(data, most), nil
}

var oidRSAOAEP = asn1.ObjectIdentifier{1, 2, 840, 113549, 1, 1, 7}

// certificateKey returns the public key of an EK certificate. Old certificates of ST and Infineon
// use RSAES-OAEP as the key's algorithm, which crypto/x509 does not parse.
func certificateKey(der []byte) (crypto.PublicKey, error) {
	cert, err := x509.ParseCertificate(der)
	if err != nil {
		return nil, err
	}
	if cert.PublicKey != nil {
		return cert.PublicKey, nil
	}
	var spki struct {
		Algorithm struct {
			Algorithm  asn1.ObjectIdentifier
			Parameters asn1.RawValue `asn1:"optional"`
		}
		PublicKey asn1.BitString
	}
	if _, err := asn1.Unmarshal(cert.RawSubjectPublicKeyInfo, &spki); err != nil {
		return nil, err
	}
	if !spki.Algorithm.Algorithm.Equal(oidRSAOAEP) {
		return nil, fmt.Errorf("key algorithm %v", spki.Algorithm.Algorithm)
	}
	var key *rsa.PublicKey
	if key, err = x509.ParsePKCS1PublicKey(spki.PublicKey.RightAlign()); err != nil {
		return nil, err
	}
	return key, nil
}
