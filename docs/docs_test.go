// SPDX-License-Identifier: Apache-2.0

// Package docs_test holds the pages to the code: what is a list here and a
// table there must be the same.
package docs_test

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"github.com/mcs-attest/mcs-attest/pkg/reason"
	"github.com/mcs-attest/mcs-attest/pkg/restore"
	"github.com/mcs-attest/mcs-attest/testvm/binaries"
)

const root = ".."

func read(t *testing.T, path string) string {
	t.Helper()
	raw, err := os.ReadFile(filepath.Join(root, path))
	if err != nil {
		t.Fatal(err)
	}
	return string(raw)
}

func parse(t *testing.T, path string) *ast.File {
	t.Helper()
	f, err := parser.ParseFile(token.NewFileSet(), filepath.Join(root, path), nil, 0)
	if err != nil {
		t.Fatal(err)
	}
	return f
}

func TestTroubleshootingHasARowForEveryReason(t *testing.T) {
	page := read(t, "docs/troubleshooting.md")
	for _, code := range reason.Codes() {
		i := code.Info()
		kind := "final"
		if i.Temporary {
			kind = "temporary"
		}
		row := fmt.Sprintf("| `%s` | %s | %s | %s |\n", i.Name, kind, i.Title, i.Hint)
		if strings.Count(page, row) != 1 {
			t.Errorf("docs/troubleshooting.md must have this row once:\n%s", row)
		}
	}
	rows := regexp.MustCompile("(?m)^\\| `([A-Za-z]+)` \\| (?:final|temporary) \\|").FindAllStringSubmatch(page, -1)
	for _, row := range rows {
		if _, ok := reason.Parse(row[1]); !ok {
			t.Errorf("docs/troubleshooting.md has a row for %s, which is no reason", row[1])
		}
	}
}

// The reasons of conditions are literals and constants. Those of other objects are not in the table.
func TestTroubleshootingHasARowForEveryConditionReason(t *testing.T) {
	table := regexp.MustCompile(`(?s)### Conditions of the AttestationVerifier\n.*?\n#`).
		FindString(read(t, "docs/troubleshooting.md"))
	literal := regexp.MustCompile(`(?m)(?:Reason:|^\s+[rR]eason\w* +=) +"([A-Za-z]+)"`)
	found := map[string]bool{restore.Reason: true}
	for _, dir := range []string{"verifier/internal/kube", "verifier/internal/poolconfig"} {
		err := filepath.WalkDir(filepath.Join(root, dir), func(path string, d fs.DirEntry, err error) error {
			if err != nil || d.IsDir() || !strings.HasSuffix(path, ".go") || strings.HasSuffix(path, "_test.go") {
				return err
			}
			raw, err := os.ReadFile(path)
			for _, m := range literal.FindAllStringSubmatch(string(raw), -1) {
				found[m[1]] = true
			}
			return err
		})
		if err != nil || len(found) < 20 {
			t.Fatalf("%d reasons, %v", len(found), err)
		}
	}
	page := read(t, "docs/troubleshooting.md")
	_, others, _ := strings.Cut(page, "### The condition Accepted\n")
	for _, of := range []string{"Accepted", "ContradictsAnother", "PoolNotFound"} {
		delete(found, of)
		if !strings.Contains(others, "| `"+of+"` |") {
			t.Errorf("docs/troubleshooting.md has no row for the reason %s of the condition Accepted", of)
		}
	}
	delete(found, "AsExpected")
	events := regexp.MustCompile(`(?m)^\t"[A-Za-z]+": +\{"([A-Za-z]+)", "`).
		FindAllStringSubmatch(read(t, "verifier/internal/kube/records/history.go"), -1)
	if len(events) < 10 {
		t.Errorf("history.go has %d Events", len(events))
	}
	for _, e := range events {
		if !strings.Contains(others, "`"+e[1]+"`") {
			t.Errorf("docs/troubleshooting.md does not have the Event %s", e[1])
		}
	}
	for name := range found {
		if !strings.Contains(table, "`"+name+"`") {
			t.Errorf("docs/troubleshooting.md has no row for the condition reason %s", name)
		}
	}
	for _, row := range regexp.MustCompile("(?m)^\\| [A-Za-z, ]+ \\| (`.*?`) \\|").FindAllStringSubmatch(table, -1) {
		for name := range strings.SplitSeq(row[1], ", ") {
			if !found[strings.Trim(name, "`")] {
				t.Errorf("docs/troubleshooting.md has a row for the condition reason %s, which does not exist", name)
			}
		}
	}
}

