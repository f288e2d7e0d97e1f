package render

import (
	"crypto/sha256"
	"encoding/json"
	"fmt"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
)

// madeOf is a MachineConfig as it was when a part was made of it.
type madeOf struct {
	name string
	sum  [sha256.Size]byte
}

// sum is the digest of what the MachineConfig says. One that has no JSON has the digest
// of nothing, as no other has.
func (m *MachineConfig) sum() [sha256.Size]byte {
	raw, err := json.Marshal(m.Spec)
	if err != nil {
		return [sha256.Size]byte{}
	}
	return sha256.Sum256(raw)
}

// Stands reports whether anyone may still have a pre-approved part that was rendered
// before: the error says why not. Each MachineConfig that it was made of
//
//   - is still there, and the pool still chooses it;
//   - says what it said then;
//   - is in the part by the same rules, and holds no secret that no list allows.
//
// The input may hold an object twice; then it counts only if all of them agree.
func (r *Rendered) Stands(in Input, o Options) error {
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
		return fmt.Errorf("there is no MachineConfigPool %s", r.Pool)
	}
	for _, part := range r.parts {
		if err := part.stands(in, selectors, o); err != nil {
			return err
		}
	}
	return nil
}

func (d madeOf) stands(in Input, selectors []labels.Selector, o Options) error {
	there := false
	for _, m := range in.Configs {
		if m.Name != d.name {
			continue
		}
		there = true
		for _, s := range selectors {
			if s.Empty() || !s.Matches(labels.Set(m.Labels)) {
				return fmt.Errorf("the pool does not choose MachineConfig %s any more", d.name)
			}
		}
		if m.fault != nil || m.sum() != d.sum {
			return fmt.Errorf("MachineConfig %s is not what it was", d.name)
		}
		if wanted, _, err := m.needed(o); err != nil || !wanted {
			return fmt.Errorf("MachineConfig %s is not for everyone any more", d.name)
		}
		if len(o.refused(m.Secrets())) > 0 {
			return fmt.Errorf("MachineConfig %s holds a secret", d.name)
		}
	}
	if !there {
		return fmt.Errorf("MachineConfig %s is gone", d.name)
	}
	return nil
}

// Broken reports whether one of the MachineConfigs cannot be used.
func (in Input) Broken() bool {
	for _, m := range in.Configs {
		if m.fault != nil {
			return true
		}
	}
	return false
}
