// SPDX-License-Identifier: Apache-2.0
// Copyright The Segue Authors

package main

import (
	"bytes"
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/spf13/cobra"
)

func TestDemo_UsageErrors(t *testing.T) {
	for name, c := range map[string]struct {
		args []string
		want string
	}{
		"target":        {[]string{"demo", "--engine", "sim", "--kill", "router"}, "use node, engine, agent or hang"},
		"sampling":      {[]string{"demo", "--engine", "sim", "--sampling", "beam"}, "--sampling"},
		"streams":       {[]string{"demo", "--engine", "sim", "--streams", "3"}, "--streams"},
		"keep":          {[]string{"demo", "--engine", "sim", "--keep", "--json", "-"}, "--keep"},
		"engine":        {[]string{"demo", "--engine", "vllm"}, "use llamacpp or sim"},
		"model":         {[]string{"demo", "--model", "/no/such.gguf", "--llama-lib", "/no/lib"}, "make deps"},
		"flag":          {[]string{"demo", "--frobnicate"}, "--help"},
		"argument":      {[]string{"demo", "now"}, "--help"},
		"bench":         {[]string{"bench", "overhead", "--rounds", "-1"}, "--rounds"},
		"bench context": {[]string{"bench", "overhead", "--contexts", "5,5"}, "twice"},
		"bench list":    {[]string{"bench", "overhead", "--contexts", "x"}, "--help"},
	} {
		t.Run(name, func(t *testing.T) {
			var out, errs bytes.Buffer
			if code := run(c.args, &out, &errs); code != exitUsage {
				t.Errorf("exit code %d, want %d", code, exitUsage)
			}
			if !strings.Contains(errs.String(), c.want) || out.Len() > 0 {
				t.Errorf("stdout %q, stderr %q, want %q there", out.String(), errs.String(), c.want)
			}
		})
	}
}

func TestDemo_HelpHasExamples(t *testing.T) {
	for _, args := range [][]string{{"demo", "--help"}, {"bench", "overhead", "--help"}} {
		var out, errs bytes.Buffer
		if code := run(args, &out, &errs); code != exitOK || !strings.Contains(out.String(), "Examples:") || !strings.Contains(out.String(), "Exit codes:") {
			t.Errorf("%v: exit code %d, %q, %q", args, code, out.String(), errs.String())
		}
	}
}

func TestOverheadFlags_DefaultsFollowTheEngine(t *testing.T) {
	f := &overheadFlags{}
	f.local.engine.Kind = "sim"
	if c := f.config(nil); c.Rounds != 7 || c.Tokens != 256 || len(c.Contexts) != 1 || c.Contexts[0] != 512 || c.ByContext {
		t.Errorf("sim: %+v", c)
	}
	f.local.engine.Kind = "llamacpp"
	if c := f.config(nil); c.Rounds != 5 || c.Tokens != 64 || len(c.Contexts) != 3 || !c.ByContext {
		t.Errorf("llamacpp: %+v", c)
	}
	f.rounds, f.tokens, f.contexts = 9, 32, []int{200}
	if c := f.config(nil); c.Rounds != 9 || c.Tokens != 32 || c.Contexts[0] != 200 || !c.ByContext {
		t.Errorf("given: %+v", c)
	}
}

func TestWriteJSON(t *testing.T) {
	var out bytes.Buffer
	cmd := &cobra.Command{}
	cmd.SetOut(&out)
	value := map[string]int{"runs": 1}
	if err := writeJSON(cmd, "-", value); err != nil || out.String() != "{\"runs\":1}\n" {
		t.Errorf("%q, %v", out.String(), err)
	}
	path := filepath.Join(t.TempDir(), "r.json")
	if err := writeJSON(cmd, path, value); err != nil {
		t.Fatal(err)
	}
	data, err := os.ReadFile(path)
	if err != nil || !json.Valid(data) {
		t.Errorf("%q, %v", data, err)
	}
}
