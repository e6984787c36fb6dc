// SPDX-License-Identifier: Apache-2.0
// Copyright The Segue Authors

package main

import (
	"bytes"
	"strings"
	"testing"
)

func TestRun_Help(t *testing.T) {
	var out, errs bytes.Buffer
	if code := run([]string{"--help"}, &out, &errs); code != exitOK || errs.Len() != 0 {
		t.Errorf("exit code %d, errors %q", code, errs.String())
	}
	for _, want := range []string{"Example", "--check", "-model", "-llama-lib", "-threads", "-contexts", "-context-length", "-chunk"} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("help lacks %q", want)
		}
	}
}

func TestRun_RefusesBadFlagsAndMissingParts(t *testing.T) {
	dir := t.TempDir()
	for _, c := range []struct {
		name string
		args []string
		want string
	}{
		{"unknown flag", []string{"--modle", "x"}, "run: segue-llamacpp --help"},
		{"argument", []string{"x"}, `unexpected argument "x"`},
		{"value", []string{"--threads", "0"}, "threads: 0 is not in 1..1024"},
		{"text", []string{"--threads", "two"}, "threads"},
		{"library", []string{"--llama-lib", dir + "/none", "--model", "x"}, "run: make deps, or pass --llama-lib DIR"},
		{"model", []string{"--llama-lib", dir, "--model", dir + "/none"}, "run: make deps, or pass --model FILE"},
	} {
		t.Run(c.name, func(t *testing.T) {
			var out, errs bytes.Buffer
			if code := run(c.args, &out, &errs); code != exitMissing {
				t.Errorf("exit code %d, want %d", code, exitMissing)
			}
			if !strings.Contains(errs.String(), c.want) || strings.Count(errs.String(), "\n") != 1 {
				t.Errorf("errors are %q, want one line with %q", errs.String(), c.want)
			}
		})
	}
}
