// SPDX-License-Identifier: Apache-2.0
// Copyright The Segue Authors

package lint_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/seguekv/segue/internal/lint"
)

// root is the repository as seen from this folder.
const root = "../.."

func report(t *testing.T, findings []lint.Finding) {
	t.Helper()
	for _, f := range findings {
		t.Errorf("%s", f)
	}
}

func TestRepository_Source(t *testing.T) {
	files, err := lint.Files(root)
	if err != nil {
		t.Fatal(err)
	}
	if len(files) == 0 {
		t.Fatal("no Go files found")
	}
	r := lint.Repository()
	for _, c := range []struct {
		name  string
		check func() []lint.Finding
	}{
		{"layers", func() []lint.Finding { return lint.Layers(r, files) }},
		{"importers", func() []lint.Finding { return lint.Importers(r, files) }},
		{"pure imports", func() []lint.Finding { return lint.PureImports(r, files) }},
		{"pure code", func() []lint.Finding { return lint.PureCode(r, files) }},
		{"headers", func() []lint.Finding { return lint.Headers(files) }},
		{"package comments", func() []lint.Finding { return lint.PackageComments(files) }},
		{"names", func() []lint.Finding { return lint.Names(r, files) }},
		{"package state", func() []lint.Finding { return lint.PackageState(files) }},
		{"error comparisons", func() []lint.Finding { return lint.Comparisons(files) }},
		{"sleeps", func() []lint.Finding { return lint.Sleeps(r, files) }},
		{"file sizes", func() []lint.Finding {
			findings, notices := lint.FileSizes(r, files)
			for _, n := range notices {
				t.Logf("large: %s", n)
			}
			return findings
		}},
	} {
		t.Run(c.name, func(t *testing.T) { report(t, c.check()) })
	}
}

func TestRepository_Dependencies(t *testing.T) {
	pkgs, err := lint.List(root)
	if err != nil {
		t.Fatal(err)
	}
	report(t, lint.Dependencies(lint.Repository(), pkgs))
}

func TestRepository_Text(t *testing.T) {
	if _, err := os.Stat(filepath.Join(root, ".git")); err != nil {
		t.Skip("not a git work tree: which files are committed is unknown; run it in a clone")
	}
	files, err := lint.TextFiles(root)
	if err != nil {
		t.Fatal(err)
	}
	findings, err := lint.Texts(lint.Repository(), files)
	if err != nil {
		t.Fatal(err)
	}
	report(t, findings)
}

func TestRepository_SegueIsStatic(t *testing.T) {
	if testing.Short() {
		t.Skip("links a binary; run without -short")
	}
	out := filepath.Join(t.TempDir(), "segue")
	cmd := exec.Command("go", "build", "-trimpath", "-buildvcs=false", "-o", out, "./cmd/segue")
	cmd.Dir, cmd.Env = root, append(os.Environ(), "CGO_ENABLED=0")
	if msg, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("build segue: %v\n%s", err, msg)
	}
	findings, err := lint.Static(out)
	if err != nil {
		t.Fatal(err)
	}
	report(t, findings)
}
