// SPDX-License-Identifier: Apache-2.0

package machine

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/mcs-attest/mcs-attest/pkg/api/v1alpha1"
	"github.com/mcs-attest/mcs-attest/pkg/reason"
	"github.com/mcs-attest/mcs-attest/verifier/internal/admin"
	"github.com/mcs-attest/mcs-attest/verifier/internal/audit"
	"github.com/mcs-attest/mcs-attest/verifier/internal/cli/env"
	"github.com/mcs-attest/mcs-attest/verifier/internal/hint"
	"github.com/mcs-attest/mcs-attest/verifier/internal/operator"
	"github.com/mcs-attest/mcs-attest/verifier/internal/store"
)

func explainCommand(e *env.Env) *cobra.Command {
	var exported exportOptions
	cmd := &cobra.Command{
		Use:   "explain MACHINE",
		Short: "Show everything about one machine, and what to do if it cannot attest",
		Long: `Show everything about one machine: its identity, evidence, history, conditions,
failure report and, in a cluster, its Events. The command also prints why the machine
cannot attest now, and for a denial what it means and what to do. MACHINE is
namespace/name, a unique name, a UID, or the id of a machine that waits for approval.

For a machine that is not enrolled, MACHINE can be the hash of an EK, or a correlation
id from the machine's console. A verifier stores the latest denials in memory. In a
cluster the command reads them from the verifiers' logs.` + exportText(e),
		Example: e.Examples(`  PROGRAM explain worker-7
  PROGRAM explain 3f2a9c01d4e5b6a7`),
		Args:              cobra.ExactArgs(1),
		ValidArgsFunction: e.MachineNames,
	}
	e.Where(cmd)
	if !e.Plugin { // a cluster keeps no evidence
		cmd.Flags().StringVar(&exported.file, "export", "",
			"write the latest kept evidence to this file as an attest.Attestation of go-tpm-tools, and print its nonce")
		cmd.Flags().BoolVar(&exported.force, "force", false, "replace the file of --export if it exists")
	}
	output := env.OutputFlag(cmd)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		b, err := e.Open()
		if err != nil {
			return err
		}
		return explain(cmd, e, b, args[0], exported, output)
	}
	return cmd
}

func explain(cmd *cobra.Command, e *env.Env, b env.Backend, name string, exported exportOptions,
	output *env.Output) error {
	s, err := b.Find(cmd.Context(), name)
	if err != nil {
		return err
	}
	if exported.file != "" {
		return export(cmd, b, s, name, exported, output)
	}
	x := explained{env: e, state: s}
	if len(s.Machines)+len(s.Pending) == 0 && operator.IsHexID(name) {
		x.denialsErr = readDenials(cmd.Context(), b, s)
		s.Denials = operator.NamedDenials(s.Denials, name)
	}
	if t, ok := b.(eventReader); ok && len(s.Machines) == 1 {
		// An error is printed beside what could be read.
		x.events, x.eventsErr = t.Events(cmd.Context(), s.Machines[0])
		if x.eventsErr != nil && !output.Is(env.Table) {
			cmd.PrintErrln("warning: events are missing:", audit.Clean(x.eventsErr.Error()))
		}
	}
	return x.print(cmd.OutOrStdout(), name, output)
}

// exportText describes --export.
func exportText(e *env.Env) string {
	if e.Plugin {
		return ""
	}
	return `

--export FILE writes the TPM's part of the latest evidence that the verifier kept
(keepEvidence) to FILE, for tools that read go-tpm-tools' attest.Attestation. It prints
the nonce with which they verify the quote: the hash of the whole conversation.`
}

// eventReader is a backend that has Events of a machine.
type eventReader interface {
	Events(context.Context, admin.Machine) ([]operator.Event, error)
}

// Explain prints what explain prints of a state, without Events.
func Explain(out io.Writer, program string, s *admin.State, name string) error {
	return explained{env: &env.Env{Name: program}, state: s}.print(out, name, &env.Output{})
}

// explained is what explain found.
type explained struct {
	env        *env.Env
	state      *admin.State
	events     []operator.Event
	eventsErr  error
	denialsErr error
}

