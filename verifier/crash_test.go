// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"context"
	"crypto/x509"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/mcs-attest/mcs-attest/pkg/evidence/tpm2/attester/swtpmtest"
	"github.com/mcs-attest/mcs-attest/testvm/binaries"
	"github.com/mcs-attest/mcs-attest/testvm/freeport"
	"github.com/mcs-attest/mcs-attest/verifier/internal/cli/setup"
	"github.com/mcs-attest/mcs-attest/verifier/internal/config"
	"github.com/mcs-attest/mcs-attest/verifier/internal/operator"
	"github.com/mcs-attest/mcs-attest/verifier/internal/standalone"
	"github.com/mcs-attest/mcs-attest/verifier/internal/store"
)

// process is a verifier as users run it, which can be killed.
type process struct {
	t       testing.TB
	program string
	v       *verifier // its folder and address; nothing of it runs in this process
	metrics string
	env     []string // beside that of the test
	cmd     *exec.Cmd
	log     *bytes.Buffer
}

func newProcess(t testing.TB) *process {
	t.Helper()
	program, err := binaries.Verifier()
	if err != nil {
		t.Fatal(err)
	}
	p := &process{t: t, program: program}
	v := &verifier{t: t, dir: t.TempDir(), log: &lockedBuffer{}, addr: freeAddress(t), roots: x509.NewCertPool()}
	if err := setup.Init(io.Discard, v.dir, setup.InitOptions{Origins: []string{testOrigin}, Pools: []string{"worker"}},
		time.Now()); err != nil {
		t.Fatal(err)
	}
	v.write("mcs-attest.yaml", "origins: [\""+testOrigin+"\"]\nrequestsPerSecond: 10000\n")
	ca, err := os.ReadFile(filepath.Join(v.dir, "tls", "ca.crt"))
	if err != nil || !v.roots.AppendCertsFromPEM(ca) {
		t.Fatal("no CA", err)
	}
	p.v, p.metrics = v, freeAddress(t)
	t.Cleanup(p.kill)
	return p
}

func freeAddress(t testing.TB) string {
	t.Helper()
	port, err := freeport.Pick()
	if err != nil {
		t.Fatal(err)
	}
	return fmt.Sprintf("127.0.0.1:%d", port)
}

// start returns when it serves.
func (p *process) start() {
	p.t.Helper()
	p.log = &bytes.Buffer{}
	p.cmd = exec.Command(p.program, "serve", "--config", filepath.Join(p.v.dir, "mcs-attest.yaml"), "--listen", p.v.addr,
		"--metrics-listen", p.metrics)
	p.cmd.Stderr = p.log
	p.cmd.Env = append(os.Environ(), p.env...)
	if err := p.cmd.Start(); err != nil {
		p.t.Fatal(err)
	}
	eventually(p.t, func() bool {
		conn, err := net.Dial("tcp", p.v.addr)
		if err == nil {
			_ = conn.Close()
		}
		return err == nil
	}, func() string {
		p.kill()
		return "it does not serve:\n" + p.log.String()
	})
}

// kill is kill -9.
func (p *process) kill() {
	if p.cmd != nil {
		_ = p.cmd.Process.Kill()
		_ = p.cmd.Wait()
		p.cmd = nil
	}
}

// live is the id of the machine's live token as the records on disk have it.
func (p *process) live() string {
	p.t.Helper()
	c, err := config.Load(filepath.Join(p.v.dir, "mcs-attest.yaml"))
	if err != nil {
		p.t.Fatal(err)
	}
	s, err := standalone.OfflineState(c, time.Now())
	if err != nil {
		p.t.Fatal("the records do not open after a kill:", err)
	}
	for _, m := range s.Machines {
		if m.Name == "default/m1" && m.Record != nil && m.Record.Token != nil {
			return m.Record.Token.ID
		}
	}
	return ""
}

// tokenID is the id of a token that the folder's keys have signed.
func (p *process) tokenID(raw string) string {
	p.t.Helper()
	c, err := config.Load(filepath.Join(p.v.dir, "mcs-attest.yaml"))
	if err != nil {
		p.t.Fatal(err)
	}
	keys, err := (&operator.Folder{Config: c}).Keys(p.t.Context())
	if err != nil {
		p.t.Fatal(err)
	}
	claims, err := keys.Tokens.Verify(time.Now(), []byte(raw))
	if err != nil {
		p.t.Fatal(err)
	}
	return claims.ID
}

// forget takes the machine's record away, so that the next attestation need not
// wait for the one before to be some seconds old.
func (p *process) forget() {
	p.t.Helper()
	s, err := store.Open(filepath.Join(p.v.dir, "state", "records.db"))
	if err != nil {
		p.t.Fatal(err)
	}
	defer s.Close()
	if _, err := s.Prune(context.Background(), func(string) bool { return false }); err != nil {
		p.t.Fatal(err)
	}
}

// TestKill9LosesNoAnsweredRecord kills the verifier at random moments of
// attestations. Whatever was answered is on disk afterwards: the record's live
// token is the answered one, or, where the answer was lost with the process, one
// that was written and never answered; never none, and never half a database.
func TestKill9LosesNoAnsweredRecord(t *testing.T) {
	p := newProcess(t)
	p.start()
	n := newNode(t, p.v, swtpmtest.Start(t, "sha256"))
	p.v.write("attestations/m1.yaml", enrolment("m1", "  pool: worker\n", n.id.EKSPKI))
	p.kill()

	var answered, cut int
	// The kill comes before, within or after the answer. How long an answer takes depends on the
	// machine, so the window follows what happened.
	window := 9 * time.Millisecond
	for deadline := time.Now().Add(6 * time.Minute); time.Now().Before(deadline) && (answered < 6 || cut < 6); {
		p.start()
		n.connect()
		if err := n.ask(); err != nil {
			p.kill()
			t.Fatalf("%v\n%s", err, p.log)
		}
		request := n.evidence()
		killed := make(chan struct{})
		delay := time.Duration(rand.Int64N(int64(window)))
		go func() {
			defer close(killed)
			time.Sleep(delay)
			_ = p.cmd.Process.Kill()
		}()
		res, err := n.send(request)
		<-killed
		p.kill()
		live := p.live()
		if err != nil {
			if strings.Contains(err.Error(), "permission_denied") {
				t.Fatalf("denied: %v", err)
			}
			cut++
			if window = window * 5 / 4; answered == 0 {
				window *= 2 // far too short, on a slow machine
			}
		} else {
			answered++
			window = window * 4 / 5
			if id := p.tokenID(res.GetToken()); id != live {
				t.Fatalf("killed after %v: token %s was answered, the record has %q", delay, id, live)
			}
		}
		p.forget()
	}
	t.Logf("%d answered, %d cut off", answered, cut)
	if answered == 0 || cut == 0 {
		t.Errorf("%d answered and %d cut off: the kills did not come at different moments", answered, cut)
	}
}
