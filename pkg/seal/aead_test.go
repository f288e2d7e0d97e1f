// SPDX-License-Identifier: Apache-2.0

package seal

import (
	"bytes"
	"os"
	"os/exec"
	"testing"

	"github.com/mcs-attest/mcs-attest/pkg/reason"
	"github.com/mcs-attest/mcs-attest/pkg/secret"
)

// Both algorithms open what they sealed, and only that: not with another key, nonce or header, and not as a box of the
// other algorithm.
func TestAEAD_OpensOnlyWhatItSealed(t *testing.T) {
	key := Key{Secret: secret.New(bytes.Repeat([]byte{1}, 32))}
	other := Key{Secret: secret.New(bytes.Repeat([]byte{2}, 32))}
	nonce, header, plain := bytes.Repeat([]byte{3}, nonceSize), []byte("header"), []byte("the activation secret")
	changed := func(b []byte) []byte {
		b = bytes.Clone(b)
		b[len(b)-1] ^= 1
		return b
	}
	for name, alg := range map[string]byte{"XChaCha20-Poly1305": xchacha, "AES-256-GCM": aesGCM} {
		t.Run(name, func(t *testing.T) {
			a, err := key.aead(alg)
			if err != nil {
				t.Fatal(err)
			}
			if a.NonceSize() != nonceSize {
				t.Fatalf("a nonce of %d bytes", a.NonceSize())
			}
			box := a.Seal(nil, nonce, plain, header)
			if len(box) != len(plain)+a.Overhead() || bytes.Contains(box, plain) {
				t.Fatalf("the box has %d bytes", len(box))
			}
			if got, err := a.Open(nil, nonce, box, header); err != nil || !bytes.Equal(got, plain) {
				t.Fatalf("%q, %v", got, err)
			}
			foreign, err := other.aead(alg)
			if err != nil {
				t.Fatal(err)
			}
			swapped, err := key.aead(xchacha + aesGCM - alg)
			if err != nil {
				t.Fatal(err)
			}
			for what, open := range map[string]func() ([]byte, error){
				"another key":         func() ([]byte, error) { return foreign.Open(nil, nonce, box, header) },
				"another nonce":       func() ([]byte, error) { return a.Open(nil, changed(nonce), box, header) },
				"another header":      func() ([]byte, error) { return a.Open(nil, nonce, box, changed(header)) },
				"a changed box":       func() ([]byte, error) { return a.Open(nil, nonce, changed(box), header) },
				"a box cut off":       func() ([]byte, error) { return a.Open(nil, nonce, box[:8], header) },
				"the other algorithm": func() ([]byte, error) { return swapped.Open(nil, nonce, box, header) },
			} {
				if got, err := open(); err == nil {
					t.Errorf("%s opens it: %q", what, got)
				}
			}
		})
	}
}

// Replicas of another version may share the keys. So the algorithm changes only in strict mode, in which those that do
// not have AES-256-GCM cannot seal. Go sets the mode when a program starts, so another process seals.
func TestAlgorithm_FollowsOnlyStrictMode(t *testing.T) {
	const inner = "MCS_ATTEST_TEST_ALGORITHM"
	if os.Getenv(inner) != "" { // in that process
		_, _ = os.Stdout.Write([]byte{'0' + algorithm()})
		os.Exit(0)
	}
	for mode, want := range map[string]byte{"off": xchacha, "on": xchacha, "only": aesGCM} {
		cmd := exec.Command(os.Args[0], "-test.run=^"+t.Name()+"$")
		cmd.Env = append(os.Environ(), "GODEBUG=fips140="+mode, inner+"=1")
		if got, err := cmd.Output(); err != nil || string(got) != string('0'+rune(want)) {
			t.Errorf("fips140=%s: algorithm %q, %v; want %d", mode, got, err, want)
		}
	}
}

// A newer replica may seal with an algorithm that this version does not have. The node then asks for a new challenge.
func TestOpen_AnUnknownAlgorithmIsTemporary(t *testing.T) {
	sealed := make([]byte, 256)
	for _, sealed[0] = range []byte{0, aesGCM + 1, 0xff} {
		_, err := Ring{}.Open(sealed)
		if d := reason.From(err); d == nil || d.Code != reason.ChallengeKeyUnknown {
			t.Errorf("algorithm %d: %v", sealed[0], err)
		}
	}
}
