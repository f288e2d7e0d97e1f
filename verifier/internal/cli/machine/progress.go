// SPDX-License-Identifier: Apache-2.0

package machine

import (
	"cmp"
	"encoding/json"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/mcs-attest/mcs-attest/pkg/api/v1alpha1"
	"github.com/mcs-attest/mcs-attest/verifier/internal/admin"
	"github.com/mcs-attest/mcs-attest/verifier/internal/audit"
	"github.com/mcs-attest/mcs-attest/verifier/internal/cli/env"
)

// progress is how far a scale-up has come. Its text and its JSON say the same.
type progress struct {
	Time time.Time `json:"time"`
	// Machines, and how many of them are in each phase; Waiting are those that
	// were never seen and are no Node.
	Machines int            `json:"machines"`
	Phases   map[string]int `json:"phases"`
	// Provisioned have fetched their config or joined.
	Provisioned int `json:"provisioned"`
	// What needs an administrator.
	Pending     int `json:"pendingApproval"`
	Failed      int `json:"failed"`
	Conflicts   int `json:"conflicts"`
	Quarantined int `json:"quarantined"`
	// Attention are the machines that need an administrator, and Latest the others. What
	// happened last comes first. Each has at most twelve entries.
	Attention []progressLine `json:"attention"`
	Latest    []progressLine `json:"latest"`
	Verifier  []string       `json:"verifier,omitempty"`
	// Problems are the errors in files or objects.
	Problems []string `json:"problems,omitempty"`
}

type progressLine struct {
	Machine string    `json:"machine"`
	Phase   string    `json:"phase"`
	Since   time.Time `json:"since"`
	Note    string    `json:"note,omitempty"`
}

const (
	phaseWaiting  = "Waiting"
	progressLines = 12
	problemLines  = 3
	screenWidth   = 80
)

// progressPhases is their order on the screen.
var progressPhases = []string{phaseWaiting, string(v1alpha1.PhaseDenied), string(v1alpha1.PhaseAttested),
	string(v1alpha1.PhaseFetched), string(v1alpha1.PhaseJoined)}

func newProgress(s *admin.State) *progress {
	p := &progress{
		Time: s.Time, Machines: len(s.Machines), Phases: map[string]int{}, Pending: len(s.Pending), Verifier: health(s),
		Attention: []progressLine{}, Latest: []progressLine{},
	}
	for _, problem := range s.Problems {
		p.Problems = append(p.Problems, audit.Clean(problem))
	}
	for _, phase := range progressPhases {
		p.Phases[phase] = 0
	}
	for _, m := range s.Machines {
		if m.Kind == "BreakGlass" {
			p.Machines--
			continue
		}
		line := progressLine{Machine: m.Name, Phase: phaseWaiting, Since: m.Created}
		r := m.Record
		if r != nil && r.Phase != "" {
			line.Phase = string(r.Phase)
		}
		if line.Phase == phaseWaiting && m.NodeRef != "" {
			line.Phase = string(v1alpha1.PhaseJoined)
		}
		if r != nil && len(r.History) > 0 {
			line.Since = r.History[len(r.History)-1].Time.Time
		}
		p.Phases[line.Phase]++
		if line.Phase == string(v1alpha1.PhaseFetched) || line.Phase == string(v1alpha1.PhaseJoined) {
			p.Provisioned++
		}
		_, _, line.Note = summary(m, s.Time)
		if p.needs(m) || line.Phase == string(v1alpha1.PhaseDenied) {
			p.Attention = append(p.Attention, line)
		} else {
			p.Latest = append(p.Latest, line)
		}
	}
	for _, w := range s.Pending {
		p.Attention = append(p.Attention, progressLine{Machine: "(pending " + w.ID + ")",
			Phase: string(v1alpha1.PhasePending), Since: w.FirstSeen, Note: "approve " + w.ID})
	}
	p.Attention, p.Latest = latest(p.Attention), latest(p.Latest)
	return p
}

// needs reports whether a machine needs an administrator, and counts it.
func (p *progress) needs(m admin.Machine) bool {
	needs := false
	for _, c := range []struct {
		is    bool
		count *int
	}{
		{m.Quarantined, &p.Quarantined},
		{m.Record != nil && m.Record.Report != nil, &p.Failed},
		{m.Record != nil && conflict(m.Record), &p.Conflicts},
	} {
		if c.is {
			needs = true
			*c.count++
		}
	}
	return needs
}

