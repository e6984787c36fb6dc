// SPDX-License-Identifier: Apache-2.0
// Copyright The Segue Authors

package lint

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"slices"
	"strings"
)

// Layers checks that imports within the module point to lower ranks. Tests may also import their own rank.
func Layers(r Rules, files []*File) []Finding {
	var out []Finding
	for _, f := range files {
		from, ok := r.rank(f.Package())
		if !ok {
			out = append(out, Finding{f.Path, "package " + f.Package() + " has no layer: add it to Layers in internal/lint/rules.go with a reason"})
			continue
		}
		for _, imp := range f.Imports() {
			to, own := strings.CutPrefix(imp, Module+"/")
			if !own || to == f.Package() {
				continue
			}
			rank, ok := r.rank(to)
			peer := r.family(f.Package(), to) ||
				slices.ContainsFunc(r.Peers, func(p Peer) bool { return p.From == f.Package() && p.To == to })
			if !ok || rank > from || rank == from && !peer && !f.Test {
				out = append(out, Finding{f.Path, fmt.Sprintf("imports %s (layer %d) from layer %d: imports point down only", to, rank, from)})
			}
		}
	}
	return out
}

// rank is the package's layer.
func (r Rules) rank(pkg string) (int, bool) {
	for _, l := range r.Layers {
		if matchesAny(l.Packages, pkg) {
			return l.Rank, true
		}
	}
	return 0, false
}

// family reports whether from may import to because both belong to one "x/..." and to is below x.
func (r Rules) family(from, to string) bool {
	for _, l := range r.Layers {
		for _, p := range l.Packages {
			base, deep := strings.CutSuffix(p, "/...")
			if deep && matches(p, from) && strings.HasPrefix(to, base+"/") {
				return true
			}
		}
	}
	return false
}

// Importers checks the Only rules.
func Importers(r Rules, files []*File) []Finding {
	var out []Finding
	for _, f := range files {
		for _, imp := range f.Imports() {
			for _, o := range r.Only {
				want := o.Import
				if rel, ok := strings.CutPrefix(want, "./"); ok {
					want = Module + "/" + rel
				}
				own := matches(want, Module+"/"+f.Package())
				if !matches(want, imp) || own || f.Test && o.Tests || matchesAny(o.By, f.Package()) {
					continue
				}
				out = append(out, Finding{f.Path, "imports " + imp + ": " + o.Reason})
			}
		}
	}
	return out
}

// PureImports checks that pure packages import nothing that does I/O, logs or draws randomness.
func PureImports(r Rules, files []*File) []Finding {
	var out []Finding
	for _, f := range files {
		p, pure := r.pure(f)
		if !pure {
			continue
		}
		for _, imp := range f.Imports() {
			if matchesAny(r.PureImports, imp) {
				out = append(out, Finding{f.Path, "imports " + imp + " in a pure package: " + p.Reason})
			}
		}
	}
	return out
}

// pure reports whether the purity rules apply to the file. Tests are free.
func (r Rules) pure(f *File) (Pure, bool) {
	i := slices.IndexFunc(r.Pure, func(p Pure) bool { return p.Package == f.Package() })
	if i < 0 || f.Test {
		return Pure{}, false
	}
	return r.Pure[i], true
}

// ListedPackage is what the go command says about a package.
type ListedPackage struct {
	ImportPath string
	Deps       []string
	CgoFiles   []string
	Error      *struct{ Err string }
}

// List asks the go command for every package of the module, as built without cgo.
func List(root string) ([]ListedPackage, error) {
	cmd := exec.Command("go", "list", "-e", "-json=ImportPath,Deps,CgoFiles,Error", "./...")
	cmd.Dir, cmd.Env, cmd.Stderr = root, append(os.Environ(), "CGO_ENABLED=0"), os.Stderr
	text, err := cmd.Output()
	if err != nil {
		return nil, fmt.Errorf("list packages: %w", err)
	}
	var out []ListedPackage
	for d := json.NewDecoder(strings.NewReader(string(text))); ; {
		var p ListedPackage
		if err := d.Decode(&p); errors.Is(err, io.EOF) {
			return out, nil
		} else if err != nil {
			return nil, fmt.Errorf("read package list: %w", err)
		}
		out = append(out, p)
	}
}

// Dependencies checks the Never rules. A package that a rule names must exist.
func Dependencies(r Rules, pkgs []ListedPackage) []Finding {
	var out []Finding
	for _, n := range r.Never {
		i := slices.IndexFunc(pkgs, func(p ListedPackage) bool { return p.ImportPath == Module+"/"+n.Package })
		if i < 0 {
			out = append(out, Finding{n.Package, "doesn't exist, but a rule of internal/lint/rules.go names it"})
			continue
		}
		if e := pkgs[i].Error; e != nil {
			out = append(out, Finding{n.Package, "go list: " + e.Err})
		}
		for _, d := range pkgs[i].Deps {
			if matchesAny(n.Deps, d) {
				out = append(out, Finding{n.Package, "depends on " + d + ": " + n.Reason})
			}
		}
	}
	return out
}
