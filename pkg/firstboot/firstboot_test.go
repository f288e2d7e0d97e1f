// SPDX-License-Identifier: Apache-2.0

package firstboot_test

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
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

const pointerConfig = `{"ignition":{"version":"3.2.0"}}`

func earlier(pointer string) firstboot.Earlier {
	return firstboot.Earlier{Pointer: []byte(pointer), Layout: []byte("{}")}
}

func TestFull_ReplacesTheStateAndTheMachineID(t *testing.T) {
	raw, err := firstboot.Full([]byte(preApproved), earlier(pointerConfig))
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
	if len(c.Storage.Files) != 5 || len(c.Systemd.Units) != 2 {
		t.Errorf("%+v", c)
	}
	if raw, err := firstboot.Full(nil, earlier(pointerConfig)); err == nil {
		t.Errorf("an empty config: %s", raw)
	}
}

// Ignition only appends to its preset file, and for systemd the first line that names a unit counts. So a line of the
// first boot would win.
func TestFull_DecidesWhichUnitsAreEnabled(t *testing.T) {
	preset := func(files string) string {
		t.Helper()
		full := `{"ignition":{"version":"3.2.0"},"storage":{"files":[` + files + `]},"systemd":{"units":[
			{"name":"a.service","enabled":false},{"name":"mcs-attest-firstboot.service","enabled":false}]}}`
		raw, err := firstboot.Full([]byte(full), earlier(pointerConfig))
		if err != nil {
			t.Fatal(err)
		}
		c := merged(t, raw)
		preset := file(t, c, firstboot.PresetFile)
		if preset.Overwrite == nil || !*preset.Overwrite {
			t.Error("the preset file of the first boot would stop Ignition")
		}
		for _, u := range c.Systemd.Units {
			if u.Enabled != nil && *u.Enabled != (u.Name == firstboot.UnitName) || u.Contents != nil {
				t.Errorf("%s: %v", u.Name, *u.Enabled)
			}
		}
		return content(t, preset.Contents)
	}
	if got := preset(""); got != "" {
		t.Errorf("lines of the first boot: %q", got)
	}
	own := `{"path":"` + firstboot.PresetFile + `","contents":{"source":"data:,enable%20b.service"}}`
	if got := preset(own); got != "enable b.service" {
		t.Errorf("the full config's own lines: %q", got)
	}
}

// Otherwise systemd disables in the second boot what only the machine's own pointer config enabled in the first one.
// It reads the files of presets by name, and the first line that names a unit counts.
func TestFull_KeepsTheUnitsOfTheFirstBoot(t *testing.T) {
	const lines = "enable guest-agent.service\ndisable zincati.service\n"
	for preset, want := range map[string]string{
		lines: lines, "": "", lines + "\x00": "", lines + "\xff": "", strings.Repeat("#", 1<<17): "",
	} {
		e := earlier(pointerConfig)
		e.Preset = []byte(preset)
		raw, err := firstboot.Full([]byte(preApproved), e)
		if err != nil {
			t.Fatal(err)
		}
		const name = "/etc/systemd/system-preset/21-mcs-attest.preset"
		f := file(t, merged(t, raw), name)
		if got := content(t, f.Contents); got != want || !*f.Overwrite || *f.Mode != 0o644 || name <= firstboot.PresetFile {
			t.Errorf("%.50q: %.50q, %+v", preset, got, f)
		}
	}
}

// Otherwise the agent would not find the machine's own pointer config in VMware's user data. The full config decides
// whether that is deleted afterwards.
func TestFull_DeletesTheUserDataOnlyInTheSecondBoot(t *testing.T) {
	masked := func(raw []byte, err error) bool {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
		units := merged(t, raw).Systemd.Units
		i := slices.IndexFunc(units, func(u types.Unit) bool { return u.Name == "ignition-delete-config.service" })
		if i < 0 || units[i].Mask == nil {
			t.Fatalf("no config decides in %+v", units)
		}
		return *units[i].Mask
	}
	unit := func(mask string) []byte {
		return []byte(`{"ignition":{"version":"3.2.0"},"systemd":{"units":[{"name":"ignition-delete-config.service","mask":` +
			mask + `}]}}`)
	}
	if !masked(firstboot.Config([]byte(preApproved), agentConfig())) ||
		!masked(firstboot.Config(unit("false"), agentConfig())) {
		t.Error("the first boot deletes it")
	}
	if masked(firstboot.Full([]byte(preApproved), earlier(pointerConfig))) {
		t.Error("the second boot does not delete it")
	}
	if !masked(firstboot.Full(unit("true"), earlier(pointerConfig))) {
		t.Error("the full config cannot keep it")
	}
}

