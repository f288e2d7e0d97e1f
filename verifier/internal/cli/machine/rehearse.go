// SPDX-License-Identifier: Apache-2.0

package machine

import (
	"crypto/rand"
	"errors"
	"fmt"
	"time"

	"github.com/spf13/cobra"

	"github.com/mcs-attest/mcs-attest/pkg/rehearsal"
	"github.com/mcs-attest/mcs-attest/pkg/secret"
	"github.com/mcs-attest/mcs-attest/verifier/internal/admin"
	"github.com/mcs-attest/mcs-attest/verifier/internal/audit"
	"github.com/mcs-attest/mcs-attest/verifier/internal/cli/env"
	"github.com/mcs-attest/mcs-attest/verifier/internal/hint"
	"github.com/mcs-attest/mcs-attest/verifier/internal/operator"
	"github.com/mcs-attest/mcs-attest/verifier/internal/operator/rehearse"
)

type rehearseOptions struct {
	all      bool
	parallel int
	timeout  time.Duration
	image    string
	pointer  string
	wait     *time.Duration
	output   *env.Output
}

func rehearseCommand(e *env.Env) *cobra.Command {
	var o rehearseOptions
	cmd := &cobra.Command{
		Use:   "rehearse [MACHINE... | --all]",
		Short: "Show whether a node could be provisioned again today",
		Long: `Show whether a node could be provisioned again today, and if not, why. The agent on the
node sends the evidence of a first boot, and the verifier appraises it by today's policy.
A rehearsal grants nothing: it issues no token and changes no phase. Its result is in the
record, as the condition Rehearsed and in 'status -o wide'.

In a cluster, the command checks the pointer config in the user data, opens the rehearsal
for a single use, runs the agent in a privileged pod on the node, and deletes the pod. It
prints each reason once, with what to do about it. Ctrl-C deletes the open pods and
tickets. --all rehearses every Machine that is a Node.

For a folder, the command opens the rehearsal of one machine and prints a document for
the agent on that machine. The document contains a secret, so pass it through a pipe.

A rehearsal uses today's firmware and operating system. It does not show whether the
boot image of the MachineSet, its network in the initramfs or its disk would work.

The exit status is 1 if a machine would fail, and 4 if none would fail but the rehearsal
of a machine did not take place.`,
		Example:           rehearseExamples(e),
		ValidArgsFunction: e.MachineNames,
		RunE: func(cmd *cobra.Command, args []string) error {
			switch {
			case o.all == (len(args) > 0):
				return env.Usage(hint.New(errors.New("give either the names of machines or --all"),
					"'%s status' lists the machines", e.Name))
			case o.parallel < 1 || o.parallel > rehearse.MaxParallel:
				return env.Usagef("--parallel %d: must be from 1 to %d", o.parallel, rehearse.MaxParallel)
			case o.timeout < 10*time.Second || o.timeout > rehearse.MaxTimeout:
				return env.Usagef("--timeout %v: must be from 10s to %v", o.timeout, rehearse.MaxTimeout)
			}
			b, err := e.Open()
			if err != nil {
				return err
			}
			var config secret.Bytes
			if o.pointer != "" {
				raw, err := env.ReadInput(o.pointer, cmd.InOrStdin())
				if err != nil {
					return err
				}
				config = secret.New(raw)
			}
			switch b := b.(type) {
			case *operator.Cluster:
				return rehearseCluster(cmd, e, b, o, config, args)
			case *operator.Folder:
				return rehearseFolder(cmd, e, b, o, config, args)
			}
			return errors.New("nothing rehearses here")
		},
	}
	e.Where(cmd)
	f := cmd.Flags()
	f.BoolVar(&o.all, "all", false, "rehearse every Machine that is a Node")
	f.BoolVarP(&e.Everywhere, "all-namespaces", "A", false, "rehearse the Machines of every namespace")
	f.IntVar(&o.parallel, "parallel", 10, fmt.Sprintf("number of machines that rehearse at the same time, at most %d",
		rehearse.MaxParallel))
	f.DurationVar(&o.timeout, "timeout", 5*time.Minute, fmt.Sprintf("time for one machine, at most %v",
		rehearse.MaxTimeout))
	f.StringVar(&o.image, "image", "",
		"image with the agents for the pod (default: as the DaemonSet of the verifier names it)")
	f.StringVar(&o.pointer, "pointer", "",
		`pointer config of a machine whose Machine names no user data, a file or "-" for standard input`)
	o.wait = env.WaitFlag(cmd)
	o.output = env.OutputFlag(cmd)
	return cmd
}

