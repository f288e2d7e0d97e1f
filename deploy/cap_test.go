// SPDX-License-Identifier: Apache-2.0

package deploy

import (
	"crypto/sha256"
	"crypto/sha512"
	"encoding/hex"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"
)

const capUnit = "mcs-attest-cap-root.service"

func capSource(t *testing.T) string {
	t.Helper()
	raw, err := os.ReadFile(filepath.Join("..", "dracut", "root", capUnit))
	if err != nil {
		t.Fatal(err)
	}
	return string(raw)
}

// The component contains the unit unchanged, for both pools of every cluster.
func TestMachineConfig_HasTheCapUnchanged(t *testing.T) {
	want := "# Generated from dracut/root: go test ./deploy -run MachineConfig -update\n"
	for i, pool := range []string{"master", "worker"} {
		if i > 0 {
			want += "---\n"
		}
		want += fmt.Sprintf(`apiVersion: machineconfiguration.openshift.io/v1
kind: MachineConfig
metadata:
  name: 99-%s-mcs-attest-cap
  labels:
    machineconfiguration.openshift.io/role: %s
spec:
  config:
    ignition:
      version: 3.2.0
    systemd:
      units:
      - name: %s
        enabled: true
        contents: |
`, pool, pool, capUnit)
		for line := range strings.Lines(capSource(t)) {
			if line != "\n" {
				line = "          " + line
			}
			want += line
		}
	}
	path := filepath.Join("components", "cap", "machineconfig.yaml")
	if *update {
		if err := os.WriteFile(path, []byte(want), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	got, err := os.ReadFile(path)
	if err != nil || string(got) != want {
		t.Errorf("%s is not what dracut/root makes (%v)\nhint: go test ./deploy -run MachineConfig -update", path, err)
	}
	out, err := exec.Command("systemd-analyze", "verify", "--man=no", "--recursive-errors=no",
		filepath.Join("..", "dracut", "root", capUnit)).CombinedOutput()
	if err != nil || len(out) > 0 {
		t.Errorf("systemd-analyze verify: %v\n%s", err, out)
	}
}

// A stock image has no agent: tpm2-tools extend PCR 11 of each bank with the same value.
func TestAttack_T32_StockImageIsCappedInTheRealRoot(t *testing.T) {
	dir, err := os.MkdirTemp("", "tpm") // the path of a socket has to be short
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	socket := filepath.Join(dir, "s")
	tpm := exec.Command("swtpm", "socket", "--tpm2", "--tpmstate", "dir="+dir, "--server", "type=unixio,path="+socket,
		"--ctrl", "type=unixio,path="+socket+".ctrl", "--flags", "not-need-init,startup-clear")
	if err := tpm.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = tpm.Process.Kill(); _ = tpm.Wait() })
	for range 500 {
		if _, err := os.Stat(socket + ".ctrl"); err == nil {
			break
		}
		time.Sleep(10 * time.Millisecond)
	}
	env := append(os.Environ(), "TPM2TOOLS_TCTI=swtpm:path="+socket)
	read := func(bank string) string {
		cmd := exec.Command("tpm2_pcrread", bank+":11")
		cmd.Env = env
		out, err := cmd.CombinedOutput()
		value := regexp.MustCompile(`11\s*:\s*0x([0-9A-F]+)`).FindSubmatch(out)
		if err != nil || value == nil {
			t.Fatalf("tpm2_pcrread: %v\n%s", err, out)
		}
		return strings.ToLower(string(value[1]))
	}
	// The unit's own command, with this TPM and without an agent.
	step := regexp.MustCompile(`(?ms)^ExecStart=/bin/sh -c '(.*?)'$`).FindStringSubmatch(capSource(t))
	if step == nil {
		t.Fatal("the unit has no command of this form")
	}
	script := strings.NewReplacer("\\\n", " ", "$$", "$", "/dev/tpmrm0", socket, "/usr/bin/mcs-attest-agent",
		dir+"/no-agent",
		"/run/mcs-attest", dir+"/run").Replace(step[1])
	if before := read("sha256"); strings.Trim(before, "0") != "" {
		t.Fatalf("PCR 11 is %s before", before)
	}
	cmd := exec.Command("/bin/sh", "-c", script)
	cmd.Env = env
	if out, err := cmd.CombinedOutput(); err != nil || !strings.Contains(string(out), "capped PCR 11 in the real root") {
		t.Fatalf("%v\n%s", err, out)
	}
	label := []byte("mcs-attest: capped")
	event256, event384 := sha256.Sum256(label), sha512.Sum384(label)
	want256, want384 := sha256.Sum256(append(make([]byte, 32), event256[:]...)),
		sha512.Sum384(append(make([]byte, 48), event384[:]...))
	if got := read("sha256"); got != hex.EncodeToString(want256[:]) {
		t.Errorf("sha256: PCR 11 is %s", got)
	}
	if got := read("sha384"); got != hex.EncodeToString(want384[:]) {
		t.Errorf("sha384: PCR 11 is %s", got)
	}
	// The unit's condition prevents a second run in the same boot.
	if _, err := os.Stat(dir + "/run/capped"); err != nil {
		t.Error(err)
	}
	// Without any tool the unit fails visibly.
	cmd = exec.Command("/bin/sh", "-c", script)
	cmd.Env = []string{"PATH=/nonexistent"}
	if out, err := cmd.CombinedOutput(); err == nil || !strings.Contains(string(out), "error: PCR 11 is not capped") {
		t.Errorf("without a tool: %v\n%s", err, out)
	}
}
