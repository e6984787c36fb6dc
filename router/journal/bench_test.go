// SPDX-License-Identifier: Apache-2.0
// Copyright The Segue Authors

package journal_test

import (
	"context"
	"path/filepath"
	"strconv"
	"sync/atomic"
	"testing"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/seguekv/segue/router/journal"
)

// BenchmarkJournal_Token is one output token: of a run that is reserved already, and of a steady stream whose runs are
// reserved on the way.
func BenchmarkJournal_Token(b *testing.B) {
	b.Run("covered", func(b *testing.B) {
		j, _ := open(b, journal.Options{})
		e := begin(b, j, request(1, ""))
		reserve(b, e, 1)
		ctx := context.Background()
		b.ReportAllocs()
		for b.Loop() {
			if err := e.Reserve(ctx, 1); err != nil {
				b.Fatal(err)
			}
			e.Delivered(1)
		}
	})
	b.Run("stream", func(b *testing.B) {
		j, _ := open(b, journal.Options{})
		e := begin(b, j, request(1, ""))
		ctx := context.Background()
		b.ReportAllocs()
		for n := 1; b.Loop(); n++ {
			if err := e.Reserve(ctx, n); err != nil {
				b.Fatal(err)
			}
			e.Delivered(n)
		}
	})
}

func TestEntry_CoveredTokenAllocatesNothing(t *testing.T) {
	j, _ := open(t, journal.Options{})
	e := begin(t, j, request(1, ""))
	reserve(t, e, 1)
	ctx := t.Context()
	if n := testing.AllocsPerRun(1000, func() { _ = e.Reserve(ctx, 2); e.Delivered(2) }); n > 0 {
		t.Errorf("%v allocations", n)
	}
}

// BenchmarkJournal_Request is one request of 100 output tokens with two attempts and a key, many at a time.
func BenchmarkJournal_Request(b *testing.B) {
	for _, where := range []string{"memory", "file"} {
		b.Run(where, func(b *testing.B) {
			reg := prometheus.NewRegistry()
			o := journal.Options{Registerer: reg, MaxRequests: 1000, MaxKeys: 1 << 30}
			if where == "file" {
				o.Path = filepath.Join(b.TempDir(), "journal")
			}
			j, _ := open(b, o)
			var number atomic.Int64
			b.ReportAllocs()
			b.SetParallelism(128)
			b.RunParallel(func(p *testing.PB) {
				ctx := context.Background()
				for p.Next() {
					n := int(number.Add(1))
					e := begin(b, j, request(n, strconv.Itoa(n)))
					for i := range 2 {
						e.EndAttempt(e.Attempt(journal.Attempt{Replica: "a", Kind: "generate", Epoch: uint64(i), Lease: "l"}), "", "")
					}
					e.Phase(journal.PhaseDecode)
					for k := range 100 {
						if err := e.Reserve(ctx, k+1); err != nil {
							b.Fatal(err)
						}
						e.Delivered(k + 1)
					}
					e.Done("stop", journal.Usage{}, nil)
				}
			})
			if err := j.Sync(context.Background()); err != nil {
				b.Fatal(err)
			}
			b.ReportMetric(metric(b, reg, "segue_journal_commits_total")/float64(b.N), "commits/op")
		})
	}
}
