// SPDX-License-Identifier: Apache-2.0

// Command testreport reads the output of "go test -json", prints the progress, and reports
// the result at the end. With files, which may be named pipes, it reads several runs at the
// same time; without, it reads standard input.
//
//	go test -json ./... | testreport -status docs/status.md -log artifacts/test.json
//	testreport -log artifacts/test.json <(go test -json ./a) <(go test -json ./b)
//
// It fails if a package or a test failed, if a test was skipped, or if docs/status.md names a
// test that does not exist or did not run. It lists the slowest tests and packages, and repeats
// at the end what the failed ones printed, because a long log may be cut in its middle. The last
// line is "N passed, N failed".
package main

import (
	"bufio"
	"cmp"
	"encoding/json"
	"flag"
	"fmt"
	"io"
	"os"
	"regexp"
	"slices"
	"strings"
	"sync"
	"time"
)

type event struct {
	Action  string
	Package string
	Test    string
	Elapsed float64
	Output  string
}

type key struct{ pkg, test string }

type report struct {
	mu                      sync.Mutex
	passed, failed, skipped []key
	seconds                 map[key]float64
	output                  map[key][]string
	ran                     map[string]bool // the names of tests that passed
}

func main() {
	status := flag.String("status", "", "the status table whose tests must all have run")
	logPath := flag.String("log", "", "where to keep the raw stream")
	scenarios := flag.String("scenarios", "/testvm/", "packages whose tests are listed with their seconds")
	flag.Parse()
	var raw io.Writer = io.Discard
	if *logPath != "" {
		f, err := os.Create(*logPath)
		if err != nil {
			fail(err)
		}
		defer f.Close()
		raw = f
	}
	inputs := []io.Reader{os.Stdin}
	if flag.NArg() > 0 {
		inputs = nil
	}
	for _, path := range flag.Args() {
		f, err := os.Open(path)
		if err != nil {
			fail(err)
		}
		defer f.Close()
		inputs = append(inputs, f)
	}
	r := &report{seconds: map[key]float64{}, output: map[key][]string{}, ran: map[string]bool{}}
	ends := make(chan error)
	for _, in := range inputs {
		go func() { ends <- r.read(in, raw, *scenarios) }()
	}
	for range inputs {
		if err := <-ends; err != nil {
			fail(err)
		}
	}
	ok := r.summary(*scenarios)
	r.slowest(10)
	if *status != "" {
		ok = r.checkStatus(*status) && ok
	}
	r.failures(80)
	fmt.Printf("%d passed, %d failed\n", len(r.passed), len(r.failed)+len(r.skipped))
	if !ok {
		os.Exit(1)
	}
}

func fail(err error) {
	fmt.Fprintln(os.Stderr, "error:", err)
	os.Exit(1)
}

// read follows one run to its end, and copies it to raw line by line.
func (r *report) read(in io.Reader, raw io.Writer, scenarios string) error {
	s := bufio.NewScanner(in)
	s.Buffer(nil, 16<<20)
	for s.Scan() {
		if err := r.line(s.Bytes(), raw, scenarios); err != nil {
			return err
		}
	}
	return s.Err()
}

func (r *report) line(line []byte, raw io.Writer, scenarios string) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if _, err := fmt.Fprintf(raw, "%s\n", line); err != nil {
		return err
	}
	var e event
	if err := json.Unmarshal(line, &e); err != nil {
		fmt.Printf("%s\n", line) // a build error is plain text
		return nil
	}
	r.event(e, scenarios)
	return nil
}

func (r *report) event(e event, scenarios string) {
	k := key{e.Package, e.Test}
	live := strings.Contains(e.Package+"/", scenarios)
	switch e.Action {
	case "output", "build-output":
		r.output[k] = append(r.output[k], e.Output)
		// The rig reports what it builds and the progress of a scenario.
		if _, said, ok := strings.Cut(e.Output, "rig: "); live && ok {
			fmt.Print("    ", strings.TrimSpace(said), "\n")
		}
	case "pass", "fail", "skip":
		r.seconds[k] = e.Elapsed
		r.done(e.Action, k, live)
		if e.Action == "pass" {
			delete(r.output, k)
		}
	}
}

