package main

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"github.com/mcs-attest/mcs-attest/pkg/api/v1alpha1"
	"github.com/mcs-attest/mcs-attest/pkg/reason"
	"github.com/mcs-attest/mcs-attest/verifier/internal/admin"
	"github.com/mcs-attest/mcs-attest/verifier/internal/config"
)

func newStatusCommand() *cobra.Command {
	var configPath, output string
	var watch bool
	cmd := &cobra.Command{
		Use:   "status",
		Short: "Every machine, its phase, since when, and why not",
		Long: `Every machine, its phase, since when, and why not. Machines that wait for
approval come below, and then the files that do not parse.

Asks the serving verifier; without one, reads the folder and the records.`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			show := func() error {
				s, err := readState(cmd.Context(), configPath)
				if err != nil {
					return err
				}
				return printState(cmd.OutOrStdout(), s, output)
			}
			if !watch {
				return show()
			}
			tick := time.NewTicker(2 * time.Second)
			defer tick.Stop()
			for {
				if output == "table" {
					cmd.Print("\033[H\033[2J")
				}
				if err := show(); err != nil {
					return err
				}
				select {
				case <-cmd.Context().Done():
					return nil
				case <-tick.C:
				}
			}
		},
	}
	configFlag(cmd, &configPath)
	outputFlag(cmd, &output)
	cmd.Flags().BoolVarP(&watch, "watch", "w", false, "show it again every two seconds")
	return cmd
}

func newExplainCommand() *cobra.Command {
	var configPath, output string
	cmd := &cobra.Command{
		Use:   "explain NAME",
		Short: "All that is known of one machine, and what to do about it",
		Long: `All that is known of one machine: identity, evidence, history, failure report,
and for a denial what it means and what to do. NAME is namespace/name, a name
that is unique, or the id of a machine that waits for approval.`,
		Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			s, err := readState(cmd.Context(), configPath)
			if err != nil {
				return err
			}
			return explain(cmd.OutOrStdout(), s, args[0], output)
		},
	}
	configFlag(cmd, &configPath)
	outputFlag(cmd, &output)
	return cmd
}

func outputFlag(cmd *cobra.Command, output *string) {
	cmd.Flags().StringVarP(output, "output", "o", "table", `"table" or "json"`)
}

// readState asks the serving verifier or, if there is none, reads the folder.
func readState(ctx context.Context, configPath string) (*admin.State, error) {
	c, err := loadConfig(configPath)
	if err != nil {
		return nil, err
	}
	return readStateOf(ctx, c)
}

func readStateOf(ctx context.Context, c *config.Config) (*admin.State, error) {
	s, err := admin.Ask(ctx, c.Path("state", "admin.sock"))
	if err == nil || !errors.Is(err, admin.ErrNotServing) {
		return s, err
	}
	return offlineState(c, time.Now())
}

func loadConfig(path string) (*config.Config, error) {
	if path == "" {
		return nil, hint(errors.New("no configuration file given"), "add --config DIR/mcs-attest.yaml; 'mcs-attest-verifier init DIR' makes one")
	}
	return config.Load(path)
}

func printState(out io.Writer, s *admin.State, format string) error {
	switch format {
	case "json":
		enc := json.NewEncoder(out)
		enc.SetIndent("", "  ")
		return enc.Encode(s)
	case "table":
	default:
		return fmt.Errorf(`output %q: must be "table" or "json"`, format)
	}
	if !s.Serving {
		fmt.Fprintln(out, "(no verifier is serving; this is what the folder and the records say)")
	}
	w := tabwriter.NewWriter(out, 0, 8, 2, ' ', 0)
	fmt.Fprintln(w, "MACHINE\tPOOL\tPHASE\tSINCE\tNOTE")
	for _, m := range s.Machines {
		phase, since, note := summary(m, s.Time)
		fmt.Fprintf(w, "%s\t%s\t%s\t%s\t%s\n", m.Name, strings.Join(m.Pools, ","), phase, since, note)
	}
	for _, p := range s.Pending {
		fmt.Fprintf(w, "(pending %s)\t%s\t%s\t%s\t%s\n", p.ID, p.Pool, v1alpha1.PhasePending, age(s.Time, p.FirstSeen), "enroll --approve "+p.ID)
	}
	if err := w.Flush(); err != nil {
		return err
	}
	if len(s.Machines)+len(s.Pending) == 0 {
		fmt.Fprintln(out, "(no Machine, no enrolment, and nobody waits)")
	}
	for _, p := range s.Problems {
		fmt.Fprintln(out, "problem:", p)
	}
	return nil
}

