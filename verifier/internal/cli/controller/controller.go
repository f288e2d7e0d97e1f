// SPDX-License-Identifier: Apache-2.0

// Package controller has the command that runs the controllers of a cluster.
package controller

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/spf13/cobra"

	"github.com/mcs-attest/mcs-attest/verifier/internal/backend"
	"github.com/mcs-attest/mcs-attest/verifier/internal/cli/env"
	"github.com/mcs-attest/mcs-attest/verifier/internal/config"
	"github.com/mcs-attest/mcs-attest/verifier/internal/hint"
	"github.com/mcs-attest/mcs-attest/verifier/internal/kube"
	"github.com/mcs-attest/mcs-attest/verifier/internal/kube/controllers"
	"github.com/mcs-attest/mcs-attest/verifier/internal/server"
)

// The addresses, unless a flag says otherwise. Those in the configuration are of "serve", which runs on the
// same hosts.
const (
	HealthListen  = "127.0.0.1:22682"
	MetricsListen = ":9623"
)

// Command is "controller".
func Command(e *env.Env) *cobra.Command {
	var configPath, healthAddr, metricsAddr string
	var webPage bool
	var logs *env.Log
	cmd := &cobra.Command{
		Use:   "controller",
		Short: "Run the controllers of a cluster",
		Long: `Run the controllers of a cluster. They approve certificate signing requests, create
bootstrap credentials, renew certificates, and rotate keys and tokens. They keep the
provisioning token in pointer configs current, and records consistent with Machines,
also after a restore of etcd. They check that the Machine Config Servers are reachable
only through the gate, and write conditions.

The command reads the same configuration file as "serve", with the section kubernetes,
and uses a service account of its own. With several replicas, one leads. It listens
only for health (/healthz and /readyz, in plain HTTP on the loopback) and for metrics
(/metrics, over TLS; the API server decides who may read them).`,
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
			if err := config.Loopback(healthAddr); err != nil {
				return env.Usage(fmt.Errorf("--health-listen: %w", err))
			}
			if err := config.Address(metricsAddr); err != nil {
				return env.Usage(fmt.Errorf("--metrics-listen: %w", err))
			}
			c.HealthListen, c.MetricsListen = healthAddr, metricsAddr
			c.WebPage = c.WebPage || webPage
			kube.SetLogger(logger)
			kube.SetGCPercent()
			defer env.UntilSignal(cmd)()
			return Run(cmd.Context(), c, logger, e.Version)
		},
	}
	env.ConfigFlag(cmd, &configPath)
	f := cmd.Flags()
	f.StringVar(&healthAddr, "health-listen", HealthListen, "address for health, on the loopback")
	f.StringVar(&metricsAddr, "metrics-listen", MetricsListen, "address for metrics")
	f.BoolVar(&webPage, "web-page", false, "serve the web page; see docs/web-page.md (default: from the configuration)")
	logs = env.LogFlags(cmd)
	return cmd
}

// Run runs the controllers until ctx ends.
func Run(ctx context.Context, c *config.Config, log *slog.Logger, version string) error {
	p, k, err := New(c, log, time.Now, version)
	if err != nil {
		return err
	}
	return server.ServeController(ctx, p, k)
}

// New prepares the controllers that the configuration asks for.
func New(
	c *config.Config, log *slog.Logger, now func() time.Time, version string,
) (*backend.Parts, *controllers.Process, error) {
	if c.Kubernetes == nil {
		return nil, nil, hint.New(errors.New("the configuration has no section kubernetes"),
			"without a cluster no controller is needed; run only 'mcs-attest-verifier serve'")
	}
	p := backend.NewParts(c, log, now, version)
	k, err := controllers.New(p)
	return p, k, err
}
