// SPDX-License-Identifier: Apache-2.0

// Package cli is the command line of the verifier and of its plug-in for kubectl and oc: one package
// for each noun, over package env. A noun never imports another.
package cli

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"

	"github.com/spf13/cobra"

	"github.com/mcs-attest/mcs-attest/pkg/spelling"
	"github.com/mcs-attest/mcs-attest/pkg/version"
	"github.com/mcs-attest/mcs-attest/verifier/internal/cli/certs"
	"github.com/mcs-attest/mcs-attest/verifier/internal/cli/controller"
	"github.com/mcs-attest/mcs-attest/verifier/internal/cli/csr"
	"github.com/mcs-attest/mcs-attest/verifier/internal/cli/env"
	"github.com/mcs-attest/mcs-attest/verifier/internal/cli/machine"
	"github.com/mcs-attest/mcs-attest/verifier/internal/cli/policy"
	"github.com/mcs-attest/mcs-attest/verifier/internal/cli/render"
	"github.com/mcs-attest/mcs-attest/verifier/internal/cli/serve"
	"github.com/mcs-attest/mcs-attest/verifier/internal/cli/setup"
	"github.com/mcs-attest/mcs-attest/verifier/internal/cli/support"
	"github.com/mcs-attest/mcs-attest/verifier/internal/cli/token"
	"github.com/mcs-attest/mcs-attest/verifier/internal/hint"
)

// Main runs the program that args[0] names, and returns its exit status.
func Main(ctx context.Context, args []string) int {
	e, rest := env.Of(args[0], args[1:])
	e.Version = version.Version()
	return Run(ctx, e, rest)
}

// Run runs a command line and returns its exit status: 0, 1 for a failure or a verdict, 2 for a wrong
// command line, or what the command documents.
func Run(ctx context.Context, e *env.Env, args []string) int {
	root := Root(e) //nolint:contextcheck // ExecuteContextC sets the context of its commands
	begun := false
	each(root, func(cmd *cobra.Command) {
		if run := cmd.RunE; run != nil {
			cmd.RunE = func(cmd *cobra.Command, args []string) error {
				begun = true
				return run(cmd, args)
			}
		}
	})
	root.SetArgs(args)
	cmd, err := root.ExecuteContextC(ctx)
	var exit *env.ExitError
	if err != nil && !begun && !errors.As(err, &exit) {
		err = env.Usage(err) // cobra's own: the number of arguments, flags that go together
	}
	var h *hint.Error
	if errors.As(err, &exit) && exit.Code == env.ExitUsage && !errors.As(err, &h) {
		err = env.Usage(hint.New(err, "run '%s --help' for a description of the command line", cmd.CommandPath()))
	}
	return env.Report(os.Stderr, err)
}

// each visits a command and all below it.
func each(cmd *cobra.Command, visit func(*cobra.Command)) {
	visit(cmd)
	for _, sub := range cmd.Commands() {
		each(sub, visit)
	}
}

// Root is the whole command line.
func Root(e *env.Env) *cobra.Command {
	root := verifier(e)
	if e.Plugin {
		root = plugin(e)
	}
	root.Version, root.SilenceErrors, root.SilenceUsage = e.Version, true, true
	root.SetOut(os.Stdout)
	root.SetFlagErrorFunc(func(cmd *cobra.Command, err error) error { return env.FlagError(cmd.Flags(), err) })
	// The administrator's, for a folder and for a cluster.
	root.AddCommand(machine.Commands(e)...)
	root.AddCommand(token.Command(e), certs.Command(e), csr.Command(e), support.Command(e), versionCommand(e))
	each(root, strict)
	return root
}

// strict makes a word that is no subcommand an error. Cobra would print the help and exit with 0. For
// "csr explian", 0 means that the request is approved.
func strict(cmd *cobra.Command) {
	if cmd.Runnable() || !cmd.HasSubCommands() {
		return
	}
	cmd.Args = cobra.ArbitraryArgs
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		if len(args) == 0 {
			return cmd.Help()
		}
		err := fmt.Errorf("unknown command %q for %q", args[0], cmd.CommandPath())
		var names []string
		for _, sub := range cmd.Commands() {
			if sub.IsAvailableCommand() {
				names = append(names, sub.Name())
			}
		}
		if like := spelling.Near(args[0], names); len(like) > 0 {
			return env.Usage(hint.New(err, "did you mean %s?", strings.Join(like, " or ")))
		}
		return env.Usage(hint.New(err, "run '%s --help' for a list", cmd.CommandPath()))
	}
}

func versionCommand(e *env.Env) *cobra.Command {
	return &cobra.Command{
		Use:   "version",
		Short: "Print the version, the commit and the platform of this program",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			_, err := fmt.Fprintln(cmd.OutOrStdout(), e.Name, version.String())
			return err
		},
	}
}

func verifier(e *env.Env) *cobra.Command {
	root := &cobra.Command{
		Use:   env.Verifier,
		Short: "Give a machine its Ignition config only after it proved which machine it is",
		Long: `mcs-attest-verifier runs beside the Machine Config Server or, standalone, beside a
folder of Ignition configs. A new machine's agent proves its identity with a TPM 2.0
quote or a cloud's instance identity. The verifier matches the identity to exactly one
Machine and answers with a token that is valid for some minutes. The gate returns the
full config only for such a token.

To set up and start a standalone verifier:

    mcs-attest-verifier init DIR --origin https://HOST:22623
    mcs-attest-verifier serve --config DIR/mcs-attest.yaml
    mcs-attest-verifier enroll --config DIR/mcs-attest.yaml --identity FILE --name NAME --pool worker

The exit status of every command is 0 for success, 1 for failure, and 2 for a wrong
command line. The help of a command lists any other status that it has.

Linked or copied as kubectl-attest or oc-attest, it is the plug-in "kubectl attest".`,
	}
	root.AddCommand(setup.Commands()...)
	root.AddCommand(policy.Commands()...)
	root.AddCommand(render.Command(), serve.Command(e), controller.Command(e))
	return root
}

// plugin is "kubectl attest" or "oc attest".
func plugin(e *env.Env) *cobra.Command {
	root := &cobra.Command{
		Use:         e.FieldManager(),
		Annotations: map[string]string{cobra.CommandDisplayNameAnnotation: e.Name},
		Short:       "Show which machines attested, which did not and why, and what to do",
		Long: `Show which machines of a cluster attested before they received their Ignition
config, which did not and why, and what to do. The commands read and write objects of
the Kubernetes API, and do not need a running verifier.`,
		Example: e.Examples(`  PROGRAM status
  PROGRAM explain worker-7
  PROGRAM enroll --identity worker-7.yaml --machine worker-7
  PROGRAM quarantine worker-7`),
	}
	e.ClusterFlags(root.PersistentFlags())
	return root
}
