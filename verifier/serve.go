package main

import (
	"context"
	"crypto/rand"
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
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/spf13/cobra"

	"github.com/mcs-attest/mcs-attest/pkg/gate"
	"github.com/mcs-attest/mcs-attest/pkg/seal"
	"github.com/mcs-attest/mcs-attest/pkg/token"
	"github.com/mcs-attest/mcs-attest/verifier/internal/admin"
	"github.com/mcs-attest/mcs-attest/verifier/internal/audit"
	"github.com/mcs-attest/mcs-attest/verifier/internal/config"
	"github.com/mcs-attest/mcs-attest/verifier/internal/folder"
	"github.com/mcs-attest/mcs-attest/verifier/internal/listen"
	"github.com/mcs-attest/mcs-attest/verifier/internal/metrics"
	"github.com/mcs-attest/mcs-attest/verifier/internal/pki"
	"github.com/mcs-attest/mcs-attest/verifier/internal/reload"
	"github.com/mcs-attest/mcs-attest/verifier/internal/service"
	"github.com/mcs-attest/mcs-attest/verifier/internal/standalone"
	"github.com/mcs-attest/mcs-attest/verifier/internal/store"
)

// shutdownGrace is how long requests under way may take when the verifier stops.
const shutdownGrace = 20 * time.Second

func newServeCommand() *cobra.Command {
	var configPath, listenAddr, metricsAddr, logFormat, logLevel string
	cmd := &cobra.Command{
		Use:   "serve",
		Short: "Serve attestation and the gate",
		Long: `Serve the attestation API and the gate on one TLS listener, and metrics and
health (/metrics, /healthz, /readyz) on another. Folder, certificates and keys are
read again when they change; a change that is broken keeps the last good state
and is reported. SIGTERM lets requests under way finish.`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			c, err := loadConfig(configPath)
			if err != nil {
				return err
			}
			if listenAddr != "" {
				c.Listen = listenAddr
			}
			if metricsAddr != "" {
				c.MetricsListen = metricsAddr
			}
			logger, err := newLogger(logFormat, logLevel)
			if err != nil {
				return err
			}
			return serve(cmd.Context(), c, logger)
		},
	}
	configFlag(cmd, &configPath)
	f := cmd.Flags()
	f.StringVar(&listenAddr, "listen", "", "address of the gate and the attestation API (default: the configuration's, else :22623)")
	f.StringVar(&metricsAddr, "metrics-listen", "", "address of metrics and health (default: the configuration's, else 127.0.0.1:22680)")
	f.StringVar(&logFormat, "log-format", "json", `"json" or "text"`)
	f.StringVar(&logLevel, "log-level", "info", `"debug", "info", "warn" or "error"`)
	return cmd
}

func newLogger(format, level string) (*slog.Logger, error) {
	var l slog.Level
	if err := l.UnmarshalText([]byte(level)); err != nil {
		return nil, fmt.Errorf("log level %q: must be debug, info, warn or error", level)
	}
	o := &slog.HandlerOptions{Level: l}
	switch format {
	case "json":
		return slog.New(slog.NewJSONHandler(os.Stderr, o)), nil
	case "text":
		return slog.New(slog.NewTextHandler(os.Stderr, o)), nil
	}
	return nil, fmt.Errorf(`log format %q: must be "json" or "text"`, format)
}

// server is everything that serves, wired.
type server struct {
	config  *config.Config
	log     *slog.Logger
	metrics *metrics.Metrics
	folder  *folder.Folder
	records *store.Store
	keeper  *standalone.Keeper
	certs   *listen.Certificates
	serving *reload.Value[*tls.Certificate]
	tokens  *reload.Value[token.KeySet]
	seals   *reload.Value[seal.Ring]
	audit   *audit.Log
	now     func() time.Time
}

