// SPDX-License-Identifier: Apache-2.0

package deploy

import (
	"encoding/base64"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	ignition "github.com/coreos/ignition/v2/config/v3_2"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/yaml"
)

var update = flag.Bool("update", false, "update overlays/openshift/machineconfig.yaml")

// units are the enabled units, except those that a timer starts.
var units = []struct {
	name    string
	enabled bool
}{
	{"mcs-attest-nftables.service", true},
	{"mcs-attest-nftables-check.service", false},
	{"mcs-attest-nftables-check.timer", true},
}

// ruleFiles are the files in /etc/mcs-attest on a node.
var ruleFiles = []string{"mcs-attest.nft", "mcs-attest-closed.nft"}

func source(t *testing.T, name string) string {
	t.Helper()
	raw, err := os.ReadFile(filepath.Join("base", "nftables", name))
	if err != nil {
		t.Fatal(err)
	}
	return string(raw)
}

// machineConfig returns the MachineConfig of base/nftables.
func machineConfig(t *testing.T) string {
	t.Helper()
	var out strings.Builder
	out.WriteString(`# Generated from base/nftables: go test ./deploy -run MachineConfig -update
apiVersion: machineconfiguration.openshift.io/v1
kind: MachineConfig
metadata:
  name: 99-master-mcs-attest-nftables
  labels:
    machineconfiguration.openshift.io/role: master
spec:
  config:
    ignition:
      version: 3.2.0
    storage:
      files:
`)
	for _, name := range ruleFiles {
		fmt.Fprintf(&out, "      - path: /etc/mcs-attest/%s\n        mode: 420\n        overwrite: true\n        contents:\n",
			name)
		fmt.Fprintf(&out, "          source: data:text/plain;charset=utf-8;base64,%s\n",
			base64.StdEncoding.EncodeToString([]byte(source(t, name))))
	}
	out.WriteString("    systemd:\n      units:\n")
	for _, u := range units {
		fmt.Fprintf(&out, "      - name: %s\n        enabled: %t\n        contents: |\n", u.name, u.enabled)
		for line := range strings.Lines(source(t, u.name)) {
			if line != "\n" {
				line = "          " + line
			}
			out.WriteString(line)
		}
	}
	return out.String()
}

