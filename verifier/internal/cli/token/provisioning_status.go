// SPDX-License-Identifier: Apache-2.0

package token

import (
	"fmt"
	"io"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"github.com/mcs-attest/mcs-attest/pkg/provisioning"
	"github.com/mcs-attest/mcs-attest/verifier/internal/cli/env"
)

// provisioningDocument is a provisioning token for a program, without the token.
type provisioningDocument struct {
	Name  string     `json:"name"`
	ID    string     `json:"id"`
	Until *time.Time `json:"validUntil,omitempty"`
	Over  bool       `json:"over,omitempty"`
}

func provisioningStatusCommand(e *env.Env) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "status",
		Short: "List the tokens by name, with the time until which each is valid",
		Args:  cobra.NoArgs,
	}
	e.Where(cmd)
	output := env.OutputFlag(cmd)
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		p, s, err := openProvisioner(cmd, e)
		if err != nil {
			return err
		}
		tokens, err := current(cmd, p, s)
		if err != nil {
			return err
		}
		all := []provisioningDocument{{Name: "current", ID: provisioning.ID(tokens.Current)}}
		names := []string{all[0].ID}
		if !tokens.Previous.Empty() {
			all = append(all, provisioningDocument{
				Name: "previous", ID: provisioning.ID(tokens.Previous), Until: &tokens.PreviousExpires,
				Over: !time.Now().Before(tokens.PreviousExpires),
			})
			names = append(names, all[1].ID)
		}
		doc := struct {
			Where  string                 `json:"where"`
			Tokens []provisioningDocument `json:"tokens"`
		}{s.Where, all}
		return output.Print(cmd.OutOrStdout(), doc, names, func(out io.Writer) error {
			return printProvisioning(out, s.Where, all)
		})
	}
	return cmd
}

func printProvisioning(out io.Writer, where string, all []provisioningDocument) error {
	fmt.Fprintln(out, where)
	w := tabwriter.NewWriter(out, 0, 8, 2, ' ', 0)
	fmt.Fprintln(w, "TOKEN\tID\tVALID UNTIL")
	for _, t := range all {
		until := "-"
		if t.Until != nil {
			until = t.Until.Format(time.RFC3339)
		}
		if t.Over {
			until += " (over)"
		}
		fmt.Fprintf(w, "%s\t%s\t%s\n", t.Name, t.ID, until)
	}
	return w.Flush()
}