func TestOperatingNamesEveryFieldOfTheConfiguration(t *testing.T) {
	page := read(t, "docs/operating.md")
	fields := 0
	ast.Inspect(parse(t, "verifier/internal/config/config.go"), func(n ast.Node) bool {
		spec, ok := n.(*ast.TypeSpec)
		if !ok || spec.Name.Name != "Config" {
			return true
		}
		for _, f := range spec.Type.(*ast.StructType).Fields.List {
			if f.Tag == nil {
				t.Errorf("field %v has no yaml tag", f.Names)
				continue
			}
			tag, err := strconv.Unquote(f.Tag.Value)
			if err != nil {
				t.Fatal(err)
			}
			name, _, _ := strings.Cut(reflect.StructTag(tag).Get("yaml"), ",")
			if fields++; !strings.Contains(page, "\n| `"+name+"` | ") {
				t.Errorf("docs/operating.md has no row for the field %q", name)
			}
		}
		return false
	})
	if fields == 0 {
		t.Fatal("no field found: has Config moved?")
	}
}

func TestOperatingNamesEveryFieldOfTheClouds(t *testing.T) {
	page := read(t, "docs/operating.md")
	structs := map[string]*ast.StructType{}
	for _, decl := range parse(t, "verifier/internal/config/clouds.go").Decls {
		if g, ok := decl.(*ast.GenDecl); ok {
			for _, spec := range g.Specs {
				if s, ok := spec.(*ast.TypeSpec); ok {
					structs[s.Name.Name], _ = s.Type.(*ast.StructType)
				}
			}
		}
	}
	fields := 0
	var walk func(prefix, name string)
	walk = func(prefix, name string) {
		for _, f := range structs[name].Fields.List {
			tag, err := strconv.Unquote(f.Tag.Value)
			if err != nil {
				t.Fatal(err)
			}
			key, options, _ := strings.Cut(reflect.StructTag(tag).Get("yaml"), ",")
			kind := f.Type
			if p, ok := kind.(*ast.StarExpr); ok {
				kind = p.X
			}
			path := prefix + "." + key
			if list, ok := kind.(*ast.ArrayType); ok {
				kind, path = list.Elt, path+"[]"
			}
			if i, ok := kind.(*ast.Ident); ok && structs[i.Name] != nil && i.Name != "Endpoint" {
				walk(path, i.Name)
				continue
			}
			if options == "inline" {
				continue // an endpoint, which the page has once
			}
			path = strings.TrimSuffix(path, "[]")
			// A row may name several of one parent: `a.b`, `.c`.
			if fields++; !strings.Contains(page, "`"+path+"`") &&
				!regexp.MustCompile("(?m)^\\| `"+regexp.QuoteMeta(prefix)+"\\.[a-zA-Z]+`, `\\."+key+"` \\|").MatchString(page) {
				t.Errorf("docs/operating.md does not name the field %s", path)
			}
		}
	}
	for prefix, name := range map[string]string{"aws": "AWS", "gcp": "GCP", "azure": "Azure", "vsphere": "VSphere"} {
		walk(prefix, name)
	}
	if fields < 20 {
		t.Fatalf("only %d fields found: have they moved?", fields)
	}
}

