// SPDX-License-Identifier: Apache-2.0

package command

import (
	"context"
	"os"

	"github.com/mcs-attest/mcs-attest/agent/internal/cloud"
	"github.com/mcs-attest/mcs-attest/agent/internal/flow"
	"github.com/mcs-attest/mcs-attest/agent/internal/platform"
	"github.com/mcs-attest/mcs-attest/pkg/firstboot"
)

// addCloud gives the flow the platform's evidence and the claims. It starts the lookup of the
// provider id, which runs while the TPM is prepared.
func (a *agent) addCloud(ctx context.Context, f *flow.Flow, platformID string) error {
	c, err := cloud.New(a.paths, platformID)
	if err != nil {
		return err
	}
	if c == nil {
		f.Claims = func(context.Context) []byte { return flow.Claims(a.paths, platformID, "", a.stage()) }
		return nil
	}
	c.Start(ctx)
	f.Cloud = c
	printed := ""
	f.Claims = func(ctx context.Context) []byte {
		id, err := c.ProviderID(ctx)
		if err != nil && err.Error() != printed {
			printed = err.Error()
			a.console.Step("no provider id in the claims: %v", err)
		}
		return flow.Claims(a.paths, platformID, id, a.stage())
	}
	return nil
}

// stage returns the claim about the stage of the boot, "" in the initramfs.
func (a *agent) stage() string {
	if a.realRoot {
		return firstboot.RealRoot
	}
	return ""
}

// identifyCloud adds the cloud's provider id and kinds of evidence to id. It returns false on other
// platforms.
func (a *agent) identifyCloud(ctx context.Context, id *identity) bool {
	machine, err := platform.New(a.paths, os.Getenv("PLATFORM_ID"))
	if err != nil {
		return false
	}
	c, err := cloud.New(a.paths, machine.ID)
	if c == nil || err != nil {
		return false
	}
	if id.ProviderID, err = c.ProviderID(ctx); err != nil {
		id.CloudProblem = err.Error()
	}
	for _, kind := range c.Offers() {
		id.CloudEvidence = append(id.CloudEvidence, kind.String())
	}
	return true
}
