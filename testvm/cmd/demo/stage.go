package main

import (
	"fmt"
	"os"
	"runtime"
	"slices"
	"strings"
	"sync"
)

// stage is where the story is told; the rig takes it for a test.
type stage struct {
	done chan struct{}

	mu       sync.Mutex
	failed   bool
	cleanups []func()
	last     string
}

// play tells the story to its end, or to the first Fatalf.
func (s *stage) play(story func(*stage)) {
	defer close(s.done)
	story(s)
}

// say prints one line with its speaker in front. The same line again is not told
// twice in a row: a machine that waits repeats itself.
func (s *stage) say(who, format string, a ...any) {
	s.mu.Lock()
	defer s.mu.Unlock()
	line := fmt.Sprintf("%-8s │ %s", who, fmt.Sprintf(format, a...))
	if line != s.last {
		fmt.Println(line)
	}
	s.last = line
}

func (s *stage) lines(who, text string) {
	for _, l := range strings.Split(strings.TrimSpace(text), "\n") {
		s.say(who, "%s", strings.TrimRight(l, "\r"))
	}
}

// rule begins the next part.
func (s *stage) rule(title string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	fmt.Printf("\n── %s\n", title)
}

func (s *stage) Helper()      {}
func (s *stage) Name() string { return "demo" }
func (s *stage) Logf(f string, a ...any) {
	if line := strings.TrimPrefix(fmt.Sprintf(f, a...), "rig: "); !strings.HasPrefix(line, s.Name()+":") {
		s.say("demo", "%s", line)
	}
}

// Fatalf ends the story, as in a test.
func (s *stage) Fatalf(f string, a ...any) {
	fmt.Fprintf(os.Stderr, "error: "+f+"\n", a...)
	s.fail()
	runtime.Goexit()
}

func (s *stage) fail() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.failed = true
}

func (s *stage) Failed() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.failed
}

func (s *stage) Cleanup(f func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.cleanups = append(s.cleanups, f)
}

func (s *stage) cleanUp() {
	s.mu.Lock()
	list := s.cleanups
	s.cleanups = nil
	s.mu.Unlock()
	for _, f := range slices.Backward(list) {
		f()
	}
}