func (e explained) print(out io.Writer, name string, output *env.Output) error {
	s := e.state
	switch {
	case len(s.Machines) > 1:
		return operator.Ambiguous(s.Machines, name)
	case len(s.Machines) == 1:
		m := s.Machines[0]
		doc := struct {
			admin.Machine
			WhyNot []string         `json:"whyNot,omitempty"`
			Events []operator.Event `json:"events,omitempty"`
		}{m, e.whyNot(m), e.events}
		return output.Print(out, doc, []string{m.Name}, func(out io.Writer) error {
			explainMachine(out, m, s.Time)
			if len(doc.WhyNot) > 0 {
				fmt.Fprintln(out, "\nwhy it cannot attest now:")
				for _, w := range doc.WhyNot {
					fmt.Fprintln(out, "  -", w)
				}
			}
			e.printEvents(out)
			return nil
		})
	case len(s.Pending) == 1:
		p := s.Pending[0]
		return output.Print(out, p, []string{p.ID}, func(out io.Writer) error {
			e.pending(out, p)
			return nil
		})
	case len(s.Denials) > 0:
		return output.Print(out, s.Denials, []string{name}, func(out io.Writer) error {
			for i, d := range s.Denials {
				if i > 0 {
					fmt.Fprintln(out)
				}
				e.denied(out, d)
			}
			return nil
		})
	}
	return e.notFound(name)
}

func (e explained) pending(out io.Writer, p store.Pending) {
	fmt.Fprintf(out, "%s waits for approval.\n\n", p.ID)
	fmt.Fprintf(out, "  EK           %s\n  pool asked   %s\n  first seen   %s\n  last seen    %s\n  from         %s\n",
		p.EKSHA256, audit.Clean(p.Pool), p.FirstSeen.Format(time.RFC3339), p.LastSeen.Format(time.RFC3339),
		audit.Clean(p.Source))
	for _, k := range slices.Sorted(maps.Keys(p.Certificate)) {
		fmt.Fprintf(out, "  %-12s %s\n", audit.Clean(k), audit.Clean(p.Certificate[k]))
	}
	fmt.Fprintf(out, "  claims       %s   (self-asserted)\n", audit.Clean(p.Claims))
	machine := "--name NAME"
	if e.state.Cluster != "" {
		machine = "--machine NAMESPACE/NAME"
	}
	fmt.Fprintf(out, "\nIts TPM is genuine, but only you can tell which machine the TPM is in. To admit it:\n  %s\n",
		e.env.Line("enroll", "--approve "+p.ID+" "+machine))
}

// whyNot lists what keeps a machine from attesting now.
func (e explained) whyNot(m admin.Machine) []string {
	var why []string
	add := func(format string, a ...any) { why = append(why, fmt.Sprintf(format, a...)) }
	s := e.state
	if s.Cluster != "" && !s.Serving {
		add("no verifier is available in this cluster")
	}
	if m.Quarantined {
		add("it is quarantined; '%s quarantine %s --release' ends the quarantine", e.env.Name, m.Name)
	}
	if m.Deleting {
		add("its %s is being deleted", m.Kind)
	}
	joined := m.NodeRef != "" || m.Record != nil && m.Record.Phase == v1alpha1.PhaseJoined
	granted := m.Reattest != nil && m.Reattest.After(s.Time)
	if joined && !granted {
		node := ""
		if m.NodeRef != "" {
			node = " as Node " + m.NodeRef
		}
		add("it has joined%s; '%s reattest %s' allows one more provisioning", node, e.env.Name, m.Name)
	}
	if m.Kind != "BreakGlass" && len(m.EKSHA256) == 0 && m.ProviderID == "" &&
		(m.Record == nil || m.Record.Identity == (v1alpha1.RecordedIdentity{})) {
		add("nothing identifies it: no EK is enrolled for it, and it has no provider id; run '%s enroll --machine %s "+
			"--identity FILE' to name its TPM", e.env.Name, m.Name)
	}
	if len(m.Pools) == 0 && m.Kind != "BreakGlass" {
		add("it has no pool that this command can read: neither its labels nor the annotation %s name one",
			v1alpha1.AnnotationPool)
	}
	return why
}

func (e explained) printEvents(out io.Writer) {
	if e.eventsErr != nil {
		fmt.Fprintln(out, "\nevents: ", audit.Clean(e.eventsErr.Error()))
		if h, ok := errors.AsType[*hint.Error](e.eventsErr); ok {
			fmt.Fprintln(out, "hint:", h.Hint)
		}
	}
	if len(e.events) == 0 {
		return
	}
	fmt.Fprintln(out, "\nevents:")
	for _, v := range e.events {
		times := ""
		if v.Count > 1 {
			times = fmt.Sprintf(" (%d times)", v.Count)
		}
		fmt.Fprintf(out, "  %s  %-7s %-16s %s%s\n", v.Time.UTC().Format(time.RFC3339), audit.Clean(v.Type),
			audit.Clean(v.Reason), audit.Clean(v.Message), times)
	}
}

