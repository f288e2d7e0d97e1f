// SPDX-License-Identifier: Apache-2.0

// Command mutate tests the tests. It changes one thing in the code of a package, a mutant, and runs
// the package's own tests, the slow ones last. If they still pass, they would not notice that mistake.
//
//	mutate [-since COMMIT] [-only REGEXP] [-budget TIME] [-v] PACKAGE...
//
// "make mutate PKG=./pkg/appraisal" calls it for all code of a package, and "make mutate" for the lines
// that a change touches. The kinds of mutants are:
//
//   - boundary: < becomes <=
//   - negation: == becomes !=, !x becomes x
//   - operand: an operand of && is true, an operand of || is false
//   - skip: what an if or a case protects from, by a return or a jump, is not noticed
//   - error: a return returns no error
//   - statement: a call or an assignment does not happen
//   - arithmetic: + becomes -
//   - constant: a number is one larger, true is false
//
// A mutant that behaves as the code does cannot be noticed. The list of equivalent mutants
// (.ci/mutants.txt) has each with a reason. Its lines have the form that mutate prints, without the
// line number: "FILE: FUNCTION: KIND: EXPRESSION # REASON". An entry that fits no mutant is an error,
// and so is one that a test notices.
//
// The exit code is 1 if too few mutants are killed or listed. With -since or -only, that is any other one.
// One program has most mutants; see switches.go. Each other one leaves a compiled package in the build
// cache of Go, which removes it after some days.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strings"
	"time"
)

var errSurvivors = errors.New("mutants survive; add tests, or list them with a reason if they are equivalent")

type options struct {
	equivalents string
	since       string
	only        string
	budget      time.Duration
	workers     int
	least       float64
	check       bool
	verbose     bool
}

func main() {
	var o options
	flag.StringVar(&o.equivalents, "equivalents", ".ci/mutants.txt", "the list of equivalent mutants: `FILE`")
	flag.StringVar(&o.since, "since", "", "only mutants of lines that differ from `COMMIT`")
	flag.StringVar(&o.only, "only", "", "only mutants that match `REGEXP`, in the form of the list")
	flag.DurationVar(&o.budget, "budget", 0, "begin no mutant after this `TIME`; the others are counted as not run")
	flag.IntVar(&o.workers, "workers", runtime.NumCPU(), "test so many mutants at the same time: `NUMBER`")
	flag.Float64Var(&o.least, "least", 97, "the `PERCENTAGE` that has to be killed or listed, without -since and -only")
	flag.BoolVar(&o.check, "check", false, "only check the list of equivalent mutants, and run no test")
	flag.BoolVar(&o.verbose, "v", false, "also print the mutants that are killed, and by which tests")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	err := mutate(ctx, o, flag.Args(), os.Stdout)
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "error:", err)
		os.Exit(1)
	}
}

func mutate(ctx context.Context, o options, patterns []string, out io.Writer) error {
	text, err := os.ReadFile(o.equivalents)
	if err != nil {
		return err
	}
	known, err := parseEquivalents(string(text))
	if err != nil {
		return fmt.Errorf("%s: %w", o.equivalents, err)
	}
	if o.check {
		return check(known)
	}
	only, err := regexp.Compile(o.only)
	if err != nil {
		return err
	}
	var touched map[string][]lines
	if o.since != "" {
		if touched, err = changed(ctx, o.since); err != nil {
			return err
		}
	}
	found, err := packages(ctx, patterns)
	if err != nil {
		return err
	}
	var deadline time.Time
	if o.budget > 0 {
		deadline = time.Now().Add(o.budget)
	}
	bad := false
	for _, p := range found {
		all, err := p.mutants()
		if err != nil {
			return err
		}
		all = slices.DeleteFunc(all, func(m mutant) bool {
			return o.since != "" && !contains(touched[m.file], m.line) || !only.MatchString(m.key())
		})
		if len(all) == 0 {
			continue
		}
		results, err := test(ctx, p, all, known, o.workers, deadline)
		if err != nil {
			return err
		}
		rate := report(out, p.ImportPath, all, results, o.verbose)
		wrong := slices.ContainsFunc(results, func(r result) bool { return r.outcome == unlisted })
		bad = bad || wrong || rate < o.least || (o.since != "" || o.only != "") && rate < 100
	}
	if bad {
		return errSurvivors
	}
	return nil
}

