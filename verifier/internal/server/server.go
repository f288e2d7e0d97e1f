// Package server serves: the listeners, their routes, readiness and shutdown. What it serves from is a
// [Backend]. The package imports no backend, so that a folder and a cluster are served alike.
package server

import (
	"context"
	"crypto/x509"
	"errors"
	"log/slog"
	"net/http"
	"net/netip"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"github.com/mcs-attest/mcs-attest/pkg/credential"
	"github.com/mcs-attest/mcs-attest/pkg/machine"
	"github.com/mcs-attest/mcs-attest/pkg/provisioning"
	"github.com/mcs-attest/mcs-attest/pkg/seal"
	"github.com/mcs-attest/mcs-attest/pkg/token"
	"github.com/mcs-attest/mcs-attest/verifier/internal/audit"
	"github.com/mcs-attest/mcs-attest/verifier/internal/clouds"
	"github.com/mcs-attest/mcs-attest/verifier/internal/config"
	"github.com/mcs-attest/mcs-attest/verifier/internal/door"
	"github.com/mcs-attest/mcs-attest/verifier/internal/listen"
	"github.com/mcs-attest/mcs-attest/verifier/internal/metrics"
	"github.com/mcs-attest/mcs-attest/verifier/internal/outbound"
	"github.com/mcs-attest/mcs-attest/verifier/internal/redeem"
	"github.com/mcs-attest/mcs-attest/verifier/internal/service"
	"github.com/mcs-attest/mcs-attest/verifier/internal/trust"
	"github.com/mcs-attest/mcs-attest/verifier/internal/view"
)

// shutdownGrace is how long requests under way may take when the verifier stops.
const shutdownGrace = 20 * time.Second

// MaxOperators bounds the connections for metrics, and those for health.
const MaxOperators = 64

// Parts are what the server and its backend share.
type Parts struct {
	Config       *config.Config
	Version      string
	Log          *slog.Logger
	Now          func() time.Time
	Metrics      *metrics.Metrics
	Certificates *listen.Certificates
	Audit        *audit.Log
	Clouds       *clouds.Clouds

	absence atomic.Pointer[string] // what the log reported last of an absent provisioning token
}

// NewParts makes the parts. It calls no other server. Trust is what vouches now; it is called once there
// is a backend.
func NewParts(
	c *config.Config, log *slog.Logger, now func() time.Time, version string, trust func() *trust.Trust,
) (*Parts, error) {
	p := &Parts{
		Config: c, Version: version, Log: log, Now: now, Metrics: metrics.New(), Certificates: &listen.Certificates{},
		Audit: audit.New(log),
	}
	p.Audit.LeftOut = p.Metrics.AuditLeftOut
	var err error
	p.Clouds, err = clouds.New(c, trust, outbound.Options{Now: now, Log: log, Called: p.Metrics.ProviderCall})
	return p, err
}

// Backend is what a verifier serves from: a folder with a database, or a cluster. It has the current state
// and keeps the records. Whatever differs between the two is a method here.
type Backend interface {
	// View is complete, or says that it is not.
	View() *view.View
	TokenKeys() token.KeySet
	SealKeys() seal.Ring
	// Provisioning is what is known of the provisioning token.
	Provisioning() provisioning.View
	Records() Records
	// Live reads what World may lack.
	Live() Live
	// Configs serves the backend's own configs: the whole ones, or the parts for machines that are not
	// approved. It is nil where there are none.
	Configs(preApproved bool) http.Handler
	// UpstreamRoots returns the authorities of the upstream. They may change.
	UpstreamRoots() (func() *x509.CertPool, error)
	// Credentials gives machines bootstrap credentials of their own. Nil: configs keep the shared one.
	Credentials() Credentials
	// ProtectMetrics lets only those read the metrics that may.
	ProtectMetrics(http.Handler) http.Handler
	// Run follows changes until ctx ends.
	Run(ctx context.Context) error
	// Checks names the parts that Unready reports, besides the records and the serving certificate.
	Checks() []string
	// Unready says what keeps it from serving a machine now.
	Unready(now time.Time) []string
	// Describe is for the log line at the start.
	Describe() string
	Close() error
}

// Live are reads of the current state, past what is cached. Each is nil where nothing is cached.
type Live struct {
	// Machine and MachineUID read a Machine again before it is denied for good. Their errors are temporary.
	Machine    func(context.Context, *machine.Machine) error
	MachineUID func(ctx context.Context, uid string) error
	// Outdated reports why nothing may be redeemed for this Machine.
	Outdated func(machineUID string) error
	// InTrouble reports whether the records were slow or silent a short time ago.
	InTrouble func() bool
	// Provisioning reads the provisioning token again.
	Provisioning func(context.Context) (provisioning.View, error)
}

// Credentials gives each machine a bootstrap credential of its own; see [gate.Config].
type Credentials interface {
	For(c token.Claims) bool
	Issue(ctx context.Context, c token.Claims) (*credential.Credential, error)
	Withdraw(ctx context.Context, own *credential.Credential)
}

// Records are the service's, and the gate's.
type Records interface {
	service.Records
	redeem.Records
}

// Server is everything that serves, wired.
type Server struct {
	*Parts
	Backend

	// AnswerTimeout is the gate's. 0: its default.
	AnswerTimeout time.Duration

	upstreamProbe *upstreamProbe // nil without an upstream
	stopProbe     context.CancelFunc
}

// New returns a server that serves from b.
func New(p *Parts, b Backend) *Server {
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
