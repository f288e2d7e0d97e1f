// SPDX-License-Identifier: Apache-2.0

package render_test

import (
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/mcs-attest/mcs-attest/pkg/render"
)

// pullSecret is the path of the pull secret in 00-worker, as on every OpenShift.
const pullSecret = "/var/lib/kubelet/config.json"

func TestChoices_ListThePreApprovedPart(t *testing.T) {
	in := cluster(t)
	r := preApproved(t, "worker", in)
	c := valid(t, r)
	var paths []string
	for _, f := range c.Storage.Files {
		paths = append(paths, f.Path)
	}
	if want := []string{"/etc/containers/policy.json", "/etc/kubernetes/kubelet.conf", "/etc/kubernetes/cloud.conf",
		"/etc/containers/registries.conf"}; !slices.Equal(paths, want) {
		t.Errorf("files %v", paths)
	}
	if len(c.Systemd.Units) != 1 || c.Systemd.Units[0].Name != "kubelet.service" || len(c.Passwd.Users) != 0 {
		t.Errorf("units %v, users %v", c.Systemd.Units, c.Passwd.Users)
	}
	if complete := full(t, "worker", in); r.Config.Name != complete.Config.Name || !r.PreApproved || complete.PreApproved {
		t.Errorf("%s is not the name of the full config, %s", r.Config.Name, complete.Config.Name)
	}
	if !r.Config.Spec.FIPS {
		t.Error("a node cannot turn FIPS mode on later, but it is left out")
	}
	if len(r.Config.Spec.KernelArguments) != 0 || len(r.Config.Spec.Extensions) != 0 {
		t.Error("a customer's kernel arguments or extensions are in it")
	}
}

func TestPreApproved_HasTheWorkersConfigIfItsPullSecretIsAllowed(t *testing.T) {
	r := preApproved(t, "worker", cluster(t), pullSecret)
	c := valid(t, r)
	contentsOf(t, c, pullSecret)
	// The customer's version of the file is omitted, the operator's is included.
	if got := contentsOf(t, c, "/etc/sysctl.d/arp.conf"); !strings.Contains(got, "2") {
		t.Errorf("/etc/sysctl.d/arp.conf is %s", got)
	}
}

func TestPreApproved_SelectsMachineConfigs(t *testing.T) {
	const generated = "machineconfiguration.openshift.io/generated-by-controller-version: " +
		"5e7f1c4f3a2c0f0e1d7d2b9e6b8f0a1c2d3e4f50"
	const needs = `mcs-attest.dev/needed-before-node-approved: `
	spec := file("/etc/probe", "a setting")
	owned := func(apiVersion, kind string) string {
		return strings.Replace(customer("50-probe", "worker", spec, generated), "spec:",
			fmt.Sprintf("  ownerReferences:\n  - {apiVersion: %s, kind: %s, name: x, uid: u}\nspec:", apiVersion, kind), 1)
	}
	for _, tc := range []struct {
		name, config string
		in           bool
		why          string
	}{
		{"a customer's is out", customer("50-probe", "worker", spec), false,
			"no controller of the machine-config-operator generated it"},
		{"a customer's with the annotation \"true\" is included", customer("50-probe", "worker", spec, needs+`"true"`),
			true, "annotation"},
		{"a customer's with the field set is included", customer("50-probe", "worker", spec+"neededBeforeNodeApproved: true"),
			true, "spec.neededBeforeNodeApproved"},
		{"the annotation has more weight than the field",
			customer("50-probe", "worker", spec+"neededBeforeNodeApproved: true", needs+`"false"`), false, "annotation"},
		{"one that a ControllerConfig owns is in", owned("machineconfiguration.openshift.io/v1", "ControllerConfig"), true,
			"generated it"},
		{"one of a KubeletConfig, too", owned("machineconfiguration.openshift.io/v1", "KubeletConfig"), true, "generated it"},
		{"one of the cluster's Image configuration, too", owned("config.openshift.io/v1", "Image"), true, "generated it"},
		{"a copy without an owner is out", customer("50-probe", "worker", spec, generated), false, "no controller owns it"},
		{"one that something else owns is out", owned("apps/v1", "Deployment"), false, "no controller owns it"},
		{"a rendered one is out", owned("machineconfiguration.openshift.io/v1", "MachineConfigPool"), false,
			"no controller owns it"},
		{"a generated one with \"false\" is excluded", strings.Replace(owned("config.openshift.io/v1", "Image"), generated,
			generated+"\n    "+needs+`"false"`, 1), false, "annotation"},
		{"a generated one with a secret is out", strings.Replace(owned("config.openshift.io/v1", "Image"), b64("a setting"),
			b64("password = hunter2"), 1), false, "it contains a password or token: the file /etc/probe"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			r := preApproved(t, "worker", cluster(t, tc.config))
			is := func(o render.Origin) bool { return o.Kind == "file" && o.Key == "/etc/probe" && o.From == "50-probe" }
			list := r.Left
			if tc.in {
				list = r.Origins
			}
			i := slices.IndexFunc(list, is)
			if i < 0 {
				t.Fatalf("in %v, left %v", r.Origins, r.Left)
			}
			contains(t, list[i].Why, tc.why)
			if slices.ContainsFunc(r.Origins, is) != tc.in {
				t.Error("it is in both lists")
			}
		})
	}
	t.Run("an annotation that is neither yes nor no stops the render", func(t *testing.T) {
		_, err := render.PreApproved("worker", cluster(t, customer("50-probe", "worker", spec, needs+`"yes"`)),
			render.Options{})
		contains(t, refusal(t, err), "MachineConfig 50-probe", `"true" or "false"`)
	})
	t.Run("a pool of customers' MachineConfigs only has no pre-approved part", func(t *testing.T) {
		in := cluster(t, customer("50-probe", "edge", spec), "apiVersion: machineconfiguration.openshift.io/v1\nkind: "+
			"MachineConfigPool\nmetadata: {name: edge}\nspec: {machineConfigSelector: {matchLabels: "+
			"{machineconfiguration.openshift.io/role: edge}}}\n")
		full(t, "edge", in)
		_, err := render.PreApproved("edge", in, render.Options{})
		contains(t, refusal(t, err), "none of its 1 MachineConfigs", "50-probe")
	})
}

