// SPDX-License-Identifier: Apache-2.0

// Command mcs-attest-agent proves to a cluster which machine it runs on, before Ignition fetches
// the machine's config.
//
// It runs in the initramfs of a first boot: "attest" before ignition-fetch, "scrub" after it,
// "report" when a stage of Ignition fails. "identify" prints the identity that an administrator
// enrolls. docs/platforms.md lists where the agent finds the pointer config.
package main

import (
	"context"
	"fmt"
	"os"
	"os/signal"
	"syscall"

	"github.com/mcs-attest/mcs-attest/agent/internal/command"
	"github.com/mcs-attest/mcs-attest/agent/internal/fipsmode"
)

func main() {
	if err := fipsmode.FollowKernel(fipsmode.Kernel); err != nil {
		fmt.Fprintln(os.Stderr, "error:", err)
		os.Exit(1)
	}
	os.Exit(run())
}

func run() int {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, syscall.SIGINT)
	defer stop()
	return command.Main(ctx, os.Args[1:], os.Stdout, os.Stderr)
}
