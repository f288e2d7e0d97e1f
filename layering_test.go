// SPDX-License-Identifier: Apache-2.0

// Package mcsattest_test checks the layers of docs/architecture.md: a package imports only packages of lower layers.
package mcsattest_test

import (
	"encoding/json"
	"errors"
	"go/ast"
	"go/parser"
	"go/token"
	"io"
	"io/fs"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

const module = "github.com/mcs-attest/mcs-attest"

type listed struct {
	ImportPath string
	Imports    []string
	Deps       []string
}

// list returns the packages of the module that match patterns, without their tests.
func list(t *testing.T, patterns ...string) []listed {
	t.Helper()
	out, err := exec.Command("go", append([]string{"list", "-json=ImportPath,Imports,Deps"}, patterns...)...).Output()
	if err != nil {
		var exit *exec.ExitError
		if errors.As(err, &exit) {
			t.Fatalf("go list: %s", exit.Stderr)
		}
		t.Fatal(err)
	}
	var all []listed
	for dec := json.NewDecoder(strings.NewReader(string(out))); ; {
		var p listed
		if err := dec.Decode(&p); errors.Is(err, io.EOF) {
			break
		} else if err != nil {
			t.Fatal(err)
		}
		all = append(all, p)
	}
	if len(all) == 0 {
		t.Fatalf("no package matches %v", patterns)
	}
	return all
}

func under(path string, prefixes ...string) bool {
	return slices.ContainsFunc(prefixes, func(p string) bool { return path == p || strings.HasPrefix(path, p+"/") })
}

func TestImportsGoDownOnly(t *testing.T) {
	kubernetesClients := []string{"k8s.io/client-go", "sigs.k8s.io/controller-runtime", "github.com/openshift/client-go"}
	for _, floor := range []struct {
		packages  string
		forbidden []string // nowhere among the dependencies
		direct    []string // not imported by the package itself
	}{
		{"./proto/...", []string{module + "/pkg", module + "/agent", module + "/verifier", "k8s.io"}, nil},
		{"./pkg/...", append([]string{module + "/agent", module + "/verifier", "github.com/spf13/cobra",
			"github.com/spf13/pflag"}, kubernetesClients...),
			[]string{"os", "os/exec", "flag", "math/rand", "math/rand/v2"}},
		{"./agent/...", []string{module + "/verifier", module + "/pkg/api", "k8s.io", "sigs.k8s.io", "github.com/openshift",
			otherLibraries[0], otherLibraries[1], otherLibraries[2]}, nil},
		// The program itself, which has to fit into an initramfs; what tests it may know more.
		{"./agent", []string{module + "/pkg/cms", "github.com/go-jose", module + "/testvm"}, nil},
		{"./verifier/...", []string{module + "/agent", module + "/pkg/evidence/tpm2/attester",
			module + "/pkg/evidence/awssts/attester"}, nil},
		// It doubles the program: docs/designs/003-size-of-the-verifier.md.
		{"./verifier", []string{"github.com/google/go-cmp"}, nil},
	} {
		for _, p := range list(t, floor.packages) {
			for _, d := range p.Deps {
				if under(d, floor.forbidden...) {
					t.Errorf("%s depends on %s, which is above its floor", p.ImportPath, d)
				}
			}
			for _, i := range p.Imports {
				// A support package of tests (swtpmtest, eventlogtest) may start programs.
				if slices.Contains(floor.direct, i) && !strings.HasSuffix(p.ImportPath, "test") {
					t.Errorf("%s imports %s: a package of this floor is pure", p.ImportPath, i)
				}
			}
		}
	}
}

// otherLibraries also verify TPM evidence, and accept more of it.
var otherLibraries = []string{"github.com/google/go-tpm-tools", "github.com/google/go-eventlog",
	"github.com/google/go-attestation/attest"}

// Commands print the second opinion of other libraries. What serves machines does not depend on them, so it cannot
// decide by them.
func TestOtherLibrariesDecideNothing(t *testing.T) {
	const v = module + "/verifier"
	opinion := v + "/internal/secondopinion"
	commands := []string{v + "/internal/cli/policy", v + "/internal/cli/machine"}
	found := false
	for _, p := range list(t, "./pkg/...", "./verifier/...") {
		found = found || p.ImportPath == opinion
		for _, i := range p.Imports {
			switch {
			case under(i, otherLibraries...) && p.ImportPath != opinion && !strings.HasSuffix(p.ImportPath, "test"):
				t.Errorf("%s imports %s: only package secondopinion may", p.ImportPath, i)
			case i == opinion && !under(p.ImportPath, commands...):
				t.Errorf("%s imports %s: only commands may", p.ImportPath, i)
			}
		}
	}
	if !found {
		t.Errorf("%s does not exist: has it moved?", opinion)
	}
	for _, p := range list(t, v+"/internal/server", v+"/internal/service", v+"/internal/kube/...",
		v+"/internal/standalone", v+"/internal/cli/serve", v+"/internal/cli/controller") {
		for _, d := range p.Deps {
			if under(d, otherLibraries...) {
				t.Errorf("%s depends on %s, which may not decide", p.ImportPath, d)
			}
		}
	}
}

// The programs themselves import these libraries: a test or a dependency that imports one is not enough.
func TestProductUsesTheLibrariesOfTheField(t *testing.T) {
	unused := map[string]bool{
		"github.com/google/go-tpm": true, "github.com/google/go-tpm-tools": true, "github.com/google/go-attestation": true,
		"cloud.google.com/go/compute/metadata": true, "github.com/aws/aws-sdk-go-v2": true, "golang.org/x/crypto": true,
	}
	for _, p := range list(t, "./agent/...", "./pkg/...", "./verifier/...") {
		if strings.HasSuffix(p.ImportPath, "test") {
			continue
		}
		for _, i := range p.Imports {
			maps.DeleteFunc(unused, func(library string, _ bool) bool { return under(i, library) })
		}
	}
	for library := range unused {
		t.Errorf("no program imports %s", library)
	}
}

// A go.mod that replaces or excludes a module makes 'go install .../verifier@VERSION' fail.
func TestGoModIsInstallable(t *testing.T) {
	raw, err := os.ReadFile("go.mod")
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(raw)) {
		if f := strings.Fields(line); len(f) > 0 && slices.Contains([]string{"replace", "exclude"}, f[0]) {
			t.Errorf("go.mod: %s", line)
		}
	}
}

