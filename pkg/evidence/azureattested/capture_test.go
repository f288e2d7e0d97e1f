// SPDX-License-Identifier: Apache-2.0

package azureattested_test

import (
	"bytes"
	"crypto/x509"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/mcs-attest/mcs-attest/pkg/anchors"
	"github.com/mcs-attest/mcs-attest/pkg/cms"
	"github.com/mcs-attest/mcs-attest/pkg/evidence"
	"github.com/mcs-attest/mcs-attest/pkg/evidence/azureattested"
	"github.com/mcs-attest/mcs-attest/pkg/reason"
)

// A document from Azure, with the default roots. It was created without a nonce, so it matches no
// transcript. The test only checks that its signature is Azure's.
func TestVerify_AcceptsADocumentThatAzureSigned(t *testing.T) {
	raw, err := os.ReadFile(filepath.Join("testdata", "eastus-2025", "document.der"))
	if err != nil {
		t.Fatal(err)
	}
	set := anchors.NewSet(azureattested.DefaultRoots())
	verifier := func() *azureattested.Verifier {
		return &azureattested.Verifier{
			Roots: func() (*x509.CertPool, *x509.CertPool) { return set.Roots(), set.Intermediates() },
			Names: []string{"metadata.azure.com"}, Subscriptions: []string{"8a205152-b25a-417f-a676-80465535a6c9"},
		}
	}
	at := time.Date(2025, 11, 19, 13, 0, 0, 0, time.UTC)
	known := verifier()
	for range 2 { // the second time with the cached chain
		content, err := known.Signed(raw, at)
		if err != nil || !bytes.Contains(content, []byte(`"vmId"`)) {
			t.Fatalf("%s %v", content, err)
		}
	}
	_, err = known.Verify(t.Context(), evidence.Document{Kind: evidence.AzureAttested, Raw: raw}, evidence.Binding{}, at)
	denied(t, err, reason.DocumentNotFresh)
	_, err = verifier().Signed(raw, at.AddDate(1, 0, 0))
	denied(t, err, reason.DocumentUntrusted)
	government := verifier()
	government.Names = []string{"metadata.azure.us"}
	_, err = government.Signed(raw, at)
	denied(t, err, reason.DocumentUntrusted)

	// The emulator's documents have the same form.
	genuine, err := cms.Parse(raw, cms.Options{SHA256WithRSAAsDigest: true, AttributesOptional: true})
	if err != nil || len(genuine.Certificates) != 1 {
		t.Fatal(err)
	}
	if _, err := cms.Parse(raw, cms.Options{AttributesOptional: true}); err == nil {
		t.Fatal("Azure puts a signature algorithm where a digest algorithm belongs")
	}
	for i := range raw {
		changed := bytes.Clone(raw)
		changed[i] ^= 1 << (i % 8)
		for _, v := range []*azureattested.Verifier{known, verifier()} {
			if _, err := v.Signed(changed, at); err == nil {
				t.Fatalf("bit %d of byte %d: the signature still verifies", i%8, i)
			}
		}
	}
}