func (r *report) done(action string, k key, live bool) {
	took := time.Duration(r.seconds[k] * float64(time.Second)).Round(100 * time.Millisecond)
	if k.test == "" {
		mark := map[string]string{"pass": "ok  ", "fail": "FAIL", "skip": "none"}[action]
		fmt.Printf("%s %s (%v)\n", mark, k.pkg, took)
		if action == "fail" {
			r.failed = append(r.failed, k)
			fmt.Print(strings.Join(r.output[k], ""))
		}
		return
	}
	switch action {
	case "pass":
		r.passed = append(r.passed, k)
		r.ran[k.test] = true
	case "fail":
		r.failed = append(r.failed, k)
		fmt.Printf("FAIL %s %s (%v)\n%s", k.pkg, k.test, took, strings.Join(r.output[k], ""))
	case "skip":
		r.skipped = append(r.skipped, k)
		fmt.Printf("SKIP %s %s: a skipped test counts as failed\n%s", k.pkg, k.test, strings.Join(r.output[k], ""))
	}
	if live && action != "skip" {
		fmt.Printf("  %s %s (%v)\n", action, k.test, took)
	}
}

func (r *report) summary(scenarios string) bool {
	fmt.Println("\nboot scenarios:")
	for _, k := range slices.Concat(r.passed, r.failed) {
		if strings.Contains(k.pkg+"/", scenarios) && k.test != "" && !strings.Contains(k.test, "/") {
			verdict := "passed"
			if slices.Contains(r.failed, k) {
				verdict = "FAILED"
			}
			fmt.Printf("  %-7s %6.1f s  %s\n", verdict, r.seconds[k], k.test)
		}
	}
	if len(r.passed) == 0 {
		fmt.Println("failed: no test ran")
	}
	return len(r.failed) == 0 && len(r.skipped) == 0 && len(r.passed) > 0
}

// failures repeats the last n lines of what did not pass.
func (r *report) failures(n int) {
	for _, list := range []struct {
		name string
		all  []key
	}{{"failed", r.failed}, {"skipped", r.skipped}} {
		for _, k := range list.all {
			fmt.Printf("%s: %s\n", list.name, strings.TrimSpace(k.pkg+" "+k.test))
			lines := strings.SplitAfter(strings.Join(r.output[k], ""), "\n")
			fmt.Print(strings.Join(lines[max(0, len(lines)-1-n):], ""))
		}
	}
}

// slowest lists the n slowest tests and packages. A subtest counts as part of its test. Time
// that parallel tests share counts for each.
func (r *report) slowest(n int) {
	var tests, packages []key
	for k := range r.seconds {
		switch {
		case k.test == "":
			packages = append(packages, k)
		case !strings.Contains(k.test, "/"):
			tests = append(tests, k)
		}
	}
	for _, list := range []struct {
		name string
		all  []key
	}{{"tests", tests}, {"packages", packages}} {
		slices.SortFunc(list.all, func(a, b key) int {
			return cmp.Or(cmp.Compare(r.seconds[b], r.seconds[a]), cmp.Compare(a.pkg+a.test, b.pkg+b.test))
		})
		fmt.Printf("\nthe slowest %s:\n", list.name)
		for _, k := range list.all[:min(n, len(list.all))] {
			fmt.Printf("  %6.1f s  %s\n", r.seconds[k], strings.TrimSpace(k.pkg+" "+k.test))
		}
	}
	fmt.Println()
}

// testName matches tests in the status table: `TestX` or `TestX/a case`.
var testName = regexp.MustCompile("`((?:Test|Fuzz)[A-Za-z0-9_]+(?:/[^`]+)?)`")

func (r *report) checkStatus(path string) bool {
	raw, err := os.ReadFile(path)
	if err != nil {
		fail(err)
	}
	ok, named := true, map[string]bool{}
	for n, line := range strings.Split(string(raw), "\n") {
		for _, m := range testName.FindAllStringSubmatch(line, -1) {
			named[m[1]] = true
			if !r.ran[m[1]] {
				fmt.Printf("%s:%d: names %s, which did not run and pass\n", path, n+1, m[1])
				ok = false
			}
		}
	}
	if len(named) == 0 {
		fmt.Printf("%s: names no test at all\n", path)
		return false
	}
	if ok {
		fmt.Printf("%s: all %d tests that it names ran and passed\n", path, len(named))
	}
	return ok
}
