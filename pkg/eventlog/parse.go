// SPDX-License-Identifier: Apache-2.0

package eventlog

import (
	"bytes"
	"encoding/binary"

	"github.com/mcs-attest/mcs-attest/pkg/reason"
	"github.com/mcs-attest/mcs-attest/pkg/transcript"
)

// Limits of a log. Real logs have about 20 to 200 events in 1 to 75 KB.
const (
	MaxSize   = 256 << 10 // bytes
	MaxEvents = 4096
)

// NumPCRs is the number of PCRs of a PC Client TPM.
const NumPCRs = 24

// noPCR is the PCR that firmware writes for an EV_NO_ACTION without a PCR (SP 800-155 events).
const noPCR = 0xFFFFFFFF

// Event is one event as the log claims it. Digest and Data are slices of the log. Both are
// untrusted until the log's replay equals a quote. Even then, Data is untrusted unless its hash is
// Digest.
type Event struct {
	Index  int    // position in the log; the header is 0, so the first is 1
	PCR    int    // 0 to 23; -1 for an EV_NO_ACTION without a PCR
	Type   uint32 // see TypeName; only EV_NO_ACTION and EV_EFI_HCRTM_EVENT have an effect
	Digest []byte // in the parsed bank
	Data   []byte
}

// Extends reports whether the firmware extended the digest of the event into its PCR.
func (e *Event) Extends() bool { return e.Type != NoAction }

// Log is a well-formed log, read for one bank.
type Log struct {
	Bank     uint16
	Events   []Event // without the header
	Locality byte    // the initial value of PCR 0: 0, 3 or 4
}

// Parse reads a log for one bank (a TPM_ALG_ID). The checks, in order:
//
//   - The bank can be replayed, and the log is neither empty nor too large.
//   - The header is a "Spec ID Event03", lists the bank, and states the right digest sizes.
//   - Every event has a valid PCR and a digest of the bank. It has no digest of an unlisted
//     algorithm and none twice.
//   - StartupLocality precedes every other statement about PCR 0 and is 0, 3 or 4.
//   - Nothing follows the last event.
//
// Errors are denials with reason PCRSelection (for the bank) or EventLogMalformed.
func Parse(raw []byte, bank uint16) (*Log, error) {
	if Size(bank) == 0 {
		return nil, reason.Deny(reason.PCRSelection, "PCR bank %s cannot be appraised, only sha256, sha384 and sha512",
			transcript.BankName(bank))
	}
	if len(raw) == 0 {
		return nil, reason.Deny(reason.EventLogMalformed, "the event log is empty")
	}
	if len(raw) > MaxSize {
		return nil, reason.Deny(reason.EventLogMalformed, "the event log has %d bytes; the limit is %d", len(raw), MaxSize)
	}
	p := parser{rest: raw, bank: bank}
	if err := p.header(); err != nil {
		return nil, err
	}
	// Real logs have about 256 bytes per event, so most need one allocation.
	l := &Log{Bank: bank, Events: make([]Event, 0, min(MaxEvents, len(raw)/256+16))}
	for len(p.rest) > 0 {
		if len(l.Events) == MaxEvents {
			return nil, reason.Deny(reason.EventLogMalformed, "the event log has more than %d events", MaxEvents)
		}
		e := Event{Index: len(l.Events) + 1}
		if err := p.event(&e); err != nil {
			return nil, err
		}
		l.Events = append(l.Events, e)
	}
	if err := l.findLocality(); err != nil {
		return nil, err
	}
	return l, nil
}

type parser struct {
	rest []byte
	bank uint16
	algs []algorithm // in the order of the header
	room [8]algorithm
}

type algorithm struct {
	id   uint16
	size int
}

func malformed(index int, format string, a ...any) error {
	return reason.Deny(reason.EventLogMalformed, "event %d: "+format, append([]any{index}, a...)...)
}

// next returns the next n bytes, or false if fewer remain.
func (p *parser) next(n uint32) ([]byte, bool) {
	if uint64(n) > uint64(len(p.rest)) {
		return nil, false
	}
	b := p.rest[:n:n]
	p.rest = p.rest[n:]
	return b, true
}

