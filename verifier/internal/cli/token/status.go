// SPDX-License-Identifier: Apache-2.0

package token

import (
	"fmt"
	"io"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"github.com/mcs-attest/mcs-attest/verifier/internal/cli/env"
	"github.com/mcs-attest/mcs-attest/verifier/internal/operator"
)

// keyDocument is a key for a program. No secret is in it.
type keyDocument struct {
	Kind    string     `json:"kind"`
	ID      string     `json:"id"`
	Current bool       `json:"current,omitempty"`
	From    time.Time  `json:"usedFrom"`
	Until   *time.Time `json:"usedUntil,omitempty"`
}

func statusCommand(e *env.Env) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "status",
		Short: "List the keys and the times between which they are used",
		Args:  cobra.NoArgs,
	}
	e.Where(cmd)
	output := env.OutputFlag(cmd)
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		b, err := e.Open()
		if err != nil {
			return err
		}
		keys, err := b.Keys(cmd.Context())
		if err != nil {
			return err
		}
		docs := keyDocuments(keys, time.Now())
		names := make([]string, len(docs))
		for i, k := range docs {
			names[i] = k.Kind + "/" + k.ID
		}
		return output.Print(cmd.OutOrStdout(), docs, names, func(out io.Writer) error { return printKeys(out, docs) })
	}
	return cmd
}

func keyDocuments(keys operator.Keys, now time.Time) []keyDocument {
	current, _ := keys.Tokens.Current(now)
	docs := []keyDocument{}
	for _, k := range keys.Tokens.Keys {
		doc := keyDocument{Kind: "token", ID: k.ID, Current: k.ID == current.ID, From: k.NotBefore}
		if !k.NotAfter.IsZero() {
			doc.Until = &k.NotAfter
		}
		docs = append(docs, doc)
	}
	for _, k := range keys.Seals.Keys {
		docs = append(docs, keyDocument{Kind: "seal", ID: fmt.Sprintf("%x", k.ID), From: k.NotBefore})
	}
	return docs
}

func printKeys(out io.Writer, docs []keyDocument) error {
	w := tabwriter.NewWriter(out, 0, 8, 2, ' ', 0)
	fmt.Fprintln(w, "KEY\tID\tUSED FROM\tUSED UNTIL")
	for _, k := range docs {
		name, until := k.Kind, "-"
		if k.Current {
			name += " (current)"
		}
		if k.Until != nil {
			until = k.Until.Format(time.RFC3339)
		}
		fmt.Fprintf(w, "%s\t%s\t%s\t%s\n", name, k.ID, k.From.Format(time.RFC3339), until)
	}
	return w.Flush()
}
