// SPDX-License-Identifier: Apache-2.0

package deploy

import (
	"bytes"
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/mcs-attest/mcs-attest/pkg/reason"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/yaml"
)

const monitoring = "components/monitoring"

type alert struct {
	Alert, Expr         string
	Labels, Annotations map[string]string
}

// rules are the groups of the PrometheusRule, in the form of a rules file.
func rules(t *testing.T) (file []byte, alerts []alert) {
	t.Helper()
	raw, err := os.ReadFile(filepath.Join(monitoring, "prometheusrule.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	var o struct {
		Spec struct {
			Groups []struct {
				Name  string
				Rules []alert
			}
		}
	}
	if err := yaml.Unmarshal(raw, &o); err != nil {
		t.Fatal(err)
	}
	for _, g := range o.Spec.Groups {
		alerts = append(alerts, g.Rules...)
	}
	var spec struct{ Spec json.RawMessage }
	if err := yaml.Unmarshal(raw, &spec); err != nil {
		t.Fatal(err)
	}
	return spec.Spec, alerts
}

func TestAlerts_FireOnlyAsExpected(t *testing.T) {
	file, alerts := rules(t)
	cases, err := os.ReadFile("testdata/alerts_test.yaml")
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	for name, data := range map[string][]byte{"rules.yaml": file, "alerts_test.yaml": cases} {
		if err := os.WriteFile(filepath.Join(dir, name), data, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	for _, args := range [][]string{{"check", "rules", "--lint=all", "--lint-fatal", "rules.yaml"},
		{"test", "rules", "alerts_test.yaml"}} {
		cmd := exec.Command("promtool", args...)
		cmd.Dir = dir
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Errorf("promtool %s: %v\n%s", strings.Join(args, " "), err, bytes.TrimSpace(out))
		}
	}

	// Each alert fires in some case, and does not fire in another.
	var tests struct {
		Tests []struct {
			AlertRuleTest []struct {
				Alertname string            `json:"alertname"`
				ExpAlerts []json.RawMessage `json:"exp_alerts"`
			} `json:"alert_rule_test"`
		}
	}
	if err := yaml.Unmarshal(cases, &tests); err != nil {
		t.Fatal(err)
	}
	raised, silent := map[string]bool{}, map[string]bool{}
	for _, c := range tests.Tests {
		for _, a := range c.AlertRuleTest {
			if len(a.ExpAlerts) > 0 {
				raised[a.Alertname] = true
			} else {
				silent[a.Alertname] = true
			}
		}
	}
	for _, a := range alerts {
		if !raised[a.Alert] || !silent[a.Alert] {
			t.Errorf("%s: raised in a case: %t, silent in a case: %t", a.Alert, raised[a.Alert], silent[a.Alert])
		}
	}
}

func TestAlerts_HaveARunbook(t *testing.T) {
	page, err := os.ReadFile("../docs/alerts.md")
	if err != nil {
		t.Fatal(err)
	}
	_, alerts := rules(t)
	if len(alerts) == 0 {
		t.Fatal("no alerts")
	}
	for _, a := range alerts {
		if !slices.Contains([]string{"info", "warning", "critical"}, a.Labels["severity"]) {
			t.Errorf("%s: severity %q", a.Alert, a.Labels["severity"])
		}
		if a.Labels["namespace"] == "" || a.Annotations["summary"] == "" || a.Annotations["description"] == "" {
			t.Errorf("%s: no namespace, summary or description", a.Alert)
		}
		if want := "https://github.com/mcs-attest/mcs-attest/blob/main/docs/alerts.md#" +
			strings.ToLower(a.Alert); a.Annotations["runbook_url"] != want {
			t.Errorf("%s: runbook_url is not %s", a.Alert, want)
		}
		if !strings.Contains(string(page), "\n## "+a.Alert+"\n") {
			t.Errorf("docs/alerts.md has no section %s", a.Alert)
		}
	}
	for _, m := range regexp.MustCompile(`(?m)^## (\w+)$`).FindAllStringSubmatch(string(page), -1) {
		if !slices.ContainsFunc(alerts, func(a alert) bool { return a.Alert == m[1] }) {
			t.Errorf("docs/alerts.md has a section %s, and there is no such alert", m[1])
		}
	}
}

// fromElsewhere are metrics of other programs.
var fromElsewhere = []string{"up", "process_resident_memory_bytes", "leader_election_master_status"}

// The rules and the dashboard use only metrics, reasons and outcomes that the verifier has.
func TestRulesAndDashboard_UseExistingMetrics(t *testing.T) {
	known := map[string]bool{}
	for _, path := range []string{"internal/metrics/metrics.go", "internal/kube/controllers/csr/metrics.go",
		"internal/server/readiness.go"} {
		source, err := os.ReadFile("../verifier/" + path)
		if err != nil {
			t.Fatal(err)
		}
		found := regexp.MustCompile(`(?:Name:\s+|counter\(|gauge\()"(mcs_attest_\w+)"`).FindAllStringSubmatch(string(source), -1)
		if len(found) == 0 {
			t.Fatalf("%s has no metric", path)
		}
		for _, m := range found {
			known[m[1]] = true
		}
	}
	var exprs []string
	_, alerts := rules(t)
	for _, a := range alerts {
		exprs = append(exprs, a.Expr)
	}
	raw, err := os.ReadFile(filepath.Join(monitoring, "mcs-attest.json"))
	if err != nil {
		t.Fatal(err)
	}
	var dashboard struct {
		Panels []struct {
			ID      int
			Title   string
			Targets []struct{ Expr string }
		}
	}
	if err := json.Unmarshal(raw, &dashboard); err != nil {
		t.Fatal(err)
	}
	ids := map[int]bool{}
	for _, p := range dashboard.Panels {
		if ids[p.ID] || p.Title == "" || len(p.Targets) == 0 {
			t.Errorf("panel %d %q: its id is used twice, or it shows nothing", p.ID, p.Title)
		}
		ids[p.ID] = true
		for _, target := range p.Targets {
			exprs = append(exprs, target.Expr)
		}
	}
	used := map[string]bool{}
	for _, expr := range exprs {
		for _, name := range regexp.MustCompile(`\bmcs_attest_\w+`).FindAllString(expr, -1) {
			name = strings.TrimSuffix(name, "_bucket")
			if used[name] = true; !known[name] {
				t.Errorf("there is no metric %s: %s", name, expr)
			}
		}
		for _, m := range regexp.MustCompile(`reason=~?"([^"]*)"`).FindAllStringSubmatch(expr, -1) {
			for _, name := range strings.Split(m[1], "|") {
				if _, ok := reason.Parse(name); !ok {
					t.Errorf("there is no reason %s: %s", name, expr)
				}
			}
		}
		bare := regexp.MustCompile(`"[^"]*"`).ReplaceAllString(expr, "")
		for _, name := range regexp.MustCompile(`\b([a-z_]+)\{`).FindAllStringSubmatch(bare, -1) {
			if !strings.HasPrefix(name[1], "mcs_attest_") && !slices.Contains(fromElsewhere, name[1]) {
				t.Errorf("whose metric is %s: %s", name[1], expr)
			}
		}
	}
	for name := range known {
		if !used[name] && name != "mcs_attest_folder_read_timestamp_seconds" {
			t.Logf("nothing shows %s", name)
		}
	}

	// Replace Grafana's variables with numbers; Prometheus checks the rest.
	var file strings.Builder
	file.WriteString("groups:\n- name: dashboard\n  rules:\n")
	for i, expr := range exprs {
		quoted, err := json.Marshal(strings.ReplaceAll(expr, "$__rate_interval", "5m"))
		if err != nil {
			t.Fatal(err)
		}
		file.WriteString("  - record: r" + string(rune('a'+i/26)) + string(rune('a'+i%26)) + "\n    expr: " +
			string(quoted) + "\n")
	}
	path := filepath.Join(t.TempDir(), "dashboard.yaml")
	if err := os.WriteFile(path, []byte(file.String()), 0o644); err != nil {
		t.Fatal(err)
	}
	if out, err := exec.Command("promtool", "check", "rules", path).CombinedOutput(); err != nil {
		t.Errorf("promtool: %v\n%s", err, out)
	}
}

// The metrics' Services, the ServiceMonitors and the jobs in the alerts agree.
func TestPrometheus_FindsTheReplicas(t *testing.T) {
	objects := Objects(t, "openshift")
	_, alerts := rules(t)
	jobs := map[string]bool{}
	for _, a := range alerts {
		for _, m := range regexp.MustCompile(`up\{job="([^"]*)"`).FindAllStringSubmatch(a.Expr, -1) {
			jobs[m[1]] = true
		}
	}
	for account, template := range templates(t, "openshift") {
		service := find(t, objects, "Service", account+"-metrics")
		if !jobs[service.GetName()] {
			t.Errorf("no alert is about the job of the Service %s", service.GetName())
		}
		delete(jobs, service.GetName())
		selector, _, err := unstructured.NestedStringMap(service.Object, "spec", "selector")
		if err != nil || len(selector) == 0 {
			t.Fatal(selector, err)
		}
		for k, v := range selector {
			if template.Labels[k] != v {
				t.Errorf("the pods of %s have no label %s=%s", account, k, v)
			}
		}
		raw, err := find(t, objects, "ServiceMonitor", account).MarshalJSON()
		if err != nil {
			t.Fatal(err)
		}
		var m struct {
			Spec struct {
				Selector  struct{ MatchLabels map[string]string }
				Endpoints []struct {
					Port, Scheme, BearerTokenFile string
					TLSConfig                     struct{ ServerName string }
				}
			}
		}
		if err := json.Unmarshal(raw, &m); err != nil {
			t.Fatal(err)
		}
		// Its own Service, not the other one.
		for _, o := range objects {
			selected := o.GetKind() == "Service"
			for k, v := range m.Spec.Selector.MatchLabels {
				selected = selected && o.GetLabels()[k] == v
			}
			if selected != (o.GetKind() == "Service" && o.GetName() == service.GetName()) {
				t.Errorf("ServiceMonitor %s and %s %s", account, o.GetKind(), o.GetName())
			}
		}
		var ports []string
		for _, p := range template.Spec.Containers[0].Ports {
			ports = append(ports, p.Name)
		}
		if len(m.Spec.Endpoints) != 1 || !slices.Contains(ports, m.Spec.Endpoints[0].Port) {
			t.Errorf("scraped: %v, there are %v", m.Spec.Endpoints, ports)
		} else if e := m.Spec.Endpoints[0]; e.Scheme != "https" || e.BearerTokenFile == "" ||
			e.TLSConfig.ServerName != service.GetName()+"."+Namespace+".svc" {
			t.Errorf("Prometheus presents no token, or not over TLS: %+v", e)
		}
	}
	if len(jobs) > 0 {
		t.Errorf("alerts are about the jobs %v", jobs)
	}
}
