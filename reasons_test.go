// SPDX-License-Identifier: Apache-2.0

package mcsattest_test

import (
	"go/ast"
	"go/parser"
	"go/token"
	"path/filepath"
	"strings"
	"testing"

	"github.com/mcs-attest/mcs-attest/pkg/reason"
)

// A reason that no code gives describes a denial that does not exist, on every page that lists the reasons.
func TestEveryReasonIsProduced(t *testing.T) {
	produced := map[string]bool{}
	for _, root := range []string{"pkg", "verifier", "agent"} {
		each(t, root, func(path string, _ *token.FileSet, f *ast.File) {
			// A support package of tests may inject any reason.
			if !strings.HasSuffix(filepath.Dir(path), "test") {
				for name := range producedIn(f) {
					produced[name] = true
				}
			}
		})
	}
	for _, c := range reason.Codes() {
		if !produced[c.String()] {
			t.Errorf("no code produces the reason %s", c)
		}
	}
}

// producedIn returns the reasons that a file uses as a value. A reason that is only compared with another one
// is not produced.
func producedIn(f *ast.File) map[string]bool {
	compared, produced := map[ast.Expr]bool{}, map[string]bool{}
	ast.Inspect(f, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.CaseClause:
			for _, e := range n.List {
				compared[e] = true
			}
		case *ast.BinaryExpr:
			equal := n.Op == token.EQL || n.Op == token.NEQ
			compared[n.X], compared[n.Y] = equal, equal
		case *ast.IndexExpr:
			compared[n.Index] = true
		case *ast.KeyValueExpr:
			compared[n.Key] = true
		case *ast.SelectorExpr:
			if of, ok := n.X.(*ast.Ident); ok && of.Name == "reason" && !compared[n] {
				produced[n.Sel.Name] = true
			}
		}
		return true
	})
	return produced
}

func TestEveryReasonIsProduced_IgnoresComparisons(t *testing.T) {
	f, err := parser.ParseFile(token.NewFileSet(), "x.go", `package x
		func f() error {
			switch {
			case c == reason.Compared, reason.Switched != c, table[reason.Index]:
			}
			switch c { case reason.Case: }
			_ = map[reason.Code]bool{reason.Key: true}
			d := reason.Denial{Code: reason.Literal}
			return reason.Deny(reason.Argument, "")
		}`, 0)
	if err != nil {
		t.Fatal(err)
	}
	got := producedIn(f)
	for _, name := range []string{"Compared", "Switched", "Index", "Case", "Key"} {
		if got[name] {
			t.Errorf("%s is only compared", name)
		}
	}
	for _, name := range []string{"Literal", "Argument"} {
		if !got[name] {
			t.Errorf("%s is produced", name)
		}
	}
}
