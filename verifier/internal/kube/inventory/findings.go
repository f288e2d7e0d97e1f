// SPDX-License-Identifier: Apache-2.0

package inventory

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/mcs-attest/mcs-attest/pkg/api/v1alpha1"
	"github.com/mcs-attest/mcs-attest/pkg/provisioning"
	rule "github.com/mcs-attest/mcs-attest/pkg/restore"
	"github.com/mcs-attest/mcs-attest/verifier/internal/kube/restore"
	"github.com/mcs-attest/mcs-attest/verifier/internal/view"
)

var attestationsResource = v1alpha1.GroupVersion.WithResource("machineattestations")

// certificateWarning is the time before its expiry at which a serving certificate is reported. The
// Machine Config Operator renews it two years before.
const certificateWarning = 30 * 24 * time.Hour

// Findings returns the problems for an administrator, the most severe first.
func (c *Inventory) Findings() []view.Finding {
	return slices.Concat(c.restoreFindings(), c.sourceFindings(), c.frontFindings(), c.policyFindings(),
		c.secretFindings())
}

// Guard returns the guard that keeps the state from before a restore of etcd.
func (c *Inventory) Guard() *restore.Guard { return c.guard }

// restoreFindings returns the restores of etcd that are not acknowledged.
func (c *Inventory) restoreFindings() (all []view.Finding) {
	for _, text := range c.guard.Problems() {
		all = append(all, view.Finding{Reason: rule.Reason, Text: text})
	}
	return all
}

// sourceFindings returns the kinds that cannot be read, or whose objects are too old for a grant.
func (c *Inventory) sourceFindings() (all []view.Finding) {
	for _, w := range c.watches.Sources() {
		s, wrong := w.Status()
		switch {
		case wrong && s.Forbidden:
			all = append(all, view.Finding{Reason: "Forbidden", Text: s.Text})
		case wrong && s.Unsynced:
			if !s.Advisory && c.o.Now().Sub(c.began) > c.o.Pass {
				all = append(all, view.Finding{Reason: "NotSynced", Text: s.Text})
			}
		default:
			if text := w.Outdated(time.Now()); text != "" {
				all = append(all, view.Finding{Reason: "NotSynced", Text: text})
			}
		}
	}
	return all
}

// policyFindings returns the policies that need agents that are not configured, and the objects that cannot be used as
// they are. It names three of these.
func (c *Inventory) policyFindings() []view.Finding {
	var all []view.Finding
	if text := c.View().Policies.WithoutAgents(); text != "" && !c.o.Agents {
		all = append(all, view.Finding{Reason: "AgentsMissing", Text: text})
	}
	problems := c.Problems()
	if len(problems) == 0 {
		return all
	}
	more := ""
	if n := len(problems) - 3; n > 0 {
		more = fmt.Sprintf(" and %d more", n)
		problems = problems[:3]
	}
	return append(all, view.Finding{Reason: "ObjectsNotUsable", Text: strings.Join(problems, "; ") + more})
}

// secretFindings returns the problems of the keys, the certificate and the provisioning token.
func (c *Inventory) secretFindings() (all []view.Finding) {
	now := c.o.Now()
	if cert := c.ServingCertificate(); cert != nil && cert.Leaf != nil &&
		cert.Leaf.NotAfter.Sub(now) < certificateWarning {
		all = append(all, view.Finding{Reason: "CertificateExpires",
			Text: "the serving certificate expires on " + cert.Leaf.NotAfter.UTC().Format(time.RFC3339)})
	}
	if at := c.Keys().Ahead(now, c.o.KeyPublishDelay); !at.IsZero() {
		all = append(all, view.Finding{Reason: "KeysDatedAhead",
			Text: fmt.Sprintf("a key in Secret %s becomes valid only on %s; "+
				"the clock of the replica that created it is ahead, or this one's is behind",
				KeysSecret, at.UTC().Format(time.RFC3339))})
	}
	_, presence := c.Provisioning().At(now)
	if presence == provisioning.Absent {
		if text := c.View().Policies.WithoutProvisioningToken(); text != "" {
			all = append(all, view.Finding{Reason: "ProvisioningTokenAbsent",
				Text: fmt.Sprintf("%s; see Secret %s", text, c.o.ProvisioningToken.Secret)})
		}
	}
	return all
}

// Unavailable returns why no machine can be served, or the zero value.
func (c *Inventory) Unavailable() view.Finding {
	now := c.o.Now()
	if synced, missing := c.Synced(); !synced {
		return view.Finding{Reason: "NotSynced", Text: strings.Join(missing, "; ")}
	}
	if err := c.View().Stale; err != nil {
		return view.Finding{Reason: "NotSynced", Text: err.Error()}
	}
	if len(c.View().Policies.Pools()) == 0 {
		return view.Finding{Reason: "NoPolicy", Text: "no AttestationPolicy covers any pool"}
	}
	if _, ok := c.Keys().Tokens.Current(now); !ok {
		return view.Finding{Reason: "NoKeys", Text: "there is no key that signs tokens"}
	}
	cert := c.ServingCertificate()
	switch {
	case cert == nil:
		return view.Finding{Reason: "NoCertificate",
			Text: "there is no serving certificate in Secret " + c.config.ServingSecret}
	case cert.Leaf != nil && now.After(cert.Leaf.NotAfter):
		return view.Finding{Reason: "CertificateExpired",
			Text: "the serving certificate expired on " + cert.Leaf.NotAfter.UTC().Format(time.RFC3339)}
	}
	return view.Finding{}
}

// Progressing returns what is in progress, or the zero value.
func (c *Inventory) Progressing() view.Finding {
	if synced, missing := c.Synced(); !synced {
		return view.Finding{Reason: "Syncing", Text: strings.Join(missing, "; ")}
	}
	if c.guard.Repairing() {
		return view.Finding{Reason: "Restoring", Text: "the state from before the restore of etcd is being set again"}
	}
	if c.Keys().Rotating(c.o.Now()) {
		return view.Finding{Reason: "KeyRotation", Text: "new keys are published but not in use yet"}
	}
	return view.Finding{}
}
