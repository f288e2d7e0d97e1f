// SPDX-License-Identifier: Apache-2.0

package firstboot_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/coreos/ignition/v2/config/v3_6"
	"github.com/coreos/ignition/v2/config/v3_6/types"
	"github.com/vincent-petithory/dataurl"

	"github.com/mcs-attest/mcs-attest/pkg/firstboot"
)

var hash = strings.Repeat("ab", 32)

func agentConfig() firstboot.AgentConfig {
	return firstboot.AgentConfig{Origin: "https://api-int.test:22623",
		Agents:  map[string]string{"amd64": hash, "arm64": hash},
		Pointer: []byte(`{"ignition":{"version":"3.2.0"}}`)}
}

// merged parses a config and merges those in its data URLs, each over the earlier ones, as Ignition does.
func merged(t *testing.T, raw []byte) types.Config {
	t.Helper()
	all, report, err := v3_6.ParseCompatibleVersion(raw)
	if err != nil || report.IsFatal() {
		t.Fatalf("%v %v\n%s", err, report, raw)
	}
	for _, r := range all.Ignition.Config.Merge {
		next, report, err := v3_6.ParseCompatibleVersion([]byte(content(t, r)))
		if err != nil || report.IsFatal() {
			t.Fatalf("%v %v", err, report)
		}
		all = v3_6.Merge(all, next)
	}
	return all
}

func content(t *testing.T, r types.Resource) string {
	t.Helper()
	u, err := dataurl.DecodeString(*r.Source)
	if err != nil {
		t.Fatal(err)
	}
	return string(u.Data)
}

func file(t *testing.T, c types.Config, path string) types.File {
	t.Helper()
	i := slices.IndexFunc(c.Storage.Files, func(f types.File) bool { return f.Path == path })
	if i < 0 {
		t.Fatalf("no file %s", path)
	}
	return c.Storage.Files[i]
}

// preApproved also has a file of this package, from another installation.
const preApproved = `{"ignition":{"version":"3.4.0"},"storage":{"files":[
	{"path":"/etc/own","contents":{"source":"data:,own"}},
	{"path":"/etc/mcs-attest/firstboot/config","mode":384,"contents":{"source":"data:,whole"}}]}}`

func TestConfig_CarriesTheAgentBesideThePreApprovedConfig(t *testing.T) {
	raw, err := firstboot.Config([]byte(preApproved), agentConfig())
	if err != nil {
		t.Fatal(err)
	}
	c := merged(t, raw)
	if got := content(t, file(t, c, "/etc/own").Contents); got != "own" {
		t.Errorf("the pre-approved config's own file has %q", got)
	}
	for _, arch := range []string{"x86-64", "arm64"} {
		f := file(t, c, "/usr/local/bin/mcs-attest-agent-"+arch)
		if *f.Contents.Source != "https://api-int.test:22623/agent/"+hash ||
			*f.Contents.Verification.Hash != "sha256-"+hash || *f.Mode != 0o755 || !*f.Overwrite {
			t.Errorf("%s: %+v", arch, f)
		}
	}
	got := content(t, file(t, c, "/etc/mcs-attest/firstboot/pointer.ign").Contents)
	if got != string(agentConfig().Pointer) {
		t.Errorf("pointer config %q", got)
	}
	if got := content(t, file(t, c, "/etc/mcs-attest/firstboot/config").Contents); got != firstboot.PreApproved {
		t.Errorf("state %q", got)
	}
	// A hash that no verifier serves must end the boot, so that the next one fetches the config again.
	if total := c.Ignition.Timeouts.HTTPTotal; total == nil || *total != 6*3600 {
		t.Errorf("downloads are tried for %v seconds", total)
	}
	own, err := firstboot.Config([]byte(`{"ignition":{"version":"3.2.0","timeouts":{"httpTotal":60}}}`), agentConfig())
	if err != nil {
		t.Fatal(err)
	}
	if total := merged(t, own).Ignition.Timeouts.HTTPTotal; total == nil || *total != 60 {
		t.Errorf("with a time of the pre-approved config, downloads are tried for %v seconds", total)
	}
	u := c.Systemd.Units[0]
	if u.Name != firstboot.UnitName || !*u.Enabled || *u.Contents != firstboot.Unit() {
		t.Errorf("%+v", u)
	}
}

