// SPDX-License-Identifier: Apache-2.0
// Copyright The Segue Authors

package main

import (
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/seguekv/segue/conformance/parts"
	"github.com/seguekv/segue/conformance/upstream"
)

// A client behind stock nginx and haproxy has the first delta within 200 ms of its emission; through a haproxy that must hold it
// back it hasn't, so the measurement would notice.
func TestCase_G1_FirstDeltaThroughProxies(t *testing.T) {
	if testing.Short() {
		t.Skip("SKIPPED: builds and starts a router and measures times; run: go test ./conformance, or make conformance ARGS=-matrix=false")
	}
	work := t.TempDir()
	segue := filepath.Join(work, "segue")
	if err := build(t.Context(), filepath.Join("..", "cmd", "segue"), segue); err != nil {
		t.Fatal(err)
	}
	fleet, err := upstream.New(1)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = fleet.Close() })
	router, err := startRouter(t.Context(), segue, work, "router", queueWait, fleet)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if log := router.stop(); t.Failed() {
			t.Logf("the router logged:\n%s", tailOf(log))
		}
	})
	m := &meter{fleet: fleet}
	for _, p := range allProxies() {
		name := p.name
		if p.holds {
			name += " that holds back"
		}
		t.Run(name, func(t *testing.T) {
			base := router.base
			if p.program != "" {
				program, ok := installed(p)
				if !ok {
					t.Skipf("SKIPPED: %s is neither in PATH nor in the cache of parts; run: make conformance ARGS=-matrix=false, which fetches and measures it", p.name)
				}
				started, err := p.start(t.Context(), program, filepath.Join(t.TempDir(), "proxy"), base)
				if err != nil {
					t.Fatal(err)
				}
				t.Cleanup(func() {
					if log := started.stop(); t.Failed() {
						t.Logf("%s logged:\n%s", p.name, tailOf(log))
					}
				})
				base = started.base
			}
			said := tally{passed: true}
			var line strings.Builder
			if err := said.proxy(t.Context(), m, p, base, io.MultiWriter(&line, t.Output())); err != nil {
				t.Fatal(err)
			}
			if !said.passed {
				t.Error(line.String())
			}
		})
	}
}

// installed is the proxy's program, of a part that was fetched before or of this machine.
func installed(p proxy) (program string, ok bool) {
	if dir, err := parts.CacheDir(os.Getenv); err == nil {
		found, _ := filepath.Glob(filepath.Join(dir, "conformance-proxies-*", filepath.FromSlash(p.program)))
		for _, program := range found {
			if exec.Command(program, "-v").Run() == nil {
				return program, true
			}
		}
	}
	program, err := exec.LookPath(p.name)
	return program, err == nil
}
