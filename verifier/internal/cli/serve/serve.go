// SPDX-License-Identifier: Apache-2.0

// Package serve has the command that serves. It wires a backend, a folder or a cluster, to the server.
package serve

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"runtime/debug"
	"time"

	"github.com/spf13/cobra"

	"github.com/mcs-attest/mcs-attest/verifier/internal/backend"
	"github.com/mcs-attest/mcs-attest/verifier/internal/cli/env"
	"github.com/mcs-attest/mcs-attest/verifier/internal/clouds"
	"github.com/mcs-attest/mcs-attest/verifier/internal/config"
	"github.com/mcs-attest/mcs-attest/verifier/internal/kube"
	"github.com/mcs-attest/mcs-attest/verifier/internal/kube/front"
	"github.com/mcs-attest/mcs-attest/verifier/internal/outbound"
	"github.com/mcs-attest/mcs-attest/verifier/internal/server"
	"github.com/mcs-attest/mcs-attest/verifier/internal/standalone"
	"github.com/mcs-attest/mcs-attest/verifier/internal/trust"
)

// memoryLimit is where the collector begins to work harder, without a cluster and
// unless GOMEMLIMIT says otherwise. A folder needs a fifth of it; the rest is for
// connections.
const memoryLimit = 112 << 20

// folderGCPercent is how much garbage may pile up below memoryLimit, in percent of what
// is in use, unless GOGC says otherwise. A folder uses little, so that the default of 100
// makes the collector run all the time.
const folderGCPercent = 400

// Command is "serve".
func Command(e *env.Env) *cobra.Command {
	var configPath, listenAddr, healthAddr, metricsAddr string
	var webPage bool
	var logs *env.Log
	cmd := &cobra.Command{
		Use:   "serve",
		Short: "Serve attestation and the gate",
		Long: `Serve the attestation API and the gate on one TLS listener, metrics (/metrics) on
another, and health (/healthz and /readyz) in plain HTTP on the loopback. In a cluster
the API server decides who may read the metrics. The verifier reads the folder,
certificates and keys again when they change. If a change is invalid, it reports the
error and keeps the last good state. On SIGTERM it completes the current requests. In
a cluster, also run "controller", which does everything else.`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			logger, err := logs.Logger()
			if err != nil {
				return err
			}
			c, err := env.LoadConfig(configPath)
			if err != nil {
				return err
			}
			if listenAddr != "" {
				if err := config.Address(listenAddr); err != nil {
					return env.Usage(fmt.Errorf("--listen: %w", err))
				}
				c.Listen = listenAddr
			}
			if healthAddr != "" {
				if err := config.Loopback(healthAddr); err != nil {
					return env.Usage(fmt.Errorf("--health-listen: %w", err))
				}
				c.HealthListen = healthAddr
			}
			if metricsAddr != "" {
				if err := config.Address(metricsAddr); err != nil {
					return env.Usage(fmt.Errorf("--metrics-listen: %w", err))
				}
				c.MetricsListen = metricsAddr
			}
			c.WebPage = c.WebPage || webPage
			if c.Kubernetes == nil && os.Getenv("GOMEMLIMIT") == "" {
				debug.SetMemoryLimit(memoryLimit)
				if os.Getenv("GOGC") == "" {
					debug.SetGCPercent(folderGCPercent)
				}
			}
			if c.Kubernetes != nil {
				kube.SetGCPercent()
			}
			kube.SetLogger(logger)
			defer env.UntilSignal(cmd)()
			return Run(cmd.Context(), c, logger, e.Version)
		},
	}
	env.ConfigFlag(cmd, &configPath)
	f := cmd.Flags()
	f.StringVar(&listenAddr, "listen", "",
		"address for the gate and the attestation API (default: from the configuration, else :22623)")
	f.StringVar(&healthAddr, "health-listen", "",
		"address for health, on the loopback (default: from the configuration, else 127.0.0.1:22681)")
	f.StringVar(&metricsAddr, "metrics-listen", "",
		"address for metrics (default: from the configuration, else 127.0.0.1:9622)")
	f.BoolVar(&webPage, "web-page", false, "serve the web page; see docs/web-page.md (default: from the configuration)")
	logs = env.LogFlags(cmd)
	return cmd
}

// Run serves until ctx ends.
func Run(ctx context.Context, c *config.Config, log *slog.Logger, version string) error {
	s, err := New(c, log, time.Now, version) //nolint:contextcheck // it makes no call that could hang
	if err != nil {
		return err
	}
	defer func() {
		if err := s.Close(); err != nil {
			log.Error("close", "error", err)
		}
	}()
	return s.Serve(ctx)
}

// New wires the backend that the configuration names to a server.
func New(c *config.Config, log *slog.Logger, now func() time.Time, version string) (*server.Server, error) {
	var b backend.Backend
	p := backend.NewParts(c, log, now, version)
	var err error
	p.Clouds, err = clouds.New(c, func() *trust.Trust { return b.View().Trust },
		outbound.Options{Now: now, Log: log, Called: p.Metrics.ProviderCall})
	if err != nil {
		return nil, err
	}
	if c.Kubernetes != nil {
		b, err = front.New(p)
	} else {
		b, err = standalone.New(p)
	}
	if err != nil {
		return nil, err
	}
	return server.New(p, b), nil
}
