// SPDX-License-Identifier: Apache-2.0

package policy

import (
	"fmt"
	"io"
	"slices"
	"text/tabwriter"

	"github.com/mcs-attest/mcs-attest/pkg/appraisal"
	"github.com/mcs-attest/mcs-attest/pkg/reason"
	"github.com/mcs-attest/mcs-attest/verifier/internal/audit"
	"github.com/mcs-attest/mcs-attest/verifier/internal/secondopinion"
)

// secondOpinion is what the libraries say about evidence that this verifier accepted or denied.
type secondOpinion struct {
	Checks  []secondopinion.Check `json:"checks,omitempty"`
	Summary string                `json:"summary"`
}

func askLibraries(saved *appraisal.Saved, denied error) secondOpinion {
	checks, err := secondopinion.Ask(saved)
	if err != nil {
		return secondOpinion{Summary: "no second opinion: " + err.Error()}
	}
	o := secondOpinion{Checks: checks, Summary: "the libraries agree with this verifier in each check"}
	if i := slices.IndexFunc(checks, func(c secondopinion.Check) bool { return !c.Agree() }); i >= 0 {
		o.Summary = "the libraries do not agree with this verifier in each check"
	}
	// The appraisal also denies what the TPM's part does not show.
	if d := reason.From(denied); d != nil && !slices.ContainsFunc(checks, func(c secondopinion.Check) bool {
		return c.Verifier.Verdict == secondopinion.Denied
	}) {
		o.Summary += fmt.Sprintf(", and neither has the check that denied the evidence: %s", d.Code.Info().Name)
	}
	return o
}

func (o secondOpinion) print(out io.Writer) error {
	w := tabwriter.NewWriter(out, 0, 8, 2, ' ', 0)
	if len(o.Checks) > 0 {
		fmt.Fprintln(w, "CHECK\tVERIFIER\tGO-ATTESTATION\tGO-TPM-TOOLS")
	}
	for _, c := range o.Checks {
		fmt.Fprintf(w, "%s\t%s\t%s\t%s\n", c.Name, c.Verifier.Verdict, c.GoAttestation.Verdict, c.GoTPMTools.Verdict)
	}
	if err := w.Flush(); err != nil {
		return err
	}
	for _, c := range o.Checks {
		for _, r := range []struct {
			program string
			secondopinion.Result
		}{{"verifier", c.Verifier}, {"go-attestation", c.GoAttestation}, {"go-tpm-tools", c.GoTPMTools}} {
			if r.Detail != "" {
				fmt.Fprintf(out, "%s, %s: %s\n", c.Name, r.program, audit.Clean(r.Detail))
			}
		}
		if c.Laxer != "" {
			fmt.Fprintf(out, "%s, laxer: %s\n", c.Name, c.Laxer)
		}
		if c.Stricter {
			fmt.Fprintf(out, "%s, stricter: a library does not accept this form of evidence\n", c.Name)
		}
	}
	_, err := fmt.Fprintln(out, o.Summary)
	return err
}
