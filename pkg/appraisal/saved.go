// SPDX-License-Identifier: Apache-2.0

package appraisal

import (
	"encoding/base64"
	"encoding/json"
	"fmt"
	"slices"
	"time"

	"github.com/mcs-attest/mcs-attest/pkg/evidence"
	"github.com/mcs-attest/mcs-attest/pkg/evidence/tpm2"
	"github.com/mcs-attest/mcs-attest/pkg/seal"
	"github.com/mcs-attest/mcs-attest/pkg/secret"
	"github.com/mcs-attest/mcs-attest/pkg/transcript"
)

// Saved has everything about one Attest call that is needed to appraise it again without
// the machine. It contains the activation secret of its challenge, which is worthless
// after the call.
type Saved struct {
	Version       int       `json:"version"`
	CorrelationID string    `json:"correlationID"`
	Time          time.Time `json:"time"`
	Exporter      []byte    `json:"exporter,omitempty"`
	ServerSPKI    []byte    `json:"serverSPKI"`

	Challenge savedChallenge `json:"challenge"`
	Evidence  savedEvidence  `json:"evidence"`
	// Answers are the providers' answers at that time.
	Answers Answers `json:"answers,omitzero"`
}

type savedChallenge struct {
	Issued         time.Time `json:"issued"`
	Nonce          []byte    `json:"nonce"`
	Secret         []byte    `json:"secret"`
	Origin         string    `json:"origin"`
	Pool           string    `json:"pool"`
	Required       []string  `json:"required"`
	Bank           uint16    `json:"bank"`
	PCRs           []int     `json:"pcrs"`
	EKPublic       []byte    `json:"ekPublic"`
	AKPublic       []byte    `json:"akPublic"`
	EKCertificates [][]byte  `json:"ekCertificates,omitempty"`
	AKCertificates [][]byte  `json:"akCertificates,omitempty"`
	Binding        string    `json:"binding"`
	Exporter       []byte    `json:"exporter,omitempty"`
}

type savedEvidence struct {
	Sealed            []byte   `json:"sealed"`
	Claims            []byte   `json:"claims"`
	CSRSPKI           []byte   `json:"csrSPKI,omitempty"`
	Quote             []byte   `json:"quote,omitempty"`
	Signature         []byte   `json:"signature,omitempty"`
	Activation        []byte   `json:"activation,omitempty"`
	PCRValues         [][]byte `json:"pcrValues,omitempty"`
	EventLog          []byte   `json:"eventLog,omitempty"`
	ProvisioningToken []byte   `json:"provisioningToken,omitempty"`
	// Documents has the required clouds' documents, without a managed identity's token,
	// because that grants access. A document of aws-sts contains the session token of the
	// machine's role, which is worthless without its secret, and a signature. For some
	// minutes the signature lets its holder ask AWS for the role's identity.
	Documents []savedDocument `json:"documents,omitempty"`
}

type savedDocument struct {
	Kind         string   `json:"kind"`
	Raw          []byte   `json:"raw"`
	Certificates [][]byte `json:"certificates,omitempty"`
}

const savedVersion = 1

// Save returns the input of a call with its correlation ID. The caller sets Answers.
func Save(in Context, conn Connection, ev Evidence, now time.Time, id string) *Saved {
	c := in.Challenge
	s := &Saved{
		Version: savedVersion, CorrelationID: id, Time: now.UTC(), Exporter: conn.Exporter, ServerSPKI: ev.ServerSPKI,
		Challenge: savedChallenge{
			Issued: c.Issued, Nonce: c.Nonce, Secret: c.Secret.Expose(), Origin: c.Origin, Pool: c.Pool, Bank: c.Bank,
			PCRs:     c.PCRs,
			EKPublic: c.EKPublic, AKPublic: c.AKPublic, EKCertificates: c.EKCertificates, AKCertificates: c.AKCertificates,
			Binding: c.Binding, Exporter: c.Exporter,
		},
		Evidence: savedEvidence{Sealed: ev.Sealed, Claims: ev.Claims, CSRSPKI: ev.CSRSPKI, EventLog: ev.EventLog,
			ProvisioningToken: ev.ProvisioningToken},
	}
	for _, k := range c.Required {
		s.Challenge.Required = append(s.Challenge.Required, k.String())
	}
	for _, d := range ev.Cloud {
		if !slices.Contains(c.Required, d.Kind) {
			continue // the appraisal ignored it
		}
		s.Evidence.Documents = append(s.Evidence.Documents,
			savedDocument{Kind: d.Kind.String(), Raw: d.Raw, Certificates: d.Certificates})
	}
	if t := ev.TPM2; t != nil {
		s.Evidence.Quote, s.Evidence.Signature, s.Evidence.Activation, s.Evidence.PCRValues = t.Quote, t.Signature,
			t.Activation, t.PCRValues
	}
	return s
}

