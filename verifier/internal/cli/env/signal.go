// SPDX-License-Identifier: Apache-2.0

package env

import (
	"context"
	"os"
	"os/signal"
	"syscall"

	"github.com/spf13/cobra"
)

// UntilSignal lets the context of a command end at the first SIGINT or SIGTERM. A second signal ends the
// program. It is for commands that clean up or report what they did until then. Other commands end at the first
// signal, also while they read input.
func UntilSignal(cmd *cobra.Command) (stop func()) {
	ctx, stop := untilSignal(cmd.Context())
	cmd.SetContext(ctx)
	return stop
}

func untilSignal(ctx context.Context) (context.Context, func()) {
	ctx, stop := signal.NotifyContext(ctx, os.Interrupt, syscall.SIGTERM)
	context.AfterFunc(ctx, stop)
	return ctx, stop
}
