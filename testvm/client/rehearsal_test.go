// SPDX-License-Identifier: Apache-2.0

package client_test

import (
	"bytes"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/mcs-attest/mcs-attest/pkg/evidence/tpm2/attester/swtpmtest"
	"github.com/mcs-attest/mcs-attest/testvm/binaries"
)

// machine is what the agent sees of a machine: a software TPM, and folders of this test.
type machine struct {
	t           *testing.T
	agent, root string
	env         []string
}

func newMachine(t *testing.T, pointer []byte) *machine {
	t.Helper()
	agent, err := binaries.Agent()
	if err != nil {
		t.Fatal(err)
	}
	m := &machine{t: t, agent: agent, root: t.TempDir()}
	m.env = append(os.Environ(), "PLATFORM_ID=metal", "MCS_ATTEST_TPM="+swtpmtest.Start(t, "sha256").Socket)
	for name, file := range map[string]string{
		"RUN": "run", "CMDLINE": "cmdline", "IGNITION_JSON": "ignition.json", "IGNITION_RUNTIME": "none",
		"IGNITION_LOCAL": "none", "IGNITION_SYSTEM": "usr", "FW_CFG": "none", "TPM_SYSFS": "none", "EVENT_LOG": "none",
		"PHASE": "none", "PROVISIONING_TOKEN": "none",
	} {
		m.env = append(m.env, "MCS_ATTEST_"+name+"="+filepath.Join(m.root, file))
	}
	m.write("cmdline", []byte("quiet\n"))
	m.write("usr/user.ign", pointer)
	return m
}

func (m *machine) write(name string, content []byte) (path string) {
	m.t.Helper()
	path = filepath.Join(m.root, name)
	if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o700), os.WriteFile(path, content, 0o600)); err != nil {
		m.t.Fatal(err)
	}
	return path
}

// run runs a command of the agent.
func (m *machine) run(stdin []byte, args ...string) result {
	m.t.Helper()
	command := exec.CommandContext(m.t.Context(), m.agent, args...)
	command.Env, command.Stdin = m.env, bytes.NewReader(stdin)
	var stdout, stderr bytes.Buffer
	command.Stdout, command.Stderr = &stdout, &stderr
	err := command.Run()
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		m.t.Fatal(err)
	}
	m.t.Logf("%q: exit status %d\n%s%s", args, command.ProcessState.ExitCode(), &stdout, &stderr)
	return result{command.ProcessState.ExitCode(), stdout.String(), stderr.String()}
}

// rehearse opens a rehearsal, and lets the machine rehearse. It returns what the machine received, too.
func (v *verifier) rehearse(m *machine, name string) (r result, order []byte) {
	m.t.Helper()
	command := exec.CommandContext(m.t.Context(), verifierBinary, "rehearse", name, "--config", v.config())
	var stderr bytes.Buffer
	command.Stderr = &stderr
	order, err := command.Output()
	if err != nil {
		m.t.Fatalf("%v: %s", err, &stderr)
	}
	return m.run(order, "rehearse", "-"), order
}

// TestRehearse_OfAMachineThatAttested has the real agent and the real verifier. A machine attests, caps PCR 11 as at
// the end of the initramfs, and rehearses.
func TestRehearse_OfAMachineThatAttested(t *testing.T) {
	v := startVerifier(t)
	pointer, err := os.ReadFile(filepath.Join(v.dir, "pointers", "worker.ign"))
	if err != nil {
		t.Fatal(err)
	}
	m := newMachine(t, pointer)
	identity := m.write("identity.yaml", []byte(m.run(nil, "identify").stdout))
	v.run(t, "enroll", "--config", v.config(), "--identity", identity, "--name", "worker-0", "--pool", "worker")
	if r := m.run(nil, "attest"); r.status != 0 {
		t.Fatal("the machine was denied")
	}
	if r := m.run(nil, "scrub", "--cap-only"); r.status != 0 {
		t.Fatal("no cap")
	}

	r, order := v.rehearse(m, "worker-0")
	if r.status != 0 || !strings.Contains(r.stdout, "this machine would be attested") {
		t.Errorf("the rehearsal of an unchanged machine: %+v", r)
	}
	if ticket := strings.Split(string(order), `"`)[3]; len(ticket) != 44 || strings.Contains(r.stdout+r.stderr, ticket) ||
		strings.Contains(v.logged(t), ticket) {
		t.Errorf("the ticket %s is in a log:\n%s", ticket, v.logged(t))
	}
	if r := m.run(order, "rehearse", "-"); r.status != 1 || !strings.Contains(r.stderr, "(class challenge, ") {
		t.Errorf("a used ticket: %+v", r)
	}
	// The rehearsal admits the machine to nothing.
	if r := m.run(nil, "attest"); r.status != 1 || !strings.Contains(v.logged(t), "PCRCapped") {
		t.Errorf("an attestation after the rehearsal: %+v", r)
	}

	// The machine has no event log, so it would not attest under this policy.
	policy := filepath.Join(v.dir, "policies", "default.yaml")
	text, err := os.ReadFile(policy)
	if err != nil {
		t.Fatal(err)
	}
	changed := strings.Replace(string(text), "profile: identity-only", "profile: secure-boot", 1)
	if err := os.WriteFile(policy, []byte(changed), 0o600); err != nil {
		t.Fatal(err)
	}
	r, _ = v.rehearse(m, "worker-0")
	if r.status != 1 || !strings.Contains(r.stderr, "would not be attested: EventLogMalformed: the event log is empty") {
		t.Errorf("the rehearsal under another policy: %+v", r)
	}
	out, err := exec.Command(verifierBinary, "status", "-o", "yaml", "--config", v.config()).CombinedOutput()
	if err != nil || !strings.Contains(string(out), "EventLogMalformed") {
		t.Errorf("status: %v\n%s", err, out)
	}
}