func serve(ctx context.Context, c *config.Config, logger *slog.Logger) error {
	s, err := newServer(c, logger, time.Now)
	if err != nil {
		return err
	}
	defer func() {
		if err := s.records.Close(); err != nil {
			logger.Error("close records", "error", err)
		}
	}()
	var lc net.ListenConfig
	raw, err := lc.Listen(ctx, "tcp", c.Listen)
	if err != nil {
		return hint(fmt.Errorf("listen: %w", err), "is another verifier, or the Machine Config Server itself, on %s?", c.Listen)
	}
	metricsListener, err := lc.Listen(ctx, "tcp", c.MetricsListen)
	if err != nil {
		_ = raw.Close()
		return hint(fmt.Errorf("listen for metrics: %w", err), "choose another --metrics-listen")
	}
	handler, err := s.handler()
	if err != nil {
		_, _ = raw.Close(), metricsListener.Close()
		return err
	}
	nodes := listen.NewServer(handler, s.certs, logger)
	operators := &http.Server{Handler: s.operatorHandler(), ReadHeaderTimeout: 10 * time.Second, WriteTimeout: 30 * time.Second}

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
	run("serve nodes", func() error { return nodes.ServeTLS(listen.Limit(raw, c.MaxConnections), "", "") })
	run("serve metrics", func() error { return operators.Serve(metricsListener) })
	run("admin socket", func() error {
		return admin.Serve(ctx, c.Path("state", "admin.sock"), s.keeper.State, logger)
	})
	run("watch", func() error { s.watch(ctx); return nil })
	logger.Info("serving", "version", version, "listen", raw.Addr().String(), "metrics", metricsListener.Addr().String(),
		"origins", c.Origins, "folder", c.Data, "upstream", c.Upstream)

	<-ctx.Done()
	logger.Info("shutting down")
	grace, stop := context.WithTimeout(context.Background(), shutdownGrace)
	defer stop()
	shutdown := errors.Join(nodes.Shutdown(grace), operators.Shutdown(grace))
	wg.Wait()
	if cause := context.Cause(ctx); cause != nil && !errors.Is(cause, context.Canceled) {
		return cause
	}
	return shutdown
}

func newServer(c *config.Config, logger *slog.Logger, now func() time.Time) (*server, error) {
	s := &server{config: c, now: now, log: logger, metrics: metrics.New(), certs: &listen.Certificates{}, audit: audit.New(logger)}
	const initHint = "'mcs-attest-verifier init' makes a complete folder"
	var err error
	if s.folder, err = folder.Open(c.Data); err != nil {
		return nil, hint(err, initHint)
	}
	if s.serving, err = reload.New(pki.ParseServing, c.Path("tls", "tls.crt"), c.Path("tls", "tls.key")); err != nil {
		return nil, hint(err, initHint)
	}
	if s.tokens, err = reload.New(func(b [][]byte) (token.KeySet, error) { return token.ParseKeySet(b[0]) }, c.Path("keys", "token.json")); err != nil {
		return nil, hint(err, initHint)
	}
	if s.seals, err = reload.New(func(b [][]byte) (seal.Ring, error) { return seal.ParseRing(b[0]) }, c.Path("keys", "seal.json")); err != nil {
		return nil, hint(err, initHint)
	}
	if err := s.certs.Set(s.serving.Load()); err != nil {
		return nil, err
	}
	if err := os.MkdirAll(c.Path("state"), 0o700); err != nil {
		return nil, fmt.Errorf("make folder: %w", err)
	}
	if s.records, err = store.Open(c.Path("state", "records.db")); err != nil {
		if errors.Is(err, store.ErrLocked) {
			return nil, hint(err, "another verifier serves this folder; standalone means one replica")
		}
		return nil, err
	}
	s.keeper = standalone.NewKeeper(s.records, s.folder.Snapshot(), logger, now)
	s.measure(s.folder.Snapshot())
	return s, nil
}

// watch follows the files until ctx ends.
func (s *server) watch(ctx context.Context) {
	var wg sync.WaitGroup
	wg.Go(func() {
		s.folder.Watch(ctx, func(snapshot *folder.Snapshot) {
			s.keeper.Take(snapshot)
			s.measure(snapshot)
			s.log.Info("folder read", "machines", len(snapshot.Machines.Machines()), "problems", len(snapshot.Problems))
		})
	})
	wg.Go(func() {
		tick := time.NewTicker(time.Minute)
		defer tick.Stop()
		for {
			select {
			case <-ctx.Done():
				return
			case <-tick.C:
				s.keeper.Sweep()
			}
		}
	})
	wg.Go(func() {
		s.serving.Watch(ctx, func(changed bool, err error) {
			if changed {
				err = s.certs.Set(s.serving.Load())
			}
			s.reloaded("serving certificate", changed, err)
		})
	})
	wg.Go(func() { s.tokens.Watch(ctx, func(changed bool, err error) { s.reloaded("token keys", changed, err) }) })
	wg.Go(func() { s.seals.Watch(ctx, func(changed bool, err error) { s.reloaded("sealing keys", changed, err) }) })
	wg.Wait()
}

func (s *server) reloaded(what string, changed bool, err error) {
	switch {
	case err != nil:
		s.log.Error("reload failed; the last good state is in force", "what", what, "error", err)
	case changed:
		s.log.Info("reloaded", "what", what)
	default:
		s.log.Info("readable again", "what", what)
	}
	s.measure(s.keeper.Snapshot())
}

