// SPDX-License-Identifier: Apache-2.0

package appraisal

import (
	"encoding/json"
	"fmt"
	"maps"
	"math"
	"slices"

	"github.com/mcs-attest/mcs-attest/pkg/api/v1alpha1"
	"github.com/mcs-attest/mcs-attest/pkg/evidence"
	"github.com/mcs-attest/mcs-attest/pkg/evidence/tpm2"
	"github.com/mcs-attest/mcs-attest/pkg/measuredboot"
	"github.com/mcs-attest/mcs-attest/pkg/reason"
	"github.com/mcs-attest/mcs-attest/pkg/transcript"
)

// stage returns the stage of the boot in which the machine attests, by its own word. Agents
// without that claim run only in the initramfs.
//
// The claim is not evidence. It tells an honest machine that its pool does not accept a late
// attestation. Only what is measured stops one that lies: a capped PCR 11, a later phase of a
// measured UKI, or an initramfs that the reference values do not have.
func stage(claims []byte) (v1alpha1.Stage, error) {
	var c struct {
		Stage any `json:"stage"`
	}
	if json.Unmarshal(claims, &c) != nil || c.Stage == nil {
		return v1alpha1.StageInitramfs, nil
	}
	word, _ := c.Stage.(string)
	switch s := v1alpha1.Stage(word); s {
	case v1alpha1.StageInitramfs, v1alpha1.StageRealRoot:
		return s, nil
	}
	return "", reason.Deny(reason.Malformed, "the claims have an unknown stage %.64q", word)
}

// inTime checks that the policy accepts the stage in which the machine attests.
func (a *appraisal) inTime() error {
	if a.stage == v1alpha1.StageRealRoot && !a.Policy.RealRoot && !a.Rehearsal {
		return reason.Deny(reason.EvidenceUnacceptable,
			"the machine attests in the real root; policy %s accepts only the initramfs (stage: Initramfs)", a.Policy.Name)
	}
	return nil
}

// staged returns the summaries of the evidence. The first one has the stage, unless it is the
// initramfs.
func (a *appraisal) staged() []v1alpha1.EvidenceSummary {
	if a.stage != v1alpha1.StageInitramfs && len(a.summaries) > 0 {
		summary := map[string]string{v1alpha1.SummaryStage: string(a.stage)}
		maps.Copy(summary, a.summaries[0].Summary)
		a.summaries[0].Summary = summary
	}
	return a.summaries
}

// boot appraises the measured boot by the policy's profile. With the action Warn, a
// boot that violates the profile causes a warning instead of a denial. A wrong PCR 11
// is always denied, except that a rehearsal runs after the cap.
func (a *appraisal) boot() error {
	if a.quote == nil {
		return nil
	}
	refs, err := a.references()
	if err != nil {
		return err
	}
	pcrs := a.quote.PCRs
	if a.Rehearsal {
		var capped bool
		if pcrs, capped = measuredboot.BeforeCap(a.quote.Bank, pcrs, refs); !capped {
			a.warnings = append(a.warnings, "nothing capped PCR 11 when the initramfs ended: install components/cap")
		}
	}
	result, err := measuredboot.Appraise(a.Policy.Profile, a.quote.Bank, pcrs, a.ev.EventLog, refs)
	warns := a.Policy.ProfileAction == v1alpha1.ProfileWarn
	if err != nil && warns && measuredboot.MayWarn(err) {
		a.warnings = append(a.warnings, err.Error())
		return nil
	}
	// The document that was not read may be the one of this boot, or one that denies a boot without a document.
	depends := err == nil && a.Policy.Profile.NeedsEventLog() && result.Image == "" && !warns ||
		err != nil && reason.From(err).Code == reason.MeasuredBoot
	if unread := a.Policy.UnreadReferences; depends && unread != "" && len(a.Policy.ReferenceValues) == 0 {
		return reason.Deny(reason.ReferenceValuesMissing, "%s cannot be read, and policy %s selects all documents", unread,
			a.Policy.Name)
	}
	if err != nil {
		return err
	}
	if !result.Profile.NeedsEventLog() {
		return nil
	}
	summary := a.summaries[slices.IndexFunc(a.summaries, isTPM)].Summary
	summary["profile"] = string(result.Profile)
	for k, v := range map[string]string{"image": result.Image, "firmware": result.Firmware} {
		if v != "" {
			summary[k] = v
		}
	}
	return nil
}

func isTPM(s v1alpha1.EvidenceSummary) bool { return s.Kind == evidence.TPM2.String() }

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

func quoteSummary(q *tpm2.Quote) map[string]string {
	return map[string]string{
		"ek": q.EK.Describe(), "ak": q.AK.Describe(), "bank": transcript.BankName(q.Bank),
		"resetCount": fmt.Sprint(q.ResetCount), "restartCount": fmt.Sprint(q.RestartCount),
		"firmwareVersion": fmt.Sprintf("%#x", q.FirmwareVersion),
	}
}

// counters returns the counters of a quote, or nil without one.
func counters(q *tpm2.Quote) *v1alpha1.TPMCounters {
	if q == nil {
		return nil
	}
	return &v1alpha1.TPMCounters{
		ResetCount: int64(q.ResetCount), RestartCount: int64(q.RestartCount), Clock: int64(min(q.Clock, math.MaxInt64)),
	}
}
