// SPDX-License-Identifier: Apache-2.0
// Copyright The Segue Authors

package main

import (
	"fmt"
	"os"
	"strings"
	"testing"
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

// BenchmarkContext_Step measures a step alone and with the capture of its row.
func BenchmarkContext_Step(b *testing.B) {
	c := testContext(b, 4096)
	row := make([]byte, c.layout.Geometry().RowBytes())
	for _, rows := range []int{100, 1000} {
		s := madeState(c.layout.Geometry(), rows)
		for _, capture := range []bool{false, true} {
			b.Run(fmt.Sprintf("rows=%d/capture=%v", rows, capture), func(b *testing.B) {
				b.ReportAllocs()
				if err := c.Load(s); err != nil {
					b.Fatal(err)
				}
				for b.Loop() {
					if err := c.Step(11, c.rows); err != nil {
						b.Fatal(err)
					}
					if capture {
						if err := c.Capture(c.rows-1, 1, row); err != nil {
							b.Fatal(err)
						}
					}
				}
			})
		}
		b.Run(fmt.Sprintf("rows=%d/capture alone", rows), func(b *testing.B) {
			b.ReportAllocs()
			if err := c.Load(s); err != nil {
				b.Fatal(err)
			}
			for b.Loop() {
				if err := c.Capture(rows-1, 1, row); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
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
