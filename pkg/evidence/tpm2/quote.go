// SPDX-License-Identifier: Apache-2.0

package tpm2

import (
	"bytes"
	"crypto/hmac"
	"errors"
	"fmt"
	"strings"

	"github.com/mcs-attest/mcs-attest/pkg/reason"
	"github.com/mcs-attest/mcs-attest/pkg/secret"
	"github.com/mcs-attest/mcs-attest/pkg/transcript"
)

// MinSecretSize is the minimum length of an activation secret, in bytes.
const MinSecretSize = 16

// Challenge is what the verifier requested. All of it is trusted: it comes from the sealed
// challenge and this connection.
type Challenge struct {
	EK         *EK             // Secret was encrypted to this key
	AK         *AK             // Secret was bound to the Name of this key
	Secret     secret.Bytes    // the activation secret, at least MinSecretSize bytes
	Bank       uint16          // BankSHA256 or BankSHA384
	PCRs       []int           // ascending, each 0 to 23, at least one
	Transcript transcript.Hash // of this conversation
}

// Evidence is the node's answer. All of it is untrusted.
type Evidence struct {
	Quote      []byte   // TPMS_ATTEST
	Signature  []byte   // TPMT_SIGNATURE over Quote
	Activation []byte   // HMAC-SHA256 under the activation secret, see package transcript
	PCRValues  [][]byte // in the order of Challenge.PCRs
}

// Quote is verified evidence; only [VerifyQuote] creates one. EK and AK are in one TPM, which
// quoted these PCRs for the challenge's transcript.
type Quote struct {
	EK *EK
	AK *AK

	// ResetCount counts the TPM's resets (the machine's cold and warm boots), RestartCount its
	// restarts and resumes since then. Clock is the TPM's running time in milliseconds; if Safe is false, it may
	// be less than an earlier value.
	ResetCount   uint32
	RestartCount uint32
	Clock        uint64
	Safe         bool

	// FirmwareVersion is the TPM vendor's own number.
	FirmwareVersion uint64

	Bank uint16
	PCRs map[int][]byte
}

// VerifyQuote checks evidence against its challenge. The checks, in order:
//
//   - The activation secret was released: HMAC over the transcript, compared in constant time
//     ([reason.ActivationInvalid]). For a caller without the EK and the AK, nothing else is parsed.
//   - The quote is one complete TPMS_ATTEST, created by a TPM, of type quote
//     ([reason.QuoteInvalid]).
//   - The signature is the AK's, under the AK's own scheme ([reason.QuoteInvalid]).
//   - Its extra data is this transcript ([reason.QuoteNotFresh]).
//   - The signer is a primary key of the endorsement hierarchy, so that the reset counter and the
//     firmware version are not obfuscated ([reason.QuoteInvalid]).
//   - It covers exactly the requested bank and PCRs ([reason.PCRSelection]).
//   - The PCR values hash to its digest ([reason.PCRDigest]).
//
// A malformed challenge is the verifier's own error and not a denial, with one exception: a bank
// weaker than SHA-256 is denied with [reason.PCRSelection].
//
// Package measuredboot decides whether the PCR values are acceptable.
func VerifyQuote(ch Challenge, ev Evidence) (*Quote, error) {
	want, bankSize, err := ch.check()
	if err != nil {
		return nil, err
	}
	if !hmac.Equal(ev.Activation, transcript.Activation(ch.Secret.Expose(), ch.Transcript)) {
		return nil, reason.Deny(reason.ActivationInvalid,
			"the node does not know the activated credential, or computed over another transcript")
	}

	att, err := parseAttestation(ev.Quote)
	if err != nil {
		return nil, reason.Wrap(reason.QuoteInvalid, err, "quote")
	}
	sig, err := parseSignature(ev.Signature)
	if err != nil {
		return nil, reason.Wrap(reason.QuoteInvalid, err, "quote signature")
	}
	if err := ch.AK.verify(ev.Quote, sig); err != nil {
		return nil, reason.Wrap(reason.QuoteInvalid, err, "quote signature")
	}
	if !bytes.Equal(att.extraData, ch.Transcript[:]) {
		return nil, reason.Deny(reason.QuoteNotFresh, "extra data %x is not the transcript %x", att.extraData,
			ch.Transcript[:])
	}
	if !bytes.Equal(att.qualifiedSigner, ch.AK.qualifiedName()) {
		return nil, reason.Deny(reason.QuoteInvalid,
			"qualified signer %x is not the AK as a primary key of the endorsement hierarchy", att.qualifiedSigner)
	}
	if len(att.selections) != 1 || att.selections[0].bank != want.bank || !bytes.Equal(att.selections[0].bits, want.bits) {
		return nil, reason.Deny(reason.PCRSelection, "quoted %s; asked for %s", describe(att.selections...), describe(want))
	}
	pcrs, err := ch.checkValues(att, ev.PCRValues, bankSize)
	if err != nil {
		return nil, err
	}
	return &Quote{
		EK: ch.EK, AK: ch.AK,
		ResetCount: att.resetCount, RestartCount: att.restartCount, Clock: att.clock, Safe: att.safe,
		FirmwareVersion: att.firmwareVersion,
		Bank:            ch.Bank, PCRs: pcrs,
	}, nil
}

