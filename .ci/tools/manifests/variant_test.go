// SPDX-License-Identifier: Apache-2.0

package manifests

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"sigs.k8s.io/yaml"
)

// of is the set of the variants for which is is true.
func of(is func(variant) bool) (s set) {
	for i, v := range variants() {
		if is(v) {
			s |= 1 << i
		}
	}
	return s
}

func TestCondition_IsTrueForExactlyTheVariants(t *testing.T) {
	for want, is := range map[string]func(variant) bool{
		"true":                            func(variant) bool { return true },
		`eq .Values.platform "openshift"`: func(v variant) bool { return v.platform == openshift },
		`eq .Values.cloud "aws"`:          func(v variant) bool { return v.cloud == "aws" },
		`has .Values.cloud (list "aws" "gcp")`: func(v variant) bool {
			return v.cloud == "aws" || v.cloud == "gcp"
		},
		`has .Values.cloud (list "" "azure" "gcp" "vsphere")`: func(v variant) bool { return v.cloud != "aws" },
		".Values.components.approver":                         func(v variant) bool { return v.component == "approver" },
		`and (eq .Values.platform "openshift") (.Values.components.render)`: func(v variant) bool {
			return v.component == "render"
		},
		`and (eq .Values.platform "kubernetes") (eq .Values.cloud "gcp")`: func(v variant) bool {
			return v.cloud == "gcp" && v.platform == kubernetes
		},
		`or (eq .Values.platform "openshift") ` +
			`(and (eq .Values.platform "kubernetes") (.Values.components.monitoring))`: func(v variant) bool {
			return v.platform == openshift || v.component == "monitoring"
		},
	} {
		if got, err := condition(of(is)); err != nil || got != want {
			t.Errorf("%s, not %s (%v)", got, want, err)
		}
	}
	changes := func(v variant) bool { return v.component != "approver" }
	if got, err := condition(of(changes)); err == nil {
		t.Errorf("a component that changes an object of the overlay: %s", got)
	}
}

func TestMerge_KeepsEachVariant(t *testing.T) {
	texts := []string{"a b c d", "a x b d", "b c d", "a x b c d y", "", "d c b a"}
	var merged []line
	for i, text := range texts {
		merged = merge(merged, strings.Fields(text), 1<<i)
	}
	for i, want := range texts {
		var got []string
		for _, l := range merged {
			if l.in&(1<<i) != 0 {
				got = append(got, l.text)
			}
		}
		if strings.Join(got, " ") != want {
			t.Errorf("%q is %q", want, got)
		}
	}
	if len(merged) > 10 {
		t.Errorf("%d lines: common ones are not shared", len(merged))
	}
}

// Each component has a value, and each value has a component.
func TestChart_HasAValueForEachComponent(t *testing.T) {
	files, err := Chart(source, "v0.3.0")
	if err != nil {
		t.Fatal(err)
	}
	var defaults struct{ Components map[string]bool }
	if err := yaml.Unmarshal(files["values.yaml"], &defaults); err != nil {
		t.Fatal(err)
	}
	for _, c := range components {
		if on, ok := defaults.Components[c.value]; !ok || on {
			t.Errorf("%s is missing, or on", c.value)
		}
		delete(defaults.Components, c.value)
	}
	if len(defaults.Components) > 0 {
		t.Errorf("values without a component: %v", defaults.Components)
	}
	for name, content := range files {
		if strings.Contains(string(content), "CHART_") {
			t.Errorf("%s has a placeholder", name)
		}
	}
	for _, name := range []string{"configs/openshift.yaml", "configs/kubernetes.yaml", "policies/audit.yaml"} {
		if len(files[name]) == 0 {
			t.Errorf("no %s", name)
		}
	}
	if !slices.Contains(strings.Split(string(files["Chart.yaml"]), "\n"), "version: 0.3.0") {
		t.Errorf("Chart.yaml:\n%s", files["Chart.yaml"])
	}
}

func TestVariants_HaveEachComponentOfTheTree(t *testing.T) {
	// Other components, or an overlay, include these.
	have := []string{"credential-delivery", "node-roles"}
	have = append(have, clouds...)
	for _, c := range components {
		for _, folder := range c.folder {
			have = append(have, folder)
		}
	}
	folders, err := os.ReadDir(filepath.Join(source, "deploy/components"))
	if err != nil || len(folders) == 0 {
		t.Fatal(folders, err)
	}
	for _, f := range folders {
		if !slices.Contains(have, f.Name()) {
			t.Errorf("the chart has no value for deploy/components/%s", f.Name())
		}
	}
}
