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
	return e.complete(cmd, args, prefix, func(s *admin.State) []string {
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
	return e.complete(cmd, args, prefix, func(s *admin.State) []string {
		var names []string
		for _, p := range s.Pending {
			names = append(names, p.ID)
		}
		return names
	})
}

func (e *Env) complete(cmd *cobra.Command, args []string, prefix string,
	list func(*admin.State) []string) ([]string, cobra.ShellCompDirective) {
	if len(args) > 0 {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	ctx, cancel := context.WithTimeout(cmd.Context(), completeTimeout)
	defer cancel()
	b, err := e.Open()
	if err != nil {
		return nil, cobra.ShellCompDirectiveError
	}
	s, err := b.State(ctx)
	if err != nil {
		return nil, cobra.ShellCompDirectiveError
	}
	names := slices.DeleteFunc(list(s), func(n string) bool { return !strings.HasPrefix(n, prefix) })
	return names, cobra.ShellCompDirectiveNoFileComp
}
