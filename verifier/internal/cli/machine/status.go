// SPDX-License-Identifier: Apache-2.0

package machine

import (
	"bytes"
	"cmp"
	"fmt"
	"io"
	"os"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/term"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/mcs-attest/mcs-attest/pkg/api/v1alpha1"
	"github.com/mcs-attest/mcs-attest/verifier/internal/admin"
	"github.com/mcs-attest/mcs-attest/verifier/internal/audit"
	"github.com/mcs-attest/mcs-attest/verifier/internal/cli/env"
)

func statusCommand(e *env.Env) *cobra.Command {
	var watch bool
	var interval time.Duration
	cmd := &cobra.Command{
		Use:   "status",
		Short: "List every machine with its phase, times, and the reason of a denial",
		Long: `List every machine with its phase, the times at which it attested, fetched its config
and joined in this boot, and the reason if it did not. Times are in UTC; a time of an
earlier day is shown as the day. Below are the machines that wait for approval, the
machines that asked and are not enrolled with the command that enrolls them, and the
errors in files or objects. -o wide adds full times, the start of the phase, the Node,
and the last rehearsal.

For a folder, the command asks the running verifier; if none runs, it reads the files
and the records. For a cluster, it reads the objects.

--watch shows the progress of a scale-up: the number of machines in each phase, the
errors in files or objects, and first the machines that need an administrator. With
-o json each update is one line.`,
		Example: e.Examples(`  PROGRAM status
  PROGRAM status -o wide
  PROGRAM status --watch
  PROGRAM status -o json`),
		Args: cobra.NoArgs,
	}
	e.Where(cmd)
	output := env.OutputFlag(cmd, "wide")
	f := cmd.Flags()
	f.BoolVarP(&e.Everywhere, "all-namespaces", "A", false, "list the Machines of every namespace")
	f.BoolVarP(&watch, "watch", "w", false, "show the progress of a scale-up until interrupted")
	f.DurationVar(&interval, "interval", 2*time.Second, "time between two updates of --watch")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		if watch && (output.Is("wide") || output.Is(env.Name)) {
			return env.Usagef(`output of --watch: must be "table" or "json" or "yaml"`)
		}
		b, err := e.Open()
		if err != nil {
			return err
		}
		if watch {
			return follow(cmd, b, output, interval)
		}
		return showState(cmd, e, b, output)
	}
	return cmd
}

func showState(cmd *cobra.Command, e *env.Env, b env.Backend, output *env.Output) error {
	s, err := b.State(cmd.Context())
	if err != nil {
		return err
	}
	if err := readDenials(cmd.Context(), b, s); err != nil {
		missing := "machines that are not enrolled may be missing: " + audit.Clean(err.Error())
		if output.Is(env.Table) || output.Is("wide") {
			fmt.Fprintln(cmd.OutOrStdout(), "("+missing+")")
		} else {
			cmd.PrintErrln("warning:", missing)
		}
	}
	return output.Print(cmd.OutOrStdout(), s, stateNames(s), func(out io.Writer) error {
		return printState(out, e, s, output.Is("wide"))
	})
}

// stateNames are the machines, and the ids of those that wait for approval.
func stateNames(s *admin.State) []string {
	var names []string
	for _, m := range s.Machines {
		names = append(names, m.Name)
	}
	for _, p := range s.Pending {
		names = append(names, p.ID)
	}
	return names
}

func printState(out io.Writer, e *env.Env, s *admin.State, wide bool) error {
	for _, line := range health(s) {
		fmt.Fprintln(out, line)
	}
	var table bytes.Buffer
	w := tabwriter.NewWriter(&table, 0, 8, 2, ' ', 0)
	row := func(name, pool, phase, since string, reached milestones, node, rehearsal, note string) {
		columns := []string{name, pool, phase}
		if wide {
			columns = append(columns, since)
		}
		columns = append(columns, reached[:]...)
		if wide {
			columns = append(columns, node, rehearsal)
		}
		fmt.Fprintln(w, strings.Join(append(columns, note), "\t")) // also without a note, or the column ends here
	}
	row("MACHINE", "POOL", "PHASE", "SINCE", milestones{"ATTESTED", "FETCHED", "JOINED"}, "NODE", "REHEARSED", "NOTE")
	for _, m := range s.Machines {
		phase, since, note := summary(m, s.Time)
		times := reached(m, s.Time, wide)
		if !wide && times == nothingReached && note != "" && since != "" {
			note += " for " + since
		}
		row(m.Name, audit.Clean(strings.Join(m.Pools, ",")), phase, since, times, cmp.Or(audit.Clean(m.Node()), "-"),
			rehearsed(m.Record, s.Time), note)
	}
	for _, p := range s.Pending {
		row("(pending "+p.ID+")", audit.Clean(p.Pool), string(v1alpha1.PhasePending), age(s.Time, p.FirstSeen),
			nothingReached, "-", "-", "enroll --approve "+p.ID)
	}
	unknown := unenrolled(s)
	for _, d := range unknown[:min(len(unknown), maxUnknown)] {
		row("(unknown "+d.EKSHA256[:min(len(d.EKSHA256), 16)]+")", audit.Clean(d.Pool), string(v1alpha1.PhaseDenied),
			age(s.Time, d.First), nothingReached, "-", "-", audit.Clean(d.Reason)+" for "+age(s.Time, d.First))
	}
	if err := w.Flush(); err != nil {
		return err
	}
	for line := range strings.Lines(table.String()) {
		fmt.Fprintln(out, strings.TrimRight(line, " \n"))
	}
	if len(s.Machines)+len(s.Pending)+len(unknown) == 0 {
		fmt.Fprintln(out, "(no Machines, no enrollments, and no machine waits)")
	}
	printUnenrolled(out, e, s, unknown)
	for _, p := range s.Problems {
		fmt.Fprintln(out, "problem:", audit.Clean(p))
	}
	return nil
}

