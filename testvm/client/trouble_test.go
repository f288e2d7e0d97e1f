// SPDX-License-Identifier: Apache-2.0

package client_test

import (
	"bytes"
	"crypto/tls"
	"encoding/base64"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/mcs-attest/mcs-attest/testvm/binaries"
)

// agent is the agent's process, on a machine whose user.ign names the verifier.
type agent struct {
	process *exec.Cmd
	run     string // its run directory
	output  lockedBuffer
}

type lockedBuffer struct {
	mu  sync.Mutex
	all bytes.Buffer
}

func (b *lockedBuffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.all.Write(p)
}

func (b *lockedBuffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.all.String()
}

// startAgent starts "attest" with the TPM behind tcti.
func startAgent(t *testing.T, v *verifier, tcti string) *agent {
	t.Helper()
	dir := t.TempDir()
	binary, err := binaries.Agent()
	if err != nil {
		t.Fatal(err)
	}
	ca, err := os.ReadFile(v.ca())
	if err != nil {
		t.Fatal(err)
	}
	pointer := fmt.Sprintf(`{"ignition":{"version":"3.4.0","config":{"merge":[{"source":"%s/config/worker"}]},`+
		`"security":{"tls":{"certificateAuthorities":[{"source":"data:;base64,%s"}]}}}}`, v.origin,
		base64.StdEncoding.EncodeToString(ca))
	for name, content := range map[string]string{"cmdline": "quiet mcs-attest.ek=rsa-2048\n", "usr/user.ign": pointer} {
		if err := os.MkdirAll(filepath.Dir(filepath.Join(dir, name)), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(dir, name), []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	a := &agent{process: exec.Command(binary, "attest"), run: filepath.Join(dir, "run")}
	a.process.Env = append(os.Environ(), "PLATFORM_ID=metal", "MCS_ATTEST_RUN="+a.run,
		"MCS_ATTEST_CMDLINE="+filepath.Join(dir, "cmdline"),
		"MCS_ATTEST_IGNITION_SYSTEM="+filepath.Join(dir, "usr"), "MCS_ATTEST_TPM="+strings.TrimPrefix(tcti, "swtpm:path="))
	for _, name := range []string{"IGNITION_JSON", "IGNITION_RUNTIME", "IGNITION_LOCAL", "FW_CFG", "TPM_SYSFS",
		"EVENT_LOG", "BOOT_ID", "SMBIOS_UUID", "SMBIOS_SERIAL", "NETWORK", "PROVISIONING_TOKEN"} {
		a.process.Env = append(a.process.Env, "MCS_ATTEST_"+name+"="+filepath.Join(dir, "none", strings.ToLower(name)))
	}
	a.process.Stdout, a.process.Stderr = &a.output, &a.output
	start(t, a.process)
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("agent:\n%s", a.output.String())
		}
	})
	return a
}

func (a *agent) delivered() bool {
	return strings.Contains(a.output.String(), "delivered the pointer config with the token")
}

func (a *agent) unchanged() bool { return strings.Contains(a.output.String(), "is unchanged") }

// count returns how often the verifier logged a denial of Attest with this reason.
func (v *verifier) count(t *testing.T, reason string) (n int) {
	for line := range strings.Lines(v.logged(t)) {
		if strings.Contains(line, `"event":"attest"`) && strings.Contains(line, `"`+reason+`"`) {
			n++
		}
	}
	return n
}

// Attack T63: after a temporary denial, a client must not continue without a token, even if unknown
// machines receive a pre-approved config. After a final denial it may.
func TestAttack_T63_IndependentClientOfAPreApprovedPoolWaits(t *testing.T) {
	v, tpm := startVerifier(t, "mode: Enforce", "mode: Enforce\n  unattested: PreApproved", "profile: identity-only",
		"profile: secure-boot"), startTPM(t)
	log := filepath.Join(t.TempDir(), "log")
	if err := os.WriteFile(log, make([]byte, 16), 0o600); err != nil {
		t.Fatal(err)
	}
	r := v.attest(t, tpm, "--event-log", log)
	r.refused(t, 2, "Attest denied: NOT_YET", "this machine is not ready")
	if strings.Contains(r.stderr, "continue without one") {
		t.Error("a temporary denial: the client advises to continue without a token")
	}
	v.enroll(t, tpm, "worker-0")
	v.attestEnrolled(t, tpm, "--event-log", log).refused(t, 1, "Attest denied: EVIDENCE", "continue without one")
}

// Attack T63: in a pool that gives unknown machines a pre-approved config, neither a machine that
// is not ready nor a flood makes the agent continue without a token.
func TestAttack_T63_AnAgentOfAPreApprovedPoolWaitsAndThenAttests(t *testing.T) {
	v, tpm := startVerifier(t, "mode: Enforce", "mode: Enforce\n  unattested: PreApproved"), startTPM(t)
	flood := make(chan struct{})
	var floods sync.WaitGroup
	for range 4 {
		floods.Go(func() {
			tr := &http.Transport{TLSClientConfig: &tls.Config{InsecureSkipVerify: true}} // the flood accepts any server
			defer tr.CloseIdleConnections()
			for {
				select {
				case <-flood:
					return
				default:
				}
				res, err := (&http.Client{Transport: tr}).Post(v.origin+"/mcsattest.v1.Attestation/Challenge", "application/json",
					strings.NewReader("{}"))
				if err == nil {
					res.Body.Close()
				}
			}
		})
	}
	a := startAgent(t, v, tpm)
	wait(t, "the agent's first denial", func() bool { return strings.Contains(a.output.String(), "not yet: ") })
	close(flood)
	floods.Wait()
	wait(t, "three denials because the machine is not enrolled",
		func() bool { return a.unchanged() || v.count(t, "EKNotEnrolled") >= 3 })
	// The agent holds the TPM's only connection, so the test reads the EK from its console.
	_, ek, _ := strings.Cut(a.output.String(), "endorsement key rsa-2048 ")
	v.run(t, "enroll", "--config", v.config(), "--ek-sha256", ek[:64], "--name", "worker-0", "--pool", "worker")
	wait(t, "the agent ends", func() bool { return a.unchanged() || a.delivered() })
	if a.unchanged() {
		t.Error("the agent left the pointer config unchanged")
	}
}