func TestMachineConfig_HasTheRulesAndUnitsUnchanged(t *testing.T) {
	path := filepath.Join("overlays", "openshift", "machineconfig.yaml")
	want := machineConfig(t)
	if *update {
		if err := os.WriteFile(path, []byte(want), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	got, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if string(got) != want {
		t.Error("machineconfig.yaml is not what base/nftables makes\nhint: go test ./deploy -run MachineConfig -update")
	}

	// As a node reads it, independently of the generator.
	var o unstructured.Unstructured
	if err := yaml.Unmarshal(got, &o.Object); err != nil {
		t.Fatal(err)
	}
	raw, err := o.MarshalJSON()
	if err != nil {
		t.Fatal(err)
	}
	var mc struct {
		Spec struct{ Config unstructuredJSON }
	}
	if err := yaml.Unmarshal(raw, &mc); err != nil {
		t.Fatal(err)
	}
	config, report, err := ignition.Parse(mc.Spec.Config)
	if err != nil || len(report.Entries) > 0 {
		t.Fatalf("Ignition: %v\n%s", err, report)
	}
	files := map[string]string{}
	for _, f := range config.Storage.Files {
		data, ok := strings.CutPrefix(*f.Contents.Source, "data:text/plain;charset=utf-8;base64,")
		if !ok || *f.Mode != 0o644 {
			t.Fatalf("file %s: mode %o, source %.40s", f.Path, *f.Mode, *f.Contents.Source)
		}
		plain, err := base64.StdEncoding.DecodeString(data)
		if err != nil {
			t.Fatal(err)
		}
		files[f.Path] = string(plain)
	}
	if len(files) != len(ruleFiles) {
		t.Errorf("%d files on the node", len(files))
	}
	for _, name := range ruleFiles {
		if files["/etc/mcs-attest/"+name] != source(t, name) {
			t.Errorf("the file on the node is not base/nftables/%s", name)
		}
	}
	if len(config.Systemd.Units) != len(units) {
		t.Fatalf("%d units", len(config.Systemd.Units))
	}
	for i, u := range config.Systemd.Units {
		if u.Name != units[i].name || *u.Enabled != units[i].enabled || *u.Contents != source(t, u.Name) {
			t.Errorf("unit %s is not base/nftables/%s", u.Name, units[i].name)
		}
	}
}

type unstructuredJSON []byte

func (u *unstructuredJSON) UnmarshalJSON(raw []byte) error {
	*u = append((*u)[:0], raw...)
	return nil
}

func TestUnits_AreValidForSystemd(t *testing.T) {
	dir := t.TempDir()
	var names []string
	for _, u := range units {
		names = append(names, filepath.Join(dir, u.name))
		if err := os.WriteFile(names[len(names)-1], []byte(source(t, u.name)), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	out, err := exec.Command("systemd-analyze",
		append([]string{"verify", "--man=no", "--recursive-errors=no"}, names...)...).CombinedOutput()
	if err != nil || len(out) > 0 {
		t.Errorf("systemd-analyze verify: %v\n%s", err, out)
	}
}

// An administrator's additions can be wrong. They are loaded after the rules, never together
// with them, by a step that may fail.
func TestNftablesAdditions_CannotPreventTheRules(t *testing.T) {
	if regexp.MustCompile(`(?m)^\s*include`).MatchString(source(t, "mcs-attest.nft")) {
		t.Error("the rules include other files: a mistake in one of those, and nothing is loaded")
	}
	for _, name := range []string{"mcs-attest-nftables.service", "mcs-attest-nftables-check.service"} {
		steps := map[string][]string{}
		for _, step := range regexp.MustCompile(`(?m)^(ExecStart|ExecReload)=(.*)$`).FindAllStringSubmatch(source(t, name),
			-1) {
			steps[step[1]] = append(steps[step[1]], step[2])
		}
		for when, commands := range steps {
			const load = "/usr/sbin/nft -f /etc/mcs-attest/mcs-attest.nft"
			want := "/bin/sh -c '" + load + " || { /usr/sbin/nft -f /etc/mcs-attest/mcs-attest-closed.nft; exit 1; }'"
			if strings.Contains(name, "check") { // also keeps loaded rules that work
				want = "/bin/sh -c '" + load +
					` || { /usr/sbin/nft list chain inet mcs_attest input | grep -q "22624.*reject" && ` +
					`/usr/sbin/nft list chain inet mcs_attest prerouting | grep -q jump || /usr/sbin/nft -f /etc/mcs-attest/mcs-attest-closed.nft; exit 1; }'`
			}
			if when == "ExecReload" { // the previous rules stay loaded if these cannot be loaded
				want = load
			}
			if len(commands) != 2 || commands[0] != want || !strings.HasPrefix(commands[1], "-") ||
				!strings.Contains(commands[1], "/etc/mcs-attest/nftables.d/*.nft") {
				t.Errorf("%s, %s: %q", name, when, commands)
			}
		}
	}
}

// The file, the rules, the configuration and the annotations use the same path, ports,
// address and users.
func TestRulesConfigurationAndNamespaceAgree(t *testing.T) {
	rules := source(t, "mcs-attest.nft")
	for _, u := range units {
		for _, path := range regexp.MustCompile(`/etc/mcs-attest/[a-z.-]+`).FindAllString(source(t, u.name), -1) {
			if !slices.Contains(ruleFiles, strings.TrimPrefix(path, "/etc/mcs-attest/")) &&
				path != "/etc/mcs-attest/nftables.d" {
				t.Errorf("%s speaks of %s", u.name, path)
			}
		}
	}
	config, err := os.ReadFile(filepath.Join("overlays", "openshift", "mcs-attest.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	upstream := regexp.MustCompile(`(?m)^upstream: https://([0-9.]+):([0-9]+)$`).FindStringSubmatch(string(config))
	if upstream == nil || !strings.Contains(rules, "ip daddr "+upstream[1]+" tcp dport "+upstream[2]) {
		t.Errorf("the rules keep no way to %v", upstream)
	}
	listen := regexp.MustCompile(`(?m)^listen: ":([0-9]+)"$`).FindStringSubmatch(string(config))
	if listen == nil || !strings.Contains(rules, "redirect to :"+listen[1]) {
		t.Errorf("the rules redirect to another port than %v", listen)
	}
	namespace, err := os.ReadFile(filepath.Join("overlays", "openshift", "namespace.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	var first, size int
	block := regexp.MustCompile(`sa.scc.uid-range: ([0-9/]+)`).FindStringSubmatch(string(namespace))
	if block == nil {
		t.Fatal("the namespace has no range of users")
	}
	if _, err := fmt.Sscanf(block[1], "%d/%d", &first, &size); err != nil {
		t.Fatal(err)
	}
	if want := fmt.Sprintf("elements = { %d-%d }", first, first+size-1); !strings.Contains(rules, want) {
		t.Errorf("the rules do not know the namespace's users: no %s", want)
	}
}
