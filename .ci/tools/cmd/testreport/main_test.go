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

// The slowest come first, and a subtest counts as part of its test.
func TestSlowest(t *testing.T) {
	r := &report{seconds: map[key]float64{
		{"p", ""}: 9, {"q", ""}: 3, {"p", "TestA"}: 1, {"p", "TestB"}: 5, {"p", "TestB/sub"}: 7, {"q", "TestC"}: 2,
	}}
	stdout := os.Stdout
	read, write, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	os.Stdout = write
	r.slowest(2)
	os.Stdout = stdout
	write.Close()
	got, err := io.ReadAll(read)
	if err != nil {
		t.Fatal(err)
	}
	const want = "\nthe slowest tests:\n     5.0 s  p TestB\n     2.0 s  q TestC\n\nthe slowest packages:\n     9.0 s  " +
		"p\n     3.0 s  q\n\n"
	if string(got) != want {
		t.Errorf("got %q", got)
	}
}
