// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"fmt"
	"io"
	"os"
	"strings"
	"sync"
	"testing"
)

// Several parallel runs yield one report, and the log has complete lines.
func TestReadFollowsSeveralRuns(t *testing.T) {
	r := &report{seconds: map[key]float64{}, output: map[key][]string{}, ran: map[string]bool{}}
	var raw bytes.Buffer
	var runs sync.WaitGroup
	for run := range 4 {
		in, out := io.Pipe()
		go func() {
			for i := range 100 {
				fmt.Fprintf(out, `{"Action":"pass","Package":"p%d","Test":"Test%d","Elapsed":%d}`+"\n", run, i, i)
			}
			out.Close()
		}()
		runs.Go(func() {
			if err := r.read(in, &raw, "/testvm/"); err != nil {
				t.Error(err)
			}
		})
	}
	runs.Wait()
	if len(r.passed) != 400 || strings.Count(raw.String(), "\n") != 400 {
		t.Errorf("%d passed, %d lines in the log", len(r.passed), strings.Count(raw.String(), "\n"))
	}
}

// The last lines of a failed test are repeated, of one that passed none.
func TestFailures(t *testing.T) {
	r := &report{seconds: map[key]float64{}, output: map[key][]string{}, ran: map[string]bool{}}
	for _, e := range []event{
		{"output", "p", "TestA", 0, "first\n"}, {"output", "p", "TestA", 0, "second\n"},
		{"output", "p", "TestA", 0, "third\n"}, {"output", "p", "TestB", 0, "nothing wrong\n"},
		{"pass", "p", "TestB", 1, ""}, {"fail", "p", "TestA", 1, ""},
		{"output", "p", "", 0, "FAIL\n"}, {"fail", "p", "", 1, ""},
	} {
		printed(t, func() { r.event(e, "/testvm/") })
	}
	got := printed(t, func() { r.failures(2) })
	if want := "failed: p TestA\nsecond\nthird\nfailed: p\nFAIL\n"; got != want {
		t.Errorf("got %q", got)
	}
}

// printed returns what f writes to standard output.
func printed(t *testing.T, f func()) string {
	t.Helper()
	stdout := os.Stdout
	read, write, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	os.Stdout = write
	f()
	os.Stdout = stdout
	write.Close()
	got, err := io.ReadAll(read)
	if err != nil {
		t.Fatal(err)
	}
	return string(got)
}

// The slowest come first, and a subtest counts as part of its test.
func TestSlowest(t *testing.T) {
	r := &report{seconds: map[key]float64{
		{"p", ""}: 9, {"q", ""}: 3, {"p", "TestA"}: 1, {"p", "TestB"}: 5, {"p", "TestB/sub"}: 7, {"q", "TestC"}: 2,
	}}
	got := printed(t, func() { r.slowest(2) })
	const want = "\nthe slowest tests:\n     5.0 s  p TestB\n     2.0 s  q TestC\n\nthe slowest packages:\n     9.0 s  " +
		"p\n     3.0 s  q\n\n"
	if got != want {
		t.Errorf("got %q", got)
	}
}
