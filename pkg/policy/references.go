// SPDX-License-Identifier: Apache-2.0

package policy

import (
	"fmt"
	"slices"

	"github.com/mcs-attest/mcs-attest/pkg/manifest"
	"github.com/mcs-attest/mcs-attest/pkg/measuredboot"
)

// CheckReferences returns the problems between policies and the reference values that they select: a name that no
// document has, and a profile that no machine can meet because a kind of document, or the applications of a document,
// are missing. It skips a file for which [Check] returns an error.
func CheckReferences(refs []measuredboot.ReferenceValues, files ...File) (problems []manifest.Problem) {
	for _, f := range files {
		parsed, _ := Parse(f.Name, f.Raw)
		for _, p := range parsed {
			c := check{parsed: p}
			c.references(refs)
			problems = append(problems, c.problems...)
		}
	}
	return problems
}

func (c *check) references(refs []measuredboot.ReferenceValues) {
	spec := c.parsed.Spec.TPM2
	selected := refs
	if len(spec.ReferenceValues) > 0 {
		selected = nil
	}
	for i, name := range spec.ReferenceValues {
		at := slices.IndexFunc(refs, func(r measuredboot.ReferenceValues) bool { return r.Metadata.Name == name })
		if at < 0 {
			c.fault(fmt.Sprintf("spec.tpm2.referenceValues[%d]", i), fmt.Sprintf("no reference values are named %q", name),
				"correct the name, or add the document")
			continue
		}
		selected = append(selected, refs[at])
	}
	profile := measuredboot.Profile(spec.Profile)
	for _, r := range selected {
		if profile.NeedsEventLog() && len(r.PCR11) > 0 && len(r.Applications) == 0 {
			c.fault("spec.tpm2.profile", fmt.Sprintf("%s does not accept the image of %q, because the document has no "+
				"applications: PCR 11 does not identify an image", profile, r.Metadata.Name),
				"compute the document: mcs-attest-verifier refvals --uki")
		}
	}
	missing := func(firmware bool) bool {
		return !slices.ContainsFunc(selected,
			func(r measuredboot.ReferenceValues) bool { return (r.Firmware != nil) == firmware })
	}
	if profile == measuredboot.Strict && missing(true) {
		c.fault("spec.tpm2.profile",
			"strict accepts no machine, because no reference values of the policy are a firmware set",
			"compute one: mcs-attest-verifier refvals firmware")
	}
	if (profile == measuredboot.Strict || profile == measuredboot.Release) && missing(false) {
		c.fault("spec.tpm2.profile",
			fmt.Sprintf("%s accepts no machine, because no reference values of the policy are of an image", profile),
			"compute them: mcs-attest-verifier refvals")
	}
}
