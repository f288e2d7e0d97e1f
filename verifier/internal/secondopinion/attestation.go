// SPDX-License-Identifier: Apache-2.0

package secondopinion

import (
	"bytes"
	"encoding/binary"
	"slices"

	attestpb "github.com/google/go-tpm-tools/proto/attest"
	tpmpb "github.com/google/go-tpm-tools/proto/tpm"
	"google.golang.org/protobuf/proto"

	"github.com/mcs-attest/mcs-attest/pkg/appraisal"
	"github.com/mcs-attest/mcs-attest/pkg/eventlog"
	"github.com/mcs-attest/mcs-attest/pkg/measuredboot"
	"github.com/mcs-attest/mcs-attest/pkg/transcript"
)

// Export returns a saved call as an attest.Attestation of go-tpm-tools in the binary form of protobuf, and the nonce
// with which it verifies. The nonce is the transcript, because the quote contains it. The form has no place for the
// rest of the call: the activation, the EK, the claims, a cloud's documents, and what the transcript was computed of.
func Export(s *appraisal.Saved) ([]byte, transcript.Hash, error) {
	e, err := read(s)
	if err != nil {
		return nil, transcript.Hash{}, err
	}
	raw, err := proto.MarshalOptions{Deterministic: true}.Marshal(e.attestation())
	return raw, e.transcript, err
}

func (e *evidence) attestation() *attestpb.Attestation {
	pcrs := map[uint32][]byte{}
	for pcr, value := range e.values {
		pcrs[uint32(pcr)] = value
	}
	a := &attestpb.Attestation{
		AkPub: e.challenge.AKPublic, EventLog: e.wholeLog(),
		Quotes: []*tpmpb.Quote{{
			Quote: e.tpm.Quote, RawSig: e.tpm.Signature,
			Pcrs: &tpmpb.PCRs{Hash: tpmpb.HashAlgo(e.challenge.Bank), Pcrs: pcrs},
		}},
	}
	if chain := e.challenge.AKCertificates; len(chain) > 0 {
		a.AkCert, a.IntermediateCerts = chain[0], chain[1:]
	}
	return a
}

// wholeLog returns the firmware's log, and after it the phase "enter-initrd" if the quoted PCR 11 has it. systemd
// extends that phase in the initramfs and does not write it to the firmware's log, so a library that expects all of
// PCR 11 in one log would find a difference.
func (e *evidence) wholeLog() []byte {
	bank, quoted := e.challenge.Bank, e.values[11]
	log, err := eventlog.Parse(e.log, bank)
	if err != nil {
		return e.log // the libraries report it
	}
	digest := eventlog.Hash(bank, []byte(measuredboot.EnterInitrd))
	value := log.Replay().Value(11)
	if bytes.Equal(value, quoted) || !bytes.Equal(eventlog.Extend(bank, value, digest), quoted) {
		return e.log
	}
	// A TCG_PCR_EVENT2 with one digest (PC Client Platform Firmware Profile, 10.2.2).
	le := binary.LittleEndian
	event := le.AppendUint32(slices.Clone(e.log), 11)
	event = le.AppendUint32(event, eventlog.IPL)
	event = le.AppendUint32(event, 1)
	event = append(le.AppendUint16(event, bank), digest...)
	event = le.AppendUint32(event, uint32(len(measuredboot.EnterInitrd)))
	return append(event, measuredboot.EnterInitrd...)
}