// mutants returns the mutants of a package.
func (p goPackage) mutants() ([]mutant, error) {
	var all []mutant
	for _, file := range p.GoFiles {
		src, err := os.ReadFile(filepath.Join(p.Dir, file))
		if err != nil {
			return nil, err
		}
		name, err := filepath.Rel(p.Module.Dir, filepath.Join(p.Dir, file))
		if err != nil {
			return nil, err
		}
		found, err := mutants(name, src)
		if err != nil {
			return nil, err
		}
		all = append(all, found...)
	}
	return all, nil
}

func test(ctx context.Context, p goPackage, all []mutant, known map[string]string, workers int,
	deadline time.Time) ([]result, error) {
	work, err := os.MkdirTemp("", "mutate")
	if err != nil {
		return nil, err
	}
	defer os.RemoveAll(work)
	r, err := prepare(ctx, p, work)
	if err != nil {
		return nil, err
	}
	return r.run(ctx, all, known, workers, deadline)
}

// report prints what became of the mutants, and returns the percentage that was killed or is listed.
// Those that were not run do not count.
func report(out io.Writer, importPath string, all []mutant, results []result, verbose bool) float64 {
	n := map[outcome]int{}
	for i, m := range all {
		r := results[i]
		n[r.outcome]++
		if by := strings.Join(r.by, " "); r.outcome == unlisted || verbose && r.outcome == killed {
			fmt.Fprintf(out, "%s by %s: %s\n", r.outcome, by, m)
		} else if r.outcome == survived || r.outcome == notCovered || r.outcome == notRun {
			fmt.Fprintf(out, "%s: %s\n", r.outcome, m)
		}
	}
	good, total := n[killed]+n[unlisted]+n[listed], n[killed]+n[listed]+n[unlisted]+n[survived]+n[notCovered]
	rate := 100.0
	if total > 0 {
		rate = 100 * float64(good) / float64(total)
	}
	fmt.Fprintf(out, "%s: %d mutants, %d killed, %d listed, %d survived, %d not covered: %.1f %%", importPath, total,
		n[killed]+n[unlisted], n[listed], n[survived], n[notCovered], rate)
	if n[notRun] > 0 {
		fmt.Fprintf(out, " (%d not run)", n[notRun])
	}
	fmt.Fprintln(out)
	return rate
}

// parseEquivalents reads the list: the reasons by key. Empty lines and lines that begin with # are
// comments.
func parseEquivalents(text string) (map[string]string, error) {
	known := map[string]string{}
	for line := range strings.Lines(text) {
		line = strings.TrimSpace(line)
		if line == "" || strings.HasPrefix(line, "#") {
			continue
		}
		i := strings.LastIndex(line, " # ")
		if i < 0 || len(strings.Fields(line[i:])) < 4 {
			return nil, fmt.Errorf("%q has no reason of at least three words after #", line)
		}
		key := strings.TrimSpace(line[:i])
		if known[key] != "" {
			return nil, fmt.Errorf("%q is listed twice", key)
		}
		known[key] = line[i+3:]
	}
	return known, nil
}

// check reports entries of the list that fit no mutant, because the code has changed.
func check(known map[string]string) error {
	files := map[string]map[string]bool{}
	var errs []error
	for key := range known {
		name, _, _ := strings.Cut(key, ": ")
		if files[name] == nil {
			files[name] = map[string]bool{}
			src, err := os.ReadFile(name)
			if err != nil {
				return err
			}
			all, err := mutants(name, src)
			if err != nil {
				return err
			}
			for _, m := range all {
				files[name][m.key()] = true
			}
		}
		if !files[name][key] {
			errs = append(errs, fmt.Errorf("listed, but the code has no such mutant: %s", key))
		}
	}
	return errors.Join(errs...)
}
