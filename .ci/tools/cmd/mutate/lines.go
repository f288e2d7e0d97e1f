// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"context"
	"fmt"
	"path"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

// lines are lines of a file, and how often the tests executed them.
type lines struct{ first, last, count int }

var profileLine = regexp.MustCompile(`^(.+):(\d+)\.\d+,(\d+)\.\d+ \d+ (\d+)$`)

// covered reads the profile of a package: its blocks by the name of their file.
func covered(profile []byte, importPath string) (map[string][]lines, error) {
	found := map[string][]lines{}
	for line := range strings.Lines(string(profile)) {
		line = strings.TrimSpace(line)
		if line == "" || strings.HasPrefix(line, "mode:") {
			continue
		}
		f := profileLine.FindStringSubmatch(line)
		if f == nil {
			return nil, fmt.Errorf("read the profile: %q", line)
		}
		if path.Dir(f[1]) == importPath {
			name := path.Base(f[1])
			found[name] = append(found[name], lines{number(f[2]), number(f[3]), number(f[4])})
		}
	}
	return found, nil
}

var hunk = regexp.MustCompile(`^@@ -\S+ \+(\d+)(?:,(\d+))? @@`)

// changed returns the lines of Go files that differ from a commit, by file.
func changed(ctx context.Context, commit string) (map[string][]lines, error) {
	out, err := command(ctx, "git", "diff", "--unified=0", "--no-color", "--no-ext-diff", "--relative",
		"--dst-prefix=b/", commit, "--", "*.go")
	if err != nil {
		return nil, err
	}
	return hunks(out), nil
}

func hunks(diff []byte) map[string][]lines {
	found, name := map[string][]lines{}, ""
	for line := range bytes.Lines(diff) {
		text := strings.TrimSpace(string(line))
		if after, ok := strings.CutPrefix(text, "+++ "); ok {
			name = strings.TrimPrefix(after, "b/")
		}
		f := hunk.FindStringSubmatch(text)
		if f == nil || f[2] == "0" {
			continue
		}
		first, n := number(f[1]), 1
		if f[2] != "" {
			n = number(f[2])
		}
		found[name] = append(found[name], lines{first: first, last: first + n - 1})
	}
	return found
}

func contains(all []lines, line int) bool {
	return slices.ContainsFunc(all, func(l lines) bool { return l.first <= line && line <= l.last })
}

// number returns the value of digits. Those that do not fit are no line of a file.
func number(digits string) int {
	n, _ := strconv.Atoi(digits)
	return n
}
