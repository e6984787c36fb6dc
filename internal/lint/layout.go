// SPDX-License-Identifier: Apache-2.0
// Copyright The Segue Authors

package lint

import (
	"bytes"
	"fmt"
	"path"
	"slices"
	"strings"
)

// header is what every source file of ours begins with.
const header = "// SPDX-License-Identifier: Apache-2.0\n// Copyright The Segue Authors\n\n"

// Headers checks the licence lines of Go files.
func Headers(files []*File) []Finding {
	var out []Finding
	for _, f := range files {
		if !f.Generated && !bytes.HasPrefix(f.Src, []byte(header)) {
			out = append(out, Finding{f.Path, "doesn't begin with the two licence lines and a blank line"})
		}
	}
	return out
}

// PackageComments checks that each package has exactly one package comment, in doc.go, or in main.go if it
// is a program, and that doc.go holds nothing else.
func PackageComments(files []*File) []Finding {
	var out []Finding
	for _, g := range byPackage(files) {
		want, ours := "doc.go", 0
		var have []string
		for _, f := range g {
			if f.Generated {
				continue
			}
			ours++
			name := path.Base(f.Path)
			if f.AST.Name.Name == "main" {
				want = "main.go"
			}
			if f.AST.Doc != nil && !strings.HasPrefix(f.AST.Doc.Text(), "SPDX-") {
				have = append(have, name)
			}
			if name == "doc.go" && len(f.AST.Decls) > 0 {
				out = append(out, Finding{f.Path, "holds more than the package comment"})
			}
		}
		if ours > 0 && !slices.Equal(have, []string{want}) {
			out = append(out, Finding{g[0].Package(), fmt.Sprintf("package comments are in %v, want exactly one, in %s", have, want)})
		}
	}
	return out
}

// Names checks package names: a package is named after what it is about.
func Names(r Rules, files []*File) []Finding {
	var out []Finding
	for _, g := range byPackage(files) {
		name := strings.TrimSuffix(g[0].AST.Name.Name, "_test")
		for _, n := range []string{name, path.Base(g[0].Package())} {
			if slices.Contains(r.Names, n) {
				out = append(out, Finding{g[0].Package(), "is called " + n + ": name it after the thing it owns"})
				break
			}
		}
	}
	return out
}

// FileSizes checks line counts. Notices are files worth a look that break no rule.
func FileSizes(r Rules, files []*File) (findings, notices []Finding) {
	for _, f := range files {
		if f.Generated {
			continue
		}
		n, limit := f.Lines(), r.Sizes.Code
		if f.Test {
			limit = r.Sizes.Test
		}
		notice := r.Sizes.Notice
		if f.Test {
			notice = r.Sizes.Code
		}
		if i := slices.IndexFunc(r.Long, func(l Long) bool { return l.File == f.Path }); i >= 0 {
			limit = r.Long[i].Lines
		}
		switch {
		case n > limit:
			findings = append(findings, Finding{f.Path, fmt.Sprintf("has %d lines, more than %d: split it by noun", n, limit)})
		case n > notice:
			notices = append(notices, Finding{f.Path, fmt.Sprintf("has %d lines", n)})
		}
	}
	return findings, notices
}
