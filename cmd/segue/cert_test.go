// SPDX-License-Identifier: Apache-2.0
// Copyright The Segue Authors

package main

import (
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/spf13/cobra"
	"go.yaml.in/yaml/v3"

	"github.com/seguekv/segue/internal/certs"
)

// execute runs one command.
func execute(t *testing.T, c *cobra.Command, args ...string) (stdout string, err error) {
	t.Helper()
	var out, errs bytes.Buffer
	c.SilenceUsage, c.SilenceErrors = true, true
	c.SetArgs(args)
	c.SetOut(&out)
	c.SetErr(&errs)
	err = c.ExecuteContext(t.Context())
	return out.String(), err
}

// What is printed can be put into a configuration, and its files make a bundle.
func TestCertDev_PrintsWhatToConfigure(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "certs")
	out, err := execute(t, newCertCommand(), "dev", dir, "--name", "a", "--name", "router", "--host", "127.0.0.1")
	if err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(out, "# made a test authority: "+filepath.Join(dir, "ca.crt")) {
		t.Errorf("printed %q", out)
	}
	sections := strings.Split(out, "\n\n")[1:]
	if len(sections) != 2 {
		t.Fatalf("%d sections: %q", len(sections), out)
	}
	for i, name := range []string{"a", "router"} {
		if !strings.HasPrefix(sections[i], "# "+name+",") {
			t.Errorf("section %d is %q", i, sections[i])
		}
		var section struct {
			TLS certs.Files `yaml:"tls"`
		}
		if err := yaml.Unmarshal([]byte(sections[i]), &section); err != nil {
			t.Fatal(err)
		}
		if want := filepath.Join(dir, name+".crt"); section.TLS.Cert != want {
			t.Errorf("cert is %q, want %q", section.TLS.Cert, want)
		}
		if _, err := certs.Load(section.TLS, certs.Options{}); err != nil {
			t.Error(err)
		}
	}
}

func TestCertDev_AddsAndReplacesOnlyWhenTold(t *testing.T) {
	dir := t.TempDir()
	if _, err := execute(t, newCertCommand(), "dev", dir, "--name", "a"); err != nil {
		t.Fatal(err)
	}
	ca := readFile(t, dir, "ca.crt")
	a := readFile(t, dir, "a.crt")
	// One name is taken: nothing is made for the other either.
	_, err := execute(t, newCertCommand(), "dev", dir, "--name", "b", "--name", "a")
	if e, ok := errors.AsType[*exitError](err); !errors.Is(err, certs.ErrExists) || !ok || e.code != exitUsage {
		t.Errorf("got %v", err)
	}
	if _, err := os.Stat(filepath.Join(dir, "b.crt")); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("b was made: %v", err)
	}
	if out, err := execute(t, newCertCommand(), "dev", dir, "--name", "b"); err != nil || strings.Contains(out, "made a test authority") {
		t.Errorf("%q, %v", out, err)
	}
	if _, err := execute(t, newCertCommand(), "dev", dir, "--name", "a", "--force"); err != nil {
		t.Error(err)
	}
	if readFile(t, dir, "a.crt") == a {
		t.Error("a was not replaced")
	}
	if readFile(t, dir, "ca.crt") != ca {
		t.Error("a usable authority was replaced, and with it everybody's certificate")
	}
	for _, args := range [][]string{{"dev", dir, "--name", "../x"}, {"dev", dir, "--name", "c", "--ttl", "0s"}, {"dev"}, {"dev", dir, "--name", "c", "--host", "a b"}} {
		if _, err := execute(t, newCertCommand(), args...); err == nil {
			t.Errorf("%q is accepted", args)
		}
	}
}

func readFile(t *testing.T, dir, name string) string {
	t.Helper()
	b, err := os.ReadFile(filepath.Join(dir, name))
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}
