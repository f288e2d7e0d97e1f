// SPDX-License-Identifier: Apache-2.0

package render

import (
	"fmt"
	"slices"
	"strings"

	configv1 "github.com/openshift/api/config/v1"

	"github.com/mcs-attest/mcs-attest/pkg/reason"
)

// AnnotationNeeded on a MachineConfig is "true" if a node needs it before it is approved,
// and "false" if not. Every caller may have what is needed.
const AnnotationNeeded = "mcs-attest.dev/needed-before-node-approved"

// Options are the options of a pre-approved render.
type Options struct {
	// Allow are the absolute paths of files that may contain secrets.
	Allow []string
}

// PreApproved renders the part of a pool's config that every caller may have. It has the
// name of the full config, so the full config must render, too. The error is a denial,
// [reason.ConfigUnavailable]. It wraps an [*Exposed] if the part contains a secret.
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
	const base = "it is the base of every node of the pool"
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
			"MachineConfigPool %s has no pre-approved part: it may contain none of its %d MachineConfigs; %s: %s",
			pool, len(chosen), chosen[0].Name, why[chosen[0].Name])
	}
	ignition, config, err := merge(p, needed, in, whole.Name)
	if err != nil {
		return nil, err
	}
	// The part may omit generated MachineConfigs.
	config.Annotations[annotationController] = whole.Annotations[annotationController]
	out := &Rendered{Pool: pool, PreApproved: true, Config: config, Origins: origins(needed, config, in)}
	for _, m := range needed {
		out.parts = append(out.parts, partSource{m.Name, m.sum()})
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
			o.Why = "a node cannot enable it later, and it is not secret"
			out.Origins = append(out.Origins, o)
			continue
		}
		o.Why = why[o.From]
		if slices.Contains(onlyAtFirst, o.Kind) {
			o.Why += "; a node that has joined cannot apply it anymore"
		}
		out.Left = append(out.Left, o)
	}
	sortOrigins(out.Origins)
	config.Spec.FIPS = whole.Spec.FIPS
	return out, nil
}

// needed reports whether the MachineConfig belongs to the pre-approved part, and why.
func (m *MachineConfig) needed(o Options) (bool, string, error) {
	switch value, ok := m.Annotations[AnnotationNeeded]; {
	case ok && (value == "true" || value == "false"):
		return value == "true", "its annotation " + AnnotationNeeded + " decides so", nil
	case ok:
		return false, "", &Fault{MachineConfig: m.Name,
			Problem: m.at.Problem(fmt.Sprintf("the annotation %s is %.64q", AnnotationNeeded, value), `"true" or "false"`)}
	case m.Needed != nil:
		return *m.Needed, "its spec.neededBeforeNodeApproved decides so", nil
	case !m.generated():
		return false, "no controller of the machine-config-operator generated it", nil
	case !m.ownedByOperator():
		return false, "its annotation names a controller, but no controller owns it", nil
	}
	if found := o.refused(m.Secrets()); len(found) > 0 {
		because := "it contains " + found[0].What + ": " + found[0].Where
		if n := len(found) - 1; n > 0 {
			because += fmt.Sprintf(", and %d more", n)
		}
		return false, because, nil
	}
	return true, "the machine-config-operator generated it, and it contains no secret", nil
}

// ownedByOperator reports whether its owner is an object from which the controllers generate
// MachineConfigs. An administrator's copy may still have the annotation.
func (m *MachineConfig) ownedByOperator() bool {
	for _, o := range m.OwnerReferences {
		group, _, _ := strings.Cut(o.APIVersion, "/")
		if group == Group && o.Kind != KindMachineConfigPool || group == configv1.GroupName {
			return true
		}
	}
	return false
}

// Choice describes one MachineConfig of a pool.
type Choice struct {
	MachineConfig string `json:"machineConfig"`
	// Fault is why it is invalid.
	Fault string `json:"fault,omitempty"`
	// PreApproved reports whether it belongs to the pre-approved part. Why is the reason.
	PreApproved bool   `json:"preApproved"`
	Why         string `json:"why,omitempty"`
	// Secrets are those that are not allowed.
	Secrets []Secret `json:"secrets,omitempty"`
}

// Choices returns the MachineConfigs of a pool in merge order, even if the pool does not
// render.
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
