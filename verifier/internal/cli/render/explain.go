// SPDX-License-Identifier: Apache-2.0

package render

import (
	"cmp"
	"fmt"
	"io"
	"strings"
	"text/tabwriter"

	"github.com/mcs-attest/mcs-attest/pkg/manifest"
	"github.com/mcs-attest/mcs-attest/pkg/render"
	"github.com/mcs-attest/mcs-attest/verifier/internal/cli/env"
	"github.com/mcs-attest/mcs-attest/verifier/internal/hint"
)

// explanation is the document of --explain.
type explanation struct {
	Pool           string          `json:"pool"`
	Name           string          `json:"name,omitempty"`
	MachineConfigs []render.Choice `json:"machineConfigs"`
	// Full and PreApproved are where the parts come from, Left is what the second leaves out.
	Full             []render.Origin `json:"whole,omitempty"`
	PreApproved      []render.Origin `json:"preApproved,omitempty"`
	Left             []render.Origin `json:"left,omitempty"`
	Error            string          `json:"error,omitempty"`
	PreApprovedError string          `json:"preApprovedError,omitempty"`
}

// explained tells all that can be told. It fails where what was asked for does not render.
func (r *renderRequest) explained(out io.Writer, in render.Input, o render.Options) error {
	e := explanation{Pool: r.pool}
	var err error
	if e.MachineConfigs, err = render.Choices(r.pool, in, o); err != nil {
		if r.output == env.Table {
			fmt.Fprint(out, manifest.Printable(notChosen(in)))
		}
		return hint.New(renderFailed(err), "a pool selects by its spec.machineConfigSelector, usually by the label %s",
			render.LabelRole)
	}
	full, err := render.Full(r.pool, in)
	if err != nil {
		err = renderFailed(err)
		e.Error = err.Error()
	} else {
		e.Name, e.Full = full.Config.Name, full.Origins
	}
	part, wrong := render.PreApproved(r.pool, in, o)
	if wrong != nil {
		wrong = renderFailed(wrong)
		e.PreApprovedError = wrong.Error()
	} else {
		e.PreApproved, e.Left = part.Origins, part.Left
	}
	if r.preApproved && err == nil {
		err = wrong
	}
	if r.output == env.Name {
		for _, m := range e.MachineConfigs {
			fmt.Fprintln(out, manifest.Printable(m.MachineConfig))
		}
		return err
	}
	if r.output != env.Table {
		if failed := env.Encode(out, e, r.output); failed != nil {
			return failed
		}
		return err
	}
	var text strings.Builder
	if failed := e.print(&text, r.preApproved); failed != nil {
		return failed
	}
	if _, failed := io.WriteString(out, manifest.Printable(text.String())); failed != nil {
		return failed
	}
	return err
}

func (e *explanation) print(out io.Writer, preApproved bool) error {
	fmt.Fprintf(out, "MachineConfigPool %s: %s\n\nMachineConfigs, in the order of the merge:\n", e.Pool,
		cmp.Or(e.Name, "it does not render"))
	for _, m := range e.MachineConfigs {
		switch {
		case m.Fault != "":
			fmt.Fprintf(out, "  %s cannot be used: %s\n", m.MachineConfig, m.Fault)
		case m.PreApproved:
			fmt.Fprintf(out, "  %s is in the pre-approved part: %s\n", m.MachineConfig, m.Why)
		default:
			fmt.Fprintf(out, "  %s is not in the pre-approved part: %s\n", m.MachineConfig, m.Why)
		}
		for _, s := range m.Secrets {
			fmt.Fprintf(out, "    contains %s: %s\n", s.What, s.Where)
		}
	}
	w := tabwriter.NewWriter(out, 0, 8, 2, ' ', 0)
	table := func(title string, parts []render.Origin, why bool) {
		if len(parts) == 0 {
			return
		}
		fmt.Fprintf(w, "\n%s\n", title)
		for _, p := range parts {
			from := p.From
			if len(p.Over) > 0 {
				from += " (over " + strings.Join(p.Over, ", ") + ")"
			}
			fmt.Fprintf(w, "  %s\t%s\t%s", p.Kind, p.Key, from)
			if why {
				fmt.Fprintf(w, "\t%s", p.Why)
			}
			fmt.Fprintln(w)
		}
	}
	if !preApproved {
		table("The full config:", e.Full, false)
	}
	table("The pre-approved part:", e.PreApproved, true)
	table("Not in the pre-approved part:", e.Left, true)
	if e.PreApprovedError != "" && !preApproved {
		fmt.Fprintf(w, "\nNo pre-approved part: %s\n", e.PreApprovedError)
	}
	return w.Flush()
}
