// Command mcs-attest-verifier stands beside the Machine Config Server. It
// appraises the evidence of new machines, matches each to exactly one Machine,
// and gives the full Ignition config for the token it issued and for nothing
// else.
package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"syscall"

	"github.com/spf13/cobra"
)

var version = "unknown" // set by the linker

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	code := run(ctx, os.Args[1:])
	stop()
	os.Exit(code)
}

func run(ctx context.Context, args []string) int {
	root := newRootCommand()
	root.SetArgs(args)
	err := root.ExecuteContext(ctx)
	if err == nil {
		return 0
	}
	fmt.Fprintln(os.Stderr, "error:", err)
	var h *hinted
	if errors.As(err, &h) {
		fmt.Fprintln(os.Stderr, "hint:", h.hint)
	}
	var c *exitCode
	if errors.As(err, &c) {
		return c.code
	}
	return 1
}

func newRootCommand() *cobra.Command {
	root := &cobra.Command{
		Use:   "mcs-attest-verifier",
		Short: "Give a machine its Ignition config only after it proved which machine it is",
		Long: `mcs-attest-verifier stands beside the Machine Config Server (or, standalone,
beside a folder of Ignition configs). A new machine's agent proves its identity
with a TPM 2.0 quote or a cloud's instance identity; the verifier matches it to
exactly one Machine and answers with a token of some minutes' life; the gate
gives the full config for that token and for nothing else.

From nothing to serving:

    mcs-attest-verifier init DIR --origin https://HOST:22623
    mcs-attest-verifier serve --config DIR/mcs-attest.yaml
    mcs-attest-verifier enroll --config DIR/mcs-attest.yaml --identity FILE --name NAME --pool worker`,
		Version:       version,
		SilenceErrors: true,
		SilenceUsage:  true,
	}
	root.SetOut(os.Stdout)
	root.AddCommand(
		newInitCommand(), newServeCommand(), newEnrollCommand(), newStatusCommand(), newExplainCommand(),
		newAppraiseCommand(), newPolicyCommand(), newRefvalsCommand(), newTokenCommand(),
	)
	return root
}

// hinted is an error with a line on what to do about it.
type hinted struct {
	err  error
	hint string
}

func (h *hinted) Error() string { return h.err.Error() }
func (h *hinted) Unwrap() error { return h.err }

func hint(err error, format string, a ...any) error {
	return &hinted{err, fmt.Sprintf(format, a...)}
}

// exitCode is an error with an exit status of its own.
type exitCode struct {
	err  error
	code int
}

func (e *exitCode) Error() string { return e.err.Error() }
func (e *exitCode) Unwrap() error { return e.err }

const configFlagUsage = "the verifier's configuration file"

func configFlag(cmd *cobra.Command, path *string) {
	def := os.Getenv("MCS_ATTEST_CONFIG")
	cmd.Flags().StringVar(path, "config", def, configFlagUsage+" (default $MCS_ATTEST_CONFIG)")
}
