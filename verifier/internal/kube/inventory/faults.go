// SPDX-License-Identifier: Apache-2.0

package inventory

import (
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/mcs-attest/mcs-attest/pkg/machine"
	"github.com/mcs-attest/mcs-attest/pkg/manifest"
	"github.com/mcs-attest/mcs-attest/verifier/internal/kube"
	"github.com/mcs-attest/mcs-attest/verifier/internal/kube/sources"
)

// Faults has the objects of all kinds that cannot be used as they are. It also has the names of
// MachineAttestations that can be used, but whose condition Accepted is not True yet. It is safe for
// concurrent use.
type Faults struct {
	log     *slog.Logger
	trigger *kube.Trigger // of the controller that reports them

	mu       sync.Mutex
	all      map[faultKey]fault
	rejected map[types.NamespacedName]bool
}

// faultKey identifies an object with a fault.
type faultKey struct {
	kind string // as in the name of the resource: "machines.machine.openshift.io"
	types.NamespacedName
}

func (k faultKey) String() string { return k.kind + " " + sources.Name(k.NamespacedName) }

// fault is why an object cannot be used.
type fault struct {
	Fault
	request reconcile.Request
	never   bool // it has no last good state
	stops   mayStop
}

// joinPause is the time for which a request for a condition waits for others about the same object.
const joinPause = 50 * time.Millisecond

// put stores why an object cannot be used as it is.
func (f *Faults) put(kind kind, o *sources.Object, problems []manifest.Problem, hadGood bool) {
	var texts []string
	for _, p := range problems {
		if !p.Warning {
			texts = append(texts, describe(p))
		}
	}
	text := sources.Truncate(strings.Join(texts, "\n"))
	k := faultKey{kind.String(), o.NamespacedName}
	next := fault{
		Fault:   Fault{About: aboutOf(o), Generation: o.Generation, Text: text},
		request: kind.Request(o.NamespacedName), never: !hadGood,
	}
	next.stops, _ = o.Value.(mayStop)
	f.mu.Lock()
	before, known := f.all[k]
	f.all[k] = next
	f.mu.Unlock()
	if !known || before.Text != text {
		f.log.Error("an object cannot be used as it is; its last good state stays in force", "object", k.String(),
			"problem", text, "none_good", next.never)
	}
	f.trigger.EnqueueAfter(joinPause, kube.PriorityChange, next.request)
}

// drop deletes the fault of an object that can be used or was deleted.
func (f *Faults) drop(kind kind, name types.NamespacedName) {
	k := faultKey{kind.String(), name}
	f.mu.Lock()
	_, known := f.all[k]
	delete(f.all, k)
	f.mu.Unlock()
	if !known {
		return
	}
	f.log.Info("an object can be used again, or was deleted", "object", k.String())
	f.trigger.EnqueueAfter(joinPause, kube.PriorityChange, kind.Request(name))
}

// Fault returns why an object cannot be used as it is, or false if it can.
func (f *Faults) Fault(resource string, name types.NamespacedName) (Fault, bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	one, bad := f.all[faultKey{resource, name}]
	return one.Fault, bad
}

// unreadable reports whether any object of these kinds never had a state that could be used.
func (f *Faults) unreadable(kinds ...kind) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	for k, one := range f.all {
		if one.never && slices.ContainsFunc(kinds, func(kind kind) bool { return kind.String() == k.kind }) {
			return true
		}
	}
	return false
}

// neverUsable returns an error if the Machine with this UID exists, but no state of it that this process has seen can
// be used. Another replica may have seen an earlier state.
func (f *Faults) neverUsable(uid string) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	for k, one := range f.all {
		if one.never && one.About.UID == uid {
			return fmt.Errorf("%s cannot be used as it is", k)
		}
	}
	return nil
}

// MayBeQuarantined reports whether an object that was never readable may quarantine this Machine.
func (f *Faults) MayBeQuarantined(m *machine.Machine) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	for k, one := range f.all {
		if !one.never || k.kind != attestationKind.String() || one.stops.none {
			continue
		}
		for _, m := range []*machine.Machine{m, m.Mirror} {
			if m != nil && (one.stops.machine == key{} || one.stops.machine == key{m.Namespace, m.Name}) {
				return true
			}
		}
	}
	return false
}

// texts returns why each object cannot be used.
func (f *Faults) texts() (all []string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for k, one := range f.all {
		all = append(all, k.String()+": "+one.Text)
	}
	return all
}

// setRejected records whether a usable or deleted MachineAttestation has a condition Accepted that is
// not True. A request is lost while no controller runs, so the name is kept until the condition is
// corrected.
func (f *Faults) setRejected(name types.NamespacedName, rejected bool) {
	f.mu.Lock()
	if rejected {
		f.rejected[name] = true
	} else {
		delete(f.rejected, name)
	}
	f.mu.Unlock()
	if rejected {
		f.trigger.EnqueueAfter(joinPause, kube.PriorityChange, attestationKind.Request(name))
	}
}

// requests returns a request for each object.
func (f *Faults) requests() (all []reconcile.Request) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, one := range f.all {
		all = append(all, one.request)
	}
	for name := range f.rejected {
		all = append(all, attestationKind.Request(name))
	}
	return all
}

// describe formats a problem without the file, which an object of the API does not have.
func describe(p manifest.Problem) string {
	if p.Want == "" {
		return p.What
	}
	return p.What + "; " + p.Want
}