// health returns the verifier's own problems. It is empty if there are none.
func health(s *admin.State) []string {
	switch {
	case s.Serving || s.Cluster == "" && len(s.Conditions) > 0:
	case s.Cluster == "":
		return []string{"(no verifier is serving; this is the state of the folder and the records)"}
	case len(s.Conditions) == 0:
		return []string{"(no verifier has reported in this cluster yet)"}
	}
	var lines []string
	for _, c := range s.Conditions {
		switch {
		case c.Type == "Available" && c.Status != metav1.ConditionTrue:
			lines = append(lines, "(the verifier is not available: "+conditionText(c)+")")
		case c.Type == "Degraded" && c.Status == metav1.ConditionTrue:
			lines = append(lines, "(the verifier is degraded: "+conditionText(c)+")")
		case c.Type == v1alpha1.ConditionDoorOpen && c.Status == metav1.ConditionTrue:
			lines = append(lines, "(the Machine Config Server answers without the gate: "+conditionText(c)+")")
		case c.Type == v1alpha1.ConditionDoorOpen && c.Status == metav1.ConditionUnknown:
			lines = append(lines, "(it is unknown whether the Machine Config Server answers without the gate: "+
				conditionText(c)+")")
		}
	}
	return lines
}

func conditionText(c metav1.Condition) string {
	return audit.Clean(strings.Trim(c.Reason+": "+c.Message, ": "))
}

// summary is a machine's line: phase, since when, and why not.
func summary(m admin.Machine, now time.Time) (phase, since, note string) {
	var notes []string
	if m.Quarantined {
		notes = append(notes, "QUARANTINED")
	}
	if m.Reattest != nil && m.Reattest.After(now) {
		notes = append(notes, "may attest again for "+age(*m.Reattest, now))
	}
	if m.Deleting {
		notes = append(notes, "being deleted")
	}
	r := m.Record
	// A record that only says that there is a quarantine is of a machine never seen.
	if r == nil || r.Phase == "" && len(r.History) == 0 {
		seen := "never seen"
		if m.NodeRef != "" {
			seen = "never attested; it is Node " + m.NodeRef
		}
		return "-", age(now, m.Created), strings.Join(append(notes, seen), ", ")
	}
	phase = cmp.Or(string(r.Phase), "-")
	why := ""
	if n := len(r.History); n > 0 {
		last := r.History[n-1]
		since, why = age(now, last.Time.Time), last.Reason
	}
	if r.Report != nil {
		why = "FAILED: " + audit.Clean(r.Report.Unit)
	}
	if conflict(r) {
		why = strings.TrimSpace("CONFLICT " + why)
	}
	if why != "" {
		notes = append(notes, why)
	}
	return phase, since, strings.Join(notes, ", ")
}

// milestones are when a machine attested, fetched its config and joined.
type milestones [3]string

var nothingReached = milestones{"-", "-", "-"}

// reached returns how far m is in the boot that began with its last attestation. What
// happened before belongs to an earlier installation of the node. If it joined without
// a time, the result is "yes".
func reached(m admin.Machine, now time.Time, whole bool) milestones {
	out := nothingReached
	if m.NodeRef != "" {
		out[2] = "yes"
	}
	r := m.Record
	if r == nil {
		return out
	}
	var begun time.Time
	if r.LastAttested != nil {
		begun = r.LastAttested.Time
		out[0] = clock(now, begun, whole)
	}
	for _, h := range r.History {
		if h.Time.Time.Before(begun) {
			continue
		}
		switch h.Event {
		case "Attested":
			if r.LastAttested != nil {
				continue
			}
			out[0] = clock(now, h.Time.Time, whole)
		case "Fetched":
			out[1] = clock(now, h.Time.Time, whole)
		case "Joined":
			out[2] = clock(now, h.Time.Time, whole)
		}
	}
	switch c := r.Certificate; {
	case c != nil && out[2] == "-" && r.Phase == v1alpha1.PhaseJoined:
		out[2] = clock(now, c.Approved.Time, whole)
	case r.Phase == v1alpha1.PhaseJoined && out[2] == "-":
		out[2] = "yes"
	}
	return out
}

// clock is a time as a column has it: of this day, or the day.
func clock(now, t time.Time, whole bool) string {
	t = t.UTC()
	switch {
	case whole:
		return t.Format(time.RFC3339)
	case now.UTC().Format(time.DateOnly) == t.Format(time.DateOnly):
		return t.Format(time.TimeOnly)
	}
	return t.Format(time.DateOnly)
}

func conflict(r *v1alpha1.MachineAttestationStatus) bool {
	return meta.IsStatusConditionTrue(r.Conditions, v1alpha1.ConditionConflict)
}

func age(now, then time.Time) string {
	d := now.Sub(then)
	switch {
	case then.IsZero():
		return "-"
	case d < 2*time.Minute:
		return fmt.Sprintf("%ds", max(int(d.Seconds()), 0))
	case d < 2*time.Hour:
		return fmt.Sprintf("%dm", int(d.Minutes()))
	case d < 48*time.Hour:
		return fmt.Sprintf("%dh", int(d.Hours()))
	}
	return fmt.Sprintf("%dd", int(d.Hours()/24))
}

// terminal reports whether out is a person's screen.
func terminal(out io.Writer) bool {
	f, ok := out.(*os.File)
	return ok && term.IsTerminal(int(f.Fd()))
}
