package render

import (
	"fmt"
	"slices"
	"strings"

	configv1 "github.com/openshift/api/config/v1"

	"github.com/mcs-attest/mcs-attest/pkg/reason"
)

// AnnotationNeeded on a MachineConfig says "true" if a node needs it before it is
// approved, and "false" if not. Anyone may then have it.
const AnnotationNeeded = "mcs-attest.dev/needed-before-node-approved"

// Options of a pre-approved render.
type Options struct {
	// Allow are the absolute paths of files that may hold secrets nevertheless.
	Allow []string
}

// PreApproved renders the part of a pool's config that anyone may have. Its name is
// that of the whole config, so the whole one has to render, too. The error is a
// denial, [reason.ConfigUnavailable].
func PreApproved(pool string, in Input, o Options) (*Rendered, error) {
	p, chosen, err := in.choose(pool)
	if err != nil {
		return nil, err
	}
	whole, err := merge(p, chosen, in)
	if err != nil {
		return nil, err
	}
	var needed []*MachineConfig
	why := map[*MachineConfig]string{}
	for _, m := range chosen {
		in, because, err := m.needed(o)
		if err != nil {
			return nil, reason.Wrap(reason.ConfigUnavailable, err, "MachineConfigPool %s has no pre-approved part", pool)
		}
		why[m] = because
		if in {
			needed = append(needed, m)
		}
	}
	if len(needed) == 0 {
		return nil, reason.Deny(reason.ConfigUnavailable, "MachineConfigPool %s has no pre-approved part: none of its %d MachineConfigs is needed before a node is approved; %s: %s",
			pool, len(chosen), chosen[0].Name, why[chosen[0]])
	}
	config, err := merge(p, needed, in)
	if err != nil {
		return nil, err
	}
	// FIPS mode is for a node's whole life, and is no secret.
	config.Spec.FIPS = whole.Spec.FIPS
	config.Name = whole.Name
	out := &Rendered{Pool: pool, PreApproved: true, Config: config, Origins: origins(needed, config, in)}
	if err := out.searched(needed, o); err != nil {
		return nil, err
	}
	byName := map[string]string{}
	for m, because := range why {
		byName[m.Name] = because
	}
	for i := range out.Origins {
		out.Origins[i].Why = byName[out.Origins[i].From]
	}
	for _, left := range origins(chosen, whole, in) {
		if because, ok := byName[left.From]; ok && !slices.ContainsFunc(needed, func(m *MachineConfig) bool { return m.Name == left.From }) {
			left.Why = because
			out.Left = append(out.Left, left)
		}
	}
	return out, nil
}

// needed reports whether the MachineConfig is in the pre-approved part, and why.
func (m *MachineConfig) needed(o Options) (bool, string, error) {
	switch value, ok := m.Annotations[AnnotationNeeded]; {
	case ok && value == "true":
		return true, "its annotation " + AnnotationNeeded + " says so", nil
	case ok && value == "false":
		return false, "its annotation " + AnnotationNeeded + " says so", nil
	case ok:
		return false, "", &Fault{MachineConfig: m.Name, Problem: m.at.problem(fmt.Sprintf("the annotation %s is %.64q", AnnotationNeeded, value), `"true" or "false"`)}
	case m.Needed != nil && *m.Needed:
		return true, "its spec.neededBeforeNodeApproved says so", nil
	case m.Needed != nil:
		return false, "its spec.neededBeforeNodeApproved says so", nil
	case !m.generated():
		return false, "no controller of the machine-config-operator generated it", nil
	case !m.ownedByOperator():
		return false, "its annotation says that a controller generated it, but none owns it", nil
	}
	if found := o.refused(m.Secrets()); len(found) > 0 {
		return false, "it holds " + found[0].What + " in " + found[0].Where, nil
	}
	return true, "the machine-config-operator generated it, and it holds no secret", nil
}

// ownedByOperator reports whether one of the objects that the controllers generate
// MachineConfigs from owns it. A copy that a person made has the annotation, too.
func (m *MachineConfig) ownedByOperator() bool {
	for _, o := range m.OwnerReferences {
		group, _, _ := strings.Cut(o.APIVersion, "/")
		if group == Group && o.Kind != KindMachineConfigPool || group == configv1.GroupName {
			return true
		}
	}
	return false
}

// searched refuses a render that holds a secret.
func (r *Rendered) searched(from []*MachineConfig, o Options) error {
	for _, m := range from {
		if found := o.refused(m.Secrets()); len(found) > 0 {
			return reason.Deny(reason.ConfigUnavailable, "MachineConfigPool %s: the pre-approved part would hold %s, in %s of MachineConfig %s", r.Pool, found[0].What, found[0].Where, m.Name)
		}
	}
	return nil
}

// refused are the secrets that are in no file of the list.
func (o Options) refused(found []Secret) []Secret {
	return slices.DeleteFunc(slices.Clone(found), func(s Secret) bool { return s.Path != "" && slices.Contains(o.Allow, s.Path) })
}
