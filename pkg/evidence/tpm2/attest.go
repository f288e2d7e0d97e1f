// SPDX-License-Identifier: Apache-2.0

package tpm2

import (
	"fmt"

	"golang.org/x/crypto/cryptobyte"
)

// MaxQuoteSize limits a TPMS_ATTEST in bytes. One over a single bank has at most 257.
const MaxQuoteSize = 2048

const (
	generated   = 0xFF544347 // TPM_GENERATED_VALUE: Part 2, 6.2
	attestQuote = 0x8018     // TPM_ST_ATTEST_QUOTE: Part 2, 6.9

	// selectBytes is how many bytes select PCR 0 to 23 (Part 2, 10.6.1), the PCRs of every PC
	// Client platform.
	selectBytes = 3

	// maxBanks limits the selections of a quote; no TPM implements more hashes.
	maxBanks = 16
)

// attestation is a TPMS_ATTEST (Part 2, 10.12.12) with a quote. Its slices refer to the input.
type attestation struct {
	qualifiedSigner []byte
	extraData       []byte
	clock           uint64 // milliseconds
	resetCount      uint32
	restartCount    uint32
	safe            bool
	firmwareVersion uint64
	selections      []selection
	pcrDigest       []byte
}

// selection is a TPMS_PCR_SELECTION (Part 2, 10.6.2).
type selection struct {
	bank uint16
	bits []byte // bit n%8 of byte n/8 is PCR n
}

// parseAttestation parses exactly one TPMS_ATTEST that is a quote.
func parseAttestation(b []byte) (*attestation, error) {
	if len(b) > MaxQuoteSize {
		return nil, fmt.Errorf("%d bytes; at most %d", len(b), MaxQuoteSize)
	}
	var (
		a     attestation
		s     = cryptobyte.String(b)
		magic uint32
		typ   uint16
		safe  uint8
	)
	if !s.ReadUint32(&magic) || !s.ReadUint16(&typ) {
		return nil, errShort
	}
	if magic != generated {
		return nil, fmt.Errorf("magic 0x%08x: not created by a TPM", magic)
	}
	if typ != attestQuote {
		return nil, fmt.Errorf("statement of type 0x%04x is not a quote", typ)
	}
	if !readSized(&s, &a.qualifiedSigner) || !readSized(&s, &a.extraData) ||
		!s.ReadUint64(&a.clock) || !s.ReadUint32(&a.resetCount) || !s.ReadUint32(&a.restartCount) || !s.ReadUint8(&safe) ||
		!s.ReadUint64(&a.firmwareVersion) {
		return nil, errShort
	}
	if safe > 1 {
		return nil, fmt.Errorf("TPMI_YES_NO of %d", safe)
	}
	a.safe = safe == 1
	if err := a.readSelections(&s); err != nil {
		return nil, err
	}
	if !readSized(&s, &a.pcrDigest) {
		return nil, errShort
	}
	if !s.Empty() {
		return nil, errTrailing
	}
	return &a, nil
}

// readSelections reads a TPML_PCR_SELECTION (Part 2, 10.9.7).
func (a *attestation) readSelections(s *cryptobyte.String) error {
	var count uint32
	if !s.ReadUint32(&count) {
		return errShort
	}
	if count > maxBanks {
		return fmt.Errorf("selections of %d banks; at most %d", count, maxBanks)
	}
	a.selections = make([]selection, count)
	for i := range a.selections {
		sel := &a.selections[i]
		if !s.ReadUint16(&sel.bank) || !s.ReadUint8LengthPrefixed((*cryptobyte.String)(&sel.bits)) {
			return errShort
		}
	}
	return nil
}
