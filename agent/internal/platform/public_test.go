// SPDX-License-Identifier: Apache-2.0

package platform_test

import (
	"context"
	"crypto/x509"
	"encoding/pem"
	"net/http"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/mcs-attest/mcs-attest/agent/internal/platform"
	"github.com/mcs-attest/mcs-attest/agent/internal/verifiertest"
)

// Attack T53: what ignition.config.url names decides which verifier is trusted. A public authority's certificates
// expire because old keys become known, so one that has expired is rejected, as Ignition rejects it.
func TestAttack_T53_AnExpiredPublicCertificateDeliversNoPointer(t *testing.T) {
	server := func(from, to time.Time) *verifiertest.Verifier {
		v := &verifiertest.Verifier{
			Certificate: func(leaf *x509.Certificate) { leaf.NotBefore, leaf.NotAfter = from, to },
			GateFunc: func(w http.ResponseWriter, _ *http.Request) bool {
				_, _ = w.Write([]byte("from the URL"))
				return true
			},
		}
		v.Start(t)
		return v
	}
	now := time.Now()
	valid, expired := server(now.Add(-time.Hour), now.Add(time.Hour)), server(now.AddDate(-1, 0, 0), now.Add(-time.Hour))
	// These are the authorities of the system. crypto/x509 reads them once, so only one test of this package can
	// have them.
	var roots []byte
	for _, v := range []*verifiertest.Verifier{valid, expired} {
		roots = append(roots, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: v.Authority.Raw})...)
	}
	file := filepath.Join(t.TempDir(), "roots.pem")
	if err := os.WriteFile(file, roots, 0o600); err != nil {
		t.Fatal(err)
	}
	t.Setenv("SSL_CERT_FILE", file)

	r := newRoot(t, "ignition.config.url="+valid.Origin+"/config/worker")
	if data, err := r.find("metal"); err != nil || string(data.Raw) != "from the URL" {
		t.Fatalf("have %q and error %v", data.Raw, err)
	}
	m, err := platform.New(newRoot(t, "ignition.config.url="+expired.Origin+"/config/worker").p, "metal")
	if err != nil {
		t.Fatal(err)
	}
	// The agent waits until the clock or the certificate is corrected.
	ctx, cancel := context.WithCancel(t.Context())
	rec := &recorder{first: cancel}
	m.Waiting = rec.waiting
	if data, err := m.Find(ctx); err == nil || !rec.has("has expired") {
		t.Errorf("have %q and error %v; reported %q", data.Raw, err, rec.reasons)
	}
}
