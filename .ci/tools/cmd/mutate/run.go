// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"time"
)

// outcome is what became of a mutant.
type outcome string

const (
	killed     outcome = "killed"      // a test fails, or does not end
	survived   outcome = "survived"    // all tests pass
	notCovered outcome = "not covered" // no test of its package executes it
	listed     outcome = "listed"      // the list has it, with a reason
	unlisted   outcome = "listed, but killed"
	notRun     outcome = "not run" // the time was over
	invalid    outcome = "invalid" // it does not compile, so it does not count
)

// result is what became of a mutant, and the tests that killed it.
type result struct {
	outcome
	by []string
}

// goPackage is what go list prints about a package.
type goPackage struct {
	Dir, ImportPath string
	Name            string
	GoFiles         []string
	Module          struct{ Dir string }
}

// packages returns the packages of the patterns.
func packages(ctx context.Context, patterns []string) ([]goPackage, error) {
	out, err := command(ctx, "go", append([]string{"list", "-json=Dir,ImportPath,Name,GoFiles,Module"}, patterns...)...)
	if err != nil {
		return nil, err
	}
	var found []goPackage
	for d := json.NewDecoder(bytes.NewReader(out)); d.More(); {
		var p goPackage
		if err := d.Decode(&p); err != nil {
			return nil, err
		}
		found = append(found, p)
	}
	return found, nil
}

// runner runs the tests of one package on its mutants.
type runner struct {
	goPackage
	work    string
	passes  []pass
	covered map[string][]lines
	toggles map[int]toggle // of the mutants in the common program, by their numbers, which begin with 1
}

// pass is some of the tests, and the time that they may take with a mutant, which can make a loop endless.
type pass struct {
	which   []string // flags of the test program
	timeout time.Duration
}

// slowTest is the time from which on a test runs only on mutants that all faster tests accept.
const slowTest = 100 * time.Millisecond

// inPasses reads what "go test -json" prints, and returns the passes.
func inPasses(events []byte) ([]pass, error) {
	var names []string
	var all, slow time.Duration
	for d := json.NewDecoder(bytes.NewReader(events)); d.More(); {
		var e struct {
			Action, Test string
			Elapsed      float64 // in seconds
		}
		if err := d.Decode(&e); err != nil {
			return nil, err
		}
		took := time.Duration(e.Elapsed * float64(time.Second))
		switch {
		case e.Action != "pass" || strings.Contains(e.Test, "/"):
		case e.Test == "": // the package
			all = took
		case took >= slowTest:
			names, slow = append(names, e.Test), slow+took
		}
	}
	these := "^(" + strings.Join(names, "|") + ")$"
	passes := []pass{{[]string{"-test.skip", these}, 10*time.Second + 5*max(0, all-slow)}}
	if len(names) > 0 {
		passes = append(passes, pass{[]string{"-test.run", these}, 10*time.Second + 5*all})
	}
	return passes, nil
}

// prepare runs the tests without a mutant. They must pass. It keeps what they cover, and their times.
func prepare(ctx context.Context, p goPackage, work string) (*runner, error) {
	profile := filepath.Join(work, "cover")
	out, err := command(ctx, "go", "test", "-json", "-vet=off", "-count=1", "-coverprofile", profile, p.ImportPath)
	if err != nil {
		return nil, err
	}
	r := &runner{goPackage: p, work: work}
	if r.passes, err = inPasses(out); err != nil {
		return nil, err
	}
	raw, err := os.ReadFile(profile)
	if err != nil {
		return nil, err
	}
	r.covered, err = covered(raw, p.ImportPath)
	return r, err
}

