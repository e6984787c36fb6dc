// SPDX-License-Identifier: Apache-2.0
// Copyright The Segue Authors

package main

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestBenchFaults_UsageErrors(t *testing.T) {
	other := filepath.Join(t.TempDir(), "other.jsonl")
	line := `{"run":1,"format":1,"seed":9,"kills_per_prompt":10,"protection":"sync","engine":"sim","model":"sim"}` + "\n"
	if err := os.WriteFile(other, []byte(line), 0o600); err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct {
		args []string
		want string
	}{
		"kills":      {[]string{"--kills", "0"}, "--kills"},
		"reference":  {[]string{"--kills-per-prompt", "4"}, "--kills-per-prompt must be 5"},
		"clusters":   {[]string{"--clusters", "0"}, "--clusters"},
		"protection": {[]string{"--protection", "off"}, "--protection"},
		"budget":     {[]string{"--budget", "-1s"}, "--budget"},
		"log":        {[]string{"--log", other}, "--seed is 9 there and 1 here"},
		"no log":     {[]string{"--log", t.TempDir()}, "open log"},
		"argument":   {[]string{"now"}, "--help"},
	} {
		t.Run(name, func(t *testing.T) {
			var out, errs bytes.Buffer
			args := append([]string{"bench", "faults", "--engine", "sim"}, c.args...)
			if code := run(args, &out, &errs); code != exitUsage {
				t.Errorf("exit code %d, want %d", code, exitUsage)
			}
			if !strings.Contains(errs.String(), c.want) || out.Len() > 0 {
				t.Errorf("stdout %q, stderr %q, want %q there", out.String(), errs.String(), c.want)
			}
		})
	}
}

func TestBenchFaults_HelpHasExamples(t *testing.T) {
	var out, errs bytes.Buffer
	if code := run([]string{"bench", "faults", "--help"}, &out, &errs); code != exitOK || !strings.Contains(out.String(), "Examples:") || !strings.Contains(out.String(), "Exit codes:") {
		t.Errorf("exit code %d, %q, %q", code, out.String(), errs.String())
	}
}
