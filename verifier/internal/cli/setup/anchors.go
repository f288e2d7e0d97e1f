// SPDX-License-Identifier: Apache-2.0

package setup

import (
	"errors"
	"fmt"
	"io"
	"path/filepath"
	"slices"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"github.com/mcs-attest/mcs-attest/pkg/manifest"
	"github.com/mcs-attest/mcs-attest/verifier/internal/cli/env"
	"github.com/mcs-attest/mcs-attest/verifier/internal/folder"
	"github.com/mcs-attest/mcs-attest/verifier/internal/hint"
	"github.com/mcs-attest/mcs-attest/verifier/internal/trust"
)

func anchorsCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "anchors",
		Short: "List and export the trust anchors for clouds' documents and certified AKs",
		Long: `List and export the trust anchors for clouds' documents and for certified AKs. This
version has built-in anchors. A folder (or a ConfigMap) with one of these names changes
them:

  ak-roots          authorities that certify AKs; replaces all built-in ones
  azure-roots       authorities of Azure's attested documents; replaces all built-in
                    ones
  aws-certificates  AWS's certificates, each after a line "# region: NAME"; replaces or
                    adds the certificate of each region in it
  google-keys       a JWK set, in addition to the keys that the verifier fetches`,
	}
	cmd.AddCommand(anchorsListCommand(), anchorsExportCommand())
	return cmd
}

// maxAnchorName keeps a line of the table on a screen; -o json has the whole name.
const maxAnchorName = 48

func anchorsListCommand() *cobra.Command {
	var configPath string
	cmd := &cobra.Command{
		Use:   "list",
		Short: "List the anchors in force, of this version or of a verifier's folder",
		Args:  cobra.NoArgs,
	}
	cmd.Flags().StringVar(&configPath, "config", "",
		"the verifier's configuration (default: list the anchors of this version)")
	output := env.OutputFlag(cmd)
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		t, problems, err := anchorsOf(configPath)
		if err != nil {
			return err
		}
		for _, p := range problems {
			cmd.PrintErrln(p.Error())
		}
		all := t.All()
		names := make([]string, len(all))
		for i, a := range all {
			names[i] = string(a.Section) + "/" + a.Name
		}
		err = output.Print(cmd.OutOrStdout(), all, names, func(out io.Writer) error { return printAnchors(out, all) })
		if err != nil {
			return err
		}
		return unusableAnchors(problems)
	}
	return cmd
}

// anchorsOf are the anchors of a folder, or of this version, and what is wrong with them.
func anchorsOf(configPath string) (*trust.Trust, []manifest.Problem, error) {
	if configPath == "" {
		t, problems := trust.New()
		return t, problems, nil
	}
	c, err := env.LoadConfig(configPath)
	if err != nil {
		return nil, nil, err
	}
	if c.Kubernetes != nil {
		return nil, nil, hint.New(errors.New("this is the configuration of a cluster, whose anchors are in ConfigMaps"),
			"run 'oc get configmap -n %s -l mcs-attest.dev/content', or omit --config to list the built-in anchors",
			c.Kubernetes.Namespace)
	}
	s, err := folder.Load(c.Data)
	if err != nil {
		return nil, nil, err
	}
	return s.Trust, slices.DeleteFunc(s.Problems, func(p manifest.Problem) bool {
		return trust.Sections[trust.Section(filepath.Base(filepath.Dir(p.File)))] == nil &&
			trust.Sections[trust.Section(p.File)] == nil
	}), nil
}

func printAnchors(out io.Writer, all []trust.Anchor) error {
	w := tabwriter.NewWriter(out, 0, 8, 2, ' ', 0)
	fmt.Fprintln(w, "FOR\tANCHOR\tENDS\tFROM")
	for _, a := range all {
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
	return w.Flush()
}

func unusableAnchors(problems []manifest.Problem) error {
	if !manifest.Failed(problems) {
		return nil
	}
	return errors.New("some anchors cannot be used; the listed ones are in force")
}

func anchorsExportCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "export ak-roots|azure-roots|aws-certificates",
		Short: "Print the anchors of this version, as a start for your own files",
		RunE: func(cmd *cobra.Command, args []string) error {
			if len(args) != 1 {
				return env.Usagef("name one of ak-roots, azure-roots and aws-certificates")
			}
			t, _ := trust.New()
			raw, err := t.Export(trust.Section(args[0]))
			if err != nil {
				return env.Usage(err)
			}
			_, err = cmd.OutOrStdout().Write(raw)
			return err
		},
	}
}