func TestOperatingNamesEveryMetric(t *testing.T) {
	page := read(t, "docs/operating.md")
	for _, path := range []string{"verifier/internal/metrics/metrics.go",
		"verifier/internal/kube/controllers/csr/metrics.go"} {
		found := 0
		ast.Inspect(parse(t, path), func(n ast.Node) bool {
			lit, ok := n.(*ast.BasicLit)
			if !ok || lit.Kind != token.STRING {
				return true
			}
			if name, err := strconv.Unquote(lit.Value); err == nil && strings.HasPrefix(name, "mcs_attest_") {
				if found++; !strings.Contains(page, "\n| `"+name+"` | ") {
					t.Errorf("docs/operating.md has no row for the metric %s", name)
				}
			}
			return true
		})
		if found == 0 {
			t.Fatalf("no metric found in %s: have they moved?", path)
		}
	}
}

// The row of a metric has its labels, in the order of the code, so that each label was looked at.
func TestOperatingNamesEveryLabel(t *testing.T) {
	page := read(t, "docs/operating.md")
	found := 0
	for _, path := range []string{"verifier/internal/metrics/metrics.go",
		"verifier/internal/kube/controllers/csr/metrics.go"} {
		ast.Inspect(parse(t, path), func(n ast.Node) bool {
			call, ok := n.(*ast.CallExpr)
			if !ok || len(call.Args) < 2 {
				return true
			}
			metric, names := "", []ast.Expr{}
			opts, isOpts := call.Args[0].(*ast.CompositeLit)
			list, isList := call.Args[1].(*ast.CompositeLit)
			switch made := fmt.Sprint(call.Fun); {
			case made == "counter", made == "gauge": // name, help, labels
				metric, names = unquoted(t, call.Args[0]), call.Args[2:]
			case isOpts && isList:
				names = list.Elts
				for _, e := range opts.Elts {
					if kv, ok := e.(*ast.KeyValueExpr); ok && fmt.Sprint(kv.Key) == "Name" {
						metric = unquoted(t, kv.Value)
					}
				}
			}
			if len(names) == 0 {
				return true
			}
			labels := []string{}
			for _, e := range names {
				labels = append(labels, "`"+unquoted(t, e)+"`")
			}
			found++
			if row := "\n| `" + metric + "` | " + strings.Join(labels, ", ") + " | "; !strings.Contains(page, row) {
				t.Errorf("docs/operating.md has no row %q", row)
			}
			return true
		})
	}
	if found < 10 {
		t.Fatalf("%d metrics with labels found: have they moved?", found)
	}
}

