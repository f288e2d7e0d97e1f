// SPDX-License-Identifier: Apache-2.0

// Command mcs-attest-verifier stands beside the Machine Config Server. It
// appraises the evidence of new machines, matches each to exactly one Machine,
// and gives the full Ignition config for the token it issued and for nothing
// else.
package main

import (
	"context"
	"os"
	"os/signal"
	"syscall"

	"github.com/mcs-attest/mcs-attest/verifier/internal/cli"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	context.AfterFunc(ctx, stop) // a second signal ends the program without a cleanup
	code := cli.Main(ctx, os.Args)
	stop()
	os.Exit(code)
}
