// SPDX-License-Identifier: Apache-2.0
// Copyright The Segue Authors

package bench_test

import (
	"bytes"
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/seguekv/segue/bench"
	"github.com/seguekv/segue/internal/invariant"
)

// FuzzFaultLog opens arbitrary logs. An accepted one keeps its lines as they are, loses a torn last line only, and is
// read again with what was appended.
func FuzzFaultLog(f *testing.F) {
	params := bench.FaultParams{Format: 1, Seed: 7, KillsPerPrompt: 5, Protection: "sync", Engine: "sim"}
	line := func(run int) string {
		b, err := json.Marshal(bench.FaultRecord{Run: run, FaultParams: params, Kind: "kill", C: -1, D: -1})
		if err != nil {
			f.Fatal(err)
		}
		return string(b) + "\n"
	}
	f.Add([]byte(line(1) + line(2)))
	f.Add([]byte(line(1) + line(2)[:40]))
	f.Add([]byte(line(1) + line(1)))
	f.Add([]byte(line(1) + "\n" + line(2)))
	f.Add([]byte(strings.Replace(line(1), `"seed":7`, `"seed":8`, 1)))
	f.Add([]byte("null\n{}\n"))
	f.Add([]byte(strings.Replace(line(1), `"run":1`, `"run":9223372036854775808`, 1)))
	path := filepath.Join(f.TempDir(), "log.jsonl")
	f.Fuzz(func(t *testing.T, data []byte) {
		if err := os.WriteFile(path, data, 0o600); err != nil {
			t.Fatal(err)
		}
		var l *bench.FaultLog
		var err error
		if over := invariant.WithinBytes(1<<20+1024*len(data), func() { l, err = bench.OpenFaultLog(path, params) }); over != nil {
			t.Fatalf("a log of %d bytes: %v", len(data), over)
		}
		if err != nil {
			kept, _ := os.ReadFile(path)
			if !bytes.Equal(kept, data) {
				t.Fatalf("refused with %v, and changed", err)
			}
			return
		}
		next := 1
		for _, r := range l.Records {
			if r.Run < 1 {
				t.Fatalf("kill %d", r.Run)
			}
			next = max(next, r.Run)
		}
		if next++; next < 0 {
			return
		}
		if err := l.Append(bench.FaultRecord{Run: next, FaultParams: params}); err != nil {
			t.Fatal(err)
		}
		if err := l.Close(); err != nil {
			t.Fatal(err)
		}
		kept, err := os.ReadFile(path)
		if err != nil || !bytes.HasPrefix(kept, data[:len(data)-l.Torn]) {
			t.Fatalf("%v: %q became %q", err, data, kept)
		}
		again, err := bench.OpenFaultLog(path, params)
		if err != nil {
			t.Fatalf("read again: %v", err)
		}
		defer again.Close()
		if diff := cmp.Diff(l.Records, again.Records); diff != "" || again.Torn != 0 {
			t.Fatalf("%d bytes torn, (-kept +read):\n%s", again.Torn, diff)
		}
	})
}
