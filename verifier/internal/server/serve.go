package server

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"sync"

	"github.com/mcs-attest/mcs-attest/verifier/internal/hint"
	"github.com/mcs-attest/mcs-attest/verifier/internal/listen"
)

// Serve listens and serves until ctx ends. Then it waits for the requests under way.
func (s *Server) Serve(ctx context.Context) error {
	c, logger := s.Config, s.Log
	var lc net.ListenConfig
	raw, err := lc.Listen(ctx, "tcp", c.Listen)
	if err != nil {
		return hint.New(fmt.Errorf("listen: %w", err),
			"is another verifier, or the Machine Config Server itself, on %s?", c.Listen)
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
		handler, err = s.Handler(ctx)
	}
	if err != nil {
		_, _, _ = raw.Close(), healthListener.Close(), metricsListener.Close()
		return err
	}
	nodes := listen.NewServer(handler, s.Certificates, logger)
	health, figures := s.HealthServer(), s.metricsServer()

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
	run("serve nodes", func() error { return nodes.ServeTLS(listen.Limit(raw, c.MaxConnections, s.Trusted), "", "") })
	run("serve health", func() error { return health.Serve(listen.Limit(healthListener, MaxOperators, nil)) })
	run("serve metrics", func() error {
		return figures.ServeTLS(listen.Limit(metricsListener, MaxOperators, nil), "", "")
	})
	run("watch", func() error { return s.Backend.Run(ctx) })
	logger.Info("serving", "version", s.Version, "listen", raw.Addr().String(),
		"health", healthListener.Addr().String(), "metrics", metricsListener.Addr().String(),
		"origins", c.Origins, "basis", s.Describe(), "upstream", c.Upstream)

	<-ctx.Done()
	logger.Info("shutting down")
	grace, stop := context.WithTimeout(context.WithoutCancel(ctx), shutdownGrace)
	defer stop()
	shutdown := errors.Join(nodes.Shutdown(grace), health.Shutdown(grace), figures.Shutdown(grace))
	wg.Wait()
	if cause := context.Cause(ctx); cause != nil && !errors.Is(cause, context.Canceled) {
		return cause
	}
	return shutdown
}
