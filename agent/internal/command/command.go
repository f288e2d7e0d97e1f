// Package command is the agent's command line: it wires the other packages
// together and turns their errors into "error:" and "hint:" lines and an exit
// status. The status is 0 when the boot may go on, 1 when it may not, 2 for a
// wrong command line.
package command

import (
	"context"
	"errors"
	"io"
	"os"
	"runtime/debug"

	"github.com/spf13/cobra"

	"github.com/mcs-attest/mcs-attest/agent/internal/console"
	"github.com/mcs-attest/mcs-attest/agent/internal/paths"
)

const (
	exitOK    = 0
	exitStop  = 1
	exitUsage = 2
)

// agent is what every command shares.
type agent struct {
	paths   paths.Paths
	console *console.Console
	out     io.Writer
}

// hinted is an error with advice.
type hinted struct {
	error
	hint string
}

func (h hinted) Unwrap() error { return h.error }

// usageError is a wrong command line.
type usageError struct{ error }

// Main runs the command line args and returns the exit status.
func Main(ctx context.Context, args []string, stdout, stderr io.Writer) int {
	a := &agent{
		paths:   paths.Default(),
		console: &console.Console{Out: stdout, Err: stderr},
		out:     stdout,
	}
	root := a.root()
	root.SetArgs(args)
	root.SetOut(stdout)
	root.SetErr(stderr)
	err := root.ExecuteContext(ctx)
	if err == nil {
		return exitOK
	}
	hint := ""
	var h hinted
	if errors.As(err, &h) {
		hint = h.hint
	}
	var u usageError
	if errors.As(err, &u) {
		a.console.Error(err, "see mcs-attest-agent --help")
		return exitUsage
	}
	a.console.Error(err, hint)
	return exitStop
}

func (a *agent) root() *cobra.Command {
	root := &cobra.Command{
		Use:   "mcs-attest-agent",
		Short: "Prove which machine this is, before Ignition fetches its config",
		Long: `mcs-attest-agent runs in the initramfs of a machine's first boot. It proves to
the cluster's verifier which machine it runs on, and gives Ignition the token
that opens the machine's config.

Kernel arguments:
  mcs-attest=off      do nothing (PCR 11 is still capped)
  mcs-attest=require  stop the boot if there is nothing to attest to

Every file it reads has an environment variable; docs/platforms.md lists them.`,
		Version:           version(),
		SilenceErrors:     true,
		SilenceUsage:      true,
		CompletionOptions: cobra.CompletionOptions{DisableDefaultCmd: true},
		Args:              cobra.NoArgs,
		RunE:              func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	root.SetFlagErrorFunc(func(_ *cobra.Command, err error) error { return usageError{err} })
	root.PersistentFlags().StringVar(&a.paths.Run, "run-dir", a.paths.Run, "the agent's own `folder`")
	root.PersistentFlags().StringVar(&a.paths.TPM, "tpm", a.paths.TPM, "TPM `device`, or the socket of a software TPM")
	root.AddCommand(a.attest(), a.scrub(), a.report(), a.identify())
	return root
}

// noArgs is cobra.NoArgs with our kind of error.
func noArgs(_ *cobra.Command, args []string) error {
	if len(args) > 0 {
		return usageError{errors.New("unexpected argument " + args[0])}
	}
	return nil
}

// version is "mcs-attest-agent's" part of the contract's agent_version.
func version() string {
	if info, ok := debug.ReadBuildInfo(); ok && info.Main.Version != "" {
		return info.Main.Version
	}
	return "unknown"
}

// bootID is the kernel's; "" if it cannot be read.
func (a *agent) bootID() string {
	raw, err := os.ReadFile(a.paths.BootID)
	if err != nil || len(raw) < 36 {
		return ""
	}
	return string(raw[:36])
}
