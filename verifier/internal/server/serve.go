// SPDX-License-Identifier: Apache-2.0

package server

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"sync"

	"github.com/mcs-attest/mcs-attest/verifier/internal/backend"
	"github.com/mcs-attest/mcs-attest/verifier/internal/hint"
	"github.com/mcs-attest/mcs-attest/verifier/internal/listen"
	"github.com/mcs-attest/mcs-attest/verifier/internal/page"
)

// Serve listens and serves until ctx ends. Then it waits for attestations that have started, and for active
// requests.
func (s *Server) Serve(ctx context.Context) error {
	c, logger := s.Config, s.Log
	var lc net.ListenConfig
	raw, err := lc.Listen(ctx, "tcp", c.Listen)
	if err != nil {
		return hint.New(fmt.Errorf("listen: %w", err),
			"is another verifier, or the Machine Config Server itself, on %s?", c.Listen)
	}
	g, err := s.operators().listen(ctx)
	if err != nil {
		_ = raw.Close()
		return err
	}
	var handler http.Handler
	if err = refuseOwnAddress(ctx, c.Upstream, raw.Addr()); err == nil {
		handler, err = s.Handler(ctx)
	}
	if err != nil {
		_ = raw.Close()
		g.close()
		return err
	}
	nodes, limited := listen.NewServer(handler, s.Certificates, logger), listen.Limit(raw, c.MaxConnections, s.Trusted)
	g.add("serve nodes", nodes, func() error {
		return nodes.Serve(listen.Encrypt(limited, nodes.TLSConfig))
	})
	g.drain = limited.Drain
	logger.Info("serving", "version", s.Version, "listen", raw.Addr().String(),
		"health", g.health.Addr().String(), "metrics", g.figures.Addr().String(),
		"origins", c.Origins, "basis", s.Describe(), "upstream", c.Upstream)
	return g.run(ctx, s.Backend.Run)
}

// Controller is a process that does not serve machines.
type Controller interface {
	// Checks returns the names of the parts that Problems reports.
	Checks() []string
	Problems() []string
	MetricsHandler() http.Handler
	// ProtectPage is that of backend.Backend.
	ProtectPage(path string, h http.Handler) http.Handler
	page.Source
	Run(ctx context.Context) error
}

// ServeController runs k, and serves its health and metrics, until ctx ends.
func ServeController(ctx context.Context, p *backend.Parts, k Controller) error {
	o := &operators{p, k.Checks, k.Problems, k.MetricsHandler(), nil}
	if h := newPage(p, k, k.Problems); h != nil {
		o.page = k.ProtectPage(page.Path, h)
	}
	g, err := o.listen(ctx)
	if err != nil {
		return err
	}
	p.Log.Info("running controllers", "version", p.Version,
		"health", g.health.Addr().String(), "metrics", g.figures.Addr().String())
	return g.run(ctx, k.Run)
}

// group is a set of servers that run and stop together.
type group struct {
	log             *slog.Logger
	health, figures net.Listener
	servers         []member
	drain           func(context.Context) // if not nil, waits for work between two requests
}

type member struct {
	what   string
	server *http.Server
	serve  func() error
}

// listen opens the listeners for administrators.
func (o *operators) listen(ctx context.Context) (*group, error) {
	var lc net.ListenConfig
	g := &group{log: o.Log}
	var err error
	if g.health, err = lc.Listen(ctx, "tcp", o.Config.HealthListen); err != nil {
		return nil, hint.New(fmt.Errorf("listen for health: %w", err), "choose another --health-listen")
	}
	if g.figures, err = lc.Listen(ctx, "tcp", o.Config.MetricsListen); err != nil {
		_ = g.health.Close()
		return nil, hint.New(fmt.Errorf("listen for metrics: %w", err), "choose another --metrics-listen")
	}
	health, figures := o.healthServer(), o.metricsServer(ctx)
	g.add("serve health", health, func() error { return health.Serve(listen.Limit(g.health, MaxOperators, nil)) })
	g.add("serve metrics", figures, func() error {
		return figures.ServeTLS(listen.Limit(g.figures, MaxOperators, nil), "", "")
	})
	return g, nil
}

func (g *group) add(what string, server *http.Server, serve func() error) {
	g.servers = append(g.servers, member{what, server, serve})
}

func (g *group) close() { _, _ = g.health.Close(), g.figures.Close() }

// run runs watch and the servers until the context ends or one of them fails.
func (g *group) run(until context.Context, watch func(context.Context) error) error {
	ctx, cancel := context.WithCancelCause(until)
	defer cancel(nil)
	var wg sync.WaitGroup
	run := func(what string, f func() error) {
		wg.Go(func() {
			if err := f(); err != nil && !errors.Is(err, http.ErrServerClosed) {
				cancel(fmt.Errorf("%s: %w", what, err))
			}
		})
	}
	for _, m := range g.servers {
		run(m.what, m.serve)
	}
	watching, stopWatching := context.WithCancel(context.WithoutCancel(ctx))
	defer stopWatching()
	run("watch", func() error { return watch(watching) })

	<-ctx.Done()
	g.log.Info("shutting down")
	grace, stop := context.WithTimeout(context.WithoutCancel(ctx), shutdownGrace)
	defer stop()
	if g.drain != nil && until.Err() != nil {
		draining, stop := context.WithTimeout(grace, drainGrace)
		g.drain(draining)
		stop()
	}
	stopWatching()
	stopped := make([]error, len(g.servers))
	for i, m := range g.servers {
		wg.Go(func() { stopped[i] = m.server.Shutdown(grace) })
	}
	wg.Wait()
	if cause := context.Cause(ctx); cause != nil && !errors.Is(cause, context.Canceled) {
		return cause
	}
	return errors.Join(stopped...)
}
