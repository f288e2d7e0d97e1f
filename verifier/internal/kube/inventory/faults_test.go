// SPDX-License-Identifier: Apache-2.0

package inventory

import (
	"slices"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"

	"github.com/mcs-attest/mcs-attest/pkg/api/v1alpha1"
)

// No controller runs here, as during a takeover: requests are dropped. The controller that starts asks for all.
func TestInventory_NextLeaderReconcilesAnOutdatedCondition(t *testing.T) {
	c := unconnected(t)
	w := c.watching(t, attestationKind, "m")
	requested := func() bool {
		request := attestationKind.Request(types.NamespacedName{Namespace: "m", Name: "a"})
		return slices.Contains(c.Triggers.PolicyStatus.All(), request)
	}
	version := uint64(0)
	state := func(spec map[string]any, accepted string) *unstructured.Unstructured {
		version++
		o := map[string]any{
			"apiVersion": v1alpha1.APIVersion, "kind": v1alpha1.KindMachineAttestation,
			"metadata": map[string]any{"namespace": "m", "name": "a"}, "spec": spec,
		}
		if accepted != "" {
			o["status"] = map[string]any{"conditions": []any{map[string]any{
				"type": v1alpha1.ConditionAccepted, "status": accepted,
			}}}
		}
		u := &unstructured.Unstructured{Object: o}
		u.SetResourceVersion(string(rune('0' + version)))
		return u
	}
	of := map[string]any{"name": "w"}
	good, bad := map[string]any{"machineRef": of}, map[string]any{"machineRef": of, "quarantined": "perhaps"}
	for _, step := range []struct {
		name string
		next *unstructured.Unstructured // nil: it was deleted
		want bool
	}{
		{"without a condition", state(good, ""), false},
		{"it cannot be used", state(bad, ""), true},
		{"the leader reports it", state(bad, "False"), true},
		{"an administrator corrects it", state(good, "False"), true},
		{"the new leader reports it", state(good, "True"), false},
		{"at a start", state(good, "False"), true},
		{"it was deleted", nil, false},
		{"it cannot be used again", state(bad, "False"), true},
		{"it was deleted then", nil, false},
	} {
		if step.next == nil {
			w.remove(state(good, ""))
		} else {
			w.receive(t, step.next)
		}
		if got := requested(); got != step.want {
			t.Errorf("%s: it is requested: %v", step.name, got)
		}
	}
}

// A controller that gave up after an error, or missed a request, finds its objects again.
func TestEveryControllerReconcilesAgain(t *testing.T) {
	c := unconnected(t)
	for name, interval := range map[string]time.Duration{
		"SigningKeys": c.Triggers.SigningKeys.Interval, "ProvisioningToken": c.Triggers.ProvisioningToken.Interval,
		"PointerConfigs": c.Triggers.PointerConfigs.Interval, "PolicyStatus": c.Triggers.PolicyStatus.Interval,
	} {
		if interval == 0 {
			t.Errorf("%s has no interval", name)
		}
	}
}
