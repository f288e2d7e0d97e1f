// SPDX-License-Identifier: Apache-2.0

package env

import (
	"context"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/mcs-attest/mcs-attest/verifier/internal/admin"
)

// completeTimeout bounds what a person who presses Tab waits for.
const completeTimeout = 3 * time.Second

// MachineNames completes the name of a machine. It adds the namespace where the name is
// ambiguous, or where the user began with a namespace.
func (e *Env) MachineNames(cmd *cobra.Command, args []string, prefix string) ([]string, cobra.ShellCompDirective) {
	return e.completeState(cmd, args, prefix, func(s *admin.State) []string {
		count := map[string]int{}
		for _, m := range s.Machines {
			count[m.Name[strings.Index(m.Name, "/")+1:]]++
		}
		var names []string
		for _, m := range s.Machines {
			short := m.Name[strings.Index(m.Name, "/")+1:]
			if strings.Contains(prefix, "/") || count[short] > 1 {
				short = m.Name
			}
			names = append(names, short)
		}
		return names
	})
}

// WaitingNames completes the id of a machine that waits for approval.
func (e *Env) WaitingNames(cmd *cobra.Command, args []string, prefix string) ([]string, cobra.ShellCompDirective) {
	return e.completeState(cmd, args, prefix, func(s *admin.State) []string {
		var names []string
		for _, p := range s.Pending {
			names = append(names, p.ID)
		}
		return names
	})
}

// PoolFlag adds --pool and completes it.
func (e *Env) PoolFlag(cmd *cobra.Command, pool *string, usage string) {
	cmd.Flags().StringVar(pool, "pool", "", usage)
	CompleteFlag(cmd, "pool", func(cmd *cobra.Command, _ []string, prefix string) ([]string, cobra.ShellCompDirective) {
		return e.complete(cmd, prefix, func(ctx context.Context, b Backend) ([]string, error) { return b.Pools(ctx) })
	})
}

// CompleteFlag registers how the shell completes a flag that cmd has.
func CompleteFlag(cmd *cobra.Command, name string, f cobra.CompletionFunc) {
	if err := cmd.RegisterFlagCompletionFunc(name, f); err != nil {
		panic(err) // no such flag, or a second function for it
	}
}

// completeState completes the first argument from the state.
func (e *Env) completeState(cmd *cobra.Command, args []string, prefix string,
	list func(*admin.State) []string) ([]string, cobra.ShellCompDirective) {
	if len(args) > 0 {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	return e.complete(cmd, prefix, func(ctx context.Context, b Backend) ([]string, error) {
		s, err := b.State(ctx)
		if err != nil {
			return nil, err
		}
		return list(s), nil
	})
}

func (e *Env) complete(cmd *cobra.Command, prefix string,
	list func(context.Context, Backend) ([]string, error)) ([]string, cobra.ShellCompDirective) {
	ctx, cancel := context.WithTimeout(cmd.Context(), completeTimeout)
	defer cancel()
	b, err := e.Open()
	if err != nil {
		return nil, cobra.ShellCompDirectiveError
	}
	names, err := list(ctx, b)
	if err != nil {
		return nil, cobra.ShellCompDirectiveError
	}
	names = slices.DeleteFunc(names, func(n string) bool { return !strings.HasPrefix(n, prefix) })
	return names, cobra.ShellCompDirectiveNoFileComp
}
