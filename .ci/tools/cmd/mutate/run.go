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
	timeout time.Duration
	covered map[string][]lines
	toggles map[int]toggle // of the mutants in the common program, by their numbers, which begin with 1
}

var passed = regexp.MustCompile(`(?m)^ok\s+\S+\s+([0-9.]+s)`)

// prepare runs the tests without a mutant. They must pass. It keeps what they cover, and the time
// that they may take with a mutant, which can make a loop endless.
func prepare(ctx context.Context, p goPackage, work string) (*runner, error) {
	profile := filepath.Join(work, "cover")
	out, err := command(ctx, "go", "test", "-vet=off", "-count=1", "-coverprofile", profile, p.ImportPath)
	if err != nil {
		return nil, err
	}
	r := &runner{goPackage: p, work: work, timeout: 10 * time.Second}
	if took := passed.FindSubmatch(out); took != nil { // it is missing if there are no tests
		d, err := time.ParseDuration(string(took[1]))
		if err != nil {
			return nil, err
		}
		r.timeout += 5 * d
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
		return outcomeOf(ctx, m, r.command(ctx, i+1))
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
	return outcomeOf(ctx, m, exec.CommandContext(ctx, "go", "test", "-vet=off", "-failfast", "-timeout",
		r.timeout.String(), "-overlay", changed+".json", r.ImportPath))
}

// outcomeOf runs the tests of a mutant.
func outcomeOf(ctx context.Context, m mutant, cmd *exec.Cmd) (result, error) {
	out, err := cmd.CombinedOutput()
	var exit *exec.ExitError
	switch {
	case err == nil:
		return result{outcome: survived}, nil
	case ctx.Err() != nil || !errors.As(err, &exit):
		return result{}, fmt.Errorf("%s: %w", m, err)
	case bytes.Contains(out, []byte("[build failed]")):
		return result{outcome: invalid}, nil
	}
	by := []string{}
	for _, f := range failed.FindAllSubmatch(out, -1) {
		by = append(by, string(f[1])+string(f[2]))
	}
	return result{killed, by}, nil
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
