// SPDX-License-Identifier: Apache-2.0

package swtpmtest

import (
	"crypto/sha256"
	"encoding/binary"
	"fmt"
	"testing"

	"github.com/google/go-tpm/tpm2"
)

// Fleet provides the TPMs of many machines with a few software TPMs. Each machine's keys are
// created with its own "unique" field, so they differ (TPM 2.0 Library, Part 1, 27.2: a primary key
// depends on its whole template). Everything else behaves like a real TPM. Open an attester with
// the key type ecc-p256, because that EK is created and not persistent.
type Fleet struct{ free []chan *Conn }

// NewFleet starts software TPMs. A machine always has the same one, because their counters differ.
func NewFleet(t testing.TB, tpms int) *Fleet {
	t.Helper()
	f := &Fleet{make([]chan *Conn, tpms)}
	for i := range f.free {
		f.free[i] = make(chan *Conn, 1)
		f.free[i] <- Start(t, "sha256").Dial()
	}
	return f
}

// With lends machine i its TPM until use returns.
func (f *Fleet) With(i int, use func(tpm *FleetConn) error) error {
	free := f.free[i%len(f.free)]
	c := <-free
	defer func() { free <- c }()
	return use(&FleetConn{c, sha256.Sum256(fmt.Appendf(nil, "machine %d", i))})
}

// FleetConn is one machine's TPM.
type FleetConn struct {
	*Conn
	unique [32]byte
}

// Send sends a command. If the command creates a primary key, it is changed to create this
// machine's own.
func (c *FleetConn) Send(command []byte) ([]byte, error) {
	own, err := c.own(command)
	if err != nil {
		return nil, fmt.Errorf("TPM2_CreatePrimary of the fleet: %w", err)
	}
	return c.Conn.Send(own)
}

const ccCreatePrimary = 0x00000131

// own rewrites inPublic.unique (TPM 2.0 Library, Part 3, 24.1).
func (c *FleetConn) own(command []byte) ([]byte, error) {
	if len(command) < 18 || binary.BigEndian.Uint32(command[6:]) != ccCreatePrimary {
		return command, nil
	}
	at := 10 + 4                                               // header, primaryHandle
	at += 4 + int(binary.BigEndian.Uint32(command[at:]))       // authorization area
	at += 2 + int(binary.BigEndian.Uint16(command[at:]))       // inSensitive
	end := at + 2 + int(binary.BigEndian.Uint16(command[at:])) // inPublic
	public, err := tpm2.Unmarshal[tpm2.TPMTPublic](command[at+2 : end])
	if err != nil {
		return nil, err
	}
	if public.Type != tpm2.TPMAlgECC {
		return nil, fmt.Errorf("a key of type %#x", uint16(public.Type))
	}
	public.Unique = tpm2.NewTPMUPublicID(tpm2.TPMAlgECC, &tpm2.TPMSECCPoint{
		X: tpm2.TPM2BECCParameter{Buffer: c.unique[:]}, Y: tpm2.TPM2BECCParameter{Buffer: make([]byte, 32)},
	})
	changed := tpm2.Marshal(public)
	out := append([]byte(nil), command[:at]...)
	out = binary.BigEndian.AppendUint16(out, uint16(len(changed)))
	out = append(append(out, changed...), command[end:]...)
	binary.BigEndian.PutUint32(out[2:], uint32(len(out)))
	return out, nil
}
