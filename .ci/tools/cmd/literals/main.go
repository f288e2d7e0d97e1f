// SPDX-License-Identifier: Apache-2.0

// Command literals writes the messages of Go files as plain text for the prose linter, which
// reads only the comments of Go code. .ci/prose calls it.
//
//	literals -o DIR FILE...
//
// For each FILE it writes DIR/FILE.txt. Each string literal with at least three words is on
// the line that it has in FILE, so a finding in the text is a finding in the source. Literals
// that are joined by + are one message, on the line of the first. Import paths and struct tags
// are omitted.
package main

import (
	"flag"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"path/filepath"
	"strconv"
	"strings"
)

// minWords is the number of words from which a literal is prose. Shorter ones are names and keys.
const minWords = 3

func main() {
	dir := flag.String("o", "", "write the texts below `DIR`")
	flag.Parse()
	for _, file := range flag.Args() {
		if err := write(*dir, file); err != nil {
			fmt.Fprintln(os.Stderr, "error:", err)
			os.Exit(1)
		}
	}
}

func write(dir, file string) error {
	src, err := os.ReadFile(file)
	if err != nil {
		return err
	}
	text, err := messages(file, src)
	if err != nil || text == "" {
		return err
	}
	out := filepath.Join(dir, file+".txt")
	if err := os.MkdirAll(filepath.Dir(out), 0o755); err != nil {
		return err
	}
	return os.WriteFile(out, []byte(text), 0o644)
}

// messages returns the messages of a source file, each on its line. The result is empty if there
// are none.
func messages(name string, src []byte) (string, error) {
	files := token.NewFileSet()
	parsed, err := parser.ParseFile(files, name, src, parser.SkipObjectResolution)
	if err != nil {
		return "", err
	}
	lines := make([]string, files.File(parsed.FileStart).LineCount())
	found := false
	ast.Inspect(parsed, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.ImportSpec:
			return false
		case *ast.Field:
			n.Tag = nil
		case *ast.BinaryExpr, *ast.BasicLit:
			text, ok := joined(n)
			if !ok {
				return true
			}
			if len(strings.Fields(text)) >= minWords {
				found = true
				first := files.Position(n.Pos()).Line - 1
				for i, line := range strings.Split(text, "\n") {
					// Only a raw string has as many lines in the source.
					lines[min(first+i, len(lines)-1)] += line + " . "
				}
			}
			return false
		}
		return true
	})
	if !found {
		return "", nil
	}
	return strings.Join(lines, "\n") + "\n", nil
}

// joined returns the text of a string literal, or of several that are joined by +.
func joined(n ast.Node) (string, bool) {
	switch n := n.(type) {
	case *ast.BasicLit:
		if n.Kind != token.STRING {
			return "", false
		}
		text, err := strconv.Unquote(n.Value)
		if n.Value[0] == '"' {
			text = strings.ReplaceAll(text, "\n", " ")
		}
		return text, err == nil
	case *ast.BinaryExpr:
		left, ok := joined(n.X)
		right, ok2 := joined(n.Y)
		return left + right, n.Op == token.ADD && ok && ok2
	}
	return "", false
}
