// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

// To compile and link a test program takes much longer than most tests. So one program has as many
// mutants as possible. An environment variable, the switch, selects one of them at run time. A
// mutant whose switch does not compile has a program of its own.

const (
	switchVariable = "MUTATE_SWITCH"
	switchFile     = "mutate_switch.go" // is added to the package
	switchPrefix   = "switch_"          // of the names of the changed files
	switchCode     = `
import (
	"os"
	"strconv"
)

var mutateSwitch = func() int {
	n, _ := strconv.Atoi(os.Getenv("` + switchVariable + `"))
	return n
}()

func mutateOne(n int) int {
	if mutateSwitch == n {
		return 1
	}
	return 0
}

func mutateError(n int, err error) error {
	if mutateSwitch == n {
		return nil
	}
	return err
}
`
)

// toggle is how the switch of a mutant changes the source: by texts before and after a part of it.
// There, mutateNumber is the number of the mutant.
type toggle struct {
	start, end    int
	before, after string
}

// insertion is one of the texts of a toggle.
type insertion struct {
	at, other int // where it is, and where the other one of the toggle is
	number    int
	text      string
	opens     bool
}

// order has the texts that end a part first, and the nested parts within the others.
func order(a, b insertion) int {
	if a.at != b.at {
		return cmp.Compare(a.at, b.at)
	}
	if a.opens != b.opens {
		if b.opens {
			return -1
		}
		return 1
	}
	inner := -1
	if a.opens {
		inner = 1
	}
	return cmp.Or(cmp.Compare(b.other, a.other), inner*cmp.Compare(a.number, b.number))
}

// switched returns a source with the switches of mutants, which have their numbers as keys, and where
// each of them begins and ends.
func switched(src []byte, chosen map[int]toggle) ([]byte, map[int][2]int) {
	var all []insertion
	for n, s := range chosen {
		of := strings.NewReplacer("mutateNumber", strconv.Itoa(n))
		all = append(all, insertion{s.start, s.end, n, of.Replace(s.before), true},
			insertion{s.end, s.start, n, of.Replace(s.after), false})
	}
	slices.SortFunc(all, order)
	var out bytes.Buffer
	places, done := map[int][2]int{}, 0
	for _, i := range all {
		out.Write(src[done:i.at])
		done = i.at
		begin := out.Len()
		out.WriteString(i.text)
		if i.opens {
			places[i.number] = [2]int{begin, 0}
		} else {
			places[i.number] = [2]int{places[i.number][0], out.Len()}
		}
	}
	out.Write(src[done:])
	return out.Bytes(), places
}

// The compiler prints no column above 255.
var compileError = regexp.MustCompile(`(?m)^(?:\S*/)?([^/\s:]+\.go):(\d+):(?:(\d+):)? `)

// build compiles the program with the switches of the mutants. Those that it does not have are removed
// from the toggles.
func (r *runner) build(ctx context.Context, all []mutant, toggles map[int]toggle) error {
	byFile := map[string]map[int]toggle{}
	for n, s := range toggles {
		name := all[n-1].file
		if byFile[name] == nil {
			byFile[name] = map[int]toggle{}
		}
		byFile[name][n] = s
	}
	for range 20 {
		sources, places, err := r.write(byFile)
		if err != nil {
			return err
		}
		out, err := r.compile(ctx, r.program(), filepath.Join(r.work, "switches.json"))
		if err == nil {
			return r.try(ctx)
		}
		removed := 0
		for _, f := range compileError.FindAllSubmatch(out, -1) {
			for name, chosen := range byFile {
				if switchPrefix+filepath.Base(name) == string(f[1]) {
					removed += remove(chosen, toggles, sources[name], places[name], number(string(f[2])), number(string(f[3])))
				}
			}
		}
		if removed == 0 {
			break
		}
	}
	clear(toggles) // each mutant has its own program
	return ctx.Err()
}

// remove removes the innermost mutant at a place that does not compile, or all of its line.
func remove(chosen, toggles map[int]toggle, src []byte, places map[int][2]int, line, column int) int {
	start := 0
	for range line - 1 {
		start += bytes.IndexByte(src[start:], '\n') + 1
	}
	end := start + len(bytes.SplitN(src[start:], []byte("\n"), 2)[0])
	at, best := start+column-1, 0
	var within []int
	for n, p := range places {
		if p[0] <= end && start < p[1] {
			within = append(within, n)
		}
		if column > 0 && p[0] <= at && at < p[1] && (best == 0 || p[1]-p[0] < places[best][1]-places[best][0]) {
			best = n
		}
	}
	if best != 0 {
		within = []int{best}
	}
	removed := 0
	for _, n := range within {
		if _, ok := chosen[n]; ok {
			removed++
		}
		delete(chosen, n)
		delete(toggles, n)
	}
	return removed
}

// write writes the sources with switches and their overlay.
func (r *runner) write(byFile map[string]map[int]toggle) (map[string][]byte, map[string]map[int][2]int, error) {
	sources, places, replace := map[string][]byte{}, map[string]map[int][2]int{}, map[string]string{}
	put := func(path string, content []byte) error {
		replace[path] = filepath.Join(r.work, switchPrefix+filepath.Base(path))
		return os.WriteFile(replace[path], content, 0o600)
	}
	for name, chosen := range byFile {
		path := filepath.Join(r.Module.Dir, name)
		src, err := os.ReadFile(path)
		if err != nil {
			return nil, nil, err
		}
		sources[name], places[name] = switched(src, chosen)
		if err := put(path, sources[name]); err != nil {
			return nil, nil, err
		}
	}
	if err := put(filepath.Join(r.Dir, switchFile), []byte("package "+r.Name+"\n"+switchCode)); err != nil {
		return nil, nil, err
	}
	overlay, err := json.Marshal(map[string]any{"Replace": replace})
	if err != nil {
		return nil, nil, err
	}
	return sources, places, os.WriteFile(filepath.Join(r.work, "switches.json"), overlay, 0o600)
}

func (r *runner) program() string { return filepath.Join(r.work, "switches.test") }

// compile compiles the tests, and returns what the compiler prints.
func (r *runner) compile(ctx context.Context, program, overlay string) ([]byte, error) {
	return exec.CommandContext(ctx, "go", "test", "-c", "-vet=off", "-gcflags=-e", "-o", program,
		"-overlay", overlay, r.ImportPath).CombinedOutput()
}

// command returns the command that runs tests with the switch of a mutant.
func (r *runner) command(ctx context.Context, program string, n int, p pass) *exec.Cmd {
	cmd := exec.CommandContext(ctx, program, append([]string{"-test.paniconexit0", "-test.failfast",
		"-test.timeout", p.timeout.String()}, p.which...)...)
	cmd.Dir = r.Dir
	cmd.Env = append(os.Environ(), fmt.Sprintf("%s=%d", switchVariable, n))
	return cmd
}

// try checks that the tests pass if no mutant is selected.
func (r *runner) try(ctx context.Context) error {
	for _, p := range r.passes {
		if out, err := r.command(ctx, r.program(), 0, p).CombinedOutput(); err != nil {
			return fmt.Errorf("%s without a mutant: %w\n%s", r.ImportPath, err, strings.TrimSpace(string(out)))
		}
	}
	return nil
}
