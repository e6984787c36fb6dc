// SPDX-License-Identifier: Apache-2.0
// Copyright The Segue Authors

package cluster_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/seguekv/segue/bench/cluster"
)

func TestParseAnnouncement(t *testing.T) {
	for line, want := range map[string][2]string{
		"segue agent: id=a listen=127.0.0.1:4000 admin=127.0.0.1:4001\n": {"127.0.0.1:4000", "127.0.0.1:4001"},
		"segue router: listen=127.0.0.1:1 admin=127.0.0.1:2":             {"127.0.0.1:1", "127.0.0.1:2"},
		"segue router: listen=127.0.0.1:1":                               {},
		"other: listen=127.0.0.1:1 admin=127.0.0.1:2":                    {},
		"": {},
	} {
		listen, admin, ok := cluster.ParseAnnouncement(line)
		if ok != (want[0] != "") || (ok && (listen != want[0] || admin != want[1])) {
			t.Errorf("%q: %q %q %t", line, listen, admin, ok)
		}
	}
}

func TestParseStat(t *testing.T) {
	line := "12 (a b) c) S 1 77 77 0 -1 4194560 9 0 0 0 250 50 0 0 20 0 1 0 100 0 0"
	group, cpu, err := cluster.ParseStat([]byte(line))
	if err != nil || group != 77 || cpu != 3*time.Second {
		t.Errorf("got group %d, %v, %v", group, cpu, err)
	}
	for _, bad := range []string{"", "12 (a", "12 (a) S 1 2", "12 (a) S 1 x 77 0 -1 4194560 9 0 0 0 250 50 0"} {
		if _, _, err := cluster.ParseStat([]byte(bad)); err == nil {
			t.Errorf("%q passed", bad)
		}
	}
	own, err := os.ReadFile("/proc/self/stat")
	if err != nil {
		t.Skip("no /proc here; runs on Linux")
	}
	if _, _, err := cluster.ParseStat(own); err != nil {
		t.Error(err)
	}
}

func TestParseMetrics(t *testing.T) {
	page := "# HELP a b\n# TYPE a counter\na 1\nb{x=\"1\",y=\"} 2\"} 2.5\nb{x=\"2\"} 3e2 1700000000\n\nc NaN\n"
	got, err := cluster.ParseMetrics([]byte(page))
	if err != nil {
		t.Fatal(err)
	}
	if got["a"] != 1 || got["b"] != 302.5 {
		t.Errorf("got %v", got)
	}
	for _, bad := range []string{"a", "a x", "a}{ 1"} {
		if _, err := cluster.ParseMetrics([]byte(bad)); err == nil {
			t.Errorf("%q passed", bad)
		}
	}
}

func TestCounters_DeltaOfAMissingNameIsAnError(t *testing.T) {
	before, after := cluster.Counters{"a": 1}, cluster.Counters{"a": 5, "b": 2}
	if d, err := after.Delta(before, "a"); d != 4 || err != nil {
		t.Errorf("got %d, %v", d, err)
	}
	if _, err := after.Delta(before, "b"); err == nil {
		t.Error("a counter without a past passed")
	}
}

func TestEngine_AgentYAML(t *testing.T) {
	sim := cluster.Engine{Kind: cluster.EngineSim, Step: 7 * time.Millisecond, KVBytesPerToken: 131072}
	want := "agent:\n  engine:\n    kind: sim\n    sim:\n      step: 7ms\n      kv_bytes_per_token: 131072\n"
	if diff := cmp.Diff(want, sim.AgentYAML()); diff != "" {
		t.Error(diff)
	}
	llama := cluster.Engine{Kind: cluster.EngineLlamaCPP, Model: "/a b/\"m\".gguf", Library: "/l", Threads: 1}
	want = "agent:\n  engine:\n    kind: llamacpp\n    threads: 1\n    model: \"/a b/\\\"m\\\".gguf\"\n    library: \"/l\"\n"
	if diff := cmp.Diff(want, llama.AgentYAML()); diff != "" {
		t.Error(diff)
	}
}

func TestEngine_ValidateSaysWhatToDo(t *testing.T) {
	err := cluster.Engine{Kind: cluster.EngineLlamaCPP, Model: "/no/model", Library: "/no/lib"}.Validate()
	if err == nil {
		t.Fatal("missing files passed")
	}
	for _, want := range []string{"/no/model", "--model", "/no/lib", "--llama-lib", "make deps"} {
		if !strings.Contains(err.Error(), want) {
			t.Errorf("%q lacks %q", err, want)
		}
	}
	if err := (cluster.Engine{Kind: "vllm"}).Validate(); err == nil {
		t.Error("unknown engine passed")
	}
}

func TestCachedParts_TakesTheCacheOfTheEnvironment(t *testing.T) {
	root := t.TempDir()
	t.Setenv("SEGUE_CACHE", root)
	model, library := cluster.CachedParts()
	if filepath.Dir(library) != root || model != filepath.Join(root, "smollm2-135m-instruct-q4_1", "model.gguf") {
		t.Errorf("got %q %q", model, library)
	}
}
