// SPDX-License-Identifier: Apache-2.0

package render_test

import (
	"os"
	"slices"
	"strings"
	"testing"

	"sigs.k8s.io/yaml"

	"github.com/mcs-attest/mcs-attest/pkg/manifest"
	"github.com/mcs-attest/mcs-attest/pkg/render"
)

func TestRender_NamesTheInvalidMachineConfig(t *testing.T) {
	for _, tc := range []struct {
		name, config string
		want         []string
	}{
		{"a spec 2.2 config is refused, and it is said what to do",
			customer("98-old", "worker", "config:\n  ignition:\n    version: 2.2.0"),
			[]string{"MachineConfig 98-old", "more.yaml:", "spec 2.2.0", "convert it to spec 3.0 to 3.5"}},
		{"a version that the operator does not merge yet", customer("98-new", "worker",
			"config:\n  ignition:\n    version: 3.6.0"), []string{"MachineConfig 98-new", "3.0 to 3.5"}},
		{"a config without a version", customer("98-none", "worker", "config: {}"),
			[]string{"MachineConfig 98-none", "not an Ignition config"}},
		{"a file with a relative path, with its line", customer("98-path", "worker",
			"config:\n  ignition:\n    version: 3.4.0\n  storage:\n    files:\n    - path: etc/x"),
			[]string{"MachineConfig 98-path", "more.yaml:13", "storage.files[0].path", "path not absolute"}},
		{"a file twice", customer("98-twice", "worker",
			"config:\n  ignition:\n    version: 3.4.0\n  storage:\n    files:\n    - path: /x\n    - path: /x"),
			[]string{"MachineConfig 98-twice", "duplicate entry"}},
		{"a mode that is a text", customer("98-mode", "worker",
			"config:\n  ignition:\n    version: 3.4.0\n  storage:\n    files:\n    - path: /x\n      mode: \"0644\""),
			[]string{"MachineConfig 98-mode", "cannot unmarshal"}},
		{"an unknown kernel", customer("98-kernel", "worker", "kernelType: fast"),
			[]string{"MachineConfig 98-kernel", "more.yaml:8", `"fast"`, "64k-pages"}},
		{"kernel arguments that are no list", customer("98-args", "worker", "kernelArguments: quiet"),
			[]string{"MachineConfig 98-args", "more.yaml:8", "a list is required"}},
		{"a link where another one has a file below it", customer("98-link", "worker",
			"config:\n  ignition:\n    version: 3.4.0\n  storage:\n    links:\n    - path: /etc/sysctl.d\n      target: /tmp"),
			[]string{"MachineConfig 98-link", "merged with those before it", "/etc/sysctl.d/arp.conf", "includes link"}},
		{"a file that only appends", customer("98-append", "worker",
			"config:\n  ignition:\n    version: 3.4.0\n  storage:\n    files:\n    - path: /etc/profile\n      append:\n     "+
				" - source: data:,x"),
			[]string{"MachineConfig 98-append", "/etc/profile", "append is not enough"}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			in := cluster(t, tc.config)
			_, err := render.Full("worker", in)
			contains(t, refusal(t, err), tc.want...)
			if f := render.FaultOf(err); f == nil || !strings.Contains(tc.config, "name: "+f.MachineConfig+"\n") {
				t.Errorf("the fault is %v", f)
			}
			_, err = render.PreApproved("worker", in, render.Options{})
			refusal(t, err)
		})
	}
}

func TestMachineConfigsWithoutAnIgnitionConfig(t *testing.T) {
	for _, spec := range []string{"kernelArguments: [quiet]", "config: null\nkernelArguments: [quiet]"} {
		// First, last and the only one.
		for _, name := range []string{"0-none", "99-zz-none"} {
			if got := full(t, "worker",
				cluster(t, customer(name, "worker", spec))); !slices.Contains(got.Config.Spec.KernelArguments, "quiet") {
				t.Errorf("%s: %v", name, got.Config.Spec.KernelArguments)
			}
		}
		single := parse(t, "f.yaml", needed("none", spec)+"---\napiVersion: machineconfiguration.openshift.io/v1\nkind: "+
			"MachineConfigPool\nmetadata: {name: worker}\nspec: {machineConfigSelector: {matchLabels: "+
			"{machineconfiguration.openshift.io/role: worker}}}\n")
		if got := string(full(t, "worker", single).Config.Spec.Config.Raw); got != `{"ignition":{"version":"3.5.0"}}` {
			t.Error(got)
		}
		preApproved(t, "worker", single)
	}
}