func explainMachine(out io.Writer, m admin.Machine, now time.Time) {
	fmt.Fprintf(out, "%s (%s, UID %s)\n\n", m.Name, m.Kind, m.UID)
	line := func(k, v string) {
		if v != "" {
			fmt.Fprintf(out, "  %-17s %s\n", audit.Clean(k), audit.Clean(v))
		}
	}
	line("pools", strings.Join(m.Pools, ", "))
	line("node", m.NodeRef)
	if m.Quarantined {
		line("quarantined", "yes")
	}
	if m.Reattest != nil {
		line("may attest again", "until "+m.Reattest.UTC().Format(time.RFC3339))
	}
	if !m.Created.IsZero() {
		line("created", m.Created.Format(time.RFC3339)+" ("+age(now, m.Created)+" ago)")
	}
	line("provider ID", m.ProviderID)
	for _, ek := range m.EKSHA256 {
		line("enrolled EK", ek)
	}
	r := m.Record
	if r == nil || r.Phase == "" && len(r.History) == 0 {
		fmt.Fprintln(out, "\nThe verifier has never seen it. If it is powered on, its console shows what it waits for.")
		return
	}
	line("phase", string(r.Phase))
	line("recorded EK", r.Identity.EKSHA256)
	line("recorded AK", r.Identity.AKSHA256)
	line("recorded cloud", r.Identity.ProviderID)
	line("endorsed by", string(r.Endorsement))
	if t := r.Token; t != nil {
		line("token", fmt.Sprintf("%s, pool %s, used %d of %d, until %s", t.ID, t.Pool, t.Uses, t.MaxUses,
			t.Expiry.Format(time.RFC3339)))
	}
	for _, c := range r.Credentials {
		line("credential", explainCredential(c, now))
	}
	line("attested key", r.CSRKeySHA256)
	if c := r.Certificate; c != nil {
		line("certificate", fmt.Sprintf("for node %s, approved %s", c.Node, c.Approved.UTC().Format(time.RFC3339)))
		line("  its key", c.PublicKeySHA256)
		line("  request", c.Request)
		line("  asked with", c.CredentialID)
		if c.Used {
			line("  used", "yes, its node existed")
		}
	}
	for _, e := range r.Evidence {
		line("evidence", e.Kind+" sha256:"+e.SHA256)
		for _, k := range slices.Sorted(maps.Keys(e.Summary)) {
			line("  "+k, e.Summary[k])
		}
	}
	for _, c := range r.Conditions {
		line("condition", fmt.Sprintf("%s %s (%s) %s", c.Type, c.Status, c.Reason, audit.Clean(c.Message)))
	}
	fmt.Fprintln(out, "\nhistory:")
	var last v1alpha1.HistoryEntry
	for _, h := range r.History {
		fmt.Fprintf(out, "  %s  %-9s %s\n", h.Time.Format(time.RFC3339), h.Event,
			audit.Clean(strings.TrimSpace(h.Reason+" "+h.Message)))
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
		fmt.Fprintf(out, "\nthe machine reported (its own words, untrusted):\n  unit %s, result %s, exit status %d, at %s\n",
			audit.Clean(p.Unit), audit.Clean(p.Result), p.ExitStatus, p.Time.Format(time.RFC3339))
		for _, l := range strings.Split(strings.TrimSpace(p.Message), "\n") {
			fmt.Fprintf(out, "  | %s\n", audit.Clean(l))
		}
	}
}

// explainCredential tells of a bootstrap credential what revokes it and when it ends.
func explainCredential(c v1alpha1.CredentialStatus, now time.Time) string {
	text := c.ID + ", ended " + c.Expiry.UTC().Format(time.RFC3339)
	if now.Before(c.Expiry.Time) {
		text = fmt.Sprintf("%s, until %s (%s left)", c.ID, c.Expiry.UTC().Format(time.RFC3339), age(c.Expiry.Time, now))
	}
	if c.Secret != "" {
		text += ", Secret " + c.Secret
	}
	return text
}
