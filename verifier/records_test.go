// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/mcs-attest/mcs-attest/pkg/evidence/tpm2/attester/swtpmtest"
	"github.com/mcs-attest/mcs-attest/verifier/internal/store"
)

// recordsSite is the folder of a stopped verifier in which m1 has attested.
type recordsSite struct {
	*process
	n *node
}

func newRecordsSite(t *testing.T) *recordsSite {
	t.Helper()
	s := &recordsSite{process: newProcess(t)}
	s.start()
	s.n = newNode(t, s.v, swtpmtest.Start(t, "sha256"))
	s.v.write("attestations/m1.yaml", enrolment("m1", "  pool: worker\n", s.n.id.EKSPKI))
	s.kill()
	s.start()
	s.n.connect()
	if _, err := s.n.attest(); err != nil {
		t.Fatalf("%v\n%s", err, s.log)
	}
	return s
}

func (s *recordsSite) file(name string) string { return filepath.Join(s.v.dir, "state", name) }

func (s *recordsSite) read(name string) []byte {
	s.t.Helper()
	raw, err := os.ReadFile(s.file(name))
	if err != nil {
		s.t.Fatal(err)
	}
	return raw
}

func (s *recordsSite) put(name string, content []byte) {
	s.t.Helper()
	if err := os.WriteFile(s.file(name), content, 0o600); err != nil {
		s.t.Fatal(err)
	}
}

// command runs a command of the verifier; one that serves is stopped after a while.
func (s *recordsSite) command(args ...string) (status int, output string) {
	s.t.Helper()
	ctx, cancel := context.WithTimeout(s.t.Context(), 2*time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, s.program, append(args, "--config", filepath.Join(s.v.dir, "mcs-attest.yaml"))...)
	out := &lockedBuffer{}
	cmd.Stdout, cmd.Stderr = out, out
	if err := cmd.Start(); err != nil {
		s.t.Fatal(err)
	}
	done := make(chan error, 1)
	go func() { done <- cmd.Wait() }()
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for {
		select {
		case err := <-done:
			var exit *exec.ExitError
			if err != nil && !errors.As(err, &exit) {
				s.t.Fatal(err)
			}
			return cmd.ProcessState.ExitCode(), out.everything()
		case <-tick.C:
			if strings.Contains(out.everything(), `"msg":"serving"`) {
				cancel()
				<-done
				return 0, out.everything()
			}
		}
	}
}

func (s *recordsSite) serve() (status int, output string) {
	s.t.Helper()
	return s.command("serve", "--listen", freeAddress(s.t), "--health-listen", freeAddress(s.t), "--metrics-listen",
		freeAddress(s.t))
}

var panicked = regexp.MustCompile(`(?m)^(panic|fatal error|unexpected fault|goroutine \d+)|SIGSEGV|SIGBUS`)

func TestAttack_T70_DamagedRecordsAreAnErrorWithAHint(t *testing.T) {
	s := newRecordsSite(t)
	s.kill()
	if status, out := s.serve(); status != 0 {
		t.Fatalf("the undamaged database: %s", out)
	}
	whole := s.read("records.db")
	const page = 4096
	damages := map[string][]byte{
		"empty":         {},
		"text":          []byte("not a database\n"),
		"only a header": whole[:page],
		"one byte less": whole[:len(whole)-1],
	}
	for at := 0; at < len(whole); at += page {
		name := fmt.Sprintf("page %d ", at/page)
		damages[name+"cut off"] = whole[:at]
		for kind, fill := range map[string]byte{"zeroed": 0, "filled": 0xff} {
			damaged := bytes.Clone(whole)
			copy(damaged[at:], bytes.Repeat([]byte{fill}, page))
			damages[name+kind] = damaged
		}
	}
	refused := 0
	for name, content := range damages {
		for command, run := range map[string]func() (int, string){
			"serve": s.serve, "status": func() (int, string) { return s.command("status") },
		} {
			s.put("records.db", content)
			status, out := run()
			switch {
			case panicked.MatchString(out):
				t.Errorf("%s, %s: it panicked:\n%.600s", name, command, out)
			case status != 0 && !strings.Contains(out, "hint: "):
				t.Errorf("%s, %s: no hint:\n%s", name, command, out)
			case status == 0 && command == "status" && !strings.Contains(out, "Attested"):
				t.Errorf("%s: the record of m1 is lost:\n%s", name, out)
			case status != 0:
				refused++
			}
			if _, err := os.Stat(s.file("records.db")); err != nil {
				t.Errorf("%s, %s: %v", name, command, err)
			}
		}
	}
	t.Logf("%d damaged files, %d runs refused", len(damages), refused)
	if refused < len(damages) {
		t.Errorf("only %d of %d runs were refused", refused, 2*len(damages))
	}
}

