// SPDX-License-Identifier: Apache-2.0

package seal

import (
	"encoding/base64"
	"encoding/json"
	"fmt"
	"io"
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

// ticket is added to the algorithm of a sealed ticket. The sum is additional data, so neither a ticket nor a challenge
// opens as the other.
const ticket = 0x80

// maxTicket limits the text of a sealed ticket, in bytes.
const maxTicket = 1024

// SealTicket encrypts t with the ring's current key and returns it as base64url text.
func (r Ring) SealTicket(rand io.Reader, now time.Time, t Ticket) (string, error) {
	key, err := r.current(now)
	if err != nil {
		return "", err
	}
	alg := algorithm()
	aead, err := key.aead(alg)
	if err != nil {
		return "", err
	}
	plain, err := json.Marshal(t)
	if err != nil {
		return "", fmt.Errorf("encode ticket: %w", err)
	}
	out := make([]byte, header+aead.NonceSize())
	out[0] = ticket + alg
	copy(out[1:header], key.ID[:])
	if _, err := io.ReadFull(rand, out[header:]); err != nil {
		return "", fmt.Errorf("seal ticket: %w", err)
	}
	out = aead.Seal(out, out[header:], plain, out[:header])
	return base64.RawURLEncoding.EncodeToString(out), nil
}

// OpenTicket decrypts a ticket from the network. Every error, including an expired ticket, is
// ReportTicketInvalid.
func (r Ring) OpenTicket(now time.Time, text string) (Ticket, error) {
	var t Ticket
	if len(text) > maxTicket {
		return t, reason.Deny(reason.ReportTicketInvalid, "ticket of %d bytes", len(text))
	}
	raw, err := base64.RawURLEncoding.Strict().DecodeString(text)
	if err != nil || len(raw) < header+nonceSize || raw[0] != ticket+xchacha && raw[0] != ticket+aesGCM {
		return t, reason.Deny(reason.ReportTicketInvalid, "not a ticket")
	}
	aead, err := r.byID(raw[0]-ticket, raw[1:header])
	if err != nil {
		return t, reason.Wrap(reason.ReportTicketInvalid, err, "ticket")
	}
	plain, err := aead.Open(nil, raw[header:header+aead.NonceSize()], raw[header+aead.NonceSize():], raw[:header])
	if err != nil {
		return t, reason.Deny(reason.ReportTicketInvalid, "ticket does not authenticate")
	}
	if err := json.Unmarshal(plain, &t); err != nil {
		return Ticket{}, reason.Wrap(reason.ReportTicketInvalid, err, "ticket")
	}
	if now.After(t.Expiry) {
		return Ticket{}, reason.Deny(reason.ReportTicketInvalid, "ticket expired at %s", t.Expiry.UTC().Format(time.RFC3339))
	}
	return t, nil
}