// Otherwise Ignition fetches the remote files of the full config without the pointer config's proxy, authorities and
// timeouts.
func TestFull_HasTheSettingsOfThePointerConfig(t *testing.T) {
	const given = `{"ignition":{"version":"3.3.0","proxy":{"httpsProxy":"http://proxy.test:3128"},
		"security":{"tls":{"certificateAuthorities":[{"source":"data:,one"}]}},"timeouts":{"httpTotal":60},
		"config":{"merge":[{"source":"https://mcs.test:22623/config/worker"}]}},
		"storage":{"files":[{"path":"/etc/given","contents":{"source":null}}]}}`
	raw, err := firstboot.Full([]byte(preApproved), earlier(given))
	if err != nil {
		t.Fatal(err)
	}
	c := merged(t, raw)
	if p := c.Ignition.Proxy.HTTPSProxy; p == nil || *p != "http://proxy.test:3128" {
		t.Errorf("proxy %v", p)
	}
	if total := c.Ignition.Timeouts.HTTPTotal; total == nil || *total != 60 {
		t.Errorf("timeout %v", total)
	}
	if all := c.Ignition.Security.TLS.CertificateAuthorities; len(all) != 1 || *all[0].Source != "data:,one" {
		t.Errorf("authorities %+v", all)
	}
	if len(c.Storage.Files) != 5 || len(c.Ignition.Config.Merge) != 3 {
		t.Errorf("more than the settings of the pointer config: %+v", c)
	}

	const own = `{"ignition":{"version":"3.2.0","proxy":{"httpsProxy":"http://own.test:3128"},"timeouts":{"httpTotal":9},
		"security":{"tls":{"certificateAuthorities":[{"source":"data:,two"}]}}}}`
	if raw, err = firstboot.Full([]byte(own), earlier(given)); err != nil {
		t.Fatal(err)
	}
	c = merged(t, raw)
	p, total := c.Ignition.Proxy.HTTPSProxy, c.Ignition.Timeouts.HTTPTotal
	if *p != "http://own.test:3128" || *total != 9 {
		t.Errorf("not the full config's own: %s, %d", *p, *total)
	}
	if all := c.Ignition.Security.TLS.CertificateAuthorities; len(all) != 2 {
		t.Errorf("authorities %+v", all)
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
	path := filepath.Join(t.TempDir(), firstboot.UnitName)
	if err := os.WriteFile(path, []byte(runnable()), 0o600); err != nil {
		t.Fatal(err)
	}
	out, err := exec.Command("systemd-analyze", "verify", "--man=no", path).CombinedOutput()
	if err != nil || strings.Contains(string(out), firstboot.UnitName) {
		t.Errorf("%v\n%s", err, out)
	}
}

// runnable returns the unit's text with a program that exists, for systemd-analyze.
func runnable() string {
	return strings.ReplaceAll(firstboot.Unit(), firstboot.AgentPath+"%a", "/bin/true")
}

// A socket starts before basic.target, and the unit after it. In a cycle systemd would delete the unit's job, and SSH
// would be up on a machine that never attests.
func TestUnit_StartsBeforeSSHWithoutAnOrderingCycle(t *testing.T) {
	raw, err := firstboot.Config([]byte(preApproved), agentConfig())
	if err != nil {
		t.Fatal(err)
	}
	const service = "[Service]\nExecStart=/bin/true\n"
	units := map[string]string{
		"sshd.socket": "[Socket]\nListenStream=22\n", "sshd.service": service, "sshd@.service": service,
		"ssh.socket": "[Socket]\nListenStream=2222\nAccept=yes\n", "ssh.service": service, "ssh@.service": service,
		"crio.service": service, "kubelet.service": service,
	}
	for _, u := range merged(t, raw).Systemd.Units {
		for _, d := range u.Dropins {
			units[u.Name+".d/"+d.Name] = *d.Contents
		}
	}
	wants := map[string][]string{
		"sockets.target": {"sshd.socket", "ssh.socket"},
		// sshd.service has no job until a connection arrives at its socket. Then the job waits like these.
		"multi-user.target": {firstboot.UnitName, "kubelet.service", "sshd.service", "ssh.service", "sshd@1.service",
			"ssh@1.service"},
	}
	cycles := func(directive string) (found []string) {
		t.Helper()
		dir := t.TempDir()
		units[firstboot.UnitName] = strings.Replace(runnable(), "[Unit]\n", "[Unit]\n"+directive, 1)
		for name, text := range units {
			path := filepath.Join(dir, name)
			if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o755), os.WriteFile(path, []byte(text), 0o600)); err != nil {
				t.Fatal(err)
			}
		}
		for target, names := range wants {
			for _, name := range names {
				link := filepath.Join(dir, target+".wants", name)
				// An instance is a link to its template.
				file := regexp.MustCompile(`@\d+`).ReplaceAllString(name, "@")
				if err := errors.Join(os.MkdirAll(filepath.Dir(link), 0o755), os.Symlink("../"+file, link)); err != nil {
					t.Fatal(err)
				}
			}
		}
		cmd := exec.Command("systemd-analyze", "verify", "--man=no", "multi-user.target")
		cmd.Env = append(os.Environ(), "SYSTEMD_UNIT_PATH="+dir+":") // and systemd's own units
		out, _ := cmd.CombinedOutput()                               // it also complains about other units
		for line := range strings.Lines(string(out)) {
			if strings.Contains(line, "cycle") {
				found = append(found, strings.TrimSpace(line))
			}
		}
		return found
	}
	for _, cycle := range cycles("") {
		t.Error(cycle)
	}
	for _, later := range []string{"sshd.service", "ssh.service", "sshd@1.service", "ssh@1.service", "kubelet.service"} {
		if len(cycles("After="+later+"\n")) == 0 { // the opposite order must be a cycle
			t.Errorf("the unit does not start before %s", later)
		}
	}
}

// Ignition would apply it, and record that it has applied the full config.
func TestFull_RefusesThePreApprovedConfig(t *testing.T) {
	raw, err := firstboot.Config([]byte(preApproved), agentConfig())
	if err != nil {
		t.Fatal(err)
	}
	if full, err := firstboot.Full(raw, earlier(pointerConfig)); err == nil {
		t.Errorf("%s", full)
	}
	if _, err := firstboot.Full([]byte(preApproved), earlier(pointerConfig)); err != nil {
		t.Error(err)
	}
}
