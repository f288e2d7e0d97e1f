// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"regexp"
	"strings"
)

// mutant is one small change of a source file.
type mutant struct {
	file       string // relative to the module
	function   string // with its receiver's type, or the name of a constant or variable
	kind       string // of the change; a second one of the same kind and expression ends in #2
	expression string // on one line
	line       int
	start, end int // the bytes that text replaces
	text       string
	toggle     toggle // its zero value if the mutant has none
}

// key identifies a mutant in the list of equivalent mutants. It does not change if lines are
// added above the mutant, or if its code is formatted differently.
func (m mutant) key() string {
	return fmt.Sprintf("%s: %s: %s: %s", m.file, m.function, m.kind, m.expression)
}

// String returns the key with the line number.
func (m mutant) String() string {
	return fmt.Sprintf("%s:%d: %s: %s: %s", m.file, m.line, m.function, m.kind, m.expression)
}

// apply returns the source with the change.
func (m mutant) apply(src []byte) []byte {
	return []byte(string(src[:m.start]) + m.text + string(src[m.end:]))
}

// mutants returns the mutants of a source file, in its order. Generated code has none.
func mutants(name string, src []byte) ([]mutant, error) {
	files := token.NewFileSet()
	parsed, err := parser.ParseFile(files, name, src, parser.ParseComments|parser.SkipObjectResolution)
	if err != nil {
		return nil, err
	}
	if ast.IsGenerated(parsed) {
		return nil, nil
	}
	s := &source{name: name, src: src, file: files.File(parsed.FileStart),
		guarded: map[ast.Stmt]bool{}, listed: map[ast.Stmt]bool{}, seen: map[string]int{}}
	for _, decl := range parsed.Decls {
		switch d := decl.(type) {
		case *ast.FuncDecl:
			s.function, s.constant = d.Name.Name, false
			if d.Recv != nil {
				s.function = strings.TrimLeft(s.text(d.Recv.List[0].Type), "*") + "." + s.function
			}
			if d.Body != nil {
				ast.Walk(visitor{s, d.Type.Results}, d.Body)
			}
		case *ast.GenDecl:
			s.constant = d.Tok == token.CONST
			for _, spec := range d.Specs {
				if v, ok := spec.(*ast.ValueSpec); ok {
					s.function = v.Names[0].Name
					ast.Walk(visitor{s, nil}, v)
				}
			}
		}
	}
	return s.found, nil
}

// source is a file and the mutants that were found in it.
type source struct {
	name     string
	src      []byte
	file     *token.File
	function string
	constant bool              // the declaration is of constants
	guarded  map[ast.Stmt]bool // returns that a mutant of their condition skips
	listed   map[ast.Stmt]bool // statements of a list, not those of an if or a for
	seen     map[string]int
	found    []mutant
}

// text returns the source of a node on one line.
func (s *source) text(n ast.Node) string { return s.between(n.Pos(), n.End()) }

// raw returns the source of a node. Only this can be compiled: a comment may end a line of it.
func (s *source) raw(n ast.Node) string {
	return string(s.src[s.file.Offset(n.Pos()):s.file.Offset(n.End())])
}

func (s *source) between(start, end token.Pos) string {
	return strings.Join(strings.Fields(string(s.src[s.file.Offset(start):s.file.Offset(end)])), " ")
}

// add adds the mutant that replaces the source from start to end with text.
func (s *source) add(kind, expression string, start, end token.Pos, text string) {
	m := mutant{file: s.name, function: s.function, kind: kind, expression: expression, line: s.file.Line(start),
		start: s.file.Offset(start), end: s.file.Offset(end), text: text}
	key := m.key()
	s.seen[key]++
	if n := s.seen[key]; n > 1 {
		m.kind = fmt.Sprintf("%s#%d", kind, n)
	}
	s.found = append(s.found, m)
}

// toggle gives the mutant that was added last a switch around a node.
func (s *source) toggle(n ast.Node, before, after string) {
	if !s.constant {
		s.found[len(s.found)-1].toggle = toggle{s.file.Offset(n.Pos()), s.file.Offset(n.End()), before, after}
	}
}

// The switches of a negated condition, and of one that is true or false.
const (
	negated = ") != (mutateSwitch == mutateNumber))"
	isTrue  = ") || mutateSwitch == mutateNumber)"
	isFalse = ") && mutateSwitch != mutateNumber)"
)

