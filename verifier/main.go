// SPDX-License-Identifier: Apache-2.0

// Command mcs-attest-verifier stands beside the Machine Config Server. It
// appraises the evidence of new machines, matches each to exactly one Machine,
// and gives the full Ignition config for the token it issued and for nothing
// else.
package main

import (
	"context"
	"os"

	"github.com/mcs-attest/mcs-attest/verifier/internal/cli"
)

func main() {
	os.Exit(cli.Main(context.Background(), os.Args))
}
