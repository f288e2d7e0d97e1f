// SPDX-License-Identifier: Apache-2.0

// Package transcript computes the hash that binds all evidence to one conversation (rule 5 of
// docs/security-rules.md).
//
// The transcript is SHA-256 over a fixed sequence of fields. Each field is prefixed by its length
// as an unsigned 32-bit big-endian integer; an absent field has length 0 and is not omitted. The
// first field is the label "mcs-attest/transcript/v1", or "mcs-attest/rehearsal/v1" in a rehearsal.
// proto/README.md has worked examples, which the test of this package checks.
//
// The TPM quote has the hash as its qualifyingData, and every other kind of evidence signs it. So
// no statement can be replayed on another connection, for another pool or with another key, and the
// node's clock is not needed.
package transcript

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"encoding/binary"
	"fmt"
	"hash"
	"slices"
	"strconv"
	"strings"

	"github.com/mcs-attest/mcs-attest/pkg/evidence"
)

const (
	// Label is the first field.
	Label = "mcs-attest/transcript/v1"

	// RehearsalLabel is the first field in a rehearsal, so that evidence of one is no evidence of the other.
	RehearsalLabel = "mcs-attest/rehearsal/v1"

	// ExporterLabel is the label of the TLS exporter (RFC 8446, 7.5). Its context is empty, its
	// length ExporterSize.
	ExporterLabel = "EXPORTER-mcs-attest-v1"

	// ExporterSize is the length of the exporter's output in bytes.
	ExporterSize = 32

	activationLabel        = "mcs-attest/activation/v1"
	provisioningTokenLabel = "mcs-attest/provisioning-token/v1"
)

// Hash is a transcript.
type Hash [sha256.Size]byte

// Text returns the form of the transcript in a cloud's documents: base64url without padding (RFC
// 4648, 5), 43 characters.
func (h Hash) Text() string { return base64.RawURLEncoding.EncodeToString(h[:]) }

// Fields are the input of the transcript, in its order.
type Fields struct {
	Rehearsal  bool   // selects the label
	Sealed     []byte // the sealed challenge, exactly as it was received
	Nonce      []byte // 32 bytes
	Binding    string // "exporter" or "terminated"
	Exporter   []byte // 32 bytes; empty under "terminated"
	ServerSPKI []byte // SHA-256 of the SubjectPublicKeyInfo of the server certificate that the agent received
	Origin     string // "https://host:port", lower case, port explicit
	Pool       string
	Required   string // see [Required]
	EKSPKI     []byte // SHA-256 of the EK's SubjectPublicKeyInfo; empty without a TPM
	AKName     []byte // the AK's Name (TPM 2.0 Part 1, 16); empty without a TPM
	CSRSPKI    []byte // SHA-256 of the public key that will sign the kubelet's CSR; empty if none
	Claims     []byte // the self-asserted claims, exactly the bytes sent
}

// Hash returns the transcript of f.
func (f Fields) Hash() Hash {
	label := Label
	if f.Rehearsal {
		label = RehearsalLabel
	}
	h := sha256.New()
	for _, field := range [][]byte{
		[]byte(label), f.Sealed, f.Nonce, []byte(f.Binding), f.Exporter, f.ServerSPKI, []byte(f.Origin),
		[]byte(f.Pool), []byte(f.Required), f.EKSPKI, f.AKName, f.CSRSPKI, f.Claims,
	} {
		writeField(h, field)
	}
	var out Hash
	h.Sum(out[:0])
	return out
}

func writeField(h hash.Hash, b []byte) {
	var n [4]byte
	binary.BigEndian.PutUint32(n[:], uint32(len(b)))
	h.Write(n[:])
	h.Write(b)
}

// Required returns the text of the field "required evidence kinds and PCR selection": the names of
// the kinds in ascending order of their numbers, separated by commas, and a semicolon. If TPM
// evidence is among them, the name of the bank, a colon and the PCRs follow, ascending and
// separated by commas. Example: "tpm2;sha256:7,11".
func Required(kinds []evidence.Kind, bank uint16, pcrs []int) string {
	kinds = slices.Clone(kinds)
	slices.Sort(kinds)
	var b strings.Builder
	for i, k := range kinds {
		if i > 0 {
			b.WriteByte(',')
		}
		b.WriteString(k.String())
	}
	b.WriteByte(';')
	if !slices.Contains(kinds, evidence.TPM2) {
		return b.String()
	}
	b.WriteString(BankName(bank))
	sep := byte(':')
	for _, p := range slices.Sorted(slices.Values(pcrs)) {
		b.WriteByte(sep)
		b.WriteString(strconv.Itoa(p))
		sep = ','
	}
	return b.String()
}

// BankName returns the text form of a PCR bank's TPM_ALG_ID (TCG Algorithm Registry, table 3).
func BankName(alg uint16) string {
	switch alg {
	case 0x0004:
		return "sha1"
	case 0x000B:
		return "sha256"
	case 0x000C:
		return "sha384"
	case 0x000D:
		return "sha512"
	}
	return fmt.Sprintf("0x%04x", alg)
}

// Activation proves knowledge of the activated credential k without revealing it (rule 6 of
// docs/security-rules.md).
func Activation(k []byte, h Hash) []byte { return mac(k, activationLabel, h) }

// ProvisioningToken proves knowledge of the provisioning token inside Attest (rule 14 of
// docs/security-rules.md).
func ProvisioningToken(token []byte, h Hash) []byte { return mac(token, provisioningTokenLabel, h) }

func mac(key []byte, label string, h Hash) []byte {
	m := hmac.New(sha256.New, key)
	m.Write([]byte(label))
	m.Write(h[:])
	return m.Sum(nil)
}
