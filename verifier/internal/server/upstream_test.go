// SPDX-License-Identifier: Apache-2.0

package server

import (
	"context"
	"crypto/x509"
	"io"
	"net"
	"net/http"
	"testing"
	"testing/synctest"
	"time"

	"github.com/mcs-attest/mcs-attest/verifier/internal/backend"
	"github.com/mcs-attest/mcs-attest/verifier/internal/config"
)

// A stopped process still accepts connections, because the kernel does. A dial continues after its request ended. So
// each probe and each request of a machine would leave a connection open.
func TestUpstream_ThatStopsInTheHandshakeLeavesNoConnection(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &Server{Parts: &backend.Parts{Config: &config.Config{}}}
		transport := s.toUpstream(x509.NewCertPool())
		closed := false
		transport.DialContext = func(context.Context, string, string) (net.Conn, error) {
			own, stopped := net.Pipe()
			go func() {
				_, _ = io.Copy(io.Discard, stopped) // returns when the client closes the connection
				closed = true
			}()
			return own, nil
		}
		ctx, cancel := context.WithTimeout(t.Context(), probeTime)
		defer cancel()
		r, err := http.NewRequestWithContext(ctx, http.MethodGet, "https://mcs.invalid:22623/healthz", nil)
		if err != nil {
			t.Fatal(err)
		}
		if res, err := transport.RoundTrip(r); err == nil {
			_ = res.Body.Close()
			t.Fatal("an upstream that does not complete the handshake answers")
		}
		time.Sleep(time.Minute)
		synctest.Wait()
		if !closed {
			t.Error("the connection is still open a minute after the request ended")
		}
	})
}