// Rules inside the verifier. Of one noun, controller or backend, no other may know.
func TestLayersInsideTheVerifier(t *testing.T) {
	const v = module + "/verifier/internal"
	backends := []string{v + "/cluster", v + "/kube", v + "/standalone"}
	for _, rule := range []struct {
		packages  string
		forbidden []string
		reason    string
	}{
		{"./verifier/internal/server", append([]string{v + "/folder", v + "/cli"}, backends...),
			"a folder and a cluster are served alike; what differs is a method of backend.Backend"},
		{"./verifier/internal/backend",
			append([]string{v + "/service", v + "/server", v + "/folder", v + "/cli"}, backends...),
			"it is what the server and the backends share"},
		{"./verifier/internal/service", append([]string{v + "/server", v + "/folder", v + "/cli"}, backends...),
			"an appraisal is the same whatever keeps the records"},
		{"./verifier/internal/rehearsal", append([]string{v + "/service", v + "/server", v + "/redeem", v + "/credential",
			v + "/keys", v + "/store", module + "/pkg/token", module + "/pkg/credential", module + "/pkg/record",
			module + "/pkg/gate"}, backends...),
			"T74: a rehearsal can neither sign a token, nor issue a credential, nor change a record"},
		{"./verifier/internal/kube/inventory/...", []string{v + "/service", v + "/server", v + "/cli", v + "/standalone"},
			"a backend reports state; it does not serve it"},
		{"./verifier/internal/kube/...", []string{v + "/service", v + "/server", v + "/cli", v + "/standalone"},
			"a backend reports state; it does not serve it"},
		{"./verifier/internal/standalone/...",
			[]string{v + "/service", v + "/server", v + "/cli", v + "/cluster", v + "/kube"},
			"a backend reports state; a folder needs no cluster"},
		{"./verifier/internal/operator/...", []string{v + "/server", v + "/cli"},
			"a command's logic does not depend on flags"},
	} {
		for _, p := range list(t, rule.packages) {
			for _, d := range p.Deps {
				if under(d, rule.forbidden...) {
					t.Errorf("%s depends on %s: %s", p.ImportPath, d, rule.reason)
				}
			}
		}
	}
	// Siblings share through their parent's other packages, so that each can be read, changed and deleted by itself.
	for _, family := range []struct {
		parent string
		shared []string // what each of them may import
	}{
		{v + "/cli", []string{v + "/cli/env"}},
		{v + "/kube/controllers", nil},
	} {
		for _, p := range list(t, "."+strings.TrimPrefix(family.parent, module)+"/...") {
			own := child(p.ImportPath, family.parent)
			for _, i := range p.Imports {
				if own != "" && child(i, family.parent) != "" && child(i, family.parent) != own && !under(i, family.shared...) {
					t.Errorf("%s imports its sibling %s", p.ImportPath, i)
				}
			}
		}
	}
}

