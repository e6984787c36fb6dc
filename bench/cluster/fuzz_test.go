// SPDX-License-Identifier: Apache-2.0
// Copyright The Segue Authors

package cluster_test

import (
	"math"
	"strings"
	"testing"

	"github.com/seguekv/segue/bench/cluster"
	"github.com/seguekv/segue/internal/invariant"
)

// FuzzMetrics reads arbitrary metric pages; a page that is read twice counts twice.
func FuzzMetrics(f *testing.F) {
	f.Add([]byte("# HELP a b\n# TYPE a counter\na 1\nb{x=\"1\",y=\"} 2\"} 2.5\nb{x=\"2\"} 3e2 1700000000\n\nc NaN\n"))
	f.Add([]byte("a{ 1\n"))
	f.Add([]byte("a} 1{\n"))
	f.Add([]byte("a 1e999\r\nb -Inf"))
	f.Add([]byte("a\n"))
	f.Fuzz(func(t *testing.T, page []byte) {
		var got cluster.Counters
		var err error
		if over := invariant.WithinBytes(2<<20+256*len(page), func() { got, err = cluster.ParseMetrics(page) }); over != nil {
			t.Fatalf("a page of %d bytes: %v", len(page), over)
		}
		if err != nil {
			if len(got) > 0 {
				t.Fatalf("counters come with %v", err)
			}
			return
		}
		twice, err := cluster.ParseMetrics([]byte(string(page) + "\n" + string(page)))
		if err != nil {
			t.Fatal(err)
		}
		for name, v := range got {
			switch w := twice[name]; {
			case strings.ContainsAny(name, "\n{"):
				t.Fatalf("name %q", name)
			case math.IsNaN(v), math.IsInf(v, 0), math.Abs(v) > 1e15, math.Abs(v) < 1e-9:
			case math.Abs(w-2*v) > 1e-6*math.Abs(v)+1e-6:
				t.Fatalf("%s is %v, and twice %v", name, v, w)
			}
		}
	})
}

// FuzzAnnouncement reads arbitrary first lines of a process.
func FuzzAnnouncement(f *testing.F) {
	f.Add("segue agent: id=a listen=127.0.0.1:4000 admin=127.0.0.1:4001\n")
	f.Add("segue router: listen=127.0.0.1:1 admin=127.0.0.1:2")
	f.Add("segue router: listen=127.0.0.1:1")
	f.Add("segue router: listen= admin=")
	f.Fuzz(func(t *testing.T, line string) {
		listen, admin, ok := cluster.ParseAnnouncement(line)
		if ok && (listen == "" || admin == "" || !strings.Contains(line, listen) || !strings.Contains(line, admin)) {
			t.Fatalf("%q is read as %q and %q", line, listen, admin)
		}
		if _, _, err := cluster.ParseStat([]byte(line)); err == nil && !strings.Contains(line, ")") {
			t.Fatalf("%q passes as a stat line", line)
		}
	})
}
