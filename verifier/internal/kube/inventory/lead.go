// SPDX-License-Identifier: Apache-2.0

package inventory

import (
	"context"
	"time"

	"github.com/mcs-attest/mcs-attest/verifier/internal/backend"
)

// OptionsFor returns the options that the front and the controller share.
func OptionsFor(p *backend.Parts) Options {
	c := p.Config
	return Options{
		Log: p.Log, Now: p.Now, Version: p.Version, ProvisioningToken: c.ProvisioningToken,
		KeyPublishDelay: time.Duration(c.KeyPublishDelay), Called: p.Metrics.APICall, Observe: c.WebPage,
		Agents: c.Agents != nil,
	}
}

// Unready returns what was not read yet, or may be outdated.
func (c *Inventory) Unready() []string {
	var problems []string
	_, unsynced := c.Synced()
	for _, p := range unsynced {
		problems = append(problems, "cluster: "+p)
	}
	if err := c.View().Stale; err != nil {
		problems = append(problems, "records: "+err.Error())
	}
	return problems
}

// Lead marks this replica as the leader until ctx ends, and reviews what the front may read. The controller process
// runs it while it has the lease.
func (c *Inventory) Lead(ctx context.Context) error {
	c.leading.Store(true)
	c.log.Info("this replica holds the lease", "identity", c.o.Identity)
	c.reviewFront(ctx)
	c.leading.Store(false)
	c.log.Info("this replica no longer holds the lease")
	return nil
}

// Leading reports whether this replica holds the lease.
func (c *Inventory) Leading() bool { return c.leading.Load() }
