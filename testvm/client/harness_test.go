// SPDX-License-Identifier: Apache-2.0

package client_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/mcs-attest/mcs-attest/testvm/binaries"
	"github.com/mcs-attest/mcs-attest/testvm/freeport"
)

var verifierBinary string

func TestMain(m *testing.M) {
	var err error
	if verifierBinary, err = binaries.Verifier(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	os.Exit(m.Run())
}

// verifier is one process and its folder.
type verifier struct {
	dir, origin string
	log         string
}

// startVerifier creates a folder, applies edit to its policy, and starts the verifier.
func startVerifier(t *testing.T, edit ...string) *verifier {
	t.Helper()
	dir := t.TempDir()
	port, err := freeport.Pick()
	if err != nil {
		t.Fatal(err)
	}
	address := fmt.Sprintf("127.0.0.1:%d", port)
	v := &verifier{dir: dir, origin: "https://" + address, log: filepath.Join(t.TempDir(), "log")}
	v.run(t, "init", dir, "--origin", v.origin, "--listen", address, "--health-listen", "127.0.0.1:0", "--metrics-listen",
		"127.0.0.1:0")

	policy := filepath.Join(dir, "policies", "default.yaml")
	text, err := os.ReadFile(policy)
	if err != nil {
		t.Fatal(err)
	}
	changed := strings.NewReplacer(edit...).Replace(string(text))
	if len(edit) > 0 && changed == string(text) {
		t.Fatalf("%q changes nothing in %s", edit, text)
	}
	if err := os.WriteFile(policy, []byte(changed), 0o600); err != nil {
		t.Fatal(err)
	}

	log, err := os.Create(v.log)
	if err != nil {
		t.Fatal(err)
	}
	process := exec.Command(verifierBinary, "serve", "--config", v.config())
	process.Stdout, process.Stderr = log, log
	start(t, process)
	wait(t, "the verifier listens", func() bool {
		conn, err := net.Dial("tcp", address)
		if err == nil {
			conn.Close()
		}
		return err == nil
	})
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("verifier:\n%s", v.logged(t))
		}
	})
	return v
}

func (v *verifier) config() string { return filepath.Join(v.dir, "mcs-attest.yaml") }
func (v *verifier) ca() string     { return filepath.Join(v.dir, "tls", "ca.crt") }

func (v *verifier) run(t *testing.T, args ...string) {
	t.Helper()
	if out, err := exec.Command(verifierBinary, args...).CombinedOutput(); err != nil {
		t.Fatalf("%q: %v\n%s", args, err, out)
	}
}

func (v *verifier) logged(t *testing.T) string {
	t.Helper()
	log, err := os.ReadFile(v.log)
	if err != nil {
		t.Fatal(err)
	}
	return string(log)
}

// enroll enrolls the EK that the script prints.
func (v *verifier) enroll(t *testing.T, tcti, name string) {
	t.Helper()
	id := client(t, "--identify", "--tcti", tcti)
	if id.status != 0 || !regexp.MustCompile(`^[0-9a-f]{64}\n$`).MatchString(id.stdout) {
		t.Fatalf("--identify: %+v", id)
	}
	v.run(t, "enroll", "--config", v.config(), "--ek-sha256", strings.TrimSpace(id.stdout), "--name", name,
		"--pool", "worker")
}

// attest runs the script against the verifier for its pool worker.
func (v *verifier) attest(t *testing.T, tcti string, more ...string) result {
	t.Helper()
	return client(t, append([]string{"--origin", v.origin, "--ca", v.ca(), "--pool", "worker", "--tcti", tcti},
		more...)...)
}

// attestEnrolled waits, as the contract requires, until the verifier has read what enroll wrote.
func (v *verifier) attestEnrolled(t *testing.T, tcti string, more ...string) result {
	t.Helper()
	var r result
	wait(t, "an answer that is not \"wait\"", func() bool {
		r = v.attest(t, tcti, more...)
		return r.status != 2
	})
	return r
}

// fetch requests the config with curl, like a node.
func (v *verifier) fetch(t *testing.T, token string) (status, body string) {
	t.Helper()
	args := []string{"--silent", "--show-error", "--cacert", v.ca(), "--write-out", "\n%{http_code}"}
	if token != "" {
		header := filepath.Join(t.TempDir(), "header")
		if err := os.WriteFile(header, []byte("Authorization: Bearer "+token+"\n"), 0o600); err != nil {
			t.Fatal(err)
		}
		args = append(args, "--header", "@"+header)
	}
	out, err := exec.Command("curl", append(args, v.origin+"/config/worker")...).CombinedOutput()
	if err != nil {
		t.Fatalf("curl: %v\n%s", err, out)
	}
	cut := bytes.LastIndexByte(out, '\n')
	return string(out[cut+1:]), string(out[:cut])
}

// startTPM starts a new software TPM and returns its TCTI.
func startTPM(t *testing.T) string {
	t.Helper()
	// t.TempDir is longer than the path of a socket may be.
	dir, err := os.MkdirTemp("", "tpm")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	socket := filepath.Join(dir, "s")
	process := exec.Command("swtpm", "socket", "--tpm2", "--tpmstate", "dir="+dir,
		"--server", "type=unixio,path="+socket,
		"--ctrl", "type=unixio,path="+socket+".ctrl",
		"--flags", "not-need-init,startup-clear")
	start(t, process)
	wait(t, "the TPM listens", func() bool {
		_, data := os.Stat(socket)
		_, ctrl := os.Stat(socket + ".ctrl")
		return data == nil && ctrl == nil
	})
	return "swtpm:path=" + socket
}

func start(t *testing.T, process *exec.Cmd) {
	t.Helper()
	if err := process.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		process.Process.Kill()
		process.Wait()
	})
}

func wait(t *testing.T, what string, done func() bool) {
	t.Helper()
	for end := time.Now().Add(2 * time.Minute); !done(); time.Sleep(100 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("never: %s", what)
		}
	}
}

// result is the output of one run of the script.
type result struct {
	status         int
	stdout, stderr string
}

func client(t *testing.T, args ...string) result {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
	defer cancel()
	command := exec.CommandContext(ctx, "./attest.sh", args...)
	command.WaitDelay = time.Second
	var stdout, stderr bytes.Buffer
	command.Stdout, command.Stderr = &stdout, &stderr
	err := command.Run()
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		t.Fatal(err)
	}
	t.Logf("attest.sh %s: exit status %d\n%s", strings.Join(args, " "), command.ProcessState.ExitCode(), stderr.String())
	return result{command.ProcessState.ExitCode(), stdout.String(), stderr.String()}
}

// refused checks a run that returns no token: its exit status, the two lines for the administrator,
// and their content.
func (r result) refused(t *testing.T, status int, messages ...string) {
	t.Helper()
	if r.status != status || r.stdout != "" {
		t.Errorf("exit status %d and %q on stdout, want %d and nothing", r.status, r.stdout, status)
	}
	for _, want := range append(messages, "error: ") {
		if !strings.Contains(r.stderr, want) {
			t.Errorf("no %q in:\n%s", want, r.stderr)
		}
	}
}