// check returns the selection that the quote must have and the size of the bank's values.
func (ch *Challenge) check() (want selection, bankSize int, err error) {
	if ch.EK == nil || ch.AK == nil {
		return want, 0, errors.New("verifying a quote: the challenge has no EK or no AK")
	}
	if len(ch.Secret.Expose()) < MinSecretSize {
		return want, 0, fmt.Errorf("verifying a quote: the activation secret has less than %d bytes", MinSecretSize)
	}
	switch ch.Bank {
	case BankSHA256:
		bankSize = 32
	case BankSHA384:
		bankSize = 48
	default:
		return want, 0, reason.Deny(reason.PCRSelection,
			"bank %s is not accepted: values of a PCR in it can be forged, or it is unknown", transcript.BankName(ch.Bank))
	}
	if len(ch.PCRs) == 0 {
		return want, 0, errors.New("verifying a quote: the challenge requests no PCR")
	}
	want = selection{ch.Bank, make([]byte, selectBytes)}
	for i, p := range ch.PCRs {
		if p < 0 || p >= 8*selectBytes || i > 0 && p <= ch.PCRs[i-1] {
			return want, 0, fmt.Errorf("verifying a quote: the challenge's PCRs %v are not ascending within 0 to 23", ch.PCRs)
		}
		want.bits[p/8] |= 1 << (p % 8)
	}
	return want, bankSize, nil
}

// checkValues compares the values with the quote's digest and returns them by PCR. The digest uses
// the hash of the signing scheme (Part 3, 18.4).
func (ch *Challenge) checkValues(att *attestation, values [][]byte, bankSize int) (map[int][]byte, error) {
	if len(values) != len(ch.PCRs) {
		return nil, reason.Deny(reason.PCRDigest, "%d PCR values for %d PCRs", len(values), len(ch.PCRs))
	}
	hash, err := hashByAlg(ch.AK.schemeHash)
	if err != nil {
		return nil, err
	}
	h := hash.New()
	pcrs := make(map[int][]byte, len(values))
	copied := make([]byte, 0, len(values)*bankSize)
	for i, v := range values {
		if len(v) != bankSize {
			return nil, reason.Deny(reason.PCRDigest, "PCR %d has %d bytes; bank %s has %d", ch.PCRs[i], len(v),
				transcript.BankName(ch.Bank), bankSize)
		}
		h.Write(v)
		copied = append(copied, v...)
		pcrs[ch.PCRs[i]] = copied[len(copied)-bankSize:]
	}
	if !bytes.Equal(h.Sum(nil), att.pcrDigest) {
		return nil, reason.Deny(reason.PCRDigest, "the PCR values do not hash to the quote's digest")
	}
	return pcrs, nil
}

// describe formats selections for messages: "sha256:0,7,11".
func describe(selections ...selection) string {
	if len(selections) == 0 {
		return "no bank"
	}
	var b strings.Builder
	for i, sel := range selections {
		if i > 0 {
			b.WriteString(" and ")
		}
		b.WriteString(transcript.BankName(sel.bank))
		sep := ":"
		for p := range 8 * len(sel.bits) {
			if sel.bits[p/8]&(1<<(p%8)) != 0 {
				fmt.Fprintf(&b, "%s%d", sep, p)
				sep = ","
			}
		}
		if sep == ":" {
			b.WriteString(":none")
		}
	}
	return b.String()
}
