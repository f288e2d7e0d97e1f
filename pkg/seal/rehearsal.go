// SPDX-License-Identifier: Apache-2.0

package seal

import (
	"crypto/sha256"
	"fmt"
	"io"
	"time"

	"golang.org/x/crypto/cryptobyte"

	"github.com/mcs-attest/mcs-attest/pkg/reason"
)

// Rehearsal is the challenge of a rehearsal. Its kind differs from that of an attestation, so [Ring.Open] rejects
// it at replicas of every version. No answer to it yields a token.
type Rehearsal struct {
	Challenge
	MachineUID   string            // of the Machine that an administrator rehearses
	TicketSHA256 [sha256.Size]byte // of the ticket that the caller presented
	AgentVersion string            // untrusted
}

// SealRehearsal encrypts c with the ring's current key.
func (r Ring) SealRehearsal(rand io.Reader, now time.Time, c Rehearsal) ([]byte, error) {
	challenge, err := c.marshal()
	if err != nil {
		return nil, fmt.Errorf("encode rehearsal: %w", err)
	}
	var b cryptobyte.Builder
	for _, text := range []string{c.MachineUID, c.AgentVersion} {
		b.AddUint8LengthPrefixed(func(b *cryptobyte.Builder) { b.AddBytes([]byte(text)) })
	}
	b.AddBytes(c.TicketSHA256[:])
	b.AddBytes(challenge)
	plain, err := b.Bytes()
	if err != nil {
		return nil, fmt.Errorf("encode rehearsal: %w", err)
	}
	return r.seal(rand, now, rehearsal, plain)
}

// OpenRehearsal decrypts the challenge of a rehearsal from the network. Its errors are those of [Ring.Open].
func (r Ring) OpenRehearsal(sealed []byte) (Rehearsal, error) {
	plain, err := r.open(sealed, rehearsal)
	if err != nil {
		return Rehearsal{}, err
	}
	var c Rehearsal
	if err := c.unmarshal(plain); err != nil {
		return Rehearsal{}, reason.Wrap(reason.ChallengeInvalid, err, "sealed rehearsal")
	}
	return c, nil
}

func (c *Rehearsal) unmarshal(plain []byte) error {
	s := cryptobyte.String(plain)
	for _, text := range []*string{&c.MachineUID, &c.AgentVersion} {
		var v cryptobyte.String
		if !s.ReadUint8LengthPrefixed(&v) {
			return errEncoding
		}
		*text = string(v)
	}
	if !s.CopyBytes(c.TicketSHA256[:]) {
		return errEncoding
	}
	return c.Challenge.unmarshal(s)
}
