// SPDX-License-Identifier: Apache-2.0

package seal

import (
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/mcs-attest/mcs-attest/pkg/reason"
)

// Ticket authorizes a node's report of a failed step. It identifies the record and gives no access
// to a config (rule 15 of docs/security-rules.md).
type Ticket struct {
	ID         string    `json:"id"`
	MachineUID string    `json:"uid"`
	Expiry     time.Time `json:"exp"`
}

// CertifyTicket authorizes a machine's request for its node's certificate. It is valid only on the
// connection of the attestation, and only for the attested key.
type CertifyTicket struct {
	MachineUID string `json:"uid"`
	// TokenID is the ID of the attestation token that was issued with the ticket.
	TokenID string `json:"token"`
	// KeySHA256 is the hash of the attested key's SubjectPublicKeyInfo, in hexadecimal.
	KeySHA256 string `json:"key"`
	// Exporter is the TLS exporter of the connection. It is empty under the binding "terminated".
	Exporter []byte    `json:"exporter,omitempty"`
	Expiry   time.Time `json:"exp"`
}

// The kinds besides the challenge of an attestation, which is 0. The kind is added to the algorithm. The sum is
// additional data, so no kind opens as another.
const (
	ticket        = 0x80
	certifyTicket = 0x40
	rehearsal     = 0x20
)

var errNoTicket = errors.New("not a ticket of this kind")

// maxTicket limits the text of a sealed ticket, in bytes.
const maxTicket = 1024

// SealTicket encrypts t with the ring's current key and returns it as base64url text.
func (r Ring) SealTicket(rand io.Reader, now time.Time, t Ticket) (string, error) {
	return r.sealText(rand, now, ticket, t)
}

// OpenTicket decrypts a ticket from the network. Every error, including an expired ticket, is
// ReportTicketInvalid.
func (r Ring) OpenTicket(now time.Time, text string) (Ticket, error) {
	var t Ticket
	err := r.openText(ticket, text, &t)
	if err == nil {
		err = unexpired(now, t.Expiry)
	}
	if err != nil {
		return Ticket{}, reason.Wrap(reason.ReportTicketInvalid, err, "ticket")
	}
	return t, nil
}

// SealCertifyTicket encrypts t with the ring's current key and returns it as base64url text.
func (r Ring) SealCertifyTicket(rand io.Reader, now time.Time, t CertifyTicket) (string, error) {
	return r.sealText(rand, now, certifyTicket, t)
}

// OpenCertifyTicket decrypts a ticket from the network. A ticket with a key that is not in the ring is
// ChallengeKeyUnknown, which is temporary: under the binding "terminated" another replica may have sealed
// it. Every other error, including an expired ticket, is CertifyTicketInvalid. The caller must compare the
// exporter with that of its connection.
func (r Ring) OpenCertifyTicket(now time.Time, text string) (CertifyTicket, error) {
	var t CertifyTicket
	err := r.openText(certifyTicket, text, &t)
	if err == nil {
		err = unexpired(now, t.Expiry)
	}
	if d := reason.From(err); d != nil && d.Code == reason.ChallengeKeyUnknown {
		return CertifyTicket{}, err
	}
	if err != nil {
		return CertifyTicket{}, reason.Wrap(reason.CertifyTicketInvalid, err, "ticket")
	}
	return t, nil
}

func unexpired(now, expiry time.Time) error {
	if now.After(expiry) {
		return fmt.Errorf("expired at %s", expiry.UTC().Format(time.RFC3339))
	}
	return nil
}

func (r Ring) sealText(rand io.Reader, now time.Time, kind byte, t any) (string, error) {
	plain, err := json.Marshal(t)
	if err != nil {
		return "", fmt.Errorf("encode ticket: %w", err)
	}
	sealed, err := r.seal(rand, now, kind, plain)
	return base64.RawURLEncoding.EncodeToString(sealed), err
}

func (r Ring) openText(kind byte, text string, t any) error {
	if len(text) > maxTicket {
		return fmt.Errorf("ticket of %d bytes", len(text))
	}
	raw, err := base64.RawURLEncoding.Strict().DecodeString(text)
	// The decoder ignores line breaks. A ticket has only one text, by which its holder's requests are counted.
	if err != nil || strings.ContainsAny(text, "\r\n") {
		return errNoTicket
	}
	if len(raw) < header+nonceSize || raw[0] != kind+xchacha && raw[0] != kind+aesGCM {
		return errNoTicket
	}
	plain, err := r.open(raw, kind)
	if err != nil {
		return err
	}
	return json.Unmarshal(plain, t)
}