func latest(lines []progressLine) []progressLine {
	slices.SortStableFunc(lines, func(a, b progressLine) int {
		return cmp.Or(b.Since.Compare(a.Since), cmp.Compare(a.Machine, b.Machine))
	})
	return lines[:min(len(lines), progressLines)]
}

// lines is the screen: at most 80 columns, whatever the machines are called.
func (p *progress) lines() []string {
	percent := 0
	if p.Machines > 0 {
		percent = 100 * p.Provisioned / p.Machines
	}
	const bar = screenWidth - 2
	full := bar * percent / 100
	out := []string{
		fmt.Sprintf("%s  %d machines, %d provisioned (%d%%)", p.Time.Format(time.TimeOnly), p.Machines, p.Provisioned,
			percent),
		"[" + strings.Repeat("#", full) + strings.Repeat(".", bar-full) + "]",
	}
	var phases []string
	for _, phase := range progressPhases {
		phases = append(phases, fmt.Sprintf("%s %d", strings.ToLower(phase), p.Phases[phase]))
	}
	out = append(out, strings.Join(phases, "   "))
	var trouble []string
	for _, t := range []struct {
		what string
		n    int
	}{{"waiting for approval", p.Pending}, {"failed", p.Failed}, {"conflicts", p.Conflicts},
		{"quarantined", p.Quarantined}} {
		if t.n > 0 {
			trouble = append(trouble, fmt.Sprintf("%s %d", t.what, t.n))
		}
	}
	if len(trouble) > 0 {
		out = append(out, strings.Join(trouble, "   "))
	}
	out = append(out, p.Verifier...)
	for _, problem := range p.Problems[:min(len(p.Problems), problemLines)] {
		out = append(out, "problem: "+problem)
	}
	if more := len(p.Problems) - problemLines; more > 0 {
		out = append(out, fmt.Sprintf("(%d more problems: 'status' without --watch shows them)", more))
	}
	for _, group := range []struct {
		title string
		lines []progressLine
	}{{"needs an administrator:", p.Attention}, {"latest:", p.Latest}} {
		if len(group.lines) == 0 {
			continue
		}
		out = append(out, "", group.title)
		for _, l := range group.lines {
			out = append(out, fmt.Sprintf("  %4s  %-8s  %s  %s", age(p.Time, l.Since), l.Phase, end(l.Machine, 34), l.Note))
		}
	}
	for i, l := range out {
		out[i] = clip(strings.TrimRight(l, " "), screenWidth)
	}
	return out
}

// clip cuts a line at its end.
func clip(s string, width int) string {
	if r := []rune(s); len(r) > width {
		return string(r[:width-1]) + "…"
	}
	return s
}

// end cuts a name at its beginning, since machines of one set differ at their end,
// and pads it.
func end(s string, width int) string {
	if r := []rune(s); len(r) > width {
		s = "…" + string(r[len(r)-width+1:])
	}
	return fmt.Sprintf("%-*s", width, s)
}

// follow prints the progress repeatedly until the user interrupts it. It reports a failed
// read and tries again, except for the first.
func follow(cmd *cobra.Command, b env.Backend, output *env.Output, interval time.Duration) error {
	if interval < 100*time.Millisecond {
		return env.Usagef("interval %v: at least 100ms", interval)
	}
	defer env.UntilSignal(cmd)()
	out, seen := cmd.OutOrStdout(), false
	for {
		begun := time.Now()
		s, err := b.State(cmd.Context())
		switch {
		case cmd.Context().Err() != nil:
			return nil
		case err != nil && !seen:
			return err
		case err != nil:
			cmd.PrintErrln("error:", audit.Clean(err.Error()))
		default:
			seen = true
			if err := showProgress(out, newProgress(s), output); err != nil {
				return err
			}
		}
		// A look at 100 000 machines takes the API server some effort.
		wait := max(interval, 4*time.Since(begun))
		select {
		case <-cmd.Context().Done():
			return nil
		case <-time.After(wait):
		}
	}
}

// showProgress prints one line of JSON, one document of YAML, or the screen.
func showProgress(out io.Writer, p *progress, output *env.Output) error {
	switch {
	case output.Is(env.JSON):
		return json.NewEncoder(out).Encode(p)
	case output.Is(env.YAML):
		if _, err := io.WriteString(out, "---\n"); err != nil {
			return err
		}
		return env.Encode(out, p, env.YAML)
	}
	text := strings.Join(p.lines(), "\n") + "\n"
	if terminal(out) {
		text = "\033[H\033[2J" + text
	} else {
		text += "\n"
	}
	_, err := io.WriteString(out, text)
	return err
}
