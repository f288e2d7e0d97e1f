// SPDX-License-Identifier: Apache-2.0

// Package server has the listeners, their routes, readiness and shutdown. It serves the data of a
// [backend.Backend]. The package imports no backend, so that it serves a folder and a cluster in the
// same way.
package server

import (
	"context"
	"errors"
	"io"
	"net/http"
	"net/netip"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/mcs-attest/mcs-attest/pkg/firstboot"
	mcsattestv1 "github.com/mcs-attest/mcs-attest/proto/mcsattest/v1"
	"github.com/mcs-attest/mcs-attest/verifier/internal/agents"
	"github.com/mcs-attest/mcs-attest/verifier/internal/backend"
	"github.com/mcs-attest/mcs-attest/verifier/internal/config"
	"github.com/mcs-attest/mcs-attest/verifier/internal/door"
	"github.com/mcs-attest/mcs-attest/verifier/internal/listen"
	"github.com/mcs-attest/mcs-attest/verifier/internal/redeem"
	"github.com/mcs-attest/mcs-attest/verifier/internal/service"
)

const (
	// shutdownGrace is the time for active requests when the verifier stops.
	shutdownGrace = 20 * time.Second
	// drainGrace is the part of it in which machines may answer their challenges.
	drainGrace = 15 * time.Second
)

// MaxOperators is the maximum number of connections for metrics, and of those for health.
const MaxOperators = 64

// Server has all parts that serve.
type Server struct {
	*backend.Parts
	backend.Backend
	// AccessLog receives the Machine Config Server's lines. New sets standard output.
	AccessLog io.Writer

	agents        *agents.Files  // nil if the configuration names no folder
	upstreamProbe *upstreamProbe // nil if there is no upstream
	stopProbe     context.CancelFunc
	stopping      func() bool // nil: it never stops
}

// New returns a server that serves from b.
func New(p *backend.Parts, b backend.Backend) *Server {
	s := &Server{Parts: p, Backend: b, AccessLog: os.Stdout}
	p.Page = newPage(p, b, s.Problems)
	s.Metrics.Registerer().MustRegister(s.readyGauge())
	return s
}

// Close stops the probe, ends the sessions with clouds, and closes the backend.
func (s *Server) Close() error {
	if s.stopProbe != nil {
		s.stopProbe()
	}
	return errors.Join(s.closeAgents(), s.Clouds.Close(), s.Backend.Close())
}

// Handler routes the requests of nodes: the attestation API, and the gate for all other paths. When ctx
// ends, no new attestation starts, and the server is not ready.
func (s *Server) Handler(ctx context.Context) (http.Handler, error) {
	s.stopping = func() bool { return ctx.Err() != nil }
	upstream, err := s.upstream(ctx)
	if err != nil {
		return nil, err
	}
	if err := s.openAgents(); err != nil {
		return nil, err
	}
	live := s.Live()
	redeemer := &redeem.Redeemer{
		Records: s.Records(), Log: s.Log, Machines: func() redeem.Machines { return s.View().Machines }, Now: s.Now,
		Confirm: live.MachineUID, Stale: live.Outdated, Failing: live.Failing,
	}
	svc := &service.Service{
		Clouds: s.Clouds.Verifiers, Directory: s.Clouds.Directory(), AzureTokenResource: s.Config.AzureTokenResource(),
		View: s.View, SealKeys: s.SealKeys, TokenKeys: s.TokenKeys, Records: s.Records(), Provisioning: s.Provisioning,
		ConfirmProvisioning: s.confirmProvisioning(),
		Origins:             func(o string) bool { return slices.Contains(s.Config.Origins, o) },
		Served:              s.Certificates.Served, Issuer: s.Config.Issuer(), Version: s.Version, Confirm: live.Machine,
		Audit: s.Audit, Limiter: listen.NewLimiter(s.Config.RequestsPerSecond), Source: s.source, Now: s.Now,
		Observe: s.Metrics.Decision, ObserveTicket: s.Metrics.Report, ObserveRehearsal: s.Metrics.Rehearsal,
		Stopping:        s.stopping,
		NodeCertificate: nodeCertificate(s.Config.Credential), NodeNames: live.NodeNames,
		Redeemable: redeemer.Redeemable,
	}
	if s.Config.KeepEvidence > 0 {
		keep, err := newEvidenceKeeper(s.Config.Path("state", "evidence"), s.Config.KeepEvidence, s.Log)
		if err != nil {
			return nil, err
		}
		svc.Keep = keep.Keep
	}
	// This is not an http.ServeMux, because that redirects unclean paths, and Ignition drops its
	// headers at a redirect.
	prefix, api := svc.Handler()
	gate := s.gate(upstream, redeemer)
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.TLS == nil {
			gate.ServeHTTP(w, r) // it denies configs
			return
		}
		if strings.HasPrefix(r.URL.Path, prefix) {
			api.ServeHTTP(w, r)
			return
		}
		if answer, ok := door.Answer(s.SealKeys, s.Now, r); ok {
			answer(w, r)
			return
		}
		if s.agents != nil && strings.HasPrefix(r.URL.Path, firstboot.URLPath) {
			s.agents.ServeHTTP(w, r)
			return
		}
		gate.ServeHTTP(w, r)
	}), nil
}

// nodeCertificate returns what challenges state about the node's certificate.
func nodeCertificate(c *config.Credential) mcsattestv1.NodeCertificate {
	switch {
	case !c.Certificates():
		return mcsattestv1.NodeCertificate_NODE_CERTIFICATE_UNSPECIFIED
	case c.Mode == config.ModeCertificate:
		return mcsattestv1.NodeCertificate_NODE_CERTIFICATE_REQUIRED
	}
	return mcsattestv1.NodeCertificate_NODE_CERTIFICATE_OPTIONAL
}

// source returns the client's address for limits and the audit log. For IPv6 that is the /64. Behind a trusted
// proxy, it is the address that the proxy names.
func (s *Server) source(r *http.Request) netip.Addr {
	return listen.Source(s.clientAddress(r))
}

// forwarded returns the client's whole address as a trusted proxy names it. It returns false for other requests.
func (s *Server) forwarded(r *http.Request) (netip.Addr, bool) {
	peer, err := netip.ParseAddrPort(r.RemoteAddr)
	if err != nil || !s.Trusted(peer.Addr()) {
		return netip.Addr{}, false
	}
	hops := strings.Split(strings.Join(r.Header.Values("X-Forwarded-For"), ","), ",")
	for _, hop := range slices.Backward(hops) {
		a, err := netip.ParseAddr(strings.TrimSpace(hop))
		if err != nil {
			return netip.Addr{}, false
		}
		if !s.Trusted(a) {
			return a.Unmap().WithZone(""), true
		}
	}
	return netip.Addr{}, false
}

// Trusted reports whether an address is a trusted proxy. It checks the whole address, not the /64.
func (s *Server) Trusted(a netip.Addr) bool {
	a = a.Unmap().WithZone("")
	return slices.ContainsFunc(s.Config.TrustedProxies, func(p string) bool {
		prefix, err := netip.ParsePrefix(p)
		return err == nil && prefix.Contains(a)
	})
}