// summary is a machine's line: phase, since when, and why not.
func summary(m admin.Machine, now time.Time) (phase, since, note string) {
	if m.Record == nil {
		return "-", age(now, m.Created), "never seen"
	}
	r := m.Record
	phase = string(r.Phase)
	if n := len(r.History); n > 0 {
		last := r.History[n-1]
		since = age(now, last.Time.Time)
		if last.Reason != "" {
			note = last.Reason
		}
	}
	if r.Report != nil {
		note = "FAILED: " + r.Report.Unit
	}
	for _, c := range r.Conditions {
		if c.Type == v1alpha1.ConditionConflict && c.Status == "True" {
			note = strings.TrimSpace("CONFLICT " + note)
		}
	}
	return phase, since, note
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

func explain(out io.Writer, s *admin.State, name, format string) error {
	for _, p := range s.Pending {
		if p.ID == name || p.EKSHA256 == name {
			return explainJSONOr(out, format, p, func() {
				fmt.Fprintf(out, "%s waits for approval.\n\n", p.ID)
				fmt.Fprintf(out, "  EK           %s\n  pool asked   %s\n  first seen   %s\n  last seen    %s\n  from         %s\n",
					p.EKSHA256, p.Pool, p.FirstSeen.Format(time.RFC3339), p.LastSeen.Format(time.RFC3339), p.Source)
				for _, k := range slices.Sorted(maps.Keys(p.Certificate)) {
					fmt.Fprintf(out, "  %-12s %s\n", k, p.Certificate[k])
				}
				fmt.Fprintf(out, "  it says      %s   (self-asserted)\n", p.Claims)
				fmt.Fprintf(out, "\nIts TPM is genuine; whose machine it is in, only you know. To let it in:\n  mcs-attest-verifier enroll --approve %s --name NAME\n", p.ID)
			})
		}
	}
	var found []admin.Machine
	for _, m := range s.Machines {
		if m.Name == name || m.UID == name || strings.HasSuffix(m.Name, "/"+name) {
			found = append(found, m)
		}
	}
	switch len(found) {
	case 0:
		return hint(fmt.Errorf("no machine is called %q", name), "'mcs-attest-verifier status' lists all of them")
	case 1:
		return explainJSONOr(out, format, found[0], func() { explainMachine(out, found[0], s.Time) })
	}
	return hint(fmt.Errorf("%d machines are called %q", len(found), name), "give the namespace too: %s", found[0].Name)
}

func explainJSONOr(out io.Writer, format string, v any, text func()) error {
	if format != "json" {
		text()
		return nil
	}
	enc := json.NewEncoder(out)
	enc.SetIndent("", "  ")
	return enc.Encode(v)
}

func explainMachine(out io.Writer, m admin.Machine, now time.Time) {
	fmt.Fprintf(out, "%s (%s, UID %s)\n\n", m.Name, m.Kind, m.UID)
	line := func(k, v string) {
		if v != "" {
			fmt.Fprintf(out, "  %-17s %s\n", k, v)
		}
	}
	line("pools", strings.Join(m.Pools, ", "))
	line("created", m.Created.Format(time.RFC3339)+" ("+age(now, m.Created)+" ago)")
	line("provider ID", m.ProviderID)
	line("enrolled EK", strings.Join(m.EKSHA256, ", "))
	r := m.Record
	if r == nil {
		fmt.Fprintf(out, "\nIt has never been seen. If it is powered on, look at its console: the agent says there what it waits for.\n")
		return
	}
	line("phase", string(r.Phase))
	line("recorded EK", r.Identity.EKSHA256)
	line("recorded AK", r.Identity.AKSHA256)
	line("recorded cloud", r.Identity.ProviderID)
	line("endorsed by", string(r.Endorsement))
	if t := r.Token; t != nil {
		line("token", fmt.Sprintf("%s, pool %s, used %d of %d, until %s", t.ID, t.Pool, t.Uses, t.MaxUses, t.Expiry.Format(time.RFC3339)))
	}
	for _, e := range r.Evidence {
		line("evidence", e.Kind+" sha256:"+e.SHA256)
		for _, k := range slices.Sorted(maps.Keys(e.Summary)) {
			line("  "+k, e.Summary[k])
		}
	}
	fmt.Fprintln(out, "\nhistory:")
	var last v1alpha1.HistoryEntry
	for _, h := range r.History {
		fmt.Fprintf(out, "  %s  %-9s %s\n", h.Time.Format(time.RFC3339), h.Event, strings.TrimSpace(cmp.Or(h.Reason, "")+" "+h.Message))
		if h.CorrelationID != "" {
			fmt.Fprintf(out, "  %20s  %-9s correlation id %s\n", "", "", h.CorrelationID)
		}
		last = h
	}
	if code, ok := reason.Parse(last.Reason); ok {
		i := code.Info()
		fmt.Fprintf(out, "\n%s: %s\nhint: %s\n", i.Name, i.Title, i.Hint)
	}
	if p := r.Report; p != nil {
		fmt.Fprintf(out, "\nthe machine reported (its own words, untrusted):\n  unit %s, result %s, exit status %d, at %s\n", p.Unit, p.Result, p.ExitStatus, p.Time.Format(time.RFC3339))
		for _, l := range strings.Split(strings.TrimSpace(p.Message), "\n") {
			fmt.Fprintf(out, "  | %s\n", l)
		}
	}
}