// A database without records is a first start only where there has been none.
func TestAttack_T70_UsedFolderDoesNotStartWithNewRecords(t *testing.T) {
	s := newRecordsSite(t)
	s.kill()
	other := newRecordsSite(t)
	other.kill()
	for name, change := range map[string]func(){
		"missing":       func() {},
		"empty":         func() { s.put("records.db", nil) },
		"another one":   func() { s.put("records.db", other.read("records.db")) },
		"a broken note": func() { s.put("records.db", nil); s.put("records.db.seen", []byte("{")) },
	} {
		t.Run(name, func(t *testing.T) {
			whole, seen := s.read("records.db"), s.read("records.db.seen")
			defer func() { s.put("records.db", whole); s.put("records.db.seen", seen) }()
			if err := os.Remove(s.file("records.db")); err != nil {
				t.Fatal(err)
			}
			change()
			if status, out := s.serve(); status == 0 || panicked.MatchString(out) ||
				name != "a broken note" && !strings.Contains(out, "hint: ") {
				t.Errorf("exit status %d:\n%s", status, out)
			}
			if status, out := s.command("status"); status == 0 {
				t.Errorf("status shows records:\n%s", out)
			}
		})
	}
	if status, out := s.serve(); status != 0 {
		t.Errorf("with its own database again: %s", out)
	}
	// As an earlier version left it, and then the database was lost.
	s.put("evidence.json", nil)
	for _, name := range []string{"records.db", "records.db.seen"} {
		if err := os.Remove(s.file(name)); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.MkdirAll(s.file("evidence"), 0o700); err != nil {
		t.Fatal(err)
	}
	s.put("evidence/x.json", []byte("{}"))
	if status, out := s.serve(); status == 0 {
		t.Errorf("a folder with evidence of use started with new records:\n%s", out)
	}
}

// A backup lacks what came after it. So restored records let no machine in until an
// administrator has acknowledged them, however they came back.
func TestAttack_T70_RestoredRecordsLetNoMachineInUnacknowledged(t *testing.T) {
	file := filepath.Join(t.TempDir(), "records.backup")
	for name, back := range map[string]func(*testing.T, *recordsSite){
		"restored by the command": func(t *testing.T, s *recordsSite) {
			if status, out := s.command("restore", file); status == 0 || !strings.Contains(out, "--force") {
				t.Errorf("restore overwrites without --force: %s", out)
			}
			if status, out := s.command("restore", "--force", file); status != 0 || !strings.Contains(out, "--acknowledge") {
				t.Errorf("restore: %s", out)
			}
		},
		"copied back by hand": func(t *testing.T, s *recordsSite) {
			raw, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			s.put("records.db", raw)
		},
	} {
		t.Run(name, func(t *testing.T) {
			s := newRecordsSite(t)
			// While it serves. The backup is of before m2 attests.
			_ = os.Remove(file)
			if status, out := s.command("backup", file); status != 0 {
				t.Fatalf("backup: %s", out)
			}
			if status, out := s.command("backup", file); status == 0 || !strings.Contains(out, "--force") {
				t.Errorf("backup overwrites without --force: %s", out)
			}
			if info, err := os.Stat(file); err != nil || info.Mode().Perm() != 0o600 {
				t.Errorf("%v, %v", info, err)
			}
			if status, out := s.command("restore", "--force", file); status == 0 || !strings.Contains(out, "stop the verifier") {
				t.Errorf("restore while it serves: %s", out)
			}
			m2 := newNode(t, s.v, swtpmtest.Start(t, "sha256"))
			s.v.write("attestations/m2.yaml", enrolment("m2", "  pool: worker\n", m2.id.EKSPKI))
			var err error
			eventually(t, func() bool { // until the verifier has read the file
				m2.connect()
				_, err = m2.attest()
				return err == nil
			}, func() string { return fmt.Sprint("the machine does not get in: ", err) })
			if _, out := s.command("status"); strings.Count(out, "Attested") != 2 {
				t.Fatalf("before the restore:\n%s", out)
			}
			s.stopGently()
			back(t, s)

			s.start()
			m2.connect()
			if _, err := m2.attest(); err == nil || !strings.Contains(err.Error(), "unavailable") {
				t.Errorf("the machine whose record is lost attested again: %v\n%s", err, s.log)
			}
			if _, out := s.command("status"); !strings.Contains(out, "restore --acknowledge") {
				t.Errorf("status does not report it:\n%s", out)
			}
			if status, out := s.command("restore", "--acknowledge"); status != 0 {
				t.Errorf("acknowledge: %s", out)
			}
			m2.connect()
			if _, err := m2.attest(); err != nil {
				t.Errorf("after the acknowledgement: %v\n%s", err, s.log)
			}
			s.stopGently()
			// The newest records of all hold nothing.
			if err := os.Remove(file); err != nil {
				t.Fatal(err)
			}
			if status, out := s.command("backup", file); status != 0 {
				t.Fatalf("backup: %s", out)
			}
			if status, out := s.command("restore", "--force", file); status != 0 || strings.Contains(out, "--acknowledge") {
				t.Errorf("restore of the newest records: %s", out)
			}
			if _, out := s.command("status"); strings.Count(out, "Attested") != 2 || strings.Contains(out, "--acknowledge") {
				t.Errorf("after it:\n%s", out)
			}
		})
	}
}

// A preflight that succeeds makes the agent leave its wait, and a final denial ends the
// boot. So neither comes from records that may be older than the machine's token.
func TestAttack_T70_TokensWaitWhileRestoredRecordsAreHeld(t *testing.T) {
	v, n, first := attested(t)
	v.advance(later)
	second, err := n.again()
	if err != nil {
		t.Fatal(err)
	}
	if err := store.Hold(filepath.Join(v.dir, "state", "records.db"),
		"the record database was restored from a backup"); err != nil {
		t.Fatal(err)
	}
	want := func(status int, token string) {
		t.Helper()
		for _, method := range []string{http.MethodHead, http.MethodGet} {
			if got, _, _ := v.fetch(method, "/config/worker", token); got != status {
				t.Errorf("%s: %d, want %d", method, got, status)
			}
		}
	}
	want(http.StatusServiceUnavailable, first.GetToken()) // superseded, as far as these records know
	want(http.StatusServiceUnavailable, second.GetToken())
	if problems := v.server.Problems(); len(problems) != 1 ||
		!strings.HasPrefix(problems[0], "records: ") || !strings.Contains(problems[0], "restored from a backup") {
		t.Errorf("it serves no machine, and is ready: %q", problems)
	}
	if _, err := store.Acknowledge(filepath.Join(v.dir, "state", "records.db")); err != nil {
		t.Fatal(err)
	}
	want(http.StatusUnauthorized, first.GetToken())
	want(http.StatusOK, second.GetToken())
	if problems := v.server.Problems(); len(problems) != 0 {
		t.Errorf("acknowledged, and not ready: %q", problems)
	}
}

// stopGently is the signal of a service manager.
func (p *process) stopGently() {
	p.t.Helper()
	if err := p.cmd.Process.Signal(os.Interrupt); err != nil {
		p.t.Fatal(err)
	}
	_ = p.cmd.Wait()
	p.cmd = nil
}
