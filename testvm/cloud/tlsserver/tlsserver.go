// SPDX-License-Identifier: Apache-2.0

// Package tlsserver serves the API of an emulated cloud on the loopback interface, with its own CA.
package tlsserver

import (
	"crypto/tls"
	"io"
	"log"
	"net/http"
	"net/http/httptest"
	"time"

	"github.com/mcs-attest/mcs-attest/pkg/pki"
)

// Server is an API over HTTPS.
type Server struct {
	*httptest.Server
	CA []byte // PEM
}

// Start serves api on a free port until Close.
func Start(api http.Handler) (*Server, error) {
	now := time.Now()
	ca, err := pki.NewCA("emulated cloud", now)
	if err != nil {
		return nil, err
	}
	pair, err := ca.Serve([]string{"127.0.0.1", "localhost"}, now)
	if err != nil {
		return nil, err
	}
	certificate, err := tls.X509KeyPair(pair.Certificate, pair.Key.Expose())
	if err != nil {
		return nil, err
	}
	s := &Server{Server: httptest.NewUnstartedServer(api), CA: ca.Certificate}
	s.EnableHTTP2, s.TLS = true, &tls.Config{Certificates: []tls.Certificate{certificate}, MinVersion: tls.VersionTLS12}
	s.Config.ErrorLog = log.New(io.Discard, "", 0)
	s.StartTLS()
	return s, nil
}

// Close stops the server. It also ends the requests that it is answering.
func (s *Server) Close() {
	s.CloseClientConnections()
	s.Server.Close()
}
