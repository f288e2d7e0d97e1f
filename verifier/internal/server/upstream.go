// SPDX-License-Identifier: Apache-2.0

package server

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"net/http"
	"net/url"
	"sync/atomic"
	"time"

	"github.com/mcs-attest/mcs-attest/pkg/gate"
	"github.com/mcs-attest/mcs-attest/pkg/reason"
)

// upstream returns a reverse proxy for the Machine Config Server, or the backend's own configs.
func (s *Server) upstream(ctx context.Context) (http.Handler, error) {
	if s.Config.Upstream == "" {
		return s.Configs(false), nil
	}
	target, err := url.Parse(s.Config.Upstream)
	if err != nil {
		return nil, fmt.Errorf("upstream: %w", err)
	}
	if s.Transport != nil {
		return s.proxy(ctx, target, s.Transport), nil
	}
	return s.proxy(ctx, target, &trusting{make: s.toUpstream, roots: s.UpstreamRoots}), nil
}

// proxy forwards to the upstream. It probes the upstream until Close, or until ctx ends.
func (s *Server) proxy(ctx context.Context, target *url.URL, transport http.RoundTripper) http.Handler {
	ctx, cancel := context.WithCancel(ctx)
	s.upstreamProbe, s.stopProbe = newUpstreamProbe(target, transport, s.Log), cancel
	go s.upstreamProbe.run(ctx)
	return gate.Proxy(target, transport)
}

func (s *Server) toUpstream(roots *x509.CertPool) *http.Transport {
	return &http.Transport{
		TLSClientConfig:       &tls.Config{RootCAs: roots, ServerName: s.Config.UpstreamName, MinVersion: tls.VersionTLS12},
		TLSHandshakeTimeout:   8 * time.Second, // a dial continues when its request ends
		ResponseHeaderTimeout: 8 * time.Second,
		DisableCompression:    true, // the upstream's answer reaches Ignition unchanged
		MaxIdleConnsPerHost:   32,
	}
}

// trusting is a transport to the Machine Config Server that trusts the upstream's current CAs. So a
// rotation during a boot does not fail a node.
type trusting struct {
	make    func(roots *x509.CertPool) *http.Transport
	roots   func() *x509.CertPool
	current atomic.Pointer[trustingNow]
}

type trustingNow struct {
	roots     *x509.CertPool
	transport *http.Transport
}

// RoundTrip implements http.RoundTripper.
func (t *trusting) RoundTrip(r *http.Request) (*http.Response, error) {
	roots := t.roots()
	if roots == nil {
		return nil, reason.Deny(reason.UpstreamUnavailable, "the CA of the Machine Config Server has not been read")
	}
	now := t.current.Load()
	if now == nil || now.roots != roots {
		next := &trustingNow{roots, t.make(roots)}
		if t.current.CompareAndSwap(now, next) {
			if now != nil {
				now.transport.CloseIdleConnections()
			}
		} else {
			next = t.current.Load()
		}
		now = next
	}
	return now.transport.RoundTrip(r)
}
