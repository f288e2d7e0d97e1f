// SPDX-License-Identifier: Apache-2.0

package seal

import (
	"bytes"
	"testing"

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
