// SPDX-License-Identifier: Apache-2.0

package controllers

import (
	"cmp"

	"sigs.k8s.io/controller-runtime/pkg/manager"

	"github.com/mcs-attest/mcs-attest/verifier/internal/kube/controllers/fronts"
	"github.com/mcs-attest/mcs-attest/verifier/internal/kube/controllers/noderoles"
	"github.com/mcs-attest/mcs-attest/verifier/internal/kube/controllers/policystatus"
	"github.com/mcs-attest/mcs-attest/verifier/internal/kube/controllers/verifierstatus"
	"github.com/mcs-attest/mcs-attest/verifier/internal/view"
)

// statusControllers returns the controllers that write conditions.
func (k *Process) statusControllers() []func(manager.Manager) error {
	p, c := k.parts, k.inventory
	policies := policystatus.New(policystatus.Options{
		Now: p.Now, Limit: c.Limit(), Events: k.events, Inventory: c,
		Trigger: &c.Triggers.PolicyStatus, Held: c.Guard().HoldsPolicies,
	})
	roles := noderoles.New(noderoles.Options{
		Log: p.Log, Now: p.Now, Limit: c.Limit(), Events: k.events, Inventory: c, Records: c.Records(),
		Trigger: &c.Triggers.NodeRoles, Report: p.Metrics.RoleMismatches,
	})
	k.findings = append([]verifierstatus.Findings{c.Findings, roles.Findings}, k.findings...)
	serving := fronts.New(fronts.Options{Client: k.typed, Namespace: p.Config.Kubernetes.Namespace, Log: p.Log})
	verifier := verifierstatus.New(verifierstatus.Options{
		Now: p.Now, Limit: c.Limit(), Holder: k.identity, Version: p.Version,
		Unavailable: func() view.Finding { return cmp.Or(c.Unavailable(), serving.Unavailable()) },
		Progressing: c.Progressing, Acknowledge: c.Guard().Acknowledge,
		Findings: k.findings, Degraded: p.Metrics.Degraded, Conditions: k.conditions,
		ControlPlaneNodes: roles.ControlPlaneNodes,
	})
	return []func(manager.Manager) error{
		policies.SetupWithManager, roles.SetupWithManager, serving.SetupWithManager, verifier.SetupWithManager,
	}
}