// run returns what became of each mutant. It begins none after the deadline, unless that is zero.
func (r *runner) run(ctx context.Context, all []mutant, known map[string]string, workers int,
	deadline time.Time) ([]result, error) {
	r.toggles = map[int]toggle{}
	for i, m := range all {
		if m.toggle.before != "" && r.covers(m) && (deadline.IsZero() || time.Now().Before(deadline)) {
			r.toggles[i+1] = m.toggle
		}
	}
	if len(r.toggles) > 0 {
		if err := r.build(ctx, all, r.toggles); err != nil {
			return nil, err
		}
	}
	results, errs := make([]result, len(all)), make([]error, len(all))
	next := make(chan int)
	var wg sync.WaitGroup
	for range workers {
		wg.Go(func() {
			for i := range next {
				results[i], errs[i] = r.one(ctx, all[i], i, deadline)
				if known[all[i].key()] != "" {
					results[i].outcome = inList(results[i].outcome)
				}
			}
		})
	}
	for i := range all {
		next <- i
	}
	close(next)
	wg.Wait()
	if ctx.Err() != nil {
		return nil, ctx.Err()
	}
	return results, errors.Join(errs...)
}

// inList returns what became of a mutant that the list has.
func inList(o outcome) outcome {
	switch o {
	case survived, notCovered:
		return listed
	case killed:
		return unlisted
	}
	return o
}

var failed = regexp.MustCompile(`(?m)^--- FAIL: (\S+)|^panic: (test timed out)`)

func (r *runner) one(ctx context.Context, m mutant, i int, deadline time.Time) (result, error) {
	switch {
	case !r.covers(m):
		return result{outcome: notCovered}, nil
	case !deadline.IsZero() && time.Now().After(deadline):
		return result{outcome: notRun}, nil
	}
	if _, ok := r.toggles[i+1]; ok {
		return r.outcomeOf(ctx, m, r.program(), i+1)
	}
	path := filepath.Join(r.Module.Dir, m.file)
	src, err := os.ReadFile(path)
	if err != nil {
		return result{}, err
	}
	changed := filepath.Join(r.work, fmt.Sprintf("%d.go", i))
	if err := os.WriteFile(changed, m.apply(src), 0o600); err != nil {
		return result{}, err
	}
	overlay, err := json.Marshal(map[string]map[string]string{"Replace": {path: changed}})
	if err != nil {
		return result{}, err
	}
	if err := os.WriteFile(changed+".json", overlay, 0o600); err != nil {
		return result{}, err
	}
	program := changed + ".test"
	defer os.Remove(program)
	if out, err := r.compile(ctx, program, changed+".json"); compileError.Match(out) {
		return result{outcome: invalid}, nil
	} else if err != nil {
		return result{}, fmt.Errorf("%s: %w", m, err)
	}
	return r.outcomeOf(ctx, m, program, 0)
}

// outcomeOf runs the tests of a mutant: the slow ones only if the others do not kill it.
func (r *runner) outcomeOf(ctx context.Context, m mutant, program string, n int) (result, error) {
	for _, p := range r.passes {
		out, err := r.command(ctx, program, n, p).CombinedOutput()
		var exit *exec.ExitError
		switch {
		case err == nil:
			continue
		case ctx.Err() != nil || !errors.As(err, &exit):
			return result{}, fmt.Errorf("%s: %w", m, err)
		}
		by := []string{}
		for _, f := range failed.FindAllSubmatch(out, -1) {
			by = append(by, string(f[1])+string(f[2]))
		}
		return result{killed, by}, nil
	}
	return result{outcome: survived}, nil
}

// covers reports whether the tests execute the mutant. The profile has no declarations, so those
// of constants and variables count as executed.
func (r *runner) covers(m mutant) bool {
	within := false
	for _, b := range r.covered[filepath.Base(m.file)] {
		if b.first <= m.line && m.line <= b.last {
			if b.count > 0 {
				return true
			}
			within = true
		}
	}
	return !within
}

func command(ctx context.Context, name string, args ...string) ([]byte, error) {
	cmd := exec.CommandContext(ctx, name, args...)
	out, err := cmd.Output()
	var failed *exec.ExitError
	if errors.As(err, &failed) {
		return nil, fmt.Errorf("%s: %w\n%s%s", cmd, err, out, failed.Stderr)
	}
	return out, err
}
