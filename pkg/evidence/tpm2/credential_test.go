// SPDX-License-Identifier: Apache-2.0

package tpm2_test

import (
	"bytes"
	"crypto/rand"
	"io"
	"strings"
	"testing"
	"testing/iotest"

	tpm "github.com/google/go-tpm/tpm2"

	"github.com/mcs-attest/mcs-attest/pkg/evidence/tpm2"
)

func TestCredentialsAreReleasedByTheTPM(t *testing.T) {
	for kind, template := range ekTemplates {
		t.Run(kind, func(t *testing.T) {
			d := simulate(t)
			ek, ak := d.primary(tpm.TPMRHEndorsement, template), d.primary(tpm.TPMRHEndorsement, akTemplates[agentAK])
			parsedEK, parsedAK := mustEK(t, ek.public), mustAK(t, ak.public)
			if !bytes.Equal(parsedAK.Name(), ak.name.Buffer) {
				t.Fatalf("Name %x, the TPM's is %x", parsedAK.Name(), ak.name.Buffer)
			}
			// Many repetitions, because a leading zero in a coordinate occurs once in 256.
			for range 32 {
				for _, size := range []int{1, 16, 32} {
					k := make([]byte, size)
					if _, err := rand.Read(k); err != nil {
						t.Fatal(err)
					}
					blob, encrypted, err := tpm2.MakeCredential(nil, parsedEK, parsedAK.Name(), k)
					if err != nil {
						t.Fatal(err)
					}
					got, err := d.activate(ek, ak, blob, encrypted)
					if err != nil {
						t.Fatal(err)
					}
					if !bytes.Equal(got, k) {
						t.Fatalf("released %x, want %x", got, k)
					}
				}
			}
		})
	}
}

func TestCredentialsNeverRepeat(t *testing.T) {
	for _, file := range []string{"ek-rsa2048.pub", "ek-p256.pub", "ek-p384.pub"} {
		ek := mustEK(t, capture(t, file))
		seen := map[string]bool{}
		for range 8 {
			blob, encrypted, err := tpm2.MakeCredential(nil, ek, []byte("name"), make([]byte, 32))
			if err != nil {
				t.Fatal(err)
			}
			if seen[string(blob)] || seen[string(encrypted)] {
				t.Fatalf("%s: the same credential twice", file)
			}
			seen[string(blob)], seen[string(encrypted)] = true, true
		}
	}
}

func TestMakeCredential_RejectsSecretsOfTheWrongSize(t *testing.T) {
	ek := mustEK(t, capture(t, "ek-p256.pub"))
	for _, size := range []int{0, 33, 1 << 16} {
		if _, _, err := tpm2.MakeCredential(nil, ek, []byte("name"), make([]byte, size)); err == nil {
			t.Errorf("%d bytes were accepted", size)
		}
	}
}

func TestMakeCredential_RejectsTheZeroEK(t *testing.T) {
	_, _, err := tpm2.MakeCredential(nil, &tpm2.EK{}, []byte("name"), make([]byte, 32))
	if err == nil || !strings.Contains(err.Error(), "hash algorithm 0x0000 is not accepted") {
		t.Error(err)
	}
}

// If the random source fails, there must be no credential with a known seed.
func TestCredentialsNeedRandomness(t *testing.T) {
	ek := mustEK(t, capture(t, "ek-rsa2048.pub"))
	for name, source := range map[string]io.Reader{
		"no bytes":                             bytes.NewReader(nil),
		"bytes for the seed, not for OAEP":     bytes.NewReader(make([]byte, 32)),
		"an error during the seed, then bytes": iotest.TimeoutReader(iotest.OneByteReader(rand.Reader)),
	} {
		t.Run(name, func(t *testing.T) {
			if _, _, err := tpm2.MakeCredential(source, ek, []byte("name"), make([]byte, 32)); err == nil {
				t.Error("created without randomness")
			}
		})
	}
}

// With this setting, Go uses the given source for the ephemeral key, too.
func TestMakeCredential_UsesTheGivenSourceForECCKeys(t *testing.T) {
	t.Setenv("GODEBUG", "cryptocustomrand=1")
	for _, file := range []string{"ek-p256.pub", "ek-p384.pub"} {
		ek := mustEK(t, capture(t, file))
		if _, _, err := tpm2.MakeCredential(bytes.NewReader(nil), ek, []byte("name"), make([]byte, 32)); err == nil {
			t.Errorf("%s: created without randomness", file)
		}
		if _, _, err := tpm2.MakeCredential(nil, ek, []byte("name"), make([]byte, 32)); err != nil {
			t.Errorf("%s, with the source of the system: %v", file, err)
		}
	}
}
