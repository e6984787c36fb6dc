// SPDX-License-Identifier: Apache-2.0
// Copyright The Segue Authors

package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"go.yaml.in/yaml/v3"
)

// exampleFile is the sample configuration at the repository's root.
const exampleFile = "../../segue.example.yaml"

func TestExample_EqualsTheDefaults(t *testing.T) {
	got, err := load(exampleFile, nil, nil)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(defaultConfig(), got, cmpopts.EquateEmpty()); diff != "" {
		t.Errorf("segue.example.yaml isn't the defaults (-default +example):\n%s", diff)
	}
}

func TestExample_HasEveryKey(t *testing.T) {
	b, err := os.ReadFile(exampleFile)
	if err != nil {
		t.Fatal(err)
	}
	var example map[string]any
	if err := yaml.Unmarshal(b, &example); err != nil {
		t.Fatal(err)
	}
	all, err := keys()
	if err != nil {
		t.Fatal(err)
	}
	for _, key := range all {
		if !hasKey(example, strings.Split(key, ".")) {
			t.Errorf("segue.example.yaml lacks %s", key)
		}
	}
}

func hasKey(tree map[string]any, path []string) bool {
	v, ok := tree[path[0]]
	if !ok || len(path) == 1 {
		return ok
	}
	m, ok := v.(map[string]any)
	return ok && hasKey(m, path[1:])
}

func TestLoad_Precedence(t *testing.T) {
	file := filepath.Join(t.TempDir(), "segue.yaml")
	write(t, file, "router:\n  window: 8\n  commit_timeout: 1s\n  queue: {depth: 3}\nagent:\n  snapshot_memory: 2GiB\n")
	c, err := load(file, []string{"SEGUE_ROUTER_WINDOW=9", "SEGUE_ROUTER_QUEUE_WAIT=7s", "OTHER=1"}, []string{"router.window=10"})
	if err != nil {
		t.Fatal(err)
	}
	if c.Router.Window != 10 || c.Router.CommitTimeout.String() != "1s" || c.Router.Queue.Depth != 3 || c.Router.Queue.Wait.String() != "7s" {
		t.Errorf("window %d, commit_timeout %v, queue %+v", c.Router.Window, c.Router.CommitTimeout, c.Router.Queue)
	}
	if got := c.agent().SnapshotMemory; got != 2<<30 {
		t.Errorf("snapshot memory %d, want 2 GiB", got)
	}
	if c.Router.MaxAttempts != 2 {
		t.Errorf("max_attempts %d, want the default", c.Router.MaxAttempts)
	}
}

func TestLoad_ErrorsNameThePlace(t *testing.T) {
	dir := t.TempDir()
	for _, tc := range []struct {
		name, yaml string
		environ    []string
		set        []string
		want       string
	}{
		{name: "unknown key", yaml: "router:\n  windw: 8\n", want: "line 2"},
		{name: "unknown section", yaml: "rooter: {}\n", want: "line 1"},
		{name: "wrong type", yaml: "router:\n  window: many\n", want: "line 2"},
		{name: "bad size", yaml: "agent:\n  snapshot_memory: 1 GB\n", want: "line 2"},
		{name: "unknown variable", environ: []string{"SEGUE_ROUTER_WINDWO=1"}, want: "SEGUE_ROUTER_WINDWO"},
		{name: "bad variable", environ: []string{"SEGUE_ROUTER_WINDOW=x"}, want: "SEGUE_ROUTER_WINDOW"},
		{name: "bad set", set: []string{"router.nothing=1"}, want: "router.nothing"},
		{name: "set without value", set: []string{"router.window"}, want: "KEY=VALUE"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			file := filepath.Join(dir, "c.yaml")
			write(t, file, tc.yaml)
			_, err := load(file, tc.environ, tc.set)
			if err == nil || !strings.Contains(err.Error(), tc.want) {
				t.Errorf("got %v, want an error with %q", err, tc.want)
			}
		})
	}
}

func TestValidate_ReportsAllProblems(t *testing.T) {
	c, err := load("", nil, []string{"agent.id=\"\"", "agent.engine.kind=tpu", "agent.listen=0.0.0.0:1", "agent.engine.reserved_for_takeover=9"})
	if err != nil {
		t.Fatal(err)
	}
	err = c.validateAgent()
	for _, want := range []string{"agent.id", "agent.engine.kind", "agent.listen", "loopback", "reserved_for_takeover"} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("got %v, want a problem with %s", err, want)
		}
	}
}

func TestSize_RoundTrip(t *testing.T) {
	for text, want := range map[string]size{"1GiB": 1 << 30, "512MiB": 512 << 20, "3KiB": 3 << 10, "1000": 1000, "7B": 7} {
		var s size
		if err := yaml.Unmarshal([]byte(text), &s); err != nil || s != want {
			t.Errorf("%s: %d, %v, want %d", text, s, err, want)
		}
		b, err := yaml.Marshal(s)
		if err != nil {
			t.Fatal(err)
		}
		var again size
		if err := yaml.Unmarshal(b, &again); err != nil || again != s {
			t.Errorf("%s: written as %q, read as %d", text, b, again)
		}
	}
}

func write(t *testing.T, file, text string) {
	t.Helper()
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
}
