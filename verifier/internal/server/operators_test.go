// SPDX-License-Identifier: Apache-2.0

package server

import (
	"log/slog"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/mcs-attest/mcs-attest/pkg/pki"
)

func TestMetricsCertificateIsReadFromItsFolder(t *testing.T) {
	dir := t.TempDir()
	ahead := time.Duration(0)
	c := &metricsCertificate{dir: dir, now: func() time.Time { return time.Now().Add(ahead) },
		log: slog.New(slog.DiscardHandler)}
	if c.current() != nil {
		t.Fatal("a certificate out of an empty folder")
	}
	ca, err := pki.NewCA("test", time.Now())
	if err != nil {
		t.Fatal(err)
	}
	pair, err := ca.Serve([]string{"metrics.test"}, time.Now())
	if err != nil {
		t.Fatal(err)
	}
	write := func(name string, content []byte) {
		t.Helper()
		if err := os.WriteFile(filepath.Join(dir, name), content, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write("tls.crt", pair.Certificate)
	write("tls.key", pair.Key.Expose())
	ahead += metricsCertificateEvery
	good := c.current()
	if good == nil {
		t.Fatal("the pair in the folder is not used")
	}
	write("tls.crt", []byte("half a certif"))
	ahead += metricsCertificateEvery
	if c.current() != good {
		t.Error("a broken file replaced the last good pair")
	}
}
