// SPDX-License-Identifier: Apache-2.0

package inventory_test

import (
	"errors"
	"time"

	"sigs.k8s.io/controller-runtime/pkg/manager"

	"github.com/mcs-attest/mcs-attest/verifier/internal/kube/controllers/identityclaim"
	"github.com/mcs-attest/mcs-attest/verifier/internal/kube/controllers/machinerecord"
	"github.com/mcs-attest/mcs-attest/verifier/internal/kube/controllers/pendingmachine"
	verifier "github.com/mcs-attest/mcs-attest/verifier/internal/kube/inventory"
)

// recordControllers returns those of records, claims and pending machines.
func (p *process) recordControllers(o verifier.Options,
	change func(*machinerecord.Options)) func(manager.Manager) error {
	keep := machinerecord.Options{
		Trigger: &p.Triggers.MachineRecord, Inventory: p.Machines, Records: p.Records(), CanChange: p.CanChange,
		MayBeQuarantined: p.MayBeQuarantined, Revoke: o.Revoke, Log: o.Log, Retry: o.Pass,
	}
	if change != nil {
		change(&keep)
	}
	records := machinerecord.New(keep)
	claims := identityclaim.New(identityclaim.Options{
		Claims: p.Records(), Known: p.Registry().Known, Synced: p.Synced, Retry: o.Pass,
		CanChange: func(namespace string) bool { return p.CanChange(namespace, false) }, Limit: p.Limit(),
	})
	pending := &pendingmachine.Reconciler{Expire: p.Records().ExpirePending, Now: time.Now, Every: o.Pass}
	return func(m manager.Manager) error {
		return errors.Join(records.SetupWithManager(m), claims.SetupWithManager(m), pending.SetupWithManager(m))
	}
}