func (s *server) measure(snapshot *folder.Snapshot) {
	now := s.now()
	s.metrics.Folder(now, len(snapshot.Problems), map[string]int{
		"machine": len(snapshot.Machines.Machines()), "reference-values": len(snapshot.ReferenceValues),
		"ek-root": snapshot.EKRoots.Len(), "config": len(snapshot.Configs),
	})
	if at, ok := snapshot.EKRoots.NotAfter(now); ok {
		s.metrics.Expiry("ek-roots", at)
	}
	if leaf := s.serving.Load().Leaf; leaf != nil {
		s.metrics.Expiry("serving-certificate", leaf.NotAfter)
	}
}

// handler routes what nodes ask: the attestation API, and the gate for the rest.
func (s *server) handler() (http.Handler, error) {
	upstream, err := s.upstream()
	if err != nil {
		return nil, err
	}
	svc := &service.Service{
		World: s.keeper.World, SealKeys: s.seals.Load, TokenKeys: s.tokens.Load, Records: s.records,
		Origins: func(o string) bool { return slices.Contains(s.config.Origins, o) },
		Served:  s.certs.Served, Issuer: s.config.Issuer(), Version: version,
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
	// No http.ServeMux here: it answers an unclean path with a redirect, and a
	// redirect makes Ignition drop its headers.
	prefix, api := svc.Handler()
	door := s.gate(upstream)
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if strings.HasPrefix(r.URL.Path, prefix) {
			api.ServeHTTP(w, r)
			return
		}
		door.ServeHTTP(w, r)
	}), nil
}

// upstream is the real Machine Config Server behind a reverse proxy, or the
// folder's own configs.
func (s *server) upstream() (http.Handler, error) {
	if s.config.Upstream == "" {
		return s.ownConfigs(), nil
	}
	target, err := url.Parse(s.config.Upstream)
	if err != nil {
		return nil, fmt.Errorf("upstream: %w", err)
	}
	pem, err := os.ReadFile(s.config.UpstreamCA)
	if err != nil {
		return nil, hint(fmt.Errorf("read the upstream's CA: %w", err), "set upstreamCA")
	}
	roots := x509.NewCertPool()
	if !roots.AppendCertsFromPEM(pem) {
		return nil, fmt.Errorf("%s holds no certificate", s.config.UpstreamCA)
	}
	return gate.Proxy(target, &http.Transport{
		TLSClientConfig:       &tls.Config{RootCAs: roots, ServerName: s.config.UpstreamName, MinVersion: tls.VersionTLS12},
		ResponseHeaderTimeout: 8 * time.Second,
		DisableCompression:    true, // what comes from upstream goes to Ignition as it is
		MaxIdleConnsPerHost:   32,
	}), nil
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

// operatorHandler is metrics and health.
func (s *server) operatorHandler() http.Handler {
	mux := http.NewServeMux()
	mux.Handle("GET /metrics", s.metrics.Handler())
	mux.HandleFunc("GET /healthz", func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusOK) })
	mux.HandleFunc("GET /readyz", func(w http.ResponseWriter, _ *http.Request) {
		if problems := s.unready(); len(problems) > 0 {
			w.WriteHeader(http.StatusServiceUnavailable)
			for _, p := range problems {
				fmt.Fprintln(w, p)
			}
			return
		}
		fmt.Fprintln(w, "ready")
	})
	return mux
}

// unready says why the verifier could not serve a machine now.
func (s *server) unready() []string {
	var problems []string
	now := s.now()
	if _, err := s.records.Record("readyz"); err != nil {
		problems = append(problems, "records: "+err.Error())
	}
	if len(s.keeper.World().Policies.Pools()) == 0 {
		problems = append(problems, "policies: no policy covers any pool")
	}
	if leaf := s.serving.Load().Leaf; leaf != nil && now.After(leaf.NotAfter) {
		problems = append(problems, "serving certificate: expired")
	}
	if _, ok := s.tokens.Load().Current(now); !ok {
		problems = append(problems, "token keys: none may sign now")
	}
	if _, err := s.seals.Load().SealTicket(rand.Reader, now, seal.Ticket{}); err != nil {
		problems = append(problems, "sealing keys: "+err.Error())
	}
	for _, path := range s.keeper.Snapshot().Incomplete {
		problems = append(problems, "folder: "+path+" has been broken since the start")
	}
	return problems
}

// offlineState is status without a serving verifier.
func offlineState(c *config.Config, now time.Time) (*admin.State, error) {
	snapshot, err := folder.Load(c.Data)
	if err != nil {
		return nil, err
	}
	var records *store.Store
	path := c.Path("state", "records.db")
	if _, err := os.Stat(path); err == nil {
		if records, err = store.OpenReadOnly(path); err != nil {
			return nil, err
		}
		defer records.Close() //nolint:errcheck // it was only read
	}
	return standalone.State(snapshot, records, now, false)
}
