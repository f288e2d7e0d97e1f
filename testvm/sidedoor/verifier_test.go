// SPDX-License-Identifier: Apache-2.0

package sidedoor

import (
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/mcs-attest/mcs-attest/testvm/binaries"
	"github.com/mcs-attest/mcs-attest/testvm/rig"
)

// verifierIn copies the verifier into a folder that its user can access. Only root can access the
// folder of the original.
func (n network) verifierIn(dir string) string {
	n.t.Helper()
	built, err := binaries.Verifier()
	if err != nil {
		n.t.Fatal(err)
	}
	n.run("cp", built, dir)
	return filepath.Join(dir, filepath.Base(built))
}

// realVerifier runs the verifier on the control-plane host, as its user, with the address that
// represents the MCS. Its policy admits all clients.
func (c *cluster) realVerifier(t *testing.T) {
	t.Helper()
	// Only root can read t.TempDir.
	dir, err := os.MkdirTemp("", "sidedoor-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	binary := c.verifierIn(dir)
	folder := filepath.Join(dir, "folder")
	c.run(binary, "init", folder, "--origin", "https://"+cp4+":22623", "--pool", "worker", "--listen", "[::]:22643",
		"--health-listen", "127.0.0.1:22681", "--metrics-listen", "127.0.0.1:9622", "--upstream", "https://127.22.62.3:22644")
	c.run("chown", "-R", fmt.Sprint(verifierUser), dir)
	config, err := os.OpenFile(filepath.Join(folder, "mcs-attest.yaml"), os.O_APPEND|os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer config.Close()
	if _, err := config.WriteString("\nupstreamCA: upstream.crt\nupstreamName: api-int\n"); err != nil {
		t.Fatal(err)
	}
	for name, content := range map[string]string{
		"upstream.crt": string(c.ca),
		"policies/default.yaml": "apiVersion: mcs-attest.dev/v1alpha1\nkind: AttestationPolicy\nmetadata: {name: default}\n" +
			"spec: {pools: [\"*\"], mode: Audit}\n",
	} {
		if err := os.WriteFile(filepath.Join(folder, name), []byte(content), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	ca, err := os.ReadFile(filepath.Join(folder, "tls", "ca.crt"))
	if err != nil {
		t.Fatal(err)
	}
	c.roots.AppendCertsFromPEM(ca)

	var log strings.Builder
	cmd := exec.Command(binary, "serve", "--config", filepath.Join(folder, "mcs-attest.yaml"))
	cmd.Stdout, cmd.Stderr = &log, &log
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true,
		Credential: &syscall.Credential{Uid: verifierUser, Gid: verifierUser}}
	if err := c.on(cp, 0, cmd.Start); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := cmd.Process.Kill(); err != nil {
			t.Logf("verifier: %v", err)
		}
		// Returns the error of the kill.
		_ = cmd.Wait()
		if t.Failed() {
			t.Logf("verifier:\n%s", log.String())
		}
	})
	for deadline := time.Now().Add(time.Minute); ; time.Sleep(50 * time.Millisecond) {
		if status, _ := c.get(node, 0, cp4, "https://"+cp4+":22643/healthz"); status == http.StatusOK {
			return
		}
		if time.Now().After(deadline) {
			t.Fatal("the verifier does not answer")
		}
	}
}

// The verifier itself on the way that the rules allow: a node receives the MCS's config on 22623,
// and it passed through the verifier.
func TestRules_LetNodesReachTheMCSOnlyThroughTheVerifier(t *testing.T) {
	c := start(t, false)
	c.load(t)
	c.nft(cp, pluginRules)
	if got := c.ask(node, 0, cp4+":22623"); got != refused {
		t.Errorf("before it runs: %s", got)
	}
	c.realVerifier(t)
	for _, from := range []string{node, far, pod, cp} {
		url := "https://" + cp4 + ":22623"
		if status, body := c.get(from, 0, cp4, url+"/config/worker"); status != http.StatusOK || body != rig.Config(theMCS) {
			t.Errorf("from %s: %d %s", from, status, body)
		}
		// The stand-in for the MCS would answer this, too.
		if status, body := c.get(from, 0, cp4, url+"/elsewhere"); status == http.StatusOK || body == rig.Config(theMCS) {
			t.Errorf("from %s, a path that the gate has not: %d %s", from, status, body)
		}
		// A20: both ports deny a request without TLS, so that Ignition stops.
		for _, port := range []string{":22623", ":22624"} {
			if status, body := c.get(from, 0, cp4, "http://"+cp4+port+"/config/worker"); status != http.StatusUnauthorized {
				t.Errorf("from %s, %s in clear: %d %s", from, port, status, body)
			}
		}
	}
}
