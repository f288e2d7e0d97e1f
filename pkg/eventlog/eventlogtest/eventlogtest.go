// SPDX-License-Identifier: Apache-2.0

// Package eventlogtest has event logs for tests: captures of real boots, and functions that split,
// change and join a log.
//
// testdata/README.md lists the captures and their sources.
package eventlogtest

import (
	"bytes"
	"crypto/sha1"
	"crypto/sha256"
	"crypto/sha512"
	"embed"
	"encoding/binary"
	"encoding/hex"
	"hash"
	"io/fs"
	"slices"
	"strconv"
	"strings"
	"testing"
)

//go:embed testdata/*.log testdata/*.pcrs
var captures embed.FS

// Names of captures.
const (
	SecureBootUKI        = "ovmf-secureboot-uki"
	SecureBootUKI4Banks  = "ovmf-secureboot-uki-4banks"
	SecureBootUKIAltered = "ovmf-secureboot-uki-altered-initramfs"
	SecureBootSDBoot     = "ovmf-secureboot-sdboot-uki"
	SecureBootUKICapped  = "ovmf-secureboot-uki-capped"
	UKI                  = "ovmf-uki"
	UKICmdlineOverride   = "ovmf-uki-cmdline-override"
	UnsignedKernel       = "ovmf-ms-vars-unsigned-kernel"
	ShimGRUB             = "ovmf-shim16-grub"
	Debian13UKI          = "ovmf-debian13-uki"
	OSTree               = "ovmf-ostree"
	SeaBIOS              = "seabios-kernel"
)

// Capture is one real boot.
type Capture struct {
	Name string
	Log  []byte // binary_bios_measurements
	pcrs map[string][]byte
}

// Names returns the names of all captures.
func Names(t testing.TB) []string {
	files, err := fs.Glob(captures, "testdata/*.log")
	if err != nil {
		t.Fatal(err)
	}
	for i, f := range files {
		files[i] = strings.TrimSuffix(strings.TrimPrefix(f, "testdata/"), ".log")
	}
	return files
}

// Load reads a capture. The log is a copy.
func Load(t testing.TB, name string) Capture {
	c := Capture{Name: name, pcrs: map[string][]byte{}}
	var err error
	if c.Log, err = captures.ReadFile("testdata/" + name + ".log"); err != nil {
		t.Fatal(err)
	}
	text, err := captures.ReadFile("testdata/" + name + ".pcrs")
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(text)) {
		f := strings.Fields(line) // bank, PCR, value, and a stage if it is not the first
		v, err := hex.DecodeString(f[2])
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		c.pcrs[strings.Join(append(f[:2:2], f[3:]...), " ")] = v
	}
	return c
}

// PCR returns the TPM's value, or nil if the capture does not have that bank.
func (c Capture) PCR(bank string, pcr int) []byte { return c.pcrs[bank+" "+strconv.Itoa(pcr)] }

// Later returns PCR 11 of bank sha256 at a later stage: "enter-initrd", "capped" or "leave-initrd".
func (c Capture) Later(stage string) []byte { return c.pcrs["sha256 11 "+stage] }

// PCRs returns the TPM's values of some PCRs in one bank.
func (c Capture) PCRs(bank string, pcrs ...int) map[int][]byte {
	m := map[int][]byte{}
	for _, i := range pcrs {
		m[i] = slices.Clone(c.PCR(bank, i))
	}
	return m
}

// Digest is one digest of an event.
type Digest struct {
	Algorithm uint16
	Value     []byte
}

// Event is one event with the digests of all banks.
type Event struct {
	PCR, Type uint32
	Digests   []Digest
	Data      []byte
}

// New returns an event with the digests of data, in the banks of like.
func New(like Event, pcr, typ uint32, data []byte) Event {
	e := Event{PCR: pcr, Type: typ, Data: data}
	for _, d := range like.Digests {
		h := newHash(d.Algorithm)
		h.Write(data)
		e.Digests = append(e.Digests, Digest{d.Algorithm, h.Sum(nil)})
	}
	return e
}

// Split returns the bytes of the header and the events of a valid log.
func Split(t testing.TB, raw []byte) (header []byte, events []Event) {
	le := binary.LittleEndian
	n := 32 + int(le.Uint32(raw[28:]))
	header, raw = raw[:n], raw[n:]
	for len(raw) > 0 {
		e := Event{PCR: le.Uint32(raw), Type: le.Uint32(raw[4:])}
		count := le.Uint32(raw[8:])
		raw = raw[12:]
		for range count {
			d := Digest{Algorithm: le.Uint16(raw)}
			size := size(d.Algorithm)
			d.Value, raw = slices.Clone(raw[2:2+size]), raw[2+size:]
			e.Digests = append(e.Digests, d)
		}
		size := le.Uint32(raw)
		e.Data, raw = slices.Clone(raw[4:4+size]), raw[4+size:]
		events = append(events, e)
	}
	return slices.Clone(header), events
}

// Join is the reverse of Split.
func Join(header []byte, events []Event) []byte {
	le := binary.LittleEndian
	raw := slices.Clone(header)
	for _, e := range events {
		raw = le.AppendUint32(le.AppendUint32(raw, e.PCR), e.Type)
		raw = le.AppendUint32(raw, uint32(len(e.Digests)))
		for _, d := range e.Digests {
			raw = append(le.AppendUint16(raw, d.Algorithm), d.Value...)
		}
		raw = append(le.AppendUint32(raw, uint32(len(e.Data))), e.Data...)
	}
	return raw
}

// Edit returns a log with its events changed by f.
func Edit(t testing.TB, raw []byte, f func([]Event) []Event) []byte {
	header, events := Split(t, raw)
	return Join(header, f(events))
}

// Forge returns the PCR values that a TPM would have after these events, for attacks in which quote
// and log agree.
func Forge(t testing.TB, raw []byte, algorithm uint16, pcrs ...int) map[int][]byte {
	_, events := Split(t, raw)
	m := map[int][]byte{}
	for _, i := range pcrs {
		m[i] = make([]byte, newHash(algorithm).Size())
	}
	measured := false // something extended PCR 0
	for _, e := range events {
		const noAction, hcrtm = 3, 0x80000010
		if e.Type == noAction {
			if rest, ok := bytes.CutPrefix(e.Data, []byte("StartupLocality\x00")); ok && m[0] != nil {
				m[0][len(m[0])-1] = rest[0]
			}
			continue
		}
		if e.PCR == 0 {
			if e.Type == hcrtm && !measured && m[0] != nil {
				m[0][len(m[0])-1] = 4
			}
			measured = true
		}
		for _, d := range e.Digests {
			if v, ok := m[int(e.PCR)]; ok && d.Algorithm == algorithm {
				h := newHash(algorithm)
				h.Write(v)
				h.Write(d.Value)
				m[int(e.PCR)] = h.Sum(nil)
			}
		}
	}
	return m
}

func size(algorithm uint16) int {
	switch algorithm {
	case 0x0012, 0x0027: // SM3-256, SHA3-256
		return 32
	case 0x0028: // SHA3-384
		return 48
	case 0x0029: // SHA3-512
		return 64
	}
	return newHash(algorithm).Size()
}

func newHash(algorithm uint16) hash.Hash {
	switch algorithm {
	case 0x0004:
		return sha1.New()
	case 0x000B:
		return sha256.New()
	case 0x000C:
		return sha512.New384()
	case 0x000D:
		return sha512.New()
	}
	panic("eventlogtest: algorithm " + strconv.Itoa(int(algorithm)))
}
