// SPDX-License-Identifier: Apache-2.0

package seal_test

import (
	"crypto/rand"
	"crypto/sha256"
	"encoding/base64"
	"reflect"
	"strings"
	"testing"

	"github.com/mcs-attest/mcs-attest/pkg/reason"
	"github.com/mcs-attest/mcs-attest/pkg/seal"
)

func TestSealRehearsal_OpensAsItWas(t *testing.T) {
	r := ring(t)
	for _, uid := range []string{"", "5d1f6c0e-9b43-4d8e-8a3e-0c1d3c2b1a00", strings.Repeat("u", 255)} {
		want := seal.Rehearsal{Challenge: challenge(), MachineUID: uid, AgentVersion: "v1",
			TicketSHA256: sha256.Sum256([]byte("ticket"))}
		sealed, err := r.SealRehearsal(rand.Reader, epoch, want)
		if err != nil {
			t.Fatal(err)
		}
		got, err := r.OpenRehearsal(sealed)
		if err != nil {
			t.Fatal(err)
		}
		got.AKCertificates = want.AKCertificates // none
		if !reflect.DeepEqual(got, want) {
			t.Errorf("got %+v, want %+v", got, want)
		}
	}
	if _, err := r.SealRehearsal(rand.Reader, epoch, seal.Rehearsal{MachineUID: strings.Repeat("u", 256)}); err == nil {
		t.Error("a UID that does not fit was sealed")
	}
}

// T74: a rehearsal opens as nothing but a rehearsal. The first byte, which distinguishes the kinds, is authenticated.
func TestAttack_T74_ARehearsalsSealOpensNoAttestation(t *testing.T) {
	r := ring(t)
	attestation, err := r.Seal(rand.Reader, epoch, challenge())
	if err != nil {
		t.Fatal(err)
	}
	rehearsal, err := r.SealRehearsal(rand.Reader, epoch, seal.Rehearsal{Challenge: challenge(), MachineUID: "uid"})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := r.Open(attestation); err != nil {
		t.Fatalf("the valid attestation: %v", err)
	}
	if _, err := r.OpenRehearsal(rehearsal); err != nil {
		t.Fatalf("the valid rehearsal: %v", err)
	}
	for b := range 256 {
		relabeled := append([]byte{byte(b)}, rehearsal[1:]...)
		text := base64.RawURLEncoding.EncodeToString(relabeled)
		if _, err := r.Open(relabeled); err == nil {
			t.Errorf("with the first byte %#x, a rehearsal opens as an attestation", b)
		}
		if _, err := r.OpenTicket(epoch, text); err == nil {
			t.Errorf("with the first byte %#x, a rehearsal opens as a ticket", b)
		}
		if _, err := r.OpenCertifyTicket(epoch, text); err == nil {
			t.Errorf("with the first byte %#x, a rehearsal opens as a ticket of a certificate", b)
		}
		if _, err := r.OpenRehearsal(append([]byte{byte(b)}, attestation[1:]...)); err == nil {
			t.Errorf("with the first byte %#x, an attestation opens as a rehearsal", b)
		}
	}
	_, err = r.Open(rehearsal)
	wantCode(t, err, reason.ChallengeKeyUnknown)
	_, err = r.Open(append(attestation[:1:1], rehearsal[1:]...))
	wantCode(t, err, reason.ChallengeInvalid)
}

// Versions before this one read the first byte like this. They must reject a rehearsal before they decrypt it.
func TestAttack_T74_AnOlderReplicaOpensNoRehearsal(t *testing.T) {
	sealed, err := ring(t).SealRehearsal(rand.Reader, epoch, seal.Rehearsal{Challenge: challenge()})
	if err != nil {
		t.Fatal(err)
	}
	for _, known := range []byte{1, 2, 0x80 + 1, 0x80 + 2, 0x40 + 1, 0x40 + 2} {
		if sealed[0] == known {
			t.Errorf("a rehearsal begins with %#x, which an older replica opens", known)
		}
	}
}
