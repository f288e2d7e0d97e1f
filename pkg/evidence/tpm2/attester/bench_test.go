// SPDX-License-Identifier: Apache-2.0

package attester_test

import (
	"crypto/rand"
	"testing"
	"time"

	"github.com/mcs-attest/mcs-attest/pkg/evidence/tpm2"
	"github.com/mcs-attest/mcs-attest/pkg/evidence/tpm2/attester"
	"github.com/mcs-attest/mcs-attest/pkg/evidence/tpm2/attester/swtpmtest"
	"github.com/mcs-attest/mcs-attest/pkg/transcript"
)

// BenchmarkAttestation measures one whole attestation on swtpm, in time and in TPM commands; the
// budget is 12 commands. The banks come from the kernel's sysfs.
func BenchmarkAttestation(b *testing.B) {
	for _, c := range []struct {
		name string
		key  attester.Key
		pcrs []int
	}{
		{"EK=ecc-p384/PCR=11", attester.ECCP384, []int{11}},
		{"EK=rsa-2048/PCR=11", attester.RSA2048, []int{11}},
		{"EK=rsa-2048/PCR=secure-boot", attester.RSA2048, secureBootPCRs},
	} {
		b.Run(c.name, func(b *testing.B) {
			device := attester.NewRetrying(swtpmtest.Start(b, "sha256").Dial(), time.Sleep)
			for b.Loop() {
				a, err := attester.Open(device, attester.Options{Key: c.key, Banks: []uint16{sha256Bank}})
				fatal(b, err)
				ek, err := tpm2.ParseEK(a.Identity().EKPublic)
				fatal(b, err)
				blob, encrypted, err := tpm2.MakeCredential(rand.Reader, ek, a.Identity().AKName, make([]byte, 32))
				fatal(b, err)
				_, err = a.Attest(attester.Challenge{CredentialBlob: blob, EncryptedSecret: encrypted, Bank: sha256Bank,
					PCRs: c.pcrs}, transcript.Hash{})
				fatal(b, err)
				fatal(b, a.Close())
			}
			b.ReportMetric(float64(device.Commands())/float64(b.N), "tpm-commands/op")
		})
	}
}

func fatal(b *testing.B, err error) {
	b.Helper()
	if err != nil {
		b.Fatal(err)
	}
}
