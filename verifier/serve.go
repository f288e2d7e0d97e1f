package main

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"os"
	"runtime/debug"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/spf13/cobra"

	"github.com/mcs-attest/mcs-attest/pkg/gate"
	"github.com/mcs-attest/mcs-attest/pkg/provisioning"
	"github.com/mcs-attest/mcs-attest/pkg/seal"
	"github.com/mcs-attest/mcs-attest/pkg/token"
	"github.com/mcs-attest/mcs-attest/verifier/internal/audit"
	"github.com/mcs-attest/mcs-attest/verifier/internal/cli/env"
	"github.com/mcs-attest/mcs-attest/verifier/internal/clouds"
	"github.com/mcs-attest/mcs-attest/verifier/internal/config"
	"github.com/mcs-attest/mcs-attest/verifier/internal/door"
	"github.com/mcs-attest/mcs-attest/verifier/internal/hint"
	"github.com/mcs-attest/mcs-attest/verifier/internal/listen"
	"github.com/mcs-attest/mcs-attest/verifier/internal/metrics"
	"github.com/mcs-attest/mcs-attest/verifier/internal/outbound"
	"github.com/mcs-attest/mcs-attest/verifier/internal/redeem"
	"github.com/mcs-attest/mcs-attest/verifier/internal/service"
	"github.com/mcs-attest/mcs-attest/verifier/internal/trust"
)

// maxOperators bounds the connections for metrics, and those for health.
const maxOperators = 64

// memoryLimit is where the collector begins to work harder, without a cluster and
// unless GOMEMLIMIT says otherwise. A folder needs a fifth of it; the rest is for
// connections.
const memoryLimit = 112 << 20

// folderGCPercent is how much garbage may pile up below memoryLimit, in percent of what
// is in use, unless GOGC says otherwise. A folder uses little, so that the default of 100
// makes the collector run all the time.
const folderGCPercent = 400

// shutdownGrace is how long requests under way may take when the verifier stops.
const shutdownGrace = 20 * time.Second

func newServeCommand() *cobra.Command {
	var configPath, listenAddr, healthAddr, metricsAddr, logFormat, logLevel string
	cmd := &cobra.Command{
		Use:   "serve",
		Short: "Serve attestation and the gate",
		Long: `Serve the attestation API and the gate on one TLS listener, metrics (/metrics) on
another, and health (/healthz, /readyz) in clear on the loopback. In a cluster the
API server decides who may read the metrics. Folder, certificates and keys are
read again when they change; a change that is broken keeps the last good state
and is reported. SIGTERM lets requests under way finish.`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			logger, err := newLogger(logFormat, logLevel)
			if err != nil {
				return err
			}
			c, err := env.LoadConfig(configPath)
			if err != nil {
				return err
			}
			if listenAddr != "" {
				c.Listen = listenAddr
			}
			if healthAddr != "" {
				if err := config.Loopback(healthAddr); err != nil {
					return env.Usage(fmt.Errorf("--health-listen: %w", err))
				}
				c.HealthListen = healthAddr
			}
			if metricsAddr != "" {
				c.MetricsListen = metricsAddr
			}
			if c.Kubernetes == nil && os.Getenv("GOMEMLIMIT") == "" {
				debug.SetMemoryLimit(memoryLimit)
				if os.Getenv("GOGC") == "" {
					debug.SetGCPercent(folderGCPercent)
				}
			}
			return serve(cmd.Context(), c, logger)
		},
	}
	env.ConfigFlag(cmd, &configPath)
	f := cmd.Flags()
	f.StringVar(&listenAddr, "listen", "", "address of the gate and the attestation API (default: the configuration's, else :22623)")
	f.StringVar(&healthAddr, "health-listen", "", "address of health, on the loopback (default: the configuration's, else 127.0.0.1:22681)")
	f.StringVar(&metricsAddr, "metrics-listen", "", "address of the metrics (default: the configuration's, else 127.0.0.1:9622)")
	logFormat, logLevel = "json", "info"
	env.Choice(f, &logFormat, "log-format", "", `"json" or "text"`, "json", "text")
	f.StringVar(&logLevel, "log-level", logLevel, `"debug", "info", "warn" or "error"`)
	return cmd
}

func newLogger(format, level string) (*slog.Logger, error) {
	var l slog.Level
	if err := l.UnmarshalText([]byte(level)); err != nil {
		return nil, env.Usagef("log level %q: must be debug, info, warn or error", level)
	}
	o := &slog.HandlerOptions{Level: l}
	if format == "text" {
		return slog.New(slog.NewTextHandler(os.Stderr, o)), nil
	}
	return slog.New(slog.NewJSONHandler(os.Stderr, o)), nil
}

