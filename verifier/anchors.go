package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
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
with anchors; what a folder (or a ConfigMap) of the same name does to them:

  ak-roots          authorities that certify AKs; in place of all that is built in
  azure-roots       authorities behind Azure's attested documents; the same
  aws-certificates  AWS's certificates, each after a line "# region: NAME"; one
                    region at a time is replaced or added
  google-keys       a JWK set, beside the keys that are fetched`,
	}
	cmd.AddCommand(newAnchorsListCommand(), newAnchorsExportCommand())
	return cmd
}

// maxAnchorName keeps a line of the table on a screen; -o json has the whole name.
const maxAnchorName = 48

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
				if c.Kubernetes != nil {
					return hint(errors.New("this is the configuration of a cluster, whose anchors are in ConfigMaps"),
						"oc get configmap -n %s -l mcs-attest.dev/content; without --config this lists what is built in", c.Kubernetes.Namespace)
				}
				s, err := folder.Load(c.Data)
				if err != nil {
					return err
				}
				t, problems = s.Trust, slices.DeleteFunc(s.Problems, func(p manifest.Problem) bool {
					return trust.Sections[trust.Section(filepath.Base(filepath.Dir(p.File)))] == nil && trust.Sections[trust.Section(p.File)] == nil
				})
			}
			for _, p := range problems {
				cmd.PrintErrln(p.Error())
			}
			if output == "json" {
				raw, err := json.MarshalIndent(t.All(), "", "  ")
				if err != nil {
					return err
				}
				if _, err = fmt.Fprintf(cmd.OutOrStdout(), "%s\n", raw); err != nil {
					return err
				}
				return unusableAnchors(problems)
			}
			w := tabwriter.NewWriter(cmd.OutOrStdout(), 0, 8, 2, ' ', 0)
			fmt.Fprintln(w, "FOR\tANCHOR\tENDS\tFROM")
			for _, a := range t.All() {
				ends := "-"
				if !a.NotAfter.IsZero() {
					ends = a.NotAfter.Format(time.DateOnly)
				}
				name := a.Name
				if len(name) > maxAnchorName {
					name = name[:maxAnchorName] + "..."
				}
				fmt.Fprintf(w, "%s\t%s\t%s\t%s\n", a.Section, name, ends, a.From)
			}
			if err := w.Flush(); err != nil {
				return err
			}
			return unusableAnchors(problems)
		},
	}
	cmd.Flags().StringVar(&configPath, "config", "", "the verifier's configuration; without it the anchors of this version are listed")
	cmd.Flags().StringVarP(&output, "output", "o", "", `"json" for a program`)
	return cmd
}

func unusableAnchors(problems []manifest.Problem) error {
	if !manifest.Failed(problems) {
		return nil
	}
	return errors.New("some anchors cannot be used as they stand; what is listed is in force")
}

func newAnchorsExportCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "export ak-roots|azure-roots|aws-certificates",
		Short: "Print the anchors of this version, to be changed and put into the folder",
		RunE: func(cmd *cobra.Command, args []string) error {
			if len(args) != 1 {
				return errors.New("name one of ak-roots, azure-roots and aws-certificates")
			}
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
