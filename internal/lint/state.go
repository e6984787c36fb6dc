// SPDX-License-Identifier: Apache-2.0
// Copyright The Segue Authors

package lint

import (
	"go/ast"
	"go/token"
	"strings"
)

// tableMark begins the comment that declares a computed package variable a table: filled once when it is
// initialised, read-only after that. The rest of the comment says what it holds.
const tableMark = "table:"

// PackageState checks that packages have no mutable state and no init functions. A package-level variable is
// one of: an error sentinel, a compiled pattern, a byte order, an embedded file, a blank interface check, a
// filled literal, or a marked table; and none of them is ever written.
func PackageState(files []*File) []Finding {
	var out []Finding
	for _, g := range byPackage(files) {
		vars := make(map[string]bool)
		for _, f := range g {
			if f.Generated {
				continue
			}
			for _, d := range f.AST.Decls {
				switch d := d.(type) {
				case *ast.FuncDecl:
					if d.Recv == nil && d.Name.Name == "init" {
						out = append(out, Finding{f.At(d), "has an init function: build it in a constructor"})
					}
				case *ast.GenDecl:
					if d.Tok == token.VAR && !f.Test {
						out = append(out, declared(f, d, vars)...)
					}
				}
			}
		}
		for _, f := range g {
			if !f.Generated && !f.Test {
				out = append(out, written(f, vars)...)
			}
		}
	}
	return out
}

// declared checks one var declaration of a package and adds its names to vars.
func declared(f *File, d *ast.GenDecl, vars map[string]bool) []Finding {
	var out []Finding
	for _, s := range d.Specs {
		s := s.(*ast.ValueSpec)
		marked := commented(d.Doc, tableMark) || commented(s.Doc, tableMark) || commented(s.Comment, tableMark)
		embedded := directive(d.Doc, "//go:embed ") || directive(s.Doc, "//go:embed ")
		for i, name := range s.Names {
			if name.Name == "_" {
				continue
			}
			vars[name.Name] = true
			var value ast.Expr
			if i < len(s.Values) {
				value = s.Values[i]
			}
			switch {
			case embedded || immutable(value):
			case stateful(s.Type) || stateful(value) || marked && value == nil:
				out = append(out, Finding{f.At(name), "package variable " + name.Name + " can hold state: make it a field"})
			case !marked && !filled(value):
				out = append(out, Finding{f.At(name), "package variable " + name.Name + ": make it a constant, a field or a function's result, or mark a read-only table with // " + tableMark})
			}
		}
	}
	return out
}

// immutable reports whether a value can't change by its kind: a sentinel, a compiled pattern, a byte order.
func immutable(e ast.Expr) bool {
	switch name(e) {
	case "binary.LittleEndian", "binary.BigEndian":
		return true
	}
	call, ok := e.(*ast.CallExpr)
	if !ok {
		return false
	}
	switch name(call.Fun) {
	case "errors.New", "fmt.Errorf", "regexp.MustCompile":
		return true
	}
	return false
}

// filled reports whether a value is an array, slice or map literal with elements. That nobody writes it makes
// it a table.
func filled(e ast.Expr) bool {
	lit, ok := e.(*ast.CompositeLit)
	if !ok || len(lit.Elts) == 0 {
		return false
	}
	switch lit.Type.(type) {
	case *ast.ArrayType, *ast.MapType:
		return true
	}
	return false
}

// stateful reports whether a type or value is made to change: channels, locks, pools, atomics, empty maps and
// slices, fresh pointers.
func stateful(e ast.Expr) bool {
	if e == nil {
		return false
	}
	found := false
	ast.Inspect(e, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.ChanType:
			found = true
		case *ast.FuncLit:
			return false // What a function makes inside is its own.
		case *ast.SelectorExpr:
			if p, _, _ := strings.Cut(name(n), "."); p == "sync" || p == "atomic" {
				found = true
			}
		case *ast.CallExpr:
			if fn := name(n.Fun); fn == "make" || fn == "new" {
				found = true
			}
		case *ast.CompositeLit:
			if _, isMap := n.Type.(*ast.MapType); isMap && len(n.Elts) == 0 {
				found = true
			}
		}
		return !found
	})
	return found
}

// written finds writes to the package's variables in one file.
func written(f *File, vars map[string]bool) []Finding {
	var out []Finding
	write := func(at ast.Node, e ast.Expr, how string) {
		if id := base(e); id != nil && vars[id.Name] && packageLevel(f, id) {
			out = append(out, Finding{f.At(at), how + " package variable " + id.Name})
		}
	}
	ast.Inspect(f.AST, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.AssignStmt:
			if n.Tok != token.DEFINE {
				for _, l := range n.Lhs {
					write(n, l, "writes")
				}
			}
		case *ast.IncDecStmt:
			write(n, n.X, "writes")
		case *ast.RangeStmt:
			if n.Tok == token.ASSIGN {
				write(n, n.Key, "writes")
				write(n, n.Value, "writes")
			}
		case *ast.UnaryExpr:
			if n.Op == token.AND {
				write(n, n.X, "takes the address of")
			}
		case *ast.CallExpr:
			if fn := name(n.Fun); (fn == "delete" || fn == "clear") && len(n.Args) > 0 {
				write(n, n.Args[0], "writes")
			}
		}
		return true
	})
	return out
}

// base is the variable that an expression reaches into.
func base(e ast.Expr) *ast.Ident {
	for {
		switch x := e.(type) {
		case *ast.Ident:
			return x
		case *ast.IndexExpr:
			e = x.X
		case *ast.SelectorExpr:
			e = x.X
		case *ast.StarExpr:
			e = x.X
		case *ast.ParenExpr:
			e = x.X
		case *ast.SliceExpr:
			e = x.X
		default:
			return nil
		}
	}
}

// packageLevel reports whether an identifier isn't declared inside a function: it is declared at the top of
// its file, or in another file of the package.
func packageLevel(f *File, id *ast.Ident) bool {
	return id.Obj == nil || f.AST.Scope.Lookup(id.Name) == id.Obj
}

// name spells an identifier or a qualified identifier; "" for anything else.
func name(e ast.Expr) string {
	switch e := e.(type) {
	case *ast.Ident:
		return e.Name
	case *ast.SelectorExpr:
		if x, ok := e.X.(*ast.Ident); ok {
			return x.Name + "." + e.Sel.Name
		}
	}
	return ""
}

// commented reports whether a comment group has a line that begins with mark.
func commented(g *ast.CommentGroup, mark string) bool {
	if g == nil {
		return false
	}
	for _, c := range g.List {
		if strings.HasPrefix(strings.TrimSpace(strings.TrimPrefix(c.Text, "//")), mark) {
			return true
		}
	}
	return false
}

// directive reports whether a comment group has a line that begins with text exactly.
func directive(g *ast.CommentGroup, text string) bool {
	if g == nil {
		return false
	}
	for _, c := range g.List {
		if strings.HasPrefix(c.Text, text) {
			return true
		}
	}
	return false
}