func TestInvalidMachineConfig_AffectsOnlyItsPools(t *testing.T) {
	in := cluster(t, customer("98-infra-broken", "infra", "config:\n  ignition:\n    version: 1.0.0"))
	full(t, "worker", in)
	_, err := render.Full("infra", in)
	contains(t, refusal(t, err), "98-infra-broken")
}

func TestPoolsThatDoNotRender(t *testing.T) {
	for _, tc := range []struct {
		name, pool, more string
		want             string
	}{
		{"one that does not exist", "gpu", "", `MachineConfigPool "gpu" does not exist`},
		{"one whose selector is empty chooses nothing", "all", "machineConfigSelector: {}", "selects no MachineConfig"},
		{"one without a selector chooses nothing", "all", "paused: false", "selects no MachineConfig"},
		{"one whose selector is none", "all",
			"machineConfigSelector:\n    matchExpressions:\n    - {key: a, operator: Near, values: [b]}",
			"machineConfigSelector"},
		{"one with kernel-devel for another kernel", "infra", "", "kernel-devel"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			var more []string
			if tc.more != "" {
				more = append(more,
					"apiVersion: machineconfiguration.openshift.io/v1\nkind: MachineConfigPool\nmetadata:\n  name: all\nspec:\n  "+
						tc.more+"\n")
			}
			if tc.pool == "infra" {
				more = append(more, customer("98-devel", "infra", "extensions: [kernel-devel]"))
			}
			_, err := render.Full(tc.pool, cluster(t, more...))
			contains(t, refusal(t, err), tc.want)
		})
	}
}

func TestParse_RejectsInvalidManifests(t *testing.T) {
	for _, tc := range []struct{ name, text, want string }{
		{"no YAML", "a: [", "f.yaml:1"},
		{"another kind", "apiVersion: v1\nkind: Secret\nmetadata:\n  name: x\n", "Secret of v1 is not supported here"},
		{"a pool without a name", "apiVersion: machineconfiguration.openshift.io/v1\nkind: MachineConfigPool\nspec: {}\n",
			"has no name"},
		{"a MachineConfig without a name",
			"apiVersion: machineconfiguration.openshift.io/v1\nkind: MachineConfig\nspec: {}\n", "has no name"},
		{"two ControllerConfigs", strings.Repeat("---\napiVersion: machineconfiguration.openshift.io/v1\nkind: "+
			"ControllerConfig\nmetadata:\n  name: x\n", 2), "the ControllerConfig is a duplicate"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			in, problems := render.Parse("f.yaml", []byte(tc.text))
			if !manifest.Failed(problems) || in.Configs != nil || in.Pools != nil {
				t.Fatalf("%v %v", in, problems)
			}
			contains(t, problems[0].Error(), tc.want)
		})
	}
	t.Run("the same MachineConfig in two files", func(t *testing.T) {
		a := customer("98-a", "worker", "fips: true")
		_, problems := render.Join(parse(t, "a.yaml", a), parse(t, "b.yaml", a))
		if !manifest.Failed(problems) {
			t.Fatal("taken")
		}
		contains(t, problems[0].Error(), `b.yaml:1: MachineConfig "98-a" is a duplicate`, "a.yaml:1")
	})
}

func TestFromObject_AgreesWithParse(t *testing.T) {
	raw, err := os.ReadFile("testdata/cluster/20-infra.yaml")
	if err != nil {
		t.Fatal(err)
	}
	var object map[string]any
	if err := yaml.Unmarshal(raw, &object); err != nil {
		t.Fatal(err)
	}
	in, problems := render.FromObject(object)
	if len(problems) > 0 || len(in.Configs) != 1 || in.Configs[0].Name != "10-infra-tuning" {
		t.Fatal(in, problems)
	}
	object["spec"].(map[string]any)["config"] = map[string]any{"ignition": map[string]any{"version": "2.2.0"}}
	in, problems = render.FromObject(object)
	if len(problems) > 0 {
		t.Fatal("a MachineConfig that cannot be used is no problem of its file:", problems)
	}
	all, problems := render.Join(in, parse(t, "p.yaml", "apiVersion: machineconfiguration.openshift.io/v1\nkind: "+
		"MachineConfigPool\nmetadata: {name: infra}\nspec: {machineConfigSelector: {matchLabels: "+
		"{machineconfiguration.openshift.io/role: infra}}}\n"))
	if len(problems) > 0 {
		t.Fatal(problems)
	}
	_, err = render.Full("infra", all)
	contains(t, refusal(t, err), "MachineConfig 10-infra-tuning")
}
