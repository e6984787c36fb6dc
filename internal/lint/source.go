// SPDX-License-Identifier: Apache-2.0
// Copyright The Segue Authors

package lint

import (
	"bytes"
	"cmp"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
)

// Finding is one violation of a rule.
type Finding struct {
	Where string // file, file:line or package, relative to the repository
	What  string // what is wrong and how to put it right
}

// String is the finding in one line.
func (f Finding) String() string { return f.Where + ": " + f.What }

// File is one Go source file.
type File struct {
	// Path is relative to the repository's root, with slashes.
	Path      string
	Src       []byte
	AST       *ast.File
	Fset      *token.FileSet
	Test      bool
	Generated bool
}

// Package is the file's folder: a package path relative to the module.
func (f *File) Package() string { return path.Dir(f.Path) }

// At is the position of a node as a finding names it.
func (f *File) At(n ast.Node) string {
	return fmt.Sprintf("%s:%d", f.Path, f.Fset.Position(n.Pos()).Line)
}

// Lines counts the file's lines.
func (f *File) Lines() int { return bytes.Count(f.Src, []byte("\n")) }

// Imports lists the import paths.
func (f *File) Imports() []string {
	var out []string
	for _, s := range f.AST.Imports {
		if p, err := strconv.Unquote(s.Path.Value); err == nil {
			out = append(out, p)
		}
	}
	return out
}

// ImportName is the name that refers to an import in this file, "" when it isn't imported.
func (f *File) ImportName(importPath string) string {
	for _, s := range f.AST.Imports {
		if p, err := strconv.Unquote(s.Path.Value); err == nil && p == importPath {
			if s.Name != nil {
				return s.Name.Name
			}
			return path.Base(importPath)
		}
	}
	return ""
}

// NewFile parses one source.
func NewFile(name string, src []byte) (*File, error) {
	fset := token.NewFileSet()
	tree, err := parser.ParseFile(fset, name, src, parser.ParseComments)
	if err != nil {
		return nil, fmt.Errorf("parse %s: %w", name, err)
	}
	return &File{
		Path: name, Src: src, AST: tree, Fset: fset,
		Test:      strings.HasSuffix(name, "_test.go"),
		Generated: ast.IsGenerated(tree),
	}, nil
}

// Files parses every Go file below root, whatever its build tags, in order of path.
func Files(root string) ([]*File, error) {
	var out []*File
	err := filepath.WalkDir(root, func(p string, e fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if e.IsDir() {
			if n := e.Name(); p != root && (n == "testdata" || n == "bin" || n == "vendor" || strings.HasPrefix(n, ".") || strings.HasPrefix(n, "_")) {
				return fs.SkipDir
			}
			return nil
		}
		if !strings.HasSuffix(e.Name(), ".go") {
			return nil
		}
		src, err := os.ReadFile(p)
		if err != nil {
			return err
		}
		rel, err := filepath.Rel(root, p)
		if err != nil {
			return err
		}
		f, err := NewFile(filepath.ToSlash(rel), src)
		if err != nil {
			return err
		}
		out = append(out, f)
		return nil
	})
	slices.SortFunc(out, func(a, b *File) int { return cmp.Compare(a.Path, b.Path) })
	return out, err
}

// byPackage groups files by folder, folders in order.
func byPackage(files []*File) [][]*File {
	var out [][]*File
	for _, f := range files {
		i := slices.IndexFunc(out, func(g []*File) bool { return g[0].Package() == f.Package() })
		if i < 0 {
			out = append(out, []*File{f})
		} else {
			out[i] = append(out[i], f)
		}
	}
	return out
}

// matches reports whether p is pattern, or below it if the pattern ends in "/...".
func matches(pattern, p string) bool {
	base, deep := strings.CutSuffix(pattern, "/...")
	return p == base || deep && strings.HasPrefix(p, base+"/")
}

func matchesAny(patterns []string, p string) bool {
	return slices.ContainsFunc(patterns, func(q string) bool { return matches(q, p) })
}
