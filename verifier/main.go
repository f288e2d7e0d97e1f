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
	"strings"
	"syscall"

	"github.com/spf13/cobra"

	"github.com/mcs-attest/mcs-attest/verifier/internal/operator"
)

var version = "unknown" // set by the linker

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	c, args := programOf(os.Args[0], os.Args[1:])
	code := run(ctx, c, args)
	stop()
	os.Exit(code)
}

func run(ctx context.Context, c *cli, args []string) int {
	root := c.rootCommand()
	strictGroups(root)
	root.SetArgs(args)
	err := root.ExecuteContext(ctx)
	if err == nil {
		return 0
	}
	fmt.Fprintln(os.Stderr, "error:", err)
	var h *operator.Hinted
	if errors.As(err, &h) {
		fmt.Fprintln(os.Stderr, "hint:", h.Hint)
	}
	var exit *exitCode
	if errors.As(err, &exit) {
		return exit.code
	}
	return 1
}

// strictGroups makes a word that is no subcommand an error. Cobra would print the
// help and exit with 0, which of "csr explian" means that the request is approved.
func strictGroups(cmd *cobra.Command) {
	for _, sub := range cmd.Commands() {
		strictGroups(sub)
	}
	if cmd.Runnable() || !cmd.HasSubCommands() {
		return
	}
	cmd.Args = cobra.ArbitraryArgs
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		if len(args) == 0 {
			return cmd.Help()
		}
		err := fmt.Errorf("unknown command %q for %q", args[0], cmd.CommandPath())
		if like := cmd.SuggestionsFor(args[0]); len(like) > 0 {
			return hint(err, "did you mean %s?", strings.Join(like, " or "))
		}
		return hint(err, "'%s --help' lists them", cmd.CommandPath())
	}
}

func (c *cli) rootCommand() *cobra.Command {
	if c.plugin {
		return c.pluginCommand()
	}
	root := &cobra.Command{
		Use:   verifierName,
		Short: "Give a machine its Ignition config only after it proved which machine it is",
		Long: `mcs-attest-verifier stands beside the Machine Config Server (or, standalone,
beside a folder of Ignition configs). A new machine's agent proves its identity
with a TPM 2.0 quote or a cloud's instance identity; the verifier matches it to
exactly one Machine and answers with a token of some minutes' life; the gate
gives the full config for that token and for nothing else.

From nothing to serving:

    mcs-attest-verifier init DIR --origin https://HOST:22623
    mcs-attest-verifier serve --config DIR/mcs-attest.yaml
    mcs-attest-verifier enroll --config DIR/mcs-attest.yaml --identity FILE --name NAME --pool worker

Linked or copied as kubectl-attest or oc-attest it is the plug-in "kubectl attest".`,
		Version:       version,
		SilenceErrors: true,
		SilenceUsage:  true,
	}
	root.SetOut(os.Stdout)
	root.AddCommand(newInitCommand(), newServeCommand(), newAppraiseCommand(), newPolicyCommand(), newRefvalsCommand(), newAnchorsCommand(), newRenderCommand(), newBackupCommand(), newRestoreCommand())
	root.AddCommand(c.operatorCommands()...)
	return root
}

// pluginCommand is "kubectl attest" or "oc attest".
func (c *cli) pluginCommand() *cobra.Command {
	root := &cobra.Command{
		Use:         c.fieldManager(),
		Annotations: map[string]string{cobra.CommandDisplayNameAnnotation: c.name},
		Short:       "Which machines attested, which did not and why, and what to do about it",
		Long: `Which machines of a cluster attested before they received their Ignition config,
which did not and why, and what to do about it. It reads and writes objects of the
Kubernetes API and needs no verifier to be running.`,
		Example: c.examples(`  PROGRAM status
  PROGRAM explain worker-7
  PROGRAM enroll --identity worker-7.yaml --machine worker-7
  PROGRAM quarantine worker-7`),
		Version:       version,
		SilenceErrors: true,
		SilenceUsage:  true,
	}
	root.SetOut(os.Stdout)
	c.clusterFlags(root.PersistentFlags())
	root.AddCommand(c.operatorCommands()...)
	return root
}

// operatorCommands are the administrator's, for a folder and for a cluster.
func (c *cli) operatorCommands() []*cobra.Command {
	return []*cobra.Command{
		c.statusCommand(), c.explainCommand(), c.enrollCommand(), c.approveCommand(), c.quarantineCommand(), c.reattestCommand(),
		c.tokenCommand(), c.certsCommand(), c.csrCommand(), c.supportBundleCommand(),
	}
}

func hint(err error, format string, a ...any) error {
	return &operator.Hinted{Err: err, Hint: fmt.Sprintf(format, a...)}
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
