// SPDX-License-Identifier: Apache-2.0

package operator

import (
	"context"

	"k8s.io/client-go/rest"

	"github.com/mcs-attest/mcs-attest/verifier/internal/config"
)

// Rest is how the cluster is reached, for commands with clients of their own.
func (c *Cluster) Rest() *rest.Config { return rest.CopyConfig(c.rest) }

// Own is the namespace of the cluster's verifier.
func (c *Cluster) Own() string { return c.o.Own }

// Configuration is that of the cluster's verifier. A [hint.Error] error: there is none.
func (c *Cluster) Configuration(ctx context.Context) (*config.Config, error) { return c.config(ctx) }