// server is everything that serves, wired.
type server struct {
	config  *config.Config
	log     *slog.Logger
	metrics *metrics.Metrics
	certs   *listen.Certificates
	audit   *audit.Log
	now     func() time.Time

	upstreamProbe *upstreamProbe // nil without an upstream
	stopProbe     context.CancelFunc

	basis
	clouds     *clouds.Clouds
	standalone *standaloneBasis // the basis, where it is a folder
	cluster    *clusterBasis    // the basis, where it is a cluster

	answerTimeout time.Duration          // of the gate; 0: its default
	absence       atomic.Pointer[string] // what the log reported last of an absent provisioning token
}

// basis is what a verifier stands on: a folder with a database, or a cluster. It
// says what there is now and keeps the records.
type basis interface {
	// World is complete, or says that it is not.
	World() *service.World
	TokenKeys() token.KeySet
	SealKeys() seal.Ring
	// Provisioning is what is known of the provisioning token.
	Provisioning() provisioning.View
	Records() records
	// Run follows changes until ctx ends.
	Run(ctx context.Context) error
	// Unready says what keeps it from serving a machine now.
	Unready(now time.Time) []string
	// Describe is for the log line at the start.
	Describe() string
	Close() error
}

// records are the service's, and the gate's.
type records interface {
	service.Records
	redeem.Records
}

func serve(ctx context.Context, c *config.Config, logger *slog.Logger) error {
	s, err := newServer(c, logger, time.Now)
	if err != nil {
		return err
	}
	defer func() {
		if err := s.Close(); err != nil {
			logger.Error("close", "error", err)
		}
	}()
	var lc net.ListenConfig
	raw, err := lc.Listen(ctx, "tcp", c.Listen)
	if err != nil {
		return hint.New(fmt.Errorf("listen: %w", err), "is another verifier, or the Machine Config Server itself, on %s?", c.Listen)
	}
	healthListener, err := lc.Listen(ctx, "tcp", c.HealthListen)
	if err != nil {
		_ = raw.Close()
		return hint.New(fmt.Errorf("listen for health: %w", err), "choose another --health-listen")
	}
	metricsListener, err := lc.Listen(ctx, "tcp", c.MetricsListen)
	if err != nil {
		_, _ = raw.Close(), healthListener.Close()
		return hint.New(fmt.Errorf("listen for metrics: %w", err), "choose another --metrics-listen")
	}
	var handler http.Handler
	if err = refuseOwnAddress(ctx, c.Upstream, raw.Addr()); err == nil {
		handler, err = s.handler()
	}
	if err != nil {
		_, _, _ = raw.Close(), healthListener.Close(), metricsListener.Close()
		return err
	}
	nodes := listen.NewServer(handler, s.certs, logger)
	health, figures := s.healthServer(), s.metricsServer()

	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	var wg sync.WaitGroup
	run := func(what string, f func() error) {
		wg.Go(func() {
			if err := f(); err != nil && !errors.Is(err, http.ErrServerClosed) {
				cancel(fmt.Errorf("%s: %w", what, err))
			}
		})
	}
	run("serve nodes", func() error { return nodes.ServeTLS(listen.Limit(raw, c.MaxConnections, s.trusted), "", "") })
	run("serve health", func() error { return health.Serve(listen.Limit(healthListener, maxOperators, nil)) })
	run("serve metrics", func() error { return figures.ServeTLS(listen.Limit(metricsListener, maxOperators, nil), "", "") })
	run("watch", func() error { return s.Run(ctx) })
	logger.Info("serving", "version", version, "listen", raw.Addr().String(),
		"health", healthListener.Addr().String(), "metrics", metricsListener.Addr().String(),
		"origins", c.Origins, "basis", s.Describe(), "upstream", c.Upstream)

	<-ctx.Done()
	logger.Info("shutting down")
	grace, stop := context.WithTimeout(context.Background(), shutdownGrace)
	defer stop()
	shutdown := errors.Join(nodes.Shutdown(grace), health.Shutdown(grace), figures.Shutdown(grace))
	wg.Wait()
	if cause := context.Cause(ctx); cause != nil && !errors.Is(cause, context.Canceled) {
		return cause
	}
	return shutdown
}

func newServer(c *config.Config, logger *slog.Logger, now func() time.Time) (*server, error) {
	s := &server{config: c, now: now, log: logger, metrics: metrics.New(), certs: &listen.Certificates{}, audit: audit.New(logger)}
	s.audit.LeftOut = s.metrics.AuditLeftOut
	var err error
	// What vouches is asked for with each document, once there is a basis.
	s.clouds, err = clouds.New(c, func() *trust.Trust { return s.World().Trust }, outbound.Options{Now: now, Log: logger, Called: s.metrics.ProviderCall})
	if err != nil {
		return nil, err
	}
	if c.Kubernetes != nil {
		b, err := newClusterBasis(s)
		if err != nil {
			return nil, err
		}
		s.basis, s.cluster = b, b
		s.metrics.Registerer().MustRegister(s.readyGauge())
		return s, nil
	}
	standalone, err := newStandaloneBasis(s)
	if err != nil {
		return nil, err
	}
	s.basis, s.standalone = standalone, standalone
	s.metrics.Registerer().MustRegister(s.readyGauge())
	return s, nil
}

