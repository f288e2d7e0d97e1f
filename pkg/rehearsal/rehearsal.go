// SPDX-License-Identifier: Apache-2.0

// Package rehearsal defines what an administrator gives to a node for the rehearsal of its first boot.
//
// The administrator creates a ticket, and writes only its hash to the record of the Machine. The node
// reads an [Order] from its standard input, and presents the ticket to the verifier. The ticket serves
// one rehearsal, and issues no token. A thief of the ticket can only cause a false result for that Machine.
package rehearsal

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"

	"github.com/mcs-attest/mcs-attest/pkg/secret"
)

const (
	// TicketSize is the size of a ticket in bytes.
	TicketSize = 32
	// MaxOrder is the largest encoded order that a node reads, in bytes.
	MaxOrder = 1 << 20
)

// NewTicket returns a new ticket from a source of random bytes.
func NewTicket(random io.Reader) (secret.Bytes, error) {
	ticket := make([]byte, TicketSize)
	if _, err := io.ReadFull(random, ticket); err != nil {
		return secret.Bytes{}, fmt.Errorf("create a ticket: %w", err)
	}
	return secret.New(ticket), nil
}

// TicketHash returns the SHA-256 of a ticket in lower-case hexadecimal, as spec.rehearsal.ticketSHA256 of a
// MachineAttestation has it.
func TicketHash(ticket []byte) string {
	sum := sha256.Sum256(ticket)
	return hex.EncodeToString(sum[:])
}

// Order is what a node needs for a rehearsal.
type Order struct {
	Ticket secret.Bytes
	// Pointer is the pointer config with which the machine would boot, without a provisioning token: no node gets
	// one after its first boot.
	Pointer secret.Bytes
}

// order is the document: one JSON object with two values in standard base64.
type order struct {
	Ticket  []byte `json:"ticket"`
	Pointer []byte `json:"pointer"`
}

// Encode returns the document of o, with a line break at its end. It contains the ticket.
func (o Order) Encode() secret.Bytes {
	raw, _ := json.Marshal(order{o.Ticket.Expose(), o.Pointer.Expose()}) // byte slices cannot fail
	return secret.New(append(raw, '\n'))
}

// ParseOrder parses the document of an order. Its errors contain no part of the document.
func ParseOrder(raw []byte) (Order, error) {
	if len(raw) > MaxOrder {
		return Order{}, fmt.Errorf("the document has more than %d bytes", MaxOrder)
	}
	var o order
	switch err := json.Unmarshal(raw, &o); {
	case err != nil:
		return Order{}, errors.New("the document is not the JSON object of a rehearsal")
	case len(o.Ticket) != TicketSize:
		return Order{}, fmt.Errorf("the document has a ticket of %d bytes, not %d", len(o.Ticket), TicketSize)
	case len(o.Pointer) == 0:
		return Order{}, errors.New("the document has no pointer config")
	}
	return Order{Ticket: secret.New(o.Ticket), Pointer: secret.New(o.Pointer)}, nil
}
