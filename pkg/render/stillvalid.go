// SPDX-License-Identifier: Apache-2.0

package render

import (
	"crypto/sha256"
	"encoding/json"
	"fmt"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
)

// partSource is a MachineConfig at the time when a part was rendered from it.
type partSource struct {
	name string
	sum  [sha256.Size]byte
}

// sum returns a digest of the MachineConfig's spec. If the spec has no JSON form, it returns
// zeros, which no other spec has.
func (m *MachineConfig) sum() [sha256.Size]byte {
	raw, err := json.Marshal(m.Spec)
	if err != nil {
		return [sha256.Size]byte{}
	}
	return sha256.Sum256(raw)
}

// StillValid reports whether a pre-approved part that was rendered earlier may still be served.
// The error is the reason against it. Each MachineConfig that it consists of
//
//   - still exists, and the pool still selects it;
//   - has not changed;
//   - still belongs to the part, and contains no secret that is not allowed.
//
// The input may contain duplicates of an object. All of them must meet the conditions.
func (r *Rendered) StillValid(in Input, o Options) error {
	var selectors []labels.Selector
	for _, p := range in.Pools {
		if p.Name != r.Pool {
			continue
		}
		s, err := metav1.LabelSelectorAsSelector(p.Spec.MachineConfigSelector)
		if err != nil {
			return fmt.Errorf("MachineConfigPool %s: spec.machineConfigSelector: %w", r.Pool, err)
		}
		selectors = append(selectors, s)
	}
	if len(selectors) == 0 {
		return fmt.Errorf("MachineConfigPool %s does not exist", r.Pool)
	}
	for _, part := range r.parts {
		if err := part.stillValid(in, selectors, o); err != nil {
			return err
		}
	}
	return nil
}

func (d partSource) stillValid(in Input, selectors []labels.Selector, o Options) error {
	exists := false
	for _, m := range in.Configs {
		if m.Name != d.name {
			continue
		}
		exists = true
		for _, s := range selectors {
			if s.Empty() || !s.Matches(labels.Set(m.Labels)) {
				return fmt.Errorf("the pool no longer selects MachineConfig %s", d.name)
			}
		}
		if m.fault != nil || m.sum() != d.sum {
			return fmt.Errorf("MachineConfig %s has changed", d.name)
		}
		if wanted, _, err := m.needed(o); err != nil || !wanted {
			return fmt.Errorf("MachineConfig %s no longer belongs to the pre-approved part", d.name)
		}
		if len(o.refused(m.Secrets())) > 0 {
			return fmt.Errorf("MachineConfig %s contains a secret", d.name)
		}
	}
	if !exists {
		return fmt.Errorf("MachineConfig %s was deleted", d.name)
	}
	return nil
}

// Broken reports whether a MachineConfig is invalid.
func (in Input) Broken() bool {
	for _, m := range in.Configs {
		if m.fault != nil {
			return true
		}
	}
	return false
}
