// SPDX-License-Identifier: Apache-2.0
// Copyright The Segue Authors

package main

import (
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"
	"time"
)

func BenchmarkContext_Load(b *testing.B) {
	c := testContext(b, 4096)
	for _, rows := range []int{100, 1000, 3000} {
		s := madeState(c.layout.Geometry(), rows)
		b.Run(fmt.Sprintf("rows=%d", rows), func(b *testing.B) {
			b.SetBytes(int64(rows * s.Geometry.RowBytes()))
			b.ReportAllocs()
			for b.Loop() {
				if err := c.Load(s); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

// BenchmarkContext_Step takes every second step without a capture: the medians tell what a capture costs, by
// itself and for the step after it.
func BenchmarkContext_Step(b *testing.B) {
	c := testContext(b, 4096)
	row := make([]byte, c.layout.Geometry().RowBytes())
	for _, rows := range []int{100, 1000} {
		s := madeState(c.layout.Geometry(), rows)
		b.Run(fmt.Sprintf("rows=%d", rows), func(b *testing.B) {
			b.ReportAllocs()
			if err := c.Load(s); err != nil {
				b.Fatal(err)
			}
			var captures []time.Duration
			steps := [2][]time.Duration{}
			for i := 0; b.Loop(); i++ {
				began := time.Now()
				if err := c.Step(11, c.rows); err != nil {
					b.Fatal(err)
				}
				steps[i%2] = append(steps[i%2], time.Since(began))
				if i%2 == 0 {
					began = time.Now()
					if err := c.Capture(c.rows-1, 1, row); err != nil {
						b.Fatal(err)
					}
					captures = append(captures, time.Since(began))
				}
			}
			b.ReportMetric(median(captures), "ms/capture")
			b.ReportMetric(median(steps[0]), "ms/step")
			b.ReportMetric(median(steps[1]), "ms/step-after-capture")
		})
	}
}

func median(d []time.Duration) float64 {
	slices.Sort(d)
	if len(d) == 0 {
		return 0
	}
	return float64(d[len(d)/2].Microseconds()) / 1000
}

func BenchmarkContext_Create(b *testing.B) {
	m := testModel(b)
	for b.Loop() {
		c, err := newContext(m, 4096, 1)
		if err != nil {
			b.Fatal(err)
		}
		c.free()
	}
	status, err := os.ReadFile("/proc/self/status")
	if err != nil {
		b.Fatal(err)
	}
	for line := range strings.Lines(string(status)) {
		if strings.HasPrefix(line, "VmRSS:") || strings.HasPrefix(line, "VmHWM:") {
			b.Log(strings.TrimSpace(line))
		}
	}
}
