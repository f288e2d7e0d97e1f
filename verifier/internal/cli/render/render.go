// SPDX-License-Identifier: Apache-2.0

// Package render has the command that renders a MachineConfigPool, and explains what it rendered.
package render

import (
	"cmp"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/mcs-attest/mcs-attest/pkg/manifest"
	"github.com/mcs-attest/mcs-attest/pkg/reason"
	"github.com/mcs-attest/mcs-attest/pkg/render"
	"github.com/mcs-attest/mcs-attest/verifier/internal/cli/env"
	"github.com/mcs-attest/mcs-attest/verifier/internal/hint"
)

// renderRequest is what 'render' was asked for.
type renderRequest struct {
	pool        string
	files       []string
	config      string
	allow       []string
	preApproved bool
	explain     bool
	output      string
}

// Command is "render".
func Command() *cobra.Command {
	var r renderRequest
	cmd := &cobra.Command{
		Use:   "render POOL --file DIR|FILE...",
		Short: "Render a MachineConfigPool, and show where each part of it comes from",
		Long: `Render a MachineConfigPool from its MachineConfigs as the machine-config-operator
does, and print the rendered MachineConfig. With --pre-approved print only the part
that every caller may receive. The command changes nothing and contacts no cluster.

--file is a manifest, a folder of manifests (*.yaml, *.yml, *.json), or - for standard
input: MachineConfigs, MachineConfigPools, the ControllerConfig and the OSImageStream,
as 'oc get -o yaml' writes them. Without --file the command reads the folder
machineconfigs in the data folder of --config.

--explain prints an explanation instead of the config. It lists the MachineConfigs in
the order of the merge, whether each is in the pre-approved part and why, and for each
file, unit and setting the MachineConfig that it comes from. If the pool does not
render, the explanation is as complete as possible.

The exit status is 1 if the pool or its pre-approved part does not render.`,
		Example: `  oc get machineconfigs -l machineconfiguration.openshift.io/role -o yaml > configs.yaml
  oc get machineconfigpools,controllerconfigs -o yaml > pools.yaml
  mcs-attest-verifier render worker -f configs.yaml -f pools.yaml --explain
  mcs-attest-verifier render worker -f configs.yaml -f pools.yaml --pre-approved -o ignition | ignition-validate -`,
		Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			r.pool = args[0]
			return r.run(cmd)
		},
	}
	env.ConfigFlag(cmd, &r.config)
	f := cmd.Flags()
	f.StringArrayVarP(&r.files, "file", "f", nil, "manifests (repeatable; - is standard input)")
	f.BoolVar(&r.preApproved, "pre-approved", false, "print only the part that every caller may receive")
	f.StringArrayVar(&r.allow, "allow", nil,
		"path of a file that may contain a secret in the pre-approved part (default: render.preApprovedAllows of --config)")
	f.BoolVar(&r.explain, "explain", false,
		"show where each part comes from, and why it is in the pre-approved part or not")
	f.StringVarP(&r.output, "output", "o", "",
		`"yaml" (default), "json", "ignition" or "name"; with --explain "table" (default, formerly "text"), "json", "yaml" or "name"`)
	env.CompleteFlag(cmd, "output", cobra.FixedCompletions(
		[]string{env.YAML, env.JSON, "ignition", env.Name, env.Table}, cobra.ShellCompDirectiveNoFileComp))
	return cmd
}

func (r *renderRequest) run(cmd *cobra.Command) error {
	if r.output == "text" {
		r.output = env.Table // its former spelling
	}
	outputs := []string{env.YAML, env.JSON, "ignition", env.Name}
	if r.explain {
		outputs = []string{env.Table, env.JSON, env.YAML, env.Name}
	}
	r.output = cmp.Or(r.output, outputs[0])
	if !slices.Contains(outputs, r.output) {
		return env.Usagef("output %q: must be %q", r.output, outputs)
	}
	in, options, err := r.input(cmd)
	if r.explain && (err == nil || errors.Is(err, errManifests)) {
		// What can be told is told.
		failed := r.explained(cmd.OutOrStdout(), in, options)
		return cmp.Or(err, failed)
	}
	if err != nil {
		return err
	}
	rendered, err := r.render(in, options)
	if err != nil {
		return renderFailed(err)
	}
	switch r.output {
	case "ignition":
		_, err := cmd.OutOrStdout().Write(append(rendered.Config.Spec.Config.Raw, '\n'))
		return err
	case env.Name:
		cmd.Println(rendered.Config.Name)
		return nil
	}
	return env.Encode(cmd.OutOrStdout(), rendered.Config, r.output)
}

