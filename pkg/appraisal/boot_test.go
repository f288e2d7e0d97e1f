// SPDX-License-Identifier: Apache-2.0

package appraisal_test

import (
	"encoding/json"
	"os"
	"testing"

	"github.com/mcs-attest/mcs-attest/pkg/api/v1alpha1"
	"github.com/mcs-attest/mcs-attest/pkg/appraisal"
	"github.com/mcs-attest/mcs-attest/pkg/eventlog/eventlogtest"
	"github.com/mcs-attest/mcs-attest/pkg/measuredboot"
	"github.com/mcs-attest/mcs-attest/pkg/reason"
)

// references returns the reference values of the captured UKI, under a name.
func references(t *testing.T, name string) measuredboot.ReferenceValues {
	t.Helper()
	r := referencesOf(t, eventlogtest.SecureBootUKI)
	r.Metadata.Name = name
	return r
}

func referencesOf(t *testing.T, capture string) measuredboot.ReferenceValues {
	t.Helper()
	raw, err := os.ReadFile("../measuredboot/testdata/" + capture + ".json")
	if err != nil {
		t.Fatal(err)
	}
	var r measuredboot.ReferenceValues
	if err := json.Unmarshal(raw, &r); err != nil {
		t.Fatal(err)
	}
	return r
}

// boots makes the machine boot like a capture. The policy has the profile secure-boot.
func (tr *trial) boots(t *testing.T, name string) {
	t.Helper()
	c := eventlogtest.Load(t, name)
	tr.tpm.PCRs, tr.log = c.PCRs("sha256", measuredboot.SecureBoot.PCRs()...), c.Log
	tr.spec.TPM2.Profile = string(measuredboot.SecureBoot)
}

func TestBoot_OnlyActionWarnAcceptsAFailedBoot(t *testing.T) {
	for name, c := range map[string]struct {
		capture string
		change  func(*trial)
		enforce reason.Code // 0: accepted
		warn    reason.Code // 0: accepted
		warned  bool
	}{
		"the boot is acceptable": {capture: eventlogtest.SecureBootUKI},
		"Secure Boot is off":     {capture: eventlogtest.UKI, enforce: reason.MeasuredBoot, warned: true},
		"there is no event log": {capture: eventlogtest.SecureBootUKI, change: func(tr *trial) { tr.log = nil },
			enforce: reason.EventLogMalformed, warned: true},
		"the event log does not explain the PCRs": {capture: eventlogtest.SecureBootUKI, change: func(tr *trial) {
			tr.tpm.PCRs[4][0]++
		}, enforce: reason.EventLogReplay, warned: true},
		"the image is unknown": {capture: eventlogtest.SecureBootUKIAltered, enforce: reason.MeasuredBoot,
			warn: reason.MeasuredBoot},
		"PCR 11 has a value from after another initramfs": {capture: eventlogtest.SecureBootUKI, change: func(tr *trial) {
			tr.tpm.PCRs[11] = eventlogtest.Load(t, eventlogtest.SecureBootUKICapped).Later("capped")
		}, enforce: reason.MeasuredBoot, warn: reason.MeasuredBoot},
		"a PCR is not quoted": {capture: eventlogtest.SecureBootUKI, change: func(tr *trial) { delete(tr.tpm.PCRs, 7) },
			enforce: reason.PCRSelection, warn: reason.PCRSelection},
	} {
		for action, want := range map[v1alpha1.ProfileAction]reason.Code{
			"": c.enforce, v1alpha1.ProfileEnforce: c.enforce, v1alpha1.ProfileWarn: c.warn,
		} {
			t.Run(name+", action "+string(action), func(t *testing.T) {
				tr := newTPMTrial(t)
				tr.refs = []measuredboot.ReferenceValues{references(t, "uki")}
				tr.boots(t, c.capture)
				tr.spec.TPM2.ProfileAction = action
				if c.change != nil {
					c.change(tr)
				}
				if want != 0 {
					if m := tr.refused(t, want); m == nil || m.Name != "a" {
						t.Errorf("the denial is noted at Machine %v", m)
					}
					return
				}
				v := tr.passes(t, "a")
				if warned := c.warned && action == v1alpha1.ProfileWarn; (len(v.Warnings) > 0) != warned {
					t.Errorf("warnings %q", v.Warnings)
				}
				// Only an accepted boot is described.
				profile, image := "secure-boot", "uki"
				if c.warned {
					profile, image = "", ""
				}
				if s := v.Evidence[0].Summary; s["profile"] != profile || s["image"] != image {
					t.Errorf("the summary is %v", s)
				}
			})
		}
	}
}