// wrap adds a mutant that puts text before and after a node. What the node uses stays in use, so
// that the mutant compiles.
func (s *source) wrap(kind string, n ast.Node, before, after string) {
	s.add(kind, s.text(n), n.Pos(), n.End(), before+s.raw(n)+after)
}

// visitor finds the mutants of a function, whose results it has.
type visitor struct {
	*source
	results *ast.FieldList
}

// Visit implements ast.Visitor.
func (v visitor) Visit(n ast.Node) ast.Visitor {
	switch n := n.(type) {
	case *ast.BlockStmt:
		v.list(n.List)
	case *ast.CaseClause:
		v.list(n.Body)
	case *ast.CommClause:
		v.list(n.Body)
	case *ast.FuncLit:
		v.results = n.Type.Results
	case *ast.IfStmt:
		if leaves(n.Body.List) {
			v.skip(n.If, n.Cond, n.Body.List)
		}
		switch n.Cond.(type) {
		case *ast.CallExpr, *ast.Ident, *ast.SelectorExpr:
			v.wrap("negation", n.Cond, "!(", ")")
			v.toggle(n.Cond, "((", negated)
		}
	case *ast.SwitchStmt:
		for _, clause := range n.Body.List {
			if c := clause.(*ast.CaseClause); n.Tag == nil && len(c.List) == 1 {
				v.skip(c.Case, c.List[0], c.Body)
			}
		}
	case *ast.ReturnStmt:
		v.returned(n)
	case *ast.UnaryExpr:
		if n.Op == token.NOT {
			v.add("negation", v.text(n), n.OpPos, n.OpPos+1, "")
			v.toggle(n, "((", negated)
		}
	case *ast.BinaryExpr:
		v.binary(n)
	case *ast.AssignStmt:
		v.assigned(n)
	case *ast.IncDecStmt:
		v.add("arithmetic", v.text(n), n.TokPos, n.End(), map[token.Token]string{token.INC: "--", token.DEC: "++"}[n.Tok])
	case *ast.ExprStmt:
		if call, ok := n.X.(*ast.CallExpr); ok && !unnoticed(v.text(call.Fun)) {
			v.add("statement", v.text(n), n.Pos(), n.End(), "{}")
			v.unless(n)
		}
	case *ast.BasicLit:
		if n.Kind == token.INT || n.Kind == token.FLOAT {
			v.wrap("constant", n, "(", " + 1)")
			v.toggle(n, "(", " + mutateOne(mutateNumber))")
		}
	case *ast.Ident:
		if other, ok := map[string]string{"true": "false", "false": "true"}[n.Name]; ok {
			v.add("constant", n.Name, n.Pos(), n.End(), other)
			v.toggle(n, "((", negated)
		}
	}
	return v
}

// skip adds the mutant that never executes the statements after a condition.
func (v visitor) skip(keyword token.Pos, cond ast.Expr, body []ast.Stmt) {
	if len(body) == 0 {
		return
	}
	v.guarded[body[len(body)-1]] = true
	v.add("skip", v.between(keyword, cond.End()), cond.Pos(), cond.End(), "("+v.raw(cond)+") && false")
	v.toggle(cond, "((", isFalse)
}

func (v visitor) list(statements []ast.Stmt) {
	for _, s := range statements {
		v.listed[s] = true
	}
}

// unless gives the mutant that was added last a switch that does not execute a statement.
func (v visitor) unless(n ast.Stmt) {
	if v.listed[n] {
		v.toggle(n, "if mutateSwitch != mutateNumber { ", " }")
	}
}

// returned adds the mutant that returns no error instead of one.
func (v visitor) returned(n *ast.ReturnStmt) {
	if v.guarded[n] || v.results == nil || len(n.Results) == 0 || len(n.Results) != v.results.NumFields() {
		return
	}
	last := n.Results[len(n.Results)-1]
	if v.text(v.results.List[len(v.results.List)-1].Type) == "error" && v.text(last) != "nil" {
		v.wrap("error", last, "func(error) error { return nil }(", ")")
		v.toggle(last, "mutateError(mutateNumber, ", ")")
	}
}

