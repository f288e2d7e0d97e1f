// SPDX-License-Identifier: Apache-2.0

package machine

import (
	"cmp"
	"fmt"
	"io"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/schollz/progressbar/v3"

	"github.com/mcs-attest/mcs-attest/pkg/api/v1alpha1"
	"github.com/mcs-attest/mcs-attest/verifier/internal/audit"
	"github.com/mcs-attest/mcs-attest/verifier/internal/cli/env"
	"github.com/mcs-attest/mcs-attest/verifier/internal/operator/rehearse"
)

// rehearsals shows how far the rehearsals are: a bar on a terminal, elsewhere a line for each machine.
type rehearsals struct {
	out         io.Writer
	bar         *progressbar.ProgressBar
	n, finished int
}

func newRehearsals(out io.Writer, n int) *rehearsals {
	return &rehearsals{out: out, bar: progressBar(out, "rehearsing", n), n: n}
}

func (r *rehearsals) started(machine string) {
	if r.bar != nil {
		r.bar.Describe("rehearsing " + machine)
		return
	}
	fmt.Fprintln(r.out, machine, "rehearses")
}

func (r *rehearsals) done(result rehearse.Result) {
	r.finished++
	if r.bar != nil {
		_ = r.bar.Add(1)
		return
	}
	fmt.Fprintf(r.out, "%s (%d of %d): %s\n", result.Machine, r.finished, r.n,
		strings.TrimSpace(result.Result+" "+result.Reason))
}

func (r *rehearsals) end() {
	if r.bar != nil {
		_ = r.bar.Exit()
	}
}

// printRehearsals prints a table, and below it each distinct problem once.
func printRehearsals(out io.Writer, output *env.Output, now time.Time, all []rehearse.Result) error {
	var names []string
	for _, r := range all {
		names = append(names, r.Machine)
	}
	return output.Print(out, map[string]any{"rehearsals": all}, names, func(out io.Writer) error {
		w := tabwriter.NewWriter(out, 0, 8, 2, ' ', 0)
		fmt.Fprintln(w, "MACHINE\tNODE\tPOOL\tRESULT\tREASON\tAGE")
		for _, r := range all {
			since := "-"
			if r.Time != nil {
				since = age(now, *r.Time)
			}
			fmt.Fprintf(w, "%s\t%s\t%s\t%s\t%s\t%s\n", r.Machine, cmp.Or(r.Node, "-"), cmp.Or(r.Pool, "-"), r.Result,
				cmp.Or(r.Reason, "-"), since)
		}
		if err := w.Flush(); err != nil {
			return err
		}
		for _, n := range notesOf(all) {
			fmt.Fprintf(out, "\n%s\n", n.text)
			fmt.Fprintf(out, "  machines: %s\n", some(n.machines))
			if n.fix != "" {
				fmt.Fprintf(out, "  fix: %s\n", n.fix)
			}
		}
		return nil
	})
}

// note is a problem that machines have in common.
type note struct {
	text, fix string
	machines  []string
}

// notesOf returns each distinct problem of the results once: denials, then what kept machines from rehearsing, then
// warnings.
func notesOf(all []rehearse.Result) []*note {
	var notes []*note
	add := func(text, fix, machine string) {
		i := slices.IndexFunc(notes, func(n *note) bool { return n.text == text && n.fix == fix })
		if i < 0 {
			i = len(notes)
			notes = append(notes, &note{text: text, fix: fix})
		}
		notes[i].machines = append(notes[i].machines, machine)
	}
	for _, kind := range []string{rehearse.Failed, rehearse.Unknown} {
		for _, r := range all {
			switch {
			case r.Result != kind:
			case kind == rehearse.Failed:
				add(r.Reason+": "+r.Message, r.Fix, r.Machine)
			default:
				add("did not rehearse: "+r.Message, r.Fix, r.Machine)
			}
		}
	}
	for _, r := range all {
		for _, w := range r.Warnings {
			add("warning: "+w, "", r.Machine)
		}
	}
	return notes
}

// maxNamed bounds the machines that a note names.
const maxNamed = 5

// some names the first machines of a list.
func some(machines []string) string {
	if more := len(machines) - maxNamed; more > 0 {
		return fmt.Sprintf("%s and %d more", strings.Join(machines[:maxNamed], ", "), more)
	}
	return strings.Join(machines, ", ")
}

// rehearsed is a machine's last rehearsal, as a column has it.
func rehearsed(r *v1alpha1.MachineAttestationStatus, now time.Time) string {
	if r == nil || r.Rehearsal == nil {
		return "-"
	}
	result := rehearse.Passed
	if !r.Rehearsal.Passed {
		result = rehearse.Failed + " " + r.Rehearsal.Reason
	}
	return age(now, r.Rehearsal.Time.Time) + " " + audit.Clean(result)
}
