// SPDX-License-Identifier: Apache-2.0

package attester

import (
	"bytes"
	"errors"
	"fmt"

	"github.com/google/go-tpm/tpm2"
	"github.com/google/go-tpm/tpm2/transport"

	"github.com/mcs-attest/mcs-attest/pkg/transcript"
)

const (
	pcrCount = 24
	// readAtOnce is how many digests one TPM2_PCR_Read returns (Part 2, TPML_DIGEST).
	readAtOnce = 8

	// CapPCR is the PCR that [Cap] extends.
	CapPCR = 11
	// CapLabel is the event that [Cap] measures: its hash is extended into the PCR of every bank.
	CapLabel = "mcs-attest: capped"
)

// Banks returns the banks that have all of PCR 0 to 23, in the order of the TPM's numbers,
// strongest last.
func Banks(t transport.TPM) ([]uint16, error) {
	assigned, err := assignedPCRs(t)
	if err != nil {
		return nil, err
	}
	var banks []uint16
	for _, s := range assigned {
		complete := len(s.PCRSelect) >= pcrCount/8
		for i := 0; complete && i < pcrCount/8; i++ {
			complete = s.PCRSelect[i] == 0xff
		}
		if complete {
			banks = append(banks, uint16(s.Hash))
		}
	}
	if len(banks) == 0 {
		return nil, errors.New("the TPM has no complete PCR bank")
	}
	return banks, nil
}

func assignedPCRs(t transport.TPM) ([]tpm2.TPMSPCRSelection, error) {
	rsp, err := tpm2.GetCapability{Capability: tpm2.TPMCapPCRs, PropertyCount: 1}.Execute(t)
	if err != nil {
		return nil, fmt.Errorf("listing PCR banks: %w", err)
	}
	assigned, err := rsp.CapabilityData.Data.AssignedPCR()
	if err != nil {
		return nil, fmt.Errorf("listing PCR banks: %w", err)
	}
	return assigned.PCRSelections, nil
}

func pcrSelection(bank uint16, pcrs []int) (tpm2.TPMLPCRSelection, error) {
	bits := make([]byte, pcrCount/8)
	for i, p := range pcrs {
		if p < 0 || p >= pcrCount || i > 0 && p <= pcrs[i-1] {
			return tpm2.TPMLPCRSelection{}, fmt.Errorf("PCRs %v are not an ascending list of 0 to %d", pcrs, pcrCount-1)
		}
		bits[p/8] |= 1 << (p % 8)
	}
	if len(pcrs) == 0 {
		return tpm2.TPMLPCRSelection{}, errors.New("no PCR to quote")
	}
	return tpm2.TPMLPCRSelection{PCRSelections: []tpm2.TPMSPCRSelection{{Hash: tpm2.TPMIAlgHash(bank), PCRSelect: bits}}},
		nil
}

func readPCRs(t transport.TPM, bank uint16, pcrs []int) ([][]byte, error) {
	var values [][]byte
	for len(values) < len(pcrs) {
		some := pcrs[len(values):min(len(values)+readAtOnce, len(pcrs))]
		selection, err := pcrSelection(bank, some)
		if err != nil {
			return nil, err
		}
		rsp, err := tpm2.PCRRead{PCRSelectionIn: selection}.Execute(t)
		if err != nil {
			return nil, fmt.Errorf("reading PCRs: %w", err)
		}
		if len(rsp.PCRValues.Digests) != len(some) {
			return nil, fmt.Errorf("reading PCRs: requested %d of the %s bank, got %d", len(some), transcript.BankName(bank),
				len(rsp.PCRValues.Digests))
		}
		for _, d := range rsp.PCRValues.Digests {
			values = append(values, d.Buffer)
		}
	}
	return values, nil
}

// Cap extends PCR 11, so that nothing that runs later can attest as the initramfs. TPM2_PCR_Event
// hashes the label for each bank of the TPM, so no bank can be missed.
func Cap(t transport.TPM) error {
	_, err := tpm2.PCREvent{
		PCRHandle: tpm2.AuthHandle{Handle: tpm2.TPMHandle(CapPCR), Auth: tpm2.PasswordAuth(nil)},
		EventData: tpm2.TPM2BEvent{Buffer: []byte(CapLabel)},
	}.Execute(t)
	if err != nil {
		return fmt.Errorf("capping PCR %d: %w", CapPCR, err)
	}
	return nil
}

// CapValues returns the value of PCR 11 in each bank that has it, also in an incomplete bank.
func CapValues(t transport.TPM) (map[uint16][]byte, error) {
	assigned, err := assignedPCRs(t)
	if err != nil {
		return nil, err
	}
	values := map[uint16][]byte{}
	for _, s := range assigned {
		if len(s.PCRSelect) <= CapPCR/8 || s.PCRSelect[CapPCR/8]&(1<<(CapPCR%8)) == 0 {
			continue
		}
		value, err := readPCRs(t, uint16(s.Hash), []int{CapPCR})
		if err != nil {
			return nil, err
		}
		values[uint16(s.Hash)] = value[0]
	}
	return values, nil
}

// CapUnchanged caps PCR 11 only in the banks in which it still has the value that earlier has for
// them, or which earlier does not contain. In the other banks another event has ended the
// initramfs. It returns the number of banks that it capped.
func CapUnchanged(t transport.TPM, earlier map[uint16][]byte) (capped int, err error) {
	now, err := CapValues(t)
	if err != nil {
		return 0, err
	}
	for bank, value := range now {
		if before, ok := earlier[bank]; ok && !bytes.Equal(before, value) {
			continue
		}
		hash, err := tpm2.TPMIAlgHash(bank).Hash()
		if err != nil || !hash.Available() {
			continue // such as SM3; no verifier appraises this bank
		}
		h := hash.New()
		h.Write([]byte(CapLabel))
		_, err = tpm2.PCRExtend{
			PCRHandle: tpm2.AuthHandle{Handle: tpm2.TPMHandle(CapPCR), Auth: tpm2.PasswordAuth(nil)},
			Digests: tpm2.TPMLDigestValues{Digests: []tpm2.TPMTHA{
				{HashAlg: tpm2.TPMIAlgHash(bank), Digest: h.Sum(nil)},
			}},
		}.Execute(t)
		if err != nil {
			return capped, fmt.Errorf("capping PCR %d of the %s bank: %w", CapPCR, transcript.BankName(bank), err)
		}
		capped++
	}
	return capped, nil
}