// assigned adds the mutant that does not assign, or by the opposite operator.
func (v visitor) assigned(n *ast.AssignStmt) {
	if other, ok := arithmetic[n.Tok]; ok {
		if !stringly(n.Rhs[0]) {
			v.add("arithmetic", v.text(n), n.TokPos, n.TokPos+token.Pos(len(n.Tok.String())), other)
		}
		return
	}
	blank := "_" + strings.Repeat(", _", len(n.Lhs)-1)
	first, last := n.Lhs[0].Pos(), n.Lhs[len(n.Lhs)-1].End()
	if n.Tok == token.ASSIGN && v.between(first, last) != blank && v.text(n.Rhs[0]) != "nil" {
		v.add("statement", v.text(n), first, last, blank)
		v.unless(n)
	}
}

// binary adds the mutants of an operator: of both operands if it is a boolean one.
func (v visitor) binary(n *ast.BinaryExpr) {
	operator := func(kind, other string) {
		v.add(kind, v.text(n), n.OpPos, n.OpPos+token.Pos(len(n.Op.String())), other)
	}
	if other, ok := boundary[n.Op]; ok {
		operator("boundary", other)
		same := "mutateSwitch == mutateNumber && (" + v.raw(n.X) + ") == (" + v.raw(n.Y) + ")"
		if n.Op == token.LSS || n.Op == token.GTR {
			v.toggle(n, "((", ") || "+same+")")
		} else {
			v.toggle(n, "((", ") && !("+same+"))")
		}
	}
	if other, ok := negation[n.Op]; ok {
		operator("negation", other)
		v.toggle(n, "((", negated)
	}
	if other, ok := arithmetic[n.Op]; ok && !stringly(n) {
		operator("arithmetic", other)
	}
	neutral := map[token.Token]string{token.LAND: " || true)", token.LOR: " && false)"}[n.Op]
	after := map[token.Token]string{token.LAND: isTrue, token.LOR: isFalse}[n.Op]
	for _, operand := range []ast.Expr{n.X, n.Y} {
		// Of a && b && c, the operands are a, b and c.
		if inner, ok := operand.(*ast.BinaryExpr); neutral != "" && !(ok && inner.Op == n.Op) {
			v.wrap("operand", operand, "((", ")"+neutral)
			v.toggle(operand, "((", after)
		}
	}
}

// The operators and what replaces them. There is no exchange of && and ||: tests that notice each
// missing operand notice it, too.
var (
	boundary = map[token.Token]string{token.LSS: "<=", token.LEQ: "<", token.GTR: ">=", token.GEQ: ">"}
	negation = map[token.Token]string{token.EQL: "!=", token.NEQ: "==", token.LSS: ">=", token.LEQ: ">",
		token.GTR: "<=", token.GEQ: "<"}
	arithmetic = map[token.Token]string{
		token.ADD: "-", token.SUB: "+", token.MUL: "/", token.QUO: "*", token.REM: "*",
		token.SHL: ">>", token.SHR: "<<", token.AND: "|", token.OR: "&", token.XOR: "&", token.AND_NOT: "&",
		token.ADD_ASSIGN: "-=", token.SUB_ASSIGN: "+=", token.MUL_ASSIGN: "/=", token.QUO_ASSIGN: "*=",
		token.SHL_ASSIGN: ">>=", token.SHR_ASSIGN: "<<=", token.AND_ASSIGN: "|=", token.OR_ASSIGN: "&=",
		token.XOR_ASSIGN: "&=",
	}
)

// leaves reports whether statements end by leaving their function or loop.
func leaves(body []ast.Stmt) bool {
	if len(body) == 0 {
		return false
	}
	switch body[len(body)-1].(type) {
	case *ast.ReturnStmt, *ast.BranchStmt:
		return true
	}
	return false
}

// stringly reports whether an expression has a string literal, so that its + joins strings.
func stringly(n ast.Node) bool {
	found := false
	ast.Inspect(n, func(n ast.Node) bool {
		lit, ok := n.(*ast.BasicLit)
		found = found || ok && lit.Kind == token.STRING
		return !found
	})
	return found
}

var unnoticedCall = regexp.MustCompile(`(?i)(^|\.)s?log(ger)?\.\w+$|\.r?(un)?lock$`)

// unnoticed reports whether tests do not have to notice that a call is missing: log lines are not
// tested, and a missing lock is found by the race detector.
func unnoticed(function string) bool { return unnoticedCall.MatchString(function) }
