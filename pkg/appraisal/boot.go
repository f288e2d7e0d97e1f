// SPDX-License-Identifier: Apache-2.0

package appraisal

import (
	"slices"

	"github.com/mcs-attest/mcs-attest/pkg/api/v1alpha1"
	"github.com/mcs-attest/mcs-attest/pkg/measuredboot"
	"github.com/mcs-attest/mcs-attest/pkg/reason"
)

// boot appraises the measured boot by the policy's profile. With the action Warn, a
// boot that violates the profile causes a warning instead of a denial. A wrong PCR 11
// is always denied.
func (a *appraisal) boot() error {
	if a.quote == nil {
		return nil
	}
	refs, err := a.references()
	if err != nil {
		return err
	}
	_, err = measuredboot.Appraise(a.Policy.Profile, a.quote.Bank, a.quote.PCRs, a.ev.EventLog, refs)
	if err != nil && a.Policy.ProfileAction == v1alpha1.ProfileWarn && measuredboot.MayWarn(err) {
		a.warnings = append(a.warnings, err.Error())
		return nil
	}
	return err
}

// references returns the reference values that the policy names, or all if it names
// none. A missing document is a temporary denial, so it cannot weaken the policy.
func (a *appraisal) references() ([]measuredboot.ReferenceValues, error) {
	if len(a.Policy.ReferenceValues) == 0 {
		return a.References, nil
	}
	var refs []measuredboot.ReferenceValues
	for _, name := range a.Policy.ReferenceValues {
		i := slices.IndexFunc(a.References, func(r measuredboot.ReferenceValues) bool { return r.Metadata.Name == name })
		if i < 0 {
			return nil, reason.Deny(reason.ReferenceValuesMissing, "policy %s names the reference values %q",
				a.Policy.Name, name)
		}
		refs = append(refs, a.References[i])
	}
	return refs, nil
}
