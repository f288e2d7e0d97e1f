// SPDX-License-Identifier: Apache-2.0

package controllers

import (
	"context"
	"time"

	"sigs.k8s.io/controller-runtime/pkg/manager"

	"github.com/mcs-attest/mcs-attest/pkg/api/v1alpha1"
	"github.com/mcs-attest/mcs-attest/verifier/internal/kube/controllers/identityclaim"
	"github.com/mcs-attest/mcs-attest/verifier/internal/kube/controllers/machinerecord"
	"github.com/mcs-attest/mcs-attest/verifier/internal/kube/controllers/pendingmachine"
)

// recordControllers returns the controllers of records, claims and pending machines. revoke is nil if
// machines have no credentials of their own.
func (k *Process) recordControllers(
	revoke func(ctx context.Context, uid string, all []v1alpha1.CredentialStatus) error,
) []func(manager.Manager) error {
	p, c := k.parts, k.inventory
	machines := machinerecord.New(machinerecord.Options{
		Trigger: &c.Triggers.MachineRecord, Inventory: c.Machines, Records: c.Records(), CanChange: c.CanChange,
		MayBeQuarantined: c.MayBeQuarantined, Revoke: revoke, Log: p.Log, Now: p.Now,
	})
	claims := identityclaim.New(identityclaim.Options{
		Claims: c.Records(), Known: c.Registry().Known, Synced: c.Synced, Limit: c.Limit(),
		CanChange: func(namespace string) bool { return c.CanChange(namespace, false) },
	})
	pending := &pendingmachine.Reconciler{Expire: c.Records().ExpirePending, Now: p.Now, Every: time.Minute}
	return []func(manager.Manager) error{machines.SetupWithManager, claims.SetupWithManager, pending.SetupWithManager}
}
