// SPDX-License-Identifier: Apache-2.0
// Copyright The Segue Authors

package link_test

import (
	"context"
	"fmt"
	"syscall"
	"testing"
	"time"

	"github.com/seguekv/segue/engines"
)

// count is a sink that counts tokens.
type count struct{ tokens, bytes int }

func (c *count) Prompt([]int32) error { return nil }
func (c *count) Prefilled(_, _ int, rows []byte) error {
	c.bytes += len(rows)
	return nil
}
func (c *count) Token(t engines.Token) error {
	c.tokens++
	c.bytes += len(t.Row)
	return nil
}

// cpu is the processor time this process has used.
func cpu(b *testing.B) time.Duration {
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		b.Fatal(err)
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// idle is the processor time of one pause without a link.
func idle(b *testing.B, pace time.Duration) time.Duration {
	if pace == 0 {
		return 0
	}
	const rounds = 300
	before := cpu(b)
	for range rounds {
		time.Sleep(pace)
	}
	return (cpu(b) - before) / rounds
}

// A token with its row, both sides in this process. pace is the engine's step time: 0 measures throughput,
// where wake-ups are shared by tokens, 1 ms the cost of a token by itself. cpu-us/op is both sides' processor
// time without that of the pauses.
func BenchmarkClient_Token(b *testing.B) {
	for _, rowBytes := range []int{0, 23040, 128 << 10} {
		for _, pace := range []time.Duration{0, time.Millisecond} {
			b.Run(fmt.Sprintf("row=%d/pace=%v", rowBytes, pace), func(b *testing.B) {
				f := newFake(max(rowBytes, 1))
				f.d.ContextLength = 1 << 20
				f.prompt = 1
				row := make([]byte, rowBytes)
				f.run = func(_ context.Context, job engines.Job, sink engines.Sink) error {
					if err := sink.Prompt([]int32{1}); err != nil {
						return err
					}
					var rows []byte
					if job.Capture {
						rows = row
					}
					if err := sink.Prefilled(0, 1, rows); err != nil {
						return err
					}
					text := []byte(" word")
					for i := range b.N {
						if pace > 0 {
							time.Sleep(pace)
						}
						t := engines.Token{Index: i, ID: 5, Text: text, TextEnd: 5 * (i + 1), RawEnd: 5 * (i + 1)}
						t.Sampler.Seed, t.Sampler.Draws = 1<<63, uint64(i+1)
						if i > 0 {
							t.Row = rows
						}
						if i == b.N-1 {
							t.Finish = engines.FinishLength
						}
						if err := sink.Token(t); err != nil {
							return err
						}
					}
					return nil
				}
				c, _ := connect(b, f)
				b.SetBytes(int64(rowBytes))
				b.ReportAllocs()
				pause := idle(b, pace)
				b.ResetTimer()
				before := cpu(b)
				if err := c.Run(b.Context(), job(rowBytes > 0), &count{}); err != nil {
					b.Fatal(err)
				}
				used := cpu(b) - before - pause*time.Duration(b.N)
				b.ReportMetric(float64(used.Microseconds())/float64(b.N), "cpu-us/op")
			})
		}
	}
}

// A takeover's state of 273 rows of 128 KiB, 35.8 MB: from Run to the engine's first token.
func BenchmarkClient_Upload(b *testing.B) {
	f := newFake(128 << 10)
	from := state(f.d, 270, 4)
	f.run = func(_ context.Context, job engines.Job, sink engines.Sink) error {
		for i, id := range job.From.Output {
			t := engines.Token{Index: i, ID: id, Restored: true}
			if i == len(job.From.Output)-1 {
				t.Finish = engines.FinishStop
			}
			if err := sink.Token(t); err != nil {
				return err
			}
		}
		return nil
	}
	c, _ := connect(b, f)
	j := job(true)
	j.From = from
	b.SetBytes(int64(from.Rows() * f.d.Geometry.RowBytes()))
	b.ReportAllocs()
	b.ResetTimer()
	before := cpu(b)
	for range b.N {
		if err := c.Run(b.Context(), j, &count{}); err != nil {
			b.Fatal(err)
		}
		f.mu.Lock()
		f.jobs = nil // keeps no state
		f.mu.Unlock()
	}
	b.ReportMetric(float64((cpu(b)-before).Microseconds())/float64(b.N), "cpu-us/op")
}
