// Package server serves: the listeners, their routes, readiness and shutdown. What it serves from is a
// [backend.Backend]. The package imports no backend, so that a folder and a cluster are served alike.
package server

import (
	"context"
	"errors"
	"net/http"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/mcs-attest/mcs-attest/verifier/internal/backend"
	"github.com/mcs-attest/mcs-attest/verifier/internal/door"
	"github.com/mcs-attest/mcs-attest/verifier/internal/listen"
	"github.com/mcs-attest/mcs-attest/verifier/internal/service"
)

// shutdownGrace is how long requests under way may take when the verifier stops.
const shutdownGrace = 20 * time.Second

// MaxOperators bounds the connections for metrics, and those for health.
const MaxOperators = 64

// Server is everything that serves, wired.
type Server struct {
	*backend.Parts
	backend.Backend

	// AnswerTimeout is the gate's. 0: its default.
	AnswerTimeout time.Duration

	upstreamProbe *upstreamProbe // nil without an upstream
	stopProbe     context.CancelFunc
}

// New returns a server that serves from b.
func New(p *backend.Parts, b backend.Backend) *Server {
	s := &Server{Parts: p, Backend: b}
	s.Metrics.Registerer().MustRegister(s.readyGauge())
	return s
}

// Close stops the probe, ends the sessions with clouds, and closes the backend.
func (s *Server) Close() error {
	if s.stopProbe != nil {
		s.stopProbe()
	}
	return errors.Join(s.Clouds.Close(), s.Backend.Close())
}

// Handler routes what nodes ask: the attestation API, and the gate for the rest.
func (s *Server) Handler(ctx context.Context) (http.Handler, error) {
	upstream, err := s.upstream(ctx)
	if err != nil {
		return nil, err
	}
	svc := &service.Service{
		Clouds: s.Clouds.Verifiers, Directory: s.Clouds.Directory(), AzureTokenResource: s.Config.AzureTokenResource(),
		View: s.View, SealKeys: s.SealKeys, TokenKeys: s.TokenKeys, Records: s.Records(), Provisioning: s.Provisioning,
		ConfirmProvisioning: s.confirmProvisioning(),
		Origins:             func(o string) bool { return slices.Contains(s.Config.Origins, o) },
		Served:              s.Certificates.Served, Issuer: s.Config.Issuer(), Version: s.Version, Confirm: s.Live().Machine,
		Audit: s.Audit, Limiter: listen.NewLimiter(s.Config.RequestsPerSecond), Source: s.source, Now: s.Now,
		Observe: s.Metrics.Decision, ObserveTicket: s.Metrics.Report,
	}
	if s.Config.KeepEvidence > 0 {
		keep, err := newEvidenceKeeper(s.Config.Path("state", "evidence"), s.Config.KeepEvidence, s.Log)
		if err != nil {
			return nil, err
		}
		svc.Keep = keep.Keep
	}
	// No http.ServeMux here: it answers an unclean path with a redirect, and a
	// redirect makes Ignition drop its headers.
	prefix, api := svc.Handler()
	gate := s.gate(upstream)
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if strings.HasPrefix(r.URL.Path, prefix) {
			api.ServeHTTP(w, r)
			return
		}
		if answer, ok := door.Answer(s.SealKeys, s.Now, r); ok {
			answer(w, r)
			return
		}
		gate.ServeHTTP(w, r)
	}), nil
}

// source is the client's address as limits and logs see it: for IPv6 its /64.
// Behind a trusted proxy it is the one that the proxy names.
func (s *Server) source(r *http.Request) netip.Addr {
	direct := listen.Source(r.RemoteAddr)
	peer, err := netip.ParseAddrPort(r.RemoteAddr)
	if err != nil || !s.Trusted(peer.Addr()) {
		return direct
	}
	hops := strings.Split(strings.Join(r.Header.Values("X-Forwarded-For"), ","), ",")
	for _, hop := range slices.Backward(hops) {
		a, err := netip.ParseAddr(strings.TrimSpace(hop))
		if err != nil {
			return direct
		}
		if !s.Trusted(a) {
			return listen.Source(netip.AddrPortFrom(a, 0).String())
		}
	}
	return direct
}

// Trusted reports whether an address is a trusted proxy. It is judged on the whole address, never on its /64.
func (s *Server) Trusted(a netip.Addr) bool {
	a = a.Unmap().WithZone("")
	return slices.ContainsFunc(s.Config.TrustedProxies, func(p string) bool {
		prefix, err := netip.ParsePrefix(p)
		return err == nil && prefix.Contains(a)
	})
}