// Close stops the probe, ends the sessions with clouds, and closes the basis.
func (s *server) Close() error {
	if s.stopProbe != nil {
		s.stopProbe()
	}
	return errors.Join(s.clouds.Close(), s.basis.Close())
}

// handler routes what nodes ask: the attestation API, and the gate for the rest.
func (s *server) handler() (http.Handler, error) {
	upstream, err := s.upstream()
	if err != nil {
		return nil, err
	}
	svc := &service.Service{
		Clouds: s.clouds.Verifiers, Directory: s.clouds.Directory(), AzureTokenResource: s.config.AzureTokenResource(),
		World: s.World, SealKeys: s.SealKeys, TokenKeys: s.TokenKeys, Records: s.Records(), Provisioning: s.Provisioning,
		ConfirmProvisioning: s.confirmProvisioning(),
		Origins:             func(o string) bool { return slices.Contains(s.config.Origins, o) },
		Served:              s.certs.Served, Issuer: s.config.Issuer(), Version: version,
		Audit: s.audit, Limiter: listen.NewLimiter(s.config.RequestsPerSecond), Source: s.source, Now: s.now,
		Observe: s.metrics.Decision, ObserveTicket: s.metrics.Report,
	}
	if s.config.KeepEvidence > 0 {
		keep, err := newEvidenceKeeper(s.config.Path("state", "evidence"), s.config.KeepEvidence, s.log)
		if err != nil {
			return nil, err
		}
		svc.Keep = keep.Keep
	}
	if s.cluster != nil {
		svc.Confirm = s.cluster.confirm.Confirm
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
		if answer, ok := door.Answer(s.SealKeys, s.now, r); ok {
			answer(w, r)
			return
		}
		gate.ServeHTTP(w, r)
	}), nil
}

// upstream is the real Machine Config Server behind a reverse proxy, or the
// folder's own configs.
func (s *server) upstream() (http.Handler, error) {
	if s.config.Upstream == "" {
		if s.standalone != nil {
			return s.standalone.ownConfigs(false), nil
		}
		return rendered(s.cluster.stored, false), nil
	}
	target, err := url.Parse(s.config.Upstream)
	if err != nil {
		return nil, fmt.Errorf("upstream: %w", err)
	}
	if s.cluster != nil {
		return s.proxy(target, &trusting{make: s.toUpstream, roots: s.cluster.cluster.UpstreamCAs}), nil
	}
	pem, err := os.ReadFile(s.config.UpstreamCA)
	if err != nil {
		return nil, hint.New(fmt.Errorf("read the upstream's CA: %w", err), "set upstreamCA")
	}
	roots := x509.NewCertPool()
	if !roots.AppendCertsFromPEM(pem) {
		return nil, fmt.Errorf("%s holds no certificate", s.config.UpstreamCA)
	}
	return s.proxy(target, s.toUpstream(roots)), nil
}

// proxy leads to the upstream, which is probed from now on until Close.
func (s *server) proxy(target *url.URL, transport http.RoundTripper) http.Handler {
	ctx, cancel := context.WithCancel(context.Background())
	s.upstreamProbe, s.stopProbe = newUpstreamProbe(target, transport, s.log), cancel
	go s.upstreamProbe.run(ctx)
	return gate.Proxy(target, transport)
}

func (s *server) toUpstream(roots *x509.CertPool) *http.Transport {
	return &http.Transport{
		TLSClientConfig:       &tls.Config{RootCAs: roots, ServerName: s.config.UpstreamName, MinVersion: tls.VersionTLS12},
		ResponseHeaderTimeout: 8 * time.Second,
		DisableCompression:    true, // what comes from upstream goes to Ignition as it is
		MaxIdleConnsPerHost:   32,
	}
}

// source is the client's address as limits and logs see it: for IPv6 its /64.
// Behind a trusted proxy it is the one that the proxy names.
func (s *server) source(r *http.Request) netip.Addr {
	direct := listen.Source(r.RemoteAddr)
	peer, err := netip.ParseAddrPort(r.RemoteAddr)
	if err != nil || !s.trusted(peer.Addr()) {
		return direct
	}
	hops := strings.Split(strings.Join(r.Header.Values("X-Forwarded-For"), ","), ",")
	for _, hop := range slices.Backward(hops) {
		a, err := netip.ParseAddr(strings.TrimSpace(hop))
		if err != nil {
			return direct
		}
		if !s.trusted(a) {
			return listen.Source(netip.AddrPortFrom(a, 0).String())
		}
	}
	return direct
}

// trusted is judged on the whole address, never on its /64.
func (s *server) trusted(a netip.Addr) bool {
	a = a.Unmap().WithZone("")
	return slices.ContainsFunc(s.config.TrustedProxies, func(p string) bool {
		prefix, err := netip.ParsePrefix(p)
		return err == nil && prefix.Contains(a)
	})
}