func TestConfig_RequiresEverything(t *testing.T) {
	for name, change := range map[string]func(*firstboot.AgentConfig){
		"no agent":                func(c *firstboot.AgentConfig) { c.Agents = nil },
		"no pointer config":       func(c *firstboot.AgentConfig) { c.Pointer = nil },
		"no origin":               func(c *firstboot.AgentConfig) { c.Origin = "" },
		"an unknown architecture": func(c *firstboot.AgentConfig) { c.Agents = map[string]string{"m68k": hash} },
	} {
		c := agentConfig()
		change(&c)
		if raw, err := firstboot.Config([]byte(preApproved), c); err == nil {
			t.Errorf("%s: %s", name, raw)
		}
	}
	if raw, err := firstboot.Config(nil, agentConfig()); err == nil {
		t.Errorf("an empty config: %s", raw)
	}
}

func TestFull_ReplacesTheStateAndTheMachineID(t *testing.T) {
	raw, err := firstboot.Full([]byte(preApproved))
	if err != nil {
		t.Fatal(err)
	}
	c := merged(t, raw)
	if got := content(t, file(t, c, "/etc/own").Contents); got != "own" {
		t.Errorf("the config's own file has %q", got)
	}
	state := file(t, c, "/etc/mcs-attest/firstboot/config")
	if got := content(t, state.Contents); got != firstboot.FullConfig || !*state.Overwrite {
		t.Errorf("state %q, %+v", got, state)
	}
	// systemd applies Ignition's presets only in a first boot.
	if got := content(t, file(t, c, "/etc/machine-id").Contents); got != "uninitialized\n" {
		t.Errorf("machine id %q", got)
	}
	if len(c.Storage.Files) != 3 || len(c.Systemd.Units) != 0 {
		t.Errorf("%+v", c)
	}
	if raw, err := firstboot.Full(nil); err == nil {
		t.Errorf("an empty config: %s", raw)
	}
}

// The unit precedes everything that could attest in the machine's name.
func TestUnit_StartsBeforeUsersAndPods(t *testing.T) {
	for _, want := range []string{
		"systemd-user-sessions.service", "crio.service", "kubelet.service", "machine-config-daemon-firstboot.service",
	} {
		if !slices.ContainsFunc(strings.Split(firstboot.Unit(), "\n"), func(line string) bool {
			return strings.HasPrefix(line, "Before=") && slices.Contains(strings.Fields(line[len("Before="):]), want)
		}) {
			t.Errorf("the unit does not start before %s", want)
		}
	}
	// The program must exist for the check.
	dir := t.TempDir()
	text := strings.ReplaceAll(firstboot.Unit(), firstboot.AgentPath+"%a", "/bin/true")
	path := filepath.Join(dir, firstboot.UnitName)
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	out, err := exec.Command("systemd-analyze", "verify", "--man=no", path).CombinedOutput()
	if err != nil || strings.Contains(string(out), firstboot.UnitName) {
		t.Errorf("%v\n%s", err, out)
	}
}

// Ignition would apply it, and record that it has applied the full config.
func TestFull_RefusesThePreApprovedConfig(t *testing.T) {
	raw, err := firstboot.Config([]byte(preApproved), agentConfig())
	if err != nil {
		t.Fatal(err)
	}
	if full, err := firstboot.Full(raw); err == nil {
		t.Errorf("%s", full)
	}
	if _, err := firstboot.Full([]byte(preApproved)); err != nil {
		t.Error(err)
	}
}
