// SPDX-License-Identifier: Apache-2.0

package inventory

import (
	"time"

	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/mcs-attest/mcs-attest/pkg/machine"
	"github.com/mcs-attest/mcs-attest/pkg/manifest"
	"github.com/mcs-attest/mcs-attest/verifier/internal/kube"
	"github.com/mcs-attest/mcs-attest/verifier/internal/kube/sources"
)

func (ms *Machines) putNode(o *sources.Object) []manifest.Problem {
	n, _ := o.Value.(node)
	known := ms.registry.HasNode(o.Name)
	ms.registry.PutNode(o.Name, n.providerID)
	ms.observed.putNode(o.Name, n.ready)
	if ms.controlPlane.put(o.Name, n) {
		ms.o.RolesChanged()
	}
	if n.providerID != "" && ms.o.Trigger.Running() {
		if m := ms.registry.Named(machine.Identity{ProviderIDs: []string{n.providerID}},
			machine.Rules{Now: ms.o.Now()}); m != nil {
			ms.o.Trigger.Enqueue(kube.PriorityChange, kube.Request(m.UID))
		}
	}
	if !known && ms.o.Trigger.Running() {
		ms.arrived(o.Name)
	}
	return nil
}

// arrived requests a comparison of the records whose certificate is for a new Node.
func (ms *Machines) arrived(node string) {
	var all []reconcile.Request
	ms.mu.Lock()
	for uid, l := range ms.latches {
		if l.node == node && (!l.used || l.certified && !l.joined) {
			all = append(all, kube.Request(uid))
		}
	}
	ms.mu.Unlock()
	ms.o.Trigger.Enqueue(kube.PriorityChange, all...)
}

func (ms *Machines) dropNode(k types.NamespacedName) {
	ms.registry.DeleteNode(k.Name)
	ms.observed.putNode(k.Name, time.Time{})
	if ms.controlPlane.put(k.Name, node{}) {
		ms.o.RolesChanged()
	}
}
