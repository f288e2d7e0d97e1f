// SPDX-License-Identifier: Apache-2.0

// Package stage prints the output of a demo: one line after the other, each with its source. The
// rig uses a Stage like a test.
package stage

import (
	"fmt"
	"os"
	"os/signal"
	"regexp"
	"runtime"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/mcs-attest/mcs-attest/testvm/rig"
)

// Stage is a running demo.
type Stage struct {
	name string
	done chan struct{}

	mu     sync.Mutex
	failed bool
	// interrupted is true if the demo is ending, so later failures are expected.
	interrupted bool
	cleanups    []func()
	last        string
}

// Play runs a demo to its end, to the first Fatalf, or until an interrupt. It cleans up and returns
// the exit status.
func Play(name string, story func(*Stage)) int {
	start := time.Now()
	s := &Stage{name: name, done: make(chan struct{})}
	interrupted := make(chan os.Signal, 1)
	signal.Notify(interrupted, os.Interrupt, syscall.SIGTERM)
	go func() {
		defer close(s.done)
		story(s)
	}()
	select {
	case <-s.done:
	case <-interrupted:
		s.Say("demo", "interrupted")
		s.mu.Lock()
		s.interrupted = true
		s.mu.Unlock()
		s.cleanUp()
		return 130
	}
	s.cleanUp()
	if s.Failed() {
		return 1
	}
	s.Say("demo", "done in %.0f s", time.Since(start).Seconds())
	return 0
}

// Say prints one line with its source. It does not print the same line twice in a row, because a
// machine that waits repeats its lines.
func (s *Stage) Say(who, format string, a ...any) {
	s.mu.Lock()
	defer s.mu.Unlock()
	line := fmt.Sprintf("%-8s │ %s", who, fmt.Sprintf(format, a...))
	if line != s.last {
		fmt.Println(line)
	}
	s.last = line
}

// Lines prints each line of a text.
func (s *Stage) Lines(who, text string) {
	for _, l := range strings.Split(strings.TrimSpace(text), "\n") {
		s.Say(who, "%s", strings.TrimRight(l, "\r"))
	}
}

// Rule begins the next part.
func (s *Stage) Rule(title string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	fmt.Printf("\n── %s\n", title)
}

// Helper does nothing. Like Name, Logf, Fatalf, Failed and Cleanup it exists because a test has it.
func (s *Stage) Helper() {}

// Name returns the name of the demo.
func (s *Stage) Name() string { return s.name }

// Logf prints a progress line.
func (s *Stage) Logf(f string, a ...any) {
	line := strings.TrimPrefix(strings.TrimPrefix(fmt.Sprintf(f, a...), "rig: "), "cluster: ")
	if !strings.HasPrefix(line, s.Name()+":") {
		s.Say("demo", "%s", line)
	}
}

// Fatalf ends the demo, as in a test.
func (s *Stage) Fatalf(f string, a ...any) {
	s.mu.Lock()
	if !s.interrupted {
		s.failed = true
		fmt.Fprintf(os.Stderr, "error: "+f+"\n", a...)
	}
	s.mu.Unlock()
	runtime.Goexit()
}

// Failed reports whether Fatalf was called.
func (s *Stage) Failed() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.failed
}

// Cleanup registers a function that is called after the demo, the last one first.
func (s *Stage) Cleanup(f func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.cleanups = append(s.cleanups, f)
}

func (s *Stage) cleanUp() {
	s.mu.Lock()
	list := s.cleanups
	s.cleanups = nil
	s.mu.Unlock()
	for _, f := range slices.Backward(list) {
		f()
	}
}

// unit matches systemd's line about a unit that finished or failed.
var unit = regexp.MustCompile(
	`^\[ *(OK|FAILED) *\] (Finished|Failed to start) .* - (Ignition \(.*\)|.*Machine Config Server.*|.*PCR 11.*)\.$`)

// agentLine matches the agent's own lines, which the journal copies to the console.
var agentLine = regexp.MustCompile(`mcs-attest-agent[\w-]*\[\d+\]: (.*)$`)

// Console prints the lines of the node that are relevant for the demo.
func (s *Stage) Console(line string) {
	if m := agentLine.FindStringSubmatch(line); m != nil {
		s.Say("node", "%s", m[1])
	} else if m := unit.FindStringSubmatch(line); m != nil {
		s.Say("node", "%s: %s", strings.ToLower(m[1]), m[3])
	} else if strings.HasPrefix(line, "Welcome to ") {
		s.Say("node", "%s", line)
	} else if text, ok := strings.CutPrefix(line, "rig: "); ok && !strings.HasPrefix(text, "done") &&
		!strings.HasPrefix(text, "QEMU ended") {
		s.Say("node", "%s", text)
	}
}

// Audit prints a decision of a verifier.
func (s *Stage) Audit(who string, a rig.Audit) {
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
	s.Say(who, "%s", line)
}
