// SPDX-License-Identifier: Apache-2.0

package docs_test

import (
	"io/fs"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// exempt are the files and folders that may still cite documents outside of the tree.
var exempt = []string{"docs/references_test.go"}

// goTests returns the names of all test functions of the tree.
func goTests(t *testing.T) []string {
	t.Helper()
	declared := regexp.MustCompile(`(?m)^func ((?:Test|Fuzz|Benchmark)[A-Za-z0-9_]+)\(`)
	var names []string
	for _, path := range files(t, func(path string) bool { return strings.HasSuffix(path, "_test.go") }) {
		for _, m := range declared.FindAllStringSubmatch(read(t, path), -1) {
			names = append(names, m[1])
		}
	}
	return names
}

// files returns the paths of the tree's files that match. What builds and tests leave there is not of the tree.
func files(t *testing.T, match func(path string) bool) []string {
	t.Helper()
	var all []string
	err := filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if d.IsDir() {
			if slices.Contains([]string{".git", "artifacts", "bin"}, d.Name()) {
				return fs.SkipDir
			}
			return nil
		}
		if !d.Type().IsRegular() { // a socket or a link that a walk through README left
			return nil
		}
		path, err = filepath.Rel(root, path)
		if match(path) {
			all = append(all, path)
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return all
}

// within reports whether path is one of the files or in one of the folders.
func within(folders []string, path string) bool {
	return slices.ContainsFunc(folders, func(folder string) bool {
		return path == folder || strings.HasPrefix(path, folder+"/")
	})
}

func TestEachAttackNumberIsDefined(t *testing.T) {
	row := regexp.MustCompile(`(?m)^\| (T\d\d) \| \S.* \| \S.* \|$`)
	defined := map[string]bool{}
	for _, m := range row.FindAllStringSubmatch(read(t, "docs/threat-model.md"), -1) {
		if defined[m[1]] {
			t.Errorf("docs/threat-model.md defines %s twice", m[1])
		}
		defined[m[1]] = true
	}
	status := read(t, "docs/status.md")
	for id := range defined {
		if !strings.Contains(status, "\n| "+id+" | ") {
			t.Errorf("docs/status.md has no row for %s", id)
		}
	}
	number := regexp.MustCompile(`_(T\d\d)`)
	for _, name := range goTests(t) {
		if !strings.HasPrefix(name, "TestAttack_") {
			continue
		}
		numbers := number.FindAllStringSubmatch(name, -1)
		if numbers == nil {
			t.Errorf("%s has no attack number", name)
		}
		for _, m := range numbers {
			if !defined[m[1]] {
				t.Errorf("%s: docs/threat-model.md has no row for %s", name, m[1])
			}
		}
	}
}

func TestEachFeatureRowIsDescribed(t *testing.T) {
	features := 0
	for _, line := range strings.Split(read(t, "docs/status.md"), "\n") {
		if !regexp.MustCompile(`^\| [A-G]\d+ \|`).MatchString(line) {
			continue
		}
		features++
		cells := strings.Split(line, " | ")
		if len(cells) < 4 || len(strings.Fields(cells[1])) < 3 || strings.Contains(cells[1], "`Test") {
			t.Errorf("docs/status.md: this row does not say what it means:\n%.120s", line)
		}
	}
	if features < 100 {
		t.Errorf("docs/status.md has %d features only", features)
	}
}

// A test that a page names exists. A name that ends in * stands for all that begin so.
func TestPagesNameTestsThatExist(t *testing.T) {
	tests := goTests(t)
	named := regexp.MustCompile("`((?:Test|Fuzz|Benchmark)[A-Z][A-Za-z0-9_]*)(\\*)?(?:/[^`]+)?`")
	for _, page := range append(pages(t), "CHANGELOG.md") {
		for _, m := range named.FindAllStringSubmatch(read(t, page), -1) {
			if !slices.ContainsFunc(tests, func(name string) bool {
				return name == m[1] || m[2] == "*" && strings.HasPrefix(name, m[1])
			}) {
				t.Errorf("%s names %s%s, which does not exist", page, m[1], m[2])
			}
		}
	}
}

func TestCitedSecurityRulesExist(t *testing.T) {
	page := read(t, "docs/security-rules.md")
	cited := regexp.MustCompile(`rules? (\d+)(?:[^\n.;]*?) of\s+(?://\s+)?docs/security-rules\.md`)
	for _, path := range files(t, func(path string) bool {
		return slices.Contains([]string{".go", ".md", ".yaml"}, filepath.Ext(path))
	}) {
		for _, m := range cited.FindAllStringSubmatch(read(t, path), -1) {
			if !strings.Contains(page, "\n## Rule "+m[1]+": ") {
				t.Errorf("%s cites rule %s, which docs/security-rules.md does not have", path, m[1])
			}
		}
	}
}

func TestReferencesStayInsideTheTree(t *testing.T) {
	outside := regexp.MustCompile(`\b(DESIGN|FEATURES|THREATS|STYLE)\b`)
	for _, path := range files(t, func(path string) bool { return !within(exempt, path) }) {
		for n, line := range strings.Split(read(t, path), "\n") {
			if m := outside.FindString(line); m != "" {
				t.Errorf("%s:%d cites %s, a document that is not in the tree", path, n+1, m)
			}
		}
	}
}