// A profile that needs no event log adds nothing to the summary.
func TestBoot_IdentityOnly(t *testing.T) {
	v := newTPMTrial(t).passes(t, "a")
	if _, ok := v.Evidence[0].Summary["profile"]; ok || len(v.Warnings) > 0 {
		t.Errorf("%+v", v)
	}
}

// A file of reference values that could not be read since the start may have the document of this boot, or one that
// denies a boot without a document.
func TestBoot_WaitsForReferenceValuesThatWereNotRead(t *testing.T) {
	const grub, image = eventlogtest.ShimGRUB, eventlogtest.SecureBootUKI
	uki := []measuredboot.ReferenceValues{references(t, "uki")}
	wrong := []measuredboot.ReferenceValues{references(t, "none")}
	wrong[0].PCR11, wrong[0].Sections = nil, nil
	for name, c := range map[string]struct {
		capture string
		refs    []measuredboot.ReferenceValues
		names   []string
		profile measuredboot.Profile
		action  v1alpha1.ProfileAction
		want    reason.Code // 0: accepted
	}{
		"GRUB":              {grub, nil, nil, measuredboot.SecureBoot, "", reason.ReferenceValuesMissing},
		"GRUB, may warn":    {grub, nil, nil, measuredboot.SecureBoot, v1alpha1.ProfileWarn, 0},
		"GRUB, identity":    {grub, nil, nil, measuredboot.IdentityOnly, "", 0},
		"a UKI":             {image, nil, nil, measuredboot.SecureBoot, "", reason.ReferenceValuesMissing},
		"a UKI, may warn":   {image, nil, nil, measuredboot.SecureBoot, v1alpha1.ProfileWarn, reason.ReferenceValuesMissing},
		"a UKI, identity":   {image, nil, nil, measuredboot.IdentityOnly, "", reason.ReferenceValuesMissing},
		"its document":      {image, uki, nil, measuredboot.SecureBoot, "", 0},
		"its named one":     {image, uki, []string{"uki"}, measuredboot.SecureBoot, "", 0},
		"the wrong one":     {image, wrong, nil, measuredboot.SecureBoot, "", reason.ReferenceValuesMissing},
		"a wrong named one": {image, wrong, []string{"none"}, measuredboot.SecureBoot, "", reason.MeasuredBoot},
	} {
		t.Run(name, func(t *testing.T) {
			tr := newTPMTrial(t)
			tr.spoil = func(in *appraisal.Context, _ *appraisal.Evidence) { in.Policy.UnreadReferences = "new.yaml" }
			tr.boots(t, c.capture)
			tr.refs = c.refs
			tr.spec.TPM2.ReferenceValues, tr.spec.TPM2.Profile = c.names, string(c.profile)
			tr.spec.TPM2.ProfileAction = c.action
			if c.want == 0 {
				tr.passes(t, "a")
				return
			}
			tr.refused(t, c.want)
		})
	}
}

func TestBoot_OnlyTheNamedReferenceValuesApply(t *testing.T) {
	uki, none := references(t, "uki"), references(t, "none")
	none.PCR11, none.Sections = nil, nil
	for name, c := range map[string]struct {
		names  []string
		action v1alpha1.ProfileAction
		want   reason.Code // 0: accepted
	}{
		"no name means all":                   {nil, "", 0},
		"its own":                             {[]string{"uki"}, "", 0},
		"its own and another":                 {[]string{"none", "uki"}, "", 0},
		"only another":                        {[]string{"none"}, "", reason.MeasuredBoot},
		"a missing one":                       {[]string{"missing"}, "", reason.ReferenceValuesMissing},
		"a missing one beside its own":        {[]string{"uki", "missing"}, "", reason.ReferenceValuesMissing},
		"a missing one where a boot may warn": {[]string{"missing"}, v1alpha1.ProfileWarn, reason.ReferenceValuesMissing},
	} {
		t.Run(name, func(t *testing.T) {
			tr := newTPMTrial(t)
			tr.refs = []measuredboot.ReferenceValues{none, uki}
			tr.boots(t, eventlogtest.SecureBootUKI)
			tr.spec.TPM2.ReferenceValues, tr.spec.TPM2.ProfileAction = c.names, c.action
			if c.want == 0 {
				tr.passes(t, "a")
				return
			}
			if m := tr.refused(t, c.want); m == nil || m.Name != "a" {
				t.Errorf("the denial is noted at Machine %v", m)
			}
		})
	}
}
