// SPDX-License-Identifier: Apache-2.0

package env

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/spf13/cobra"

	"github.com/mcs-attest/mcs-attest/verifier/internal/admin"
	"github.com/mcs-attest/mcs-attest/verifier/internal/audit"
	"github.com/mcs-attest/mcs-attest/verifier/internal/hint"
	"github.com/mcs-attest/mcs-attest/verifier/internal/operator"
)

// WaitFlag adds --wait.
func WaitFlag(cmd *cobra.Command) *time.Duration {
	return cmd.Flags().Duration("wait", 15*time.Second,
		"how long to wait until the verifier of the folder uses the change; 0: do not wait")
}

// WaitInForce waits until the verifier that serves a folder has the change of what. In a cluster it does nothing.
// It prints its messages to standard error, those of a success only about the last change.
func WaitInForce(cmd *cobra.Command, b any, what string, patience time.Duration, last bool,
	has func(*admin.State) bool) error {
	w, ok := b.(interface {
		InForce(ctx context.Context, has func(*admin.State) bool) ([]string, error)
	})
	if !ok || patience <= 0 {
		return nil
	}
	uninterrupted, stop := untilSignal(cmd.Context())
	defer stop()
	ctx, cancel := context.WithTimeout(uninterrupted, patience)
	defer cancel()
	problems, err := w.InForce(ctx, has)
	switch {
	case err != nil && uninterrupted.Err() != nil:
		return hint.New(fmt.Errorf("interrupted: the change of %s was written, but it is unknown whether it is in force",
			what), "'status' shows whether it is in force")
	case err == nil:
		if last {
			cmd.PrintErrln("in force")
		}
		return nil
	case errors.Is(err, admin.ErrNotServing):
		if f, ok := b.(*operator.Folder); ok {
			if err := mayAsk(ctx, f.Config); err != nil {
				return hint.New(fmt.Errorf("the change of %s was written, but it is unknown whether it is in force: %w", what, err),
					ownerHint+"; --wait 0 does not ask", f.Config.Path("state"))
			}
		}
		if last {
			cmd.PrintErrln("no verifier is serving; the change takes effect when one starts")
		}
		return nil
	}
	for _, p := range problems {
		cmd.PrintErrln("problem:", audit.Clean(p))
	}
	return hint.New(fmt.Errorf("the verifier does not use the change of %s yet, after %v", what, patience),
		"the change was written; 'status' shows whether it is in force, and its errors")
}
