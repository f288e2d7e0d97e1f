package appraisal

import (
	"slices"

	"github.com/mcs-attest/mcs-attest/pkg/api/v1alpha1"
	"github.com/mcs-attest/mcs-attest/pkg/measuredboot"
	"github.com/mcs-attest/mcs-attest/pkg/reason"
)

// boot judges what was measured. A profile that only warns lets a boot pass that
// is not as it should be, but never one whose PCR 11 is not what it must be.
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

// references are the documents that the policy names, or all of them. One that
// is named and not there is no licence to do without it: the refusal lasts until
// the document is back.
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
