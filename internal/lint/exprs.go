// SPDX-License-Identifier: Apache-2.0
// Copyright The Segue Authors

package lint

import (
	"go/ast"
	"go/token"
	"slices"
	"strings"
	"unicode"
	"unicode/utf8"
)

// Comparisons checks that errors are compared with errors.Is or found with errors.AsType, never with ==: a
// wrapped error isn't equal to its sentinel.
func Comparisons(files []*File) []Finding {
	var out []Finding
	for _, f := range files {
		if f.Generated {
			continue
		}
		ast.Inspect(f.AST, func(n ast.Node) bool {
			switch n := n.(type) {
			case *ast.BinaryExpr:
				equality := n.Op == token.EQL || n.Op == token.NEQ
				if equality && comparesErrors(n.X, n.Y) {
					out = append(out, Finding{f.At(n), "compares an error with " + n.Op.String() + ": use errors.Is"})
				}
			case *ast.SwitchStmt:
				if n.Tag != nil && isError(n.Tag) {
					out = append(out, Finding{f.At(n), "switches over an error's value: use errors.Is in the cases"})
				}
			case *ast.TypeSwitchStmt:
				if assertsError(n.Assign) {
					out = append(out, Finding{f.At(n), "switches over an error's type: use errors.AsType"})
				}
			}
			return true
		})
	}
	return out
}

func comparesErrors(x, y ast.Expr) bool {
	for _, e := range []ast.Expr{x, y} {
		if _, lit := e.(*ast.BasicLit); lit || name(e) == "nil" {
			return false
		}
	}
	return isError(x) || isError(y)
}

// isError tells an error by its name: err, xErr, ErrX, errX, or a well-known sentinel.
func isError(e ast.Expr) bool {
	full := name(e)
	switch full {
	case "io.EOF", "io.ErrUnexpectedEOF", "context.Canceled", "context.DeadlineExceeded":
		return true
	}
	short := full[strings.LastIndex(full, ".")+1:]
	if short == "err" || strings.HasSuffix(short, "Err") {
		return true
	}
	rest, ok := strings.CutPrefix(strings.ToLower(short[:min(1, len(short))])+short[min(1, len(short)):], "err")
	r, _ := utf8.DecodeRuneInString(rest)
	return ok && unicode.IsUpper(r)
}

func assertsError(s ast.Stmt) bool {
	var e ast.Expr
	switch s := s.(type) {
	case *ast.ExprStmt:
		e = s.X
	case *ast.AssignStmt:
		e = s.Rhs[0]
	}
	t, ok := e.(*ast.TypeAssertExpr)
	return ok && isError(t.X)
}

// Sleeps checks that nothing waits by time.Sleep, except tests and the packages whose work is to take time.
func Sleeps(r Rules, files []*File) []Finding {
	var out []Finding
	for _, f := range files {
		if f.Test || f.Generated || slices.Contains(r.SleepIn, f.Package()) {
			continue
		}
		for _, at := range calls(f, "time", []string{"Sleep"}) {
			out = append(out, Finding{at, "calls time.Sleep: wait for the event, with a timer and the context's end in one select"})
		}
	}
	return out
}

// PureCode checks that pure packages start no goroutine and read no clock.
func PureCode(r Rules, files []*File) []Finding {
	var out []Finding
	for _, f := range files {
		p, pure := r.pure(f)
		if !pure {
			continue
		}
		for _, at := range calls(f, "time", r.PureTime) {
			out = append(out, Finding{at, "reads the clock in a pure package: take elapsed time as an argument; " + p.Reason})
		}
		ast.Inspect(f.AST, func(n ast.Node) bool {
			if g, ok := n.(*ast.GoStmt); ok {
				out = append(out, Finding{f.At(g), "starts a goroutine in a pure package: " + p.Reason})
			}
			return true
		})
	}
	return out
}

// calls finds the places where a file uses one of a package's names.
func calls(f *File, importPath string, names []string) []string {
	pkg := f.ImportName(importPath)
	if pkg == "" {
		return nil
	}
	var out []string
	ast.Inspect(f.AST, func(n ast.Node) bool {
		if s, ok := n.(*ast.SelectorExpr); ok {
			if x, ok := s.X.(*ast.Ident); ok && x.Name == pkg && x.Obj == nil && slices.Contains(names, s.Sel.Name) {
				out = append(out, f.At(s))
			}
		}
		return true
	})
	return out
}