// definitionsOf returns the parts of a render that another one may also have: by value, not by name.
func definitionsOf(t *testing.T, r *render.Rendered) map[string]string {
	t.Helper()
	c := valid(t, r)
	out := map[string]string{}
	put := func(kind, key string, v any) {
		raw, err := json.Marshal(v)
		if err != nil {
			t.Fatal(err)
		}
		out[kind+" "+key] = string(raw)
	}
	for _, f := range c.Storage.Files {
		put("file", f.Path, f)
	}
	for _, u := range c.Systemd.Units {
		put("unit", u.Name, u.Contents)
		for _, d := range u.Dropins {
			put("dropin", u.Name+"/"+d.Name, d)
		}
	}
	for _, u := range c.Passwd.Users {
		put("user", u.Name, u)
	}
	for _, a := range r.Config.Spec.KernelArguments {
		put("argument", a, nil)
	}
	return out
}

func TestPreApproved_IsAStrictSubsetOfTheFullConfig(t *testing.T) {
	// Random pools whose MachineConfigs do not override each other. The part is a strict subset
	// of the full config with the same values, and has nothing that is not allowed.
	for seed := range uint64(20) {
		rng := rand.New(rand.NewPCG(seed, 5))
		var configs []string
		for i := range 3 + rng.IntN(12) {
			name := fmt.Sprintf("%02d-probe", i)
			spec := file(fmt.Sprintf("/etc/probe/%d", i), fmt.Sprint("value ", rng.IntN(1000)))
			if rng.IntN(2) == 0 {
				spec += fmt.Sprintf("kernelArguments: [probe.%d]\n", i)
			}
			switch rng.IntN(3) {
			case 0:
				configs = append(configs, needed(name, spec))
			case 1:
				configs = append(configs, customer(name, "worker", spec))
			case 2:
				configs = append(configs, strings.ReplaceAll(needed(name, spec), `"true"`, `"false"`))
			}
		}
		in := cluster(t, configs...)
		complete, part := full(t, "worker", in), preApproved(t, "worker", in)
		all, some := definitionsOf(t, complete), definitionsOf(t, part)
		for key, value := range some {
			if all[key] != value {
				t.Errorf("seed %d: %s is %s in the part and %s in the full config", seed, key, value, all[key])
			}
		}
		if len(some) >= len(all) {
			t.Errorf("seed %d: the part is not less than the full config", seed)
		}
		for i, text := range configs {
			_, inside := some[fmt.Sprintf("file /etc/probe/%d", i)]
			if want := strings.Contains(text, `approved: "true"`); inside != want {
				t.Errorf("seed %d: config %d is inside: %t", seed, i, inside)
			}
		}
		if got, want := len(part.Origins)+len(part.Left), len(complete.Origins); got != want {
			t.Errorf("seed %d: %d parts are explained of %d", seed, got, want)
		}
	}
}

// B1 with overrides: the part has the paths of the whole, and of an overridden file the operator's contents. A
// customer's contents are in the part only if the customer's MachineConfig is.
func TestPreApproved_OfAnOverriddenFileHasTheOperatorsContents(t *testing.T) {
	base := definitionsOf(t, preApproved(t, "worker", cluster(t)))
	path := ""
	for key := range base {
		if name, ok := strings.CutPrefix(key, "file "); ok && (path == "" || name < path) {
			path = name
		}
	}
	if path == "" {
		t.Fatal("the operator's part has no file")
	}
	override := file(path, "the customer's contents")
	for name, c := range map[string]struct {
		config string
		inside bool
	}{
		"not marked": {customer("99-override", "worker", override), false},
		"marked":     {needed("99-override", override), true},
	} {
		t.Run(name, func(t *testing.T) {
			in := cluster(t, c.config)
			all, some := definitionsOf(t, full(t, "worker", in)), definitionsOf(t, preApproved(t, "worker", in))
			for key := range some {
				if _, ok := all[key]; !ok {
					t.Errorf("%s is in the part, but not in the whole", key)
				}
			}
			key := "file " + path
			if all[key] == base[key] {
				t.Fatal("the whole has the operator's file: nothing is overridden")
			}
			want := base[key]
			if c.inside {
				want = all[key]
			}
			if some[key] != want {
				t.Errorf("the part has %s, want %s", some[key], want)
			}
		})
	}
}
