// SPDX-License-Identifier: Apache-2.0

package azureattested_test

import (
	"bytes"
	"crypto/x509"
	"testing"
	"time"

	"github.com/mcs-attest/mcs-attest/pkg/anchors"
	"github.com/mcs-attest/mcs-attest/pkg/evidence/azureattested"
)

func TestDefaultRootsAreValidFor180Days(t *testing.T) {
	all := azureattested.DefaultRoots()
	set := anchors.NewSet(all)
	roots, soon := 0, time.Now().AddDate(0, 0, 180)
	for _, a := range all {
		if a.Root {
			roots++
		}
		if a.Provenance == "" {
			t.Errorf("%s: no provenance", a)
		}
		if !a.Certificate.NotAfter.After(soon) {
			t.Errorf("%s ends at %s: in less than 180 days", a, a.Certificate.NotAfter)
		}
		// Each certificate chains to a root, so its source does not matter.
		if _, err := a.Certificate.Verify(x509.VerifyOptions{Roots: set.Roots(), Intermediates: set.Intermediates(),
			KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageAny}}); err != nil {
			t.Errorf("%s: %v", a, err)
		}
	}
	if roots != 3 || len(all) != 13 || set.Len() != 13 {
		t.Fatalf("%d roots among %d", roots, len(all))
	}
}

// Debian's package does not contain the root of 2025 yet. DigiCert vouches for it.
func TestNewRootIsCertifiedByDigiCert(t *testing.T) {
	var own, certified, digicert *x509.Certificate
	for _, a := range azureattested.DefaultRoots() {
		switch c := a.Certificate; {
		case c.Subject.CommonName == "DigiCert Global Root G2":
			digicert = c
		case c.Subject.CommonName == "Microsoft TLS RSA Root G2" && a.Root:
			own = c
		case c.Subject.CommonName == "Microsoft TLS RSA Root G2":
			certified = c
		}
	}
	if err := certified.CheckSignatureFrom(digicert); err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(own.RawSubjectPublicKeyInfo, certified.RawSubjectPublicKeyInfo) ||
		!bytes.Equal(own.RawSubject, certified.RawSubject) {
		t.Fatal("another name or key")
	}
}
