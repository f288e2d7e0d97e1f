// SPDX-License-Identifier: Apache-2.0

// Package command is the agent's command line. It connects the other packages and turns their
// errors into "error:" and "hint:" lines and an exit status: 0 if the boot may continue, 1 if it
// may not, 2 for a wrong command line.
package command

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"strings"
	"time"

	"github.com/mcs-attest/mcs-attest/agent/internal/console"
	"github.com/mcs-attest/mcs-attest/agent/internal/flow"
	"github.com/mcs-attest/mcs-attest/agent/internal/paths"
	"github.com/mcs-attest/mcs-attest/pkg/spelling"
	"github.com/mcs-attest/mcs-attest/pkg/version"
)

const (
	exitOK    = 0
	exitStop  = 1
	exitUsage = 2
)

// agent holds what all commands share.
type agent struct {
	paths   paths.Paths
	console *console.Console
	out     io.Writer
	// realRoot is true in the real root.
	realRoot bool
	// hasTPM is true after openDevice has seen the device, or the record of an attestation with it.
	hasTPM bool
	// Tests replace reboot, pause and capChild, and set step and mounted, which are those of nextboot. Reboot
	// and pause end early with an error if the context ends.
	step     func(string) error
	mounted  func(dir string) (bool, error)
	reboot   func(context.Context) error
	pause    func(context.Context, time.Duration) error
	capChild func(paths.Paths) error
}

// hinted is an error with a hint for the administrator.
type hinted struct {
	error
	hint string
}

func (h hinted) Unwrap() error { return h.error }

// usageError reports a wrong command line.
type usageError struct{ error }

// command is one command of the agent.
type command struct {
	name  string
	args  string // arguments in the usage line, such as "UNIT"
	short string
	long  string
	flags func(*flag.FlagSet)
	run   func(context.Context, []string) error
}

// The standard library's flag package instead of cobra saves 0.3 MB in every initramfs.
func (a *agent) commands() []command {
	return []command{a.attest(), a.scrub(), a.report(), a.firstboot(), a.identify(), a.rehearse()}
}

const about = `mcs-attest-agent proves which machine this is, before Ignition fetches its config.

It runs in the initramfs of a machine's first boot. It proves to the cluster's
verifier which machine it runs on, and gives Ignition the token that opens the
machine's config.

Usage: mcs-attest-agent COMMAND [flags]

Commands:
`

const afterCommands = `
Kernel arguments:
  mcs-attest=off      do nothing (PCR 11 is still capped)
  mcs-attest=require  stop the boot if there is nothing to attest to
  mcs-attest.ek=TYPE  use only an endorsement key of this type: rsa-2048,
                      ecc-p256 or ecc-p384
  mcs-attest.clock=off
                      never set the clock

Each file that the agent reads has an environment variable; docs/platforms.md
lists them. "mcs-attest-agent COMMAND --help" describes a command.
`

// Main runs the command line args and returns the exit status.
func Main(ctx context.Context, args []string, stdout, stderr io.Writer) int {
	a := &agent{
		paths:    paths.Default(),
		console:  &console.Console{Out: stdout, Err: stderr},
		out:      stdout,
		reboot:   systemctlReboot,
		pause:    flow.Pause,
		capChild: capInChild,
	}
	err := a.dispatch(ctx, args)
	var usage usageError
	var h hinted
	switch {
	case err == nil:
		return exitOK
	case errors.As(err, &usage):
		advice := "see mcs-attest-agent --help"
		if errors.As(err, &h) {
			advice = h.hint
		}
		a.console.Error(err, advice)
		return exitUsage
	case errors.As(err, &h):
		a.console.Error(err, h.hint)
	default:
		a.console.Error(err, "")
	}
	return exitStop
}

func (a *agent) dispatch(ctx context.Context, args []string) error {
	if len(args) == 0 {
		args = []string{"help"}
	}
	switch args[0] {
	case "help", "-h", "-help", "--help":
		if args = args[1:]; len(args) == 0 {
			return a.help()
		}
		args = []string{args[0], "--help"}
	case "version", "--version":
		_, err := fmt.Fprintln(a.out, "mcs-attest-agent", version.String())
		return err
	}
	for _, c := range a.commands() {
		if c.name == args[0] {
			return a.runCommand(ctx, c, args[1:])
		}
	}
	var names []string
	for _, c := range a.commands() {
		names = append(names, c.name)
	}
	return meant(usageError{fmt.Errorf("unknown command %q", args[0])}, args[0], "", names)
}

func (a *agent) runCommand(ctx context.Context, c command, args []string) error {
	flags := flag.NewFlagSet(c.name, flag.ContinueOnError)
	flags.SetOutput(io.Discard)
	flags.StringVar(&a.paths.Run, "run-dir", a.paths.Run, "keep the agent's own files in `FOLDER`")
	flags.StringVar(&a.paths.TPM, "tpm", a.paths.TPM, "use the TPM `DEVICE`, or the socket of a software TPM")
	if c.flags != nil {
		c.flags(flags)
	}
	err := flags.Parse(args)
	switch {
	case errors.Is(err, flag.ErrHelp):
		return a.commandHelp(c, flags)
	case err != nil:
		var names []string
		flags.VisitAll(func(f *flag.Flag) { names = append(names, f.Name) })
		_, unknown, _ := strings.Cut(err.Error(), "flag provided but not defined: -") // the library has no type for it
		return meant(usageError{err}, strings.TrimPrefix(unknown, "-"), "--", names)
	}
	if want := len(strings.Fields(c.args)); flags.NArg() != want {
		return usageError{fmt.Errorf("%s requires %d arguments, not %d", c.name, want, flags.NArg())}
	}
	return c.run(ctx, flags.Args())
}

// meant adds to err the names that are closest in spelling to word.
func meant(err error, word, prefix string, names []string) error {
	near := spelling.Near(word, names)
	if len(near) == 0 {
		return err
	}
	return hinted{err, "did you mean " + prefix + strings.Join(near, " or "+prefix) + "?"}
}

func (a *agent) help() error {
	var b strings.Builder
	b.WriteString(about)
	for _, c := range a.commands() {
		fmt.Fprintf(&b, "  %-10s %s\n", c.name, c.short)
	}
	fmt.Fprintf(&b, "  %-10s %s\n", "version", "print the version, the commit and the platform of this program")
	b.WriteString(afterCommands)
	_, err := io.WriteString(a.out, b.String())
	return err
}

func (a *agent) commandHelp(c command, flags *flag.FlagSet) error {
	var b strings.Builder
	usage := strings.TrimSpace(c.name + " " + c.args)
	fmt.Fprintf(&b, "%s\n\nUsage: mcs-attest-agent %s [flags]\n\nFlags:\n", c.long, usage)
	flags.VisitAll(func(f *flag.Flag) {
		value, text := flag.UnquoteUsage(f)
		dashes := "--"
		if len(f.Name) == 1 {
			dashes = "-"
		}
		fmt.Fprintf(&b, "  %-20s %s", strings.TrimSpace(dashes+f.Name+" "+value), text)
		if f.DefValue != "" && f.DefValue != "false" {
			fmt.Fprintf(&b, " (default %s)", f.DefValue)
		}
		b.WriteByte('\n')
	})
	_, err := io.WriteString(a.out, b.String())
	return err
}

// bootID returns the kernel's boot id, or "" if it cannot be read.
func (a *agent) bootID() string {
	raw, err := os.ReadFile(a.paths.BootID)
	if err != nil || len(raw) < 36 {
		return ""
	}
	return string(raw[:36])
}