func rehearseExamples(e *env.Env) string {
	text := `  PROGRAM rehearse worker-7
  PROGRAM rehearse --all --parallel 20`
	if !e.Plugin {
		text += `
  PROGRAM rehearse worker-7 --config DIR/mcs-attest.yaml | ssh core@worker-7 sudo mcs-attest-agent rehearse -`
	}
	return e.Examples(text)
}

// rehearseCluster lets the machines of a cluster rehearse.
func rehearseCluster(cmd *cobra.Command, e *env.Env, c *operator.Cluster, o rehearseOptions, config secret.Bytes,
	names []string) error {
	defer env.UntilSignal(cmd)()
	ctx := cmd.Context()
	all, err := c.Rehearsables(ctx, names...)
	if err != nil {
		return err
	}
	if len(all) == 0 {
		return hint.New(errors.New("no Machine is a Node, so there is nothing to rehearse"),
			"a machine rehearses after it has joined; '%s status' shows how far the machines are", e.Name)
	}
	progress := newRehearsals(cmd.ErrOrStderr(), len(all))
	results, err := rehearse.Run(ctx, rehearse.Options{Cluster: c, Parallel: o.parallel, Timeout: o.timeout,
		Image: o.image, Pointer: config, Started: progress.started, Done: progress.done}, all)
	progress.end()
	if err != nil {
		return err
	}
	rehearse.Sort(results)
	if err := printRehearsals(cmd.OutOrStdout(), o.output, time.Now(), results); err != nil {
		return err
	}
	switch passed, failed, unknown := rehearse.Count(results); {
	case ctx.Err() != nil:
		return fmt.Errorf("interrupted: %d of %d machines have a result", passed+failed, len(results))
	case failed > 0:
		return fmt.Errorf("%d of %d machines would fail", failed, len(results))
	case unknown > 0:
		return &env.ExitError{Err: fmt.Errorf("%d of %d machines did not rehearse", unknown, len(results)),
			Code: env.ExitUnknown}
	}
	return nil
}

// rehearseFolder opens the rehearsal of one machine, and prints the document for its agent.
func rehearseFolder(cmd *cobra.Command, e *env.Env, f *operator.Folder, o rehearseOptions, config secret.Bytes,
	names []string) error {
	out := cmd.OutOrStdout()
	switch {
	case len(names) != 1:
		return env.Usage(hint.New(errors.New("for a folder, rehearse one machine at a time"),
			"give the name of one machine"))
	case terminal(out):
		return hint.New(errors.New("the document contains a secret, and is not printed to a terminal"),
			"pass it to the machine: %s | ssh core@%s sudo mcs-attest-agent rehearse -",
			e.Line("rehearse", names[0]), names[0])
	}
	ticket, err := rehearsal.NewTicket(rand.Reader)
	if err != nil {
		return err
	}
	if config.Empty() {
		if config, err = f.PointerConfig(names[0]); err != nil {
			return err
		}
	}
	config, warnings, err := rehearse.Prepare(cmd.Context(), f, config)
	if err != nil {
		return err
	}
	for _, w := range warnings {
		cmd.PrintErrln("warning:", audit.Clean(w))
	}
	hash := rehearsal.TicketHash(ticket.Expose())
	done, err := f.OpenRehearsal(cmd.Context(), names[0], hash, time.Now().Add(o.timeout))
	if err != nil {
		return err
	}
	cmd.PrintErrln("wrote", done.Where)
	if err := env.WaitInForce(cmd, f, names[0], *o.wait, true, func(s *admin.State) bool {
		m, err := operator.Machine(s, e.Namespace, names[0])
		return err == nil && m.Rehearsal == hash
	}); err != nil {
		return err
	}
	cmd.PrintErrf("the machine must rehearse within %v; '%s' shows the result\n", o.timeout,
		e.Line("status", "-o wide"))
	_, err = out.Write(rehearsal.Order{Ticket: ticket, Pointer: config}.Encode().Expose())
	return err
}
