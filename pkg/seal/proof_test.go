// SPDX-License-Identifier: Apache-2.0

package seal

import (
	"crypto/rand"
	"errors"
	"testing"
	"time"

	"github.com/mcs-attest/mcs-attest/pkg/reason"
)

func TestCheckProof_AcceptsOnlyTheRingsOwnProofOfThatMessage(t *testing.T) {
	now := time.Unix(1_700_000_000, 0)
	ring := func() Ring {
		r, err := Ring{}.Rotate(rand.Reader, now, 0, time.Hour)
		if err != nil {
			t.Fatal(err)
		}
		return r
	}
	own, other := ring(), ring()
	message := []byte("a message")
	proof, err := own.Prove(now, message)
	if err != nil || len(proof) != ProofSize {
		t.Fatalf("%d bytes, %v", len(proof), err)
	}
	if err := own.CheckProof(proof, message); err != nil {
		t.Errorf("the own proof: %v", err)
	}
	altered := append([]byte(nil), proof...)
	altered[ProofSize-1] ^= 1
	for _, c := range []struct {
		name    string
		ring    Ring
		proof   []byte
		message string
		want    reason.Code
	}{
		{"another message", own, proof, "b message", reason.ChallengeInvalid},
		{"an altered proof", own, altered, "a message", reason.ChallengeInvalid},
		{"another ring", other, proof, "a message", reason.ChallengeKeyUnknown},
		{"no ring", Ring{}, proof, "a message", reason.ChallengeKeyUnknown},
		{"a short proof", own, proof[:ProofSize-1], "a message", reason.Malformed},
		{"no proof", own, nil, "a message", reason.Malformed},
	} {
		t.Run(c.name, func(t *testing.T) {
			var denial *reason.Denial
			if err := c.ring.CheckProof(c.proof, []byte(c.message)); !errors.As(err, &denial) || denial.Code != c.want {
				t.Errorf("%v instead of %s", err, c.want)
			}
		})
	}
	if _, err := (Ring{}).Prove(now, message); !errors.Is(err, ErrNoKey) {
		t.Errorf("without a key: %v", err)
	}
}
