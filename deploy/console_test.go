// SPDX-License-Identifier: Apache-2.0

package deploy

import (
	"encoding/json"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
)

// What OpenShift's console shows: github.com/openshift/monitoring-plugin, web/src/features/legacy-dashboards. It
// leaves out panels of other types and shows other units as plain numbers.
var (
	consolePanels = []string{"gauge", "grafana-piechart-panel", "graph", "singlestat", "table"}
	consoleUnits  = []string{"Bytes", "bytes", "bps", "Bps", "pps", "ms", "s", "percentunit", "short"}
)

// The console finds the dashboard, which is Grafana's, and can show each of its panels. That its metrics exist is
// checked by TestRulesAndDashboard_UseExistingMetrics.
func TestConsole_ShowsEachPanelOfTheDashboard(t *testing.T) {
	var found []*unstructured.Unstructured
	for _, o := range Objects(t, "openshift") {
		if o.GetKind() == "ConfigMap" && o.GetNamespace() == "openshift-config-managed" &&
			o.GetLabels()["console.openshift.io/dashboard"] == "true" {
			found = append(found, o)
		}
	}
	if len(found) != 1 {
		t.Fatalf("the console finds %d dashboards", len(found))
	}
	data, _, err := unstructured.NestedStringMap(found[0].Object, "data")
	if err != nil || len(data) != 1 {
		t.Fatalf("%d files, %v: the console reads the first", len(data), err)
	}
	raw, err := os.ReadFile(filepath.Join(monitoring, "mcs-attest.json"))
	if err != nil {
		t.Fatal(err)
	}
	if data["mcs-attest.json"] != string(raw) {
		t.Error("the console's dashboard is not Grafana's")
	}
	var dashboard struct {
		Title  string
		Panels []struct {
			Title, Type, Format string
			Span                int
			YAxes               []struct{ Format string }
			Targets             []struct{ Expr string }
		}
	}
	if err := json.Unmarshal([]byte(data["mcs-attest.json"]), &dashboard); err != nil {
		t.Fatal(err)
	}
	if dashboard.Title == "" || len(dashboard.Panels) == 0 {
		t.Error("the dashboard is empty")
	}
	grouped := regexp.MustCompile(`\b(by|without)\b`)
	for _, p := range dashboard.Panels {
		if !slices.Contains(consolePanels, p.Type) {
			t.Errorf("%s: the console shows no panel of type %q", p.Title, p.Type)
		}
		units := []string{p.Format}
		if p.Type == "graph" {
			units = nil
			for _, axis := range p.YAxes {
				units = append(units, axis.Format)
			}
		}
		for _, unit := range units {
			if !slices.Contains(consoleUnits, unit) {
				t.Errorf("%s: the console has no unit %q", p.Title, unit)
			}
		}
		if len(units) == 0 || p.Span < 1 || p.Span > 12 {
			t.Errorf("%s: %d units, %d of 12 columns", p.Title, len(units), p.Span)
		}
		if p.Type == "singlestat" && (len(p.Targets) != 1 || grouped.MatchString(p.Targets[0].Expr)) {
			t.Errorf("%s: the console shows the first of several values", p.Title)
		}
		for _, target := range p.Targets {
			if strings.Contains(strings.ReplaceAll(target.Expr, "$__rate_interval", ""), "$") {
				t.Errorf("%s: the console does not replace the variable in %s", p.Title, target.Expr)
			}
		}
	}
}