func unquoted(t *testing.T, e ast.Expr) string {
	t.Helper()
	lit, ok := e.(*ast.BasicLit)
	if !ok {
		t.Fatalf("%T is no literal", e)
	}
	s, err := strconv.Unquote(lit.Value)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// pages are README.md, CONTRIBUTING.md, SECURITY.md and every page below docs.
func pages(t *testing.T) []string {
	t.Helper()
	all := []string{"README.md", "CONTRIBUTING.md", "SECURITY.md"}
	err := filepath.WalkDir(".", func(path string, d fs.DirEntry, err error) error {
		if err == nil && !d.IsDir() && strings.HasSuffix(path, ".md") {
			all = append(all, filepath.Join("docs", path))
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return all
}

var (
	fence = regexp.MustCompile("(?ms)^ *```.*?^ *```$")
	code  = regexp.MustCompile("`[^`\n]*`")
	link  = regexp.MustCompile(`\]\(([^)\s]+)\)`)
)

func TestRelativeLinksLeadSomewhere(t *testing.T) {
	for _, page := range pages(t) {
		text := fence.ReplaceAllString(read(t, page), "")
		for _, m := range link.FindAllStringSubmatch(text, -1) {
			target, anchor, _ := strings.Cut(m[1], "#")
			if strings.Contains(target, "://") || strings.HasPrefix(target, "mailto:") {
				continue
			}
			file := page
			if target != "" {
				file = filepath.Join(filepath.Dir(page), target)
			}
			if _, err := os.Stat(filepath.Join(root, file)); err != nil {
				t.Errorf("%s: the link to %s leads nowhere", page, m[1])
				continue
			}
			if anchor != "" && !anchors(read(t, file))[anchor] {
				t.Errorf("%s: %s has no heading for #%s", page, file, anchor)
			}
		}
	}
}

var heading = regexp.MustCompile(`(?m)^#+ (.*)$`)

// anchors are a page's headings as GitHub and most others turn them into ids.
func anchors(page string) map[string]bool {
	ids := map[string]bool{}
	for _, m := range heading.FindAllStringSubmatch(fence.ReplaceAllString(page, ""), -1) {
		id := strings.Map(func(r rune) rune {
			switch {
			case r == ' ':
				return '-'
			case r == '-', r == '_', r >= 'a' && r <= 'z', r >= '0' && r <= '9', r > 127:
				return r
			}
			return -1
		}, strings.ToLower(m[1]))
		ids[id] = true
	}
	return ids
}

// A path in backticks that begins with a folder of this tree exists.
func TestPages_NameExistingPaths(t *testing.T) {
	path := regexp.MustCompile(`^(agent|verifier|pkg|proto|dracut|deploy|testvm|docs|\.ci)(/[a-z0-9][a-zA-Z0-9_.-]*)+/?$`)
	named := map[string]int{}
	for _, page := range pages(t) {
		for _, word := range code.FindAllString(fence.ReplaceAllString(read(t, page), ""), -1) {
			word = strings.Trim(word, "`")
			if !path.MatchString(word) {
				continue
			}
			if named[page]++; !exists(filepath.Join(root, word)) {
				t.Errorf("%s names %s, which does not exist", page, word)
			}
		}
	}
	if named["docs/architecture.md"] < 20 || len(named) < 5 {
		t.Errorf("paths found: %v", named)
	}
}

func exists(path string) bool {
	_, err := os.Stat(path)
	return err == nil
}

// A command line in a page names a command and flags that the programs have.
func TestCommandLinesInThePagesAreUnderstood(t *testing.T) {
	var bin string
	for _, program := range []func() (string, error){binaries.Agent, binaries.Verifier} {
		path, err := program()
		if err != nil {
			t.Fatal(err)
		}
		bin = filepath.Dir(path)
	}
	help := map[string]string{}
	line := regexp.MustCompile(`(mcs-attest-(?:agent|verifier))((?: [a-z][a-z-]*){1,2})([^\n|>` + "`" + `;&']*)`)
	flag := regexp.MustCompile(`(?:^| )--([a-z0-9-]+)`)
	seen := 0
	for _, page := range pages(t) {
		text := strings.ReplaceAll(read(t, page), "\\\n", " ")
		for _, m := range line.FindAllStringSubmatch(text, -1) {
			flags := flag.FindAllStringSubmatch(m[3], -1)
			if len(flags) == 0 {
				continue // prose, most of it
			}
			command := strings.TrimSpace(m[1] + m[2])
			if _, ok := help[command]; !ok {
				words := strings.Fields(command)
				out, err := exec.Command(filepath.Join(bin, words[0]), append(words[1:], "--help")...).CombinedOutput()
				// The second word may be an argument: "init DIR".
				if err != nil || !strings.Contains(string(out), words[0]+" "+words[1]) {
					t.Errorf("%s: there is no %q (%v)", page, command, err)
				}
				help[command] = string(out)
			}
			for _, f := range flags {
				if seen++; !strings.Contains(help[command], "--"+f[1]) {
					t.Errorf("%s: %q has no flag --%s", page, command, f[1])
				}
			}
		}
	}
	if seen < 10 {
		t.Errorf("only %d flags found in the pages", seen)
	}
}
