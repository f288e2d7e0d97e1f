// Package stage is where a demo tells its story: one line after the other, each
// with its speaker in front. The rig takes the stage for a test.
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

// Stage is a story under way.
type Stage struct {
	name string
	done chan struct{}

	mu     sync.Mutex
	failed bool
	// interrupted: what fails from now on was told to end.
	interrupted bool
	cleanups    []func()
	last        string
}

// Play tells a story to its end, to the first Fatalf, or until somebody
// interrupts; it cleans up and returns the exit status.
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

// Say prints one line with its speaker in front. The same line again is not told
// twice in a row: a machine that waits repeats itself.
func (s *Stage) Say(who, format string, a ...any) {
	s.mu.Lock()
	defer s.mu.Unlock()
	line := fmt.Sprintf("%-8s │ %s", who, fmt.Sprintf(format, a...))
	if line != s.last {
		fmt.Println(line)
	}
	s.last = line
}

// Lines says each line of a text.
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

// Helper does nothing. It is here, as Name, Logf, Fatalf, Failed and Cleanup are, because a test has it.
func (s *Stage) Helper() {}

// Name is the story's.
func (s *Stage) Name() string { return s.name }

// Logf says a line of progress.
func (s *Stage) Logf(f string, a ...any) {
	line := strings.TrimPrefix(strings.TrimPrefix(fmt.Sprintf(f, a...), "rig: "), "cluster: ")
	if !strings.HasPrefix(line, s.Name()+":") {
		s.Say("demo", "%s", line)
	}
}

// Fatalf ends the story, as in a test.
func (s *Stage) Fatalf(f string, a ...any) {
	s.mu.Lock()
	if !s.interrupted {
		s.failed = true
		fmt.Fprintf(os.Stderr, "error: "+f+"\n", a...)
	}
	s.mu.Unlock()
	runtime.Goexit()
}

// Failed says whether there was a Fatalf.
func (s *Stage) Failed() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.failed
}

// Cleanup is called after the story, the last one first.
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

// unit is a line of systemd's about a unit that finished, or failed.
var unit = regexp.MustCompile(
	`^\[ *(OK|FAILED) *\] (Finished|Failed to start) .* - (Ignition \(.*\)|.*Machine Config Server.*|.*PCR 11.*)\.$`)

// agentLine is the agent's own, as the journal copies it to the console.
var agentLine = regexp.MustCompile(`mcs-attest-agent\[\d+\]: (.*)$`)

// Console tells the lines of the node that belong to the story.
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

// Audit tells a decision of a verifier.
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
