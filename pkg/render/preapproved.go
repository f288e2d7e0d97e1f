package render

import (
	"fmt"
	"slices"
	"strings"

	configv1 "github.com/openshift/api/config/v1"

	"github.com/mcs-attest/mcs-attest/pkg/reason"
)

// AnnotationNeeded on a MachineConfig says "true" if a node needs it before it is
// approved, and "false" if not. What is needed anyone may have.
const AnnotationNeeded = "mcs-attest.dev/needed-before-node-approved"

// Options of a pre-approved render.
type Options struct {
	// Allow are the absolute paths of files that may hold secrets nevertheless.
	Allow []string
}

// PreApproved renders the part of a pool's config that anyone may have. Its name is
// that of the whole config, so the whole one has to render, too. The error is a
// denial, [reason.ConfigUnavailable]; with an [*Exposed] within if it would hold a secret.
func PreApproved(pool string, in Input, o Options) (*Rendered, error) {
	p, chosen, err := in.usable(pool)
	if err != nil {
		return nil, err
	}
	_, whole, err := merge(p, chosen, in, "")
	if err != nil {
		return nil, err
	}
	var needed []*MachineConfig
	const base = "every node of the pool starts from it"
	why := map[string]string{FromController: base, FromStreams: base}
	inside := map[string]bool{FromController: true, FromStreams: true}
	for _, m := range chosen {
		wanted, because, err := m.needed(o)
		if err != nil {
			return nil, reason.Wrap(reason.ConfigUnavailable, err, "MachineConfigPool %s has no pre-approved part", pool)
		}
		why[m.Name], inside[m.Name] = because, wanted
		if wanted {
			needed = append(needed, m)
		}
	}
	if len(needed) == 0 {
		return nil, reason.Deny(reason.ConfigUnavailable,
			"MachineConfigPool %s has no pre-approved part: none of its %d MachineConfigs may be in it; %s: %s",
			pool, len(chosen), chosen[0].Name, why[chosen[0].Name])
	}
	ignition, config, err := merge(p, needed, in, whole.Name)
	if err != nil {
		return nil, err
	}
	// The part may be without what a controller generated.
	config.Annotations[annotationController] = whole.Annotations[annotationController]
	out := &Rendered{Pool: pool, PreApproved: true, Config: config, Origins: origins(needed, config, in)}
	for _, m := range needed {
		out.parts = append(out.parts, madeOf{m.Name, m.sum()})
	}
	if err := out.searched(needed, ignition, o); err != nil {
		return nil, err
	}
	for i, o := range out.Origins {
		out.Origins[i].Why = why[o.From]
	}
	for _, o := range origins(chosen, whole, in) {
		switch {
		case inside[o.From]:
			continue
		case o.Kind == "fips":
			o.Why = "a node cannot turn it on later, and it is no secret"
			out.Origins = append(out.Origins, o)
			continue
		}
		o.Why = why[o.From]
		if slices.Contains(onlyAtFirst, o.Kind) {
			o.Why += "; a node that has joined does not take it any more"
		}
		out.Left = append(out.Left, o)
	}
	sortOrigins(out.Origins)
	config.Spec.FIPS = whole.Spec.FIPS
	return out, nil
}

// needed reports whether the MachineConfig is in the pre-approved part, and why.
func (m *MachineConfig) needed(o Options) (bool, string, error) {
	switch value, ok := m.Annotations[AnnotationNeeded]; {
	case ok && (value == "true" || value == "false"):
		return value == "true", "its annotation " + AnnotationNeeded + " says so", nil
	case ok:
		return false, "", &Fault{MachineConfig: m.Name,
			Problem: m.at.problem(fmt.Sprintf("the annotation %s is %.64q", AnnotationNeeded, value), `"true" or "false"`)}
	case m.Needed != nil:
		return *m.Needed, "its spec.neededBeforeNodeApproved says so", nil
	case !m.generated():
		return false, "no controller of the machine-config-operator generated it", nil
	case !m.ownedByOperator():
		return false, "its annotation says that a controller generated it, but none owns it", nil
	}
	if found := o.refused(m.Secrets()); len(found) > 0 {
		because := "it holds " + found[0].What + ": " + found[0].Where
		if n := len(found) - 1; n > 0 {
			because += fmt.Sprintf(", and %d more", n)
		}
		return false, because, nil
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

// Choice is what is to be said of one MachineConfig of a pool.
type Choice struct {
	MachineConfig string `json:"machineConfig"`
	// Fault is why it cannot be used.
	Fault string `json:"fault,omitempty"`
	// PreApproved reports whether it is in the pre-approved part, and Why.
	PreApproved bool   `json:"preApproved"`
	Why         string `json:"why,omitempty"`
	// Secrets that no list allows.
	Secrets []Secret `json:"secrets,omitempty"`
}

// Choices are the MachineConfigs of a pool in the order of the merge, also of a pool that
// does not render.
func Choices(pool string, in Input, o Options) ([]Choice, error) {
	_, chosen, err := in.choose(pool)
	if err != nil {
		return nil, err
	}
	var all []Choice
	for _, m := range chosen {
		c := Choice{MachineConfig: m.Name}
		switch {
		case m.fault != nil:
			c.Fault = m.fault.Problem.Error()
		default:
			if c.PreApproved, c.Why, err = m.needed(o); err != nil {
				c.Fault = err.Error()
			}
			c.Secrets = o.refused(m.Secrets())
		}
		all = append(all, c)
	}
	return all, nil
}