// header reads the first event: a TCG_PCClientPCREvent with a SHA-1-sized digest of zeros, whose
// data is TCG_EfiSpecIdEvent (Firmware Profile, 10.4.5.1).
func (p *parser) header() error {
	fixed, ok := p.next(4 + 4 + 20 + 4)
	if !ok {
		return malformed(0, "the log ends within its header")
	}
	if binary.LittleEndian.Uint32(fixed) != 0 || binary.LittleEndian.Uint32(fixed[4:]) != NoAction {
		return malformed(0, "not a crypto-agile log: the first event is not an EV_NO_ACTION in PCR 0")
	}
	spec, ok := p.next(binary.LittleEndian.Uint32(fixed[28:]))
	if !ok {
		return malformed(0, "the log ends within its header")
	}
	// signature[16] platformClass[4] minor major errata uintnSize numberOfAlgorithms[4]
	if len(spec) < 28 || !bytes.Equal(spec[:16], []byte("Spec ID Event03\x00")) {
		return malformed(0, "not a crypto-agile log: no \"Spec ID Event03\"")
	}
	n := binary.LittleEndian.Uint32(spec[24:])
	if n == 0 || n > uint32(len(p.room)) {
		return malformed(0, "%d digest algorithms", n)
	}
	spec = spec[28:]
	if uint32(len(spec)) < 4*n+1 {
		return malformed(0, "the list of digest algorithms is truncated")
	}
	p.algs = p.room[:0]
	for range n {
		a := algorithm{id: binary.LittleEndian.Uint16(spec), size: int(binary.LittleEndian.Uint16(spec[2:]))}
		spec = spec[4:]
		if want := sizes[a.id]; want == 0 || want != a.size {
			return malformed(0, "digest algorithm 0x%04x with %d bytes", a.id, a.size)
		}
		if p.find(a.id) >= 0 {
			return malformed(0, "digest algorithm 0x%04x is listed twice", a.id)
		}
		p.algs = append(p.algs, a)
	}
	if int(spec[0]) != len(spec)-1 { // vendorInfoSize
		return malformed(0, "%d bytes of vendor information, %d stated", len(spec)-1, spec[0])
	}
	if p.find(p.bank) < 0 {
		return malformed(0, "the log has no %s bank", transcript.BankName(p.bank))
	}
	return nil
}

func (p *parser) find(id uint16) int {
	for i, a := range p.algs {
		if a.id == id {
			return i
		}
	}
	return -1
}

// event reads one TCG_PCR_EVENT2 (Firmware Profile, 10.2.2).
func (p *parser) event(e *Event) error {
	fixed, ok := p.next(12)
	if !ok {
		return malformed(e.Index, "the log ends within it")
	}
	pcr := binary.LittleEndian.Uint32(fixed)
	e.Type = binary.LittleEndian.Uint32(fixed[4:])
	switch {
	case pcr < NumPCRs:
		e.PCR = int(pcr)
	case pcr == noPCR && e.Type == NoAction:
		e.PCR = -1
	default:
		return malformed(e.Index, "PCR %d does not exist", pcr)
	}
	n := binary.LittleEndian.Uint32(fixed[8:])
	if n > uint32(len(p.algs)) {
		return malformed(e.Index, "%d digests, but the header lists %d algorithms", n, len(p.algs))
	}
	var seen [8]bool
	for range n {
		id, ok := p.next(2)
		if !ok {
			return malformed(e.Index, "the log ends within it")
		}
		i := p.find(binary.LittleEndian.Uint16(id))
		if i < 0 {
			return malformed(e.Index, "a digest of algorithm 0x%04x, which the header does not list",
				binary.LittleEndian.Uint16(id))
		}
		if seen[i] {
			return malformed(e.Index, "two %s digests", transcript.BankName(p.algs[i].id))
		}
		seen[i] = true
		d, ok := p.next(uint32(p.algs[i].size))
		if !ok {
			return malformed(e.Index, "the log ends within it")
		}
		if p.algs[i].id == p.bank {
			e.Digest = d
		}
	}
	if e.Digest == nil {
		return malformed(e.Index, "no %s digest", transcript.BankName(p.bank))
	}
	size, ok := p.next(4)
	if !ok {
		return malformed(e.Index, "the log ends within it")
	}
	if e.Data, ok = p.next(binary.LittleEndian.Uint32(size)); !ok {
		return malformed(e.Index, "%d bytes of data stated, %d left", binary.LittleEndian.Uint32(size), len(p.rest))
	}
	return nil
}

// hcrtmLocality is the initial value of PCR 0 after an H-CRTM. Only hardware has this locality.
const hcrtmLocality = 4

// startupLocality is the beginning of a TCG_EfiStartupLocalityEvent (Firmware Profile, 10.4.5.3).
var startupLocality = []byte("StartupLocality\x00")

// findLocality reads the initial value of PCR 0. It is the one EV_NO_ACTION that changes a replay,
// so it must precede every extension of PCR 0.
//
// An H-CRTM measures itself before TPM2_Startup. It makes PCR 0 start at 4, whatever the locality of
// the startup is (TPM 2.0 Library, Part 1, 34.3). Firmware may log only the measurement.
func (l *Log) findLocality() error {
	extended, stated := false, false
	for i := range l.Events {
		e := &l.Events[i]
		if e.Extends() {
			if e.PCR == 0 && e.Type == HCRTM && !extended {
				l.Locality = hcrtmLocality
			}
			extended = extended || e.PCR == 0
			continue
		}
		if !bytes.HasPrefix(e.Data, startupLocality) {
			continue
		}
		switch {
		case e.PCR != 0:
			return malformed(e.Index, "StartupLocality in PCR %d", e.PCR)
		case stated:
			return malformed(e.Index, "StartupLocality is stated twice")
		case extended:
			return malformed(e.Index, "StartupLocality after PCR 0 was extended")
		case len(e.Data) != len(startupLocality)+1:
			return malformed(e.Index, "StartupLocality with %d bytes", len(e.Data))
		}
		l.Locality = e.Data[len(startupLocality)]
		if l.Locality != 0 && l.Locality != 3 && l.Locality != hcrtmLocality {
			return malformed(e.Index, "StartupLocality %d, not 0, 3 or 4", l.Locality)
		}
		stated = true
	}
	return nil
}
