package main

import (
	"encoding/json"
	"fmt"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"github.com/mcs-attest/mcs-attest/pkg/manifest"
	"github.com/mcs-attest/mcs-attest/verifier/internal/folder"
	"github.com/mcs-attest/mcs-attest/verifier/internal/trust"
)

func newAnchorsCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "anchors",
		Short: "What vouches for the clouds' documents and for certified AKs",
		Long: `What vouches for the clouds' documents and for certified AKs. This version comes
with anchors, which a folder (or a ConfigMap) of the same name replaces:

  ak-roots          authorities that certify AKs
  azure-roots       authorities behind Azure's attested documents
  aws-certificates  AWS's certificates, each after a line "# region: NAME"; one
                    region at a time is replaced or added
  google-keys       a JWK set, beside the keys that are fetched`,
	}
	cmd.AddCommand(newAnchorsListCommand(), newAnchorsExportCommand())
	return cmd
}

func newAnchorsListCommand() *cobra.Command {
	var configPath, output string
	cmd := &cobra.Command{
		Use:   "list",
		Short: "List the anchors in force: those of this version, or of a verifier's folder",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			t, problems := trust.New()
			if configPath != "" {
				c, err := loadConfig(configPath)
				if err != nil {
					return err
				}
				s, err := folder.Load(c.Data)
				if err != nil {
					return err
				}
				t, problems = s.Trust, s.Problems
			}
			for _, p := range problems {
				cmd.PrintErrln(p.Error())
			}
			if manifest.Failed(problems) {
				return fmt.Errorf("the folder cannot be read as it stands")
			}
			if output == "json" {
				raw, err := json.MarshalIndent(t.All(), "", "  ")
				if err != nil {
					return err
				}
				_, err = fmt.Fprintf(cmd.OutOrStdout(), "%s\n", raw)
				return err
			}
			w := tabwriter.NewWriter(cmd.OutOrStdout(), 0, 8, 2, ' ', 0)
			fmt.Fprintln(w, "FOR\tANCHOR\tENDS\tFROM")
			for _, a := range t.All() {
				ends := "-"
				if !a.NotAfter.IsZero() {
					ends = a.NotAfter.Format(time.DateOnly)
				}
				fmt.Fprintf(w, "%s\t%s\t%s\t%s\n", a.Section, a.Name, ends, a.From)
			}
			return w.Flush()
		},
	}
	cmd.Flags().StringVar(&configPath, "config", "", "the verifier's configuration; without it the anchors of this version are listed")
	cmd.Flags().StringVarP(&output, "output", "o", "", `"json" for a program`)
	return cmd
}

func newAnchorsExportCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "export ak-roots|azure-roots|aws-certificates",
		Short: "Print the anchors of this version, to be changed and put into the folder",
		Args:  cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			t, _ := trust.New()
			raw, err := t.Export(trust.Section(args[0]))
			if err != nil {
				return err
			}
			_, err = cmd.OutOrStdout().Write(raw)
			return err
		},
	}
}