// Encode returns the call as JSON.
func (s *Saved) Encode() ([]byte, error) { return json.MarshalIndent(s, "", "  ") }

// ParseSaved parses the output of Encode.
func ParseSaved(raw []byte) (*Saved, error) {
	var s Saved
	if err := json.Unmarshal(raw, &s); err != nil {
		return nil, fmt.Errorf("saved evidence: %w", err)
	}
	if s.Version != savedVersion {
		return nil, fmt.Errorf("saved evidence: version %d, this program reads %d", s.Version, savedVersion)
	}
	return &s, nil
}

// Replay returns the call's input for [Appraise]. It omits PolicyHash, because a
// replay uses the current policy.
func (s *Saved) Replay() (seal.Challenge, Evidence, error) {
	c := s.Challenge
	out := seal.Challenge{
		Issued: c.Issued, Nonce: c.Nonce, Secret: secret.New(c.Secret), Origin: c.Origin, Pool: c.Pool, Bank: c.Bank,
		PCRs:     c.PCRs,
		EKPublic: c.EKPublic, AKPublic: c.AKPublic, EKCertificates: c.EKCertificates, AKCertificates: c.AKCertificates,
		Binding: c.Binding, Exporter: c.Exporter,
	}
	for _, name := range c.Required {
		k, err := evidence.ParseKind(name)
		if err != nil {
			return seal.Challenge{}, Evidence{}, fmt.Errorf("saved evidence: %w", err)
		}
		out.Required = append(out.Required, k)
	}
	e := s.Evidence
	ev := Evidence{Sealed: e.Sealed, ServerSPKI: s.ServerSPKI, Claims: e.Claims, CSRSPKI: e.CSRSPKI, EventLog: e.EventLog,
		ProvisioningToken: e.ProvisioningToken}
	for _, d := range e.Documents {
		k, err := evidence.ParseKind(d.Kind)
		if err != nil {
			return seal.Challenge{}, Evidence{}, fmt.Errorf("saved evidence: %w", err)
		}
		ev.Cloud = append(ev.Cloud, evidence.Document{Kind: k, Raw: d.Raw, Certificates: d.Certificates})
	}
	if len(e.Quote) > 0 {
		ev.TPM2 = &tpm2.Evidence{Quote: e.Quote, Signature: e.Signature, Activation: e.Activation, PCRValues: e.PCRValues}
	}
	return out, ev, nil
}

// Quote verifies the quote of a saved call, and returns it with the event log, which the quote does not
// cover. Neither the TPM nor the boot is appraised.
func (s *Saved) Quote() (*tpm2.Quote, []byte, error) {
	challenge, ev, err := s.Replay()
	if err != nil {
		return nil, nil, err
	}
	a := &appraisal{Context: Context{Challenge: challenge}, ev: ev}
	if err := a.complete(); err != nil {
		return nil, nil, err
	}
	if err := a.verifyTPM(); err != nil {
		return nil, nil, err
	}
	if a.quote == nil {
		return nil, nil, fmt.Errorf("saved evidence: the machine did not attest with its TPM")
	}
	return a.quote, ev.EventLog, nil
}

// Transcript returns what the quote of a saved call, and each document that is bound to it, had to contain. Nothing
// is verified.
func (s *Saved) Transcript() (transcript.Hash, error) {
	challenge, ev, err := s.Replay()
	if err != nil {
		return transcript.Hash{}, err
	}
	a := &appraisal{Context: Context{Challenge: challenge}, ev: ev}
	err = a.transcribe()
	return a.transcript, err
}

// NonceText returns the challenge's nonce in the text form of the token (eat_nonce).
func NonceText(nonce []byte) string { return base64.RawURLEncoding.EncodeToString(nonce) }