func (r *renderRequest) render(in render.Input, o render.Options) (*render.Rendered, error) {
	if r.preApproved {
		return render.PreApproved(r.pool, in, o)
	}
	return render.Full(r.pool, in)
}

// input reads the manifests, and what the configuration allows.
func (r *renderRequest) input(cmd *cobra.Command) (render.Input, render.Options, error) {
	options := render.Options{Allow: r.allow}
	files := r.files
	if r.config != "" {
		c, err := env.LoadConfig(r.config)
		if err != nil {
			return render.Input{}, options, err
		}
		if len(options.Allow) == 0 && c.Render != nil {
			options.Allow = c.Render.PreApprovedAllows
		}
		if len(files) == 0 && c.Kubernetes == nil {
			files = []string{filepath.Join(c.Data, "machineconfigs")}
		}
	}
	if len(files) == 0 {
		return render.Input{}, options, env.Usage(hint.New(errors.New("no manifests given"),
			"add --file; 'oc get machineconfigs -l machineconfiguration.openshift.io/role -o yaml' and 'oc get "+
				"machineconfigpools,controllerconfigs -o yaml' write them"))
	}
	var all []render.Input
	var problems []manifest.Problem
	for _, path := range files {
		names, err := manifestsAt(path)
		if err != nil {
			return render.Input{}, options, err
		}
		for _, name := range names {
			raw, err := env.ReadInput(name, cmd.InOrStdin())
			if err != nil {
				return render.Input{}, options, err
			}
			one, wrong := render.Parse(name, raw)
			all, problems = append(all, one), append(problems, wrong...)
		}
	}
	in, wrong := render.Join(all...)
	problems = append(problems, wrong...)
	for _, p := range problems {
		cmd.PrintErrln(p.Error())
	}
	if manifest.Failed(wrong) {
		in = render.Together(all...)
	}
	if manifest.Failed(problems) {
		return in, options, errManifests
	}
	return in, options, nil
}

var errManifests = errors.New("the manifests have errors")

// notChosen are the MachineConfigs that no selector was found to choose, with the labels
// that selectors ask for.
func notChosen(in render.Input) string {
	if len(in.Configs) == 0 {
		return "no MachineConfig could be read\n"
	}
	var b strings.Builder
	fmt.Fprintln(&b, "MachineConfigs, and their role labels:")
	for _, m := range in.Configs {
		fmt.Fprintf(&b, "  %s: %s\n", m.Name, cmp.Or(m.Labels[render.LabelRole], "none"))
	}
	return b.String()
}

// manifestsAt are the files of a folder, sorted; a file is itself.
func manifestsAt(path string) ([]string, error) {
	if path == "-" {
		return []string{path}, nil
	}
	info, err := os.Stat(path)
	if err != nil {
		return nil, fmt.Errorf("read manifests: %w", err)
	}
	if !info.IsDir() {
		return []string{path}, nil
	}
	entries, err := os.ReadDir(path)
	if err != nil {
		return nil, fmt.Errorf("read manifests: %w", err)
	}
	var names []string
	for _, e := range entries {
		// An editor's files have names that begin with a dot.
		ext := filepath.Ext(e.Name())
		if !e.IsDir() && !strings.HasPrefix(e.Name(), ".") && slices.Contains([]string{".yaml", ".yml", ".json"}, ext) {
			names = append(names, filepath.Join(path, e.Name()))
		}
	}
	if len(names) == 0 {
		return nil, fmt.Errorf("%s has no manifests (*.yaml, *.yml, *.json)", path)
	}
	return names, nil
}

// renderFailed is the error of a render without the words for a machine that waits, and
// with everything that anyone would have.
func renderFailed(err error) error {
	if e, ok := errors.AsType[*render.Exposed](err); ok {
		var b strings.Builder
		for _, s := range e.Secrets {
			fmt.Fprintf(&b, "\n  %s: %s of MachineConfig %s", s.What, s.Where, s.MachineConfig)
		}
		return hint.New(fmt.Errorf("the pre-approved part of MachineConfigPool %s is refused: every caller would receive%s",
			e.Pool, b.String()),
			"remove it, or remove the annotation %s; add a file that every caller may receive to the list "+
				"render.preApprovedAllows", render.AnnotationNeeded)
	}
	text := strings.TrimPrefix(err.Error(), reason.ConfigUnavailable.String()+": ")
	return errors.New(text)
}
