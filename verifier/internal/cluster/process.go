package cluster

import (
	"time"

	"github.com/mcs-attest/mcs-attest/verifier/internal/backend"
)

// OptionsFor are the options that the front and the controller share.
func OptionsFor(p *backend.Parts) Options {
	c := p.Config
	return Options{
		Log: p.Log, Now: p.Now, Version: p.Version, Origins: c.Origins, ProvisioningToken: c.ProvisioningToken,
		KeyRotation: time.Duration(c.KeyRotation), KeyPublishDelay: time.Duration(c.KeyPublishDelay),
		Called: p.Metrics.APICall,
	}
}

// Unready says what was not read yet, or may be outdated.
func (c *Cluster) Unready() []string {
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