// child is the first element of path below parent; empty where it is not below it.
func child(path, parent string) string {
	rest, ok := strings.CutPrefix(path, parent+"/")
	if !ok {
		return ""
	}
	name, _, _ := strings.Cut(rest, "/")
	return name
}

// each parses every Go file below root that is neither a test nor generated.
func each(t *testing.T, root string, visit func(path string, fset *token.FileSet, f *ast.File)) {
	t.Helper()
	err := filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if d.IsDir() || !strings.HasSuffix(path, ".go") || strings.HasSuffix(path, "_test.go") {
			return nil
		}
		fset := token.NewFileSet()
		f, err := parser.ParseFile(fset, path, nil, parser.ParseComments)
		if err != nil {
			return err
		}
		if !ast.IsGenerated(f) {
			visit(path, fset, f)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}

// What is below package controllers and is set up with a manager runs in the process. The test reads the files
// itself: go test keeps its result for as long as these are the same.
func TestEveryControllerIsWired(t *testing.T) {
	const parent = "verifier/internal/kube/controllers"
	wired, found := map[string]bool{}, map[string]bool{}
	each(t, parent, func(path string, _ *token.FileSet, f *ast.File) {
		dir := filepath.ToSlash(filepath.Dir(path))
		if dir == parent {
			for _, i := range f.Imports {
				wired[strings.TrimPrefix(strings.Trim(i.Path.Value, `"`), module+"/")] = true
			}
			return
		}
		for _, d := range f.Decls {
			m, ok := d.(*ast.FuncDecl)
			if ok && m.Recv != nil && slices.Contains([]string{"Reconcile", "SetupWithManager"}, m.Name.Name) {
				found[dir] = true
			}
		}
	})
	for dir := range found {
		if !wired[dir] {
			t.Errorf("%s: package controllers does not run it", dir)
		}
	}
	if len(found) < 10 {
		t.Errorf("only %d controllers found below %s: have they moved?", len(found), parent)
	}
}

func TestPurePackagesHaveNoClockOfTheirOwn(t *testing.T) {
	each(t, "pkg", func(_ string, fset *token.FileSet, f *ast.File) {
		if strings.HasSuffix(f.Name.Name, "test") {
			return // a support package of tests
		}
		ast.Inspect(f, func(n ast.Node) bool {
			sel, ok := n.(*ast.SelectorExpr)
			if !ok {
				return true
			}
			if x, ok := sel.X.(*ast.Ident); ok && x.Name == "time" &&
				slices.Contains([]string{"Now", "Since", "Until", "Sleep"}, sel.Sel.Name) {
				t.Errorf("%s: time.%s in a pure package; take the time as an argument", fset.Position(n.Pos()), sel.Sel.Name)
			}
			return true
		})
	})
}

func TestEveryPackageHasOneSubjectAndSaysWhich(t *testing.T) {
	vague := []string{"util", "utils", "common", "helpers", "types", "misc", "shared"}
	documented := map[string]bool{}
	for _, root := range []string{"pkg", "agent", "verifier", "testvm"} {
		each(t, root, func(path string, _ *token.FileSet, f *ast.File) {
			dir := filepath.Dir(path)
			documented[dir] = documented[dir] || f.Doc != nil
			if slices.Contains(vague, f.Name.Name) {
				t.Errorf("%s: a package called %s", path, f.Name.Name)
			}
		})
	}
	for dir, ok := range documented {
		if !ok {
			t.Errorf("%s has no package comment", dir)
		}
	}
}
