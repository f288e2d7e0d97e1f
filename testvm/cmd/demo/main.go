// Command demo boots one virtual machine from power-on to provisioned and tells
// what happens while it happens: the machine's console, the verifier's audit
// log, and what an administrator types, each with a name in front.
//
// Everything is real but the hardware: kernel, dracut initramfs, Ignition,
// verifier. `make demo` runs it.
package main

import (
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"time"

	"github.com/mcs-attest/mcs-attest/testvm/rig"
)

func main() {
	start := time.Now()
	s := &stage{done: make(chan struct{})}
	interrupted := make(chan os.Signal, 1)
	signal.Notify(interrupted, os.Interrupt, syscall.SIGTERM)
	go s.play(tell)
	select {
	case <-s.done:
	case <-interrupted:
		s.say("demo", "interrupted")
		s.fail()
	}
	s.cleanUp()
	if s.Failed() {
		os.Exit(1)
	}
	s.say("demo", "done in %.0f s", time.Since(start).Seconds())
}

const content = "pull secret, kubeconfig, and all that a node needs\n"

// tell is the story.
func tell(s *stage) {
	r := rig.New(s)
	s.say("demo", "a machine without any identity asks a cluster for its configuration;")
	s.say("demo", "it receives it once its TPM has proved which machine it is, and not before")
	s.rule("the cluster's side: a folder, and a verifier that serves it")
	v := r.Verifier(rig.VerifierConfig{OnAudit: s.audit})
	v.Write("configs/worker.ign", rig.Config(content))
	s.say("you", "$ mcs-attest-verifier init DIR --origin %s --pool worker", v.Origin())
	s.say("you", "$ mcs-attest-verifier serve --config DIR/mcs-attest.yaml")
	s.say("verifier", "serves %s/config/worker, to nobody yet", v.Origin())

	s.rule("a new machine is switched on; nobody has told the cluster about it")
	tpm := r.NewTPM()
	node := r.Boot(rig.VM{Name: "demo", TPM: tpm, Pointer: v.Pointer("worker"), OnLine: s.console})
	v.WaitAudit("", "denied", "")

	s.rule("it waits; an administrator names its TPM's key")
	s.say("you", "$ mcs-attest-verifier enroll --config DIR/mcs-attest.yaml --name worker-0 --pool worker --ek-sha256 %.16s...", tpm.EKSHA256()[1])
	v.Enroll("worker-0", "worker", tpm)
	node.WantProvisioned()

	s.rule("the machine's disk, read from outside")
	s.say("you", "$ debugfs -R 'cat /etc/provisioned' DISK")
	got := node.ReadFile("/etc/provisioned")
	s.say("disk", "%s", strings.TrimSpace(got))
	if got != content {
		s.Fatalf("the disk does not hold what the config says")
	}
	if left := node.TokensLeft(); len(left) > 0 {
		s.Fatalf("a token was left in %s", strings.Join(left, ", "))
	}
	s.say("disk", "no token anywhere: not on the disk, not in the journal, not on the console")

	s.rule("what the cluster knows about it")
	s.say("you", "$ mcs-attest-verifier status --config DIR/mcs-attest.yaml")
	s.lines("verifier", v.Run("status"))
	v.WantRecord("worker-0", "Fetched")

	s.rule("anybody else who asks, without a token")
	s.curl(v)
}

// curl asks as a stranger on the network would.
func (s *stage) curl(v *rig.Verifier) {
	url := v.Origin() + "/config/worker"
	s.say("you", "$ curl --cacert DIR/tls/ca.crt %s", url)
	out, err := exec.Command("curl", "--silent", "--show-error", "--max-time", "20", "--include",
		"--cacert", filepath.Join(v.Dir, "tls/ca.crt"),
		"--connect-to", fmt.Sprintf("10.0.2.2:%d:127.0.0.1:%d", v.Port, v.Port), url).CombinedOutput()
	if err != nil {
		s.Fatalf("curl: %v\n%s", err, out)
	}
	s.lines("verifier", string(out))
	if !strings.HasPrefix(string(out), "HTTP/1.1 401") {
		s.Fatalf("a stranger was not refused")
	}
	v.WaitAudit("fetch", "denied", "TokenMissing")
}

// unit is a line of systemd's about a unit that finished, or failed.
var unit = regexp.MustCompile(`^\[ *(OK|FAILED) *\] (Finished|Failed to start) .* - (Ignition \(.*\)|.*Machine Config Server.*|.*PCR 11.*)\.$`)

// agentLine is the agent's own, as the journal copies it to the console.
var agentLine = regexp.MustCompile(`mcs-attest-agent\[\d+\]: (.*)$`)

// console tells the lines of the node that belong to the story.
func (s *stage) console(line string) {
	if m := agentLine.FindStringSubmatch(line); m != nil {
		s.say("node", "%s", m[1])
	} else if m := unit.FindStringSubmatch(line); m != nil {
		s.say("node", "%s: %s", strings.ToLower(m[1]), m[3])
	} else if strings.HasPrefix(line, "Welcome to ") {
		s.say("node", "%s", line)
	} else if text, ok := strings.CutPrefix(line, "rig: "); ok && !strings.HasPrefix(text, "done") {
		s.say("node", "%s", text)
	}
}

// audit tells a decision.
func (s *stage) audit(a rig.Audit) {
	line := a.Event + " " + a.Outcome
	if a.Machine != "" {
		line += ", machine " + a.Machine
	}
	if a.Reason != "" {
		line += ", " + a.Reason
	}
	if a.Temporary {
		line += " (it may ask again)"
	}
	s.say("verifier", "%s", line)
}
