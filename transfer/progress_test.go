// SPDX-License-Identifier: Apache-2.0
// Copyright The Segue Authors

package transfer

import (
	"fmt"
	"strings"
	"testing"

	"github.com/cockroachdb/datadriven"
	"pgregory.net/rapid"
)

// TestProgress_Transcripts runs the scripts of testdata/progress. Commands:
//
//	new prompt=P [first=N] [row=BYTES] [window=BYTES]
//	capture rows=N boundary=N
//	welcome [rows=N boundary=N]    without arguments: the holder has nothing of this base
//	next [max=BYTES]               what would be sent
//	did                            the step that next gave was sent
//	send [max=BYTES]               next and did until there is nothing to send
//	ack rows=N boundary=N
//	reject, disconnect, detach
//
// Each answers with the phase and the watermarks: rows captured/sent/acknowledged, boundary
// captured/sent/committed. Use -rewrite to update the files.
func TestProgress_Transcripts(t *testing.T) {
	datadriven.Walk(t, "testdata/progress", func(t *testing.T, path string) {
		var p progress
		var last step
		datadriven.RunTest(t, path, func(t *testing.T, d *datadriven.TestData) string {
			arg := func(key string, or int) int {
				d.MaybeScanArgs(t, key, &or)
				return or
			}
			var out strings.Builder
			switch d.Cmd {
			case "new":
				p = progress{prompt: arg("prompt", 1), first: arg("first", 1), rowBytes: arg("row", 10), windowBytes: arg("window", 1000)}
			case "capture":
				p.capture(arg("rows", p.rows), arg("boundary", p.captured))
			case "welcome":
				p.welcome(d.HasArg("rows"), arg("rows", 0), arg("boundary", 0))
			case "next":
				last = p.next(arg("max", 1000))
				fmt.Fprintln(&out, last)
			case "did":
				p.did(last)
			case "send":
				for range 50 {
					s := p.next(arg("max", 1000))
					if s.kind == stepNone {
						break
					}
					fmt.Fprintln(&out, s)
					p.did(s)
				}
			case "ack":
				if err := p.ack(arg("rows", p.ackRows), arg("boundary", p.commit)); err != nil {
					fmt.Fprintln(&out, err)
				}
			case "reject":
				p.reject()
			case "disconnect":
				p.disconnect()
			case "detach":
				p.detach()
			default:
				d.Fatalf(t, "unknown command %q", d.Cmd)
			}
			fmt.Fprintf(&out, "%s rows %d/%d/%d boundary %d/%d/%d\n", p.phase, p.rows, p.sentRows, p.ackRows, p.captured, p.sent, p.commit)
			return out.String()
		})
	})
}

// Whatever happens on the stream: captured >= sent >= committed, the window holds, each boundary is sent
// right after its rows, and a stream that lives long enough brings everything over.
func TestProgress_Property(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		first := rapid.IntRange(1, 5).Draw(rt, "first")
		p := progress{
			prompt: rapid.IntRange(1, 30).Draw(rt, "prompt"), first: first,
			rowBytes: 10, windowBytes: rapid.IntRange(1, 200).Draw(rt, "window"),
		}
		// What the holder has, and what is under way to it and back.
		var has, acked struct{ rows, boundary int }
		begun := false
		deliver := func(s step) {
			switch s.kind {
			case stepBase:
				has.rows, has.boundary, begun = 0, 0, true
			case stepRows:
				if !begun || s.first != has.rows {
					rt.Fatalf("holder with %d rows gets %s", has.rows, s)
				}
				if (s.count-1)*10 >= max(p.windowBytes, 10) {
					rt.Fatalf("%s at once, window %d bytes", s, p.windowBytes)
				}
				has.rows += s.count
			case stepBoundary:
				if want := max(has.boundary+1, first); s.n != want || has.rows != p.prompt+s.n-1 {
					rt.Fatalf("holder with %d rows and boundary %d gets %s", has.rows, has.boundary, s)
				}
				has.boundary = s.n
			}
		}
		rt.Repeat(map[string]func(*rapid.T){
			"capture": func(rt *rapid.T) {
				rows, n := p.rows, p.captured
				known := p.prompt + max(n, first-1) // ids known
				for range rapid.IntRange(1, 10).Draw(rt, "steps") {
					if rows < known {
						rows++
					} else {
						n = max(n+1, first)
						known = p.prompt + n
					}
				}
				p.capture(rows, n)
			},
			"send": func(rt *rapid.T) {
				s := p.next(rapid.IntRange(1, 300).Draw(rt, "max"))
				p.did(s)
				deliver(s)
			},
			"ack": func(rt *rapid.T) {
				if p.phase == phaseConnecting || !begun {
					return
				}
				acked.rows = rapid.IntRange(min(acked.rows, has.rows), has.rows).Draw(rt, "rows")
				acked.boundary = rapid.IntRange(min(acked.boundary, has.boundary), has.boundary).Draw(rt, "boundary")
				if err := p.ack(acked.rows, acked.boundary); err != nil {
					rt.Fatal(err)
				}
			},
			"ack of nothing sent": func(rt *rapid.T) {
				before := p
				if err := p.ack(p.sentRows+1, p.commit); (err == nil) != (p.phase == phaseConnecting) {
					rt.Fatal(err)
				}
				if err := p.ack(p.ackRows, p.sent+1); (err == nil) != (p.phase == phaseConnecting) {
					rt.Fatal(err)
				}
				if p != before {
					rt.Fatal("an ack of what was never sent moved something")
				}
			},
			"break": func(*rapid.T) { p.disconnect() },
			"welcome": func(rt *rapid.T) {
				if rapid.Bool().Draw(rt, "boot") {
					has.rows, has.boundary, begun = 0, 0, false
				}
				p.welcome(begun, has.rows, has.boundary)
				acked = has
				if p.commit != has.boundary || p.ackRows != has.rows {
					rt.Fatalf("after a welcome with %+v: %+v", has, p)
				}
			},
			"": func(rt *rapid.T) {
				if p.rows < p.sentRows || p.sentRows < p.ackRows || p.captured < p.sent || p.sent < p.commit {
					rt.Fatalf("%+v", p)
				}
				if p.commit > has.boundary && p.phase != phaseConnecting {
					rt.Fatalf("committed %d, the holder has %d", p.commit, has.boundary)
				}
				if over := (p.sentRows - p.ackRows - 1) * p.rowBytes; over >= p.windowBytes {
					rt.Fatalf("%d rows in flight, window %d bytes", p.sentRows-p.ackRows, p.windowBytes)
				}
			},
		})
		p.disconnect()
		p.welcome(begun, has.rows, has.boundary)
		for range 1000 {
			s := p.next(100)
			p.did(s)
			deliver(s)
			if err := p.ack(has.rows, has.boundary); err != nil {
				rt.Fatal(err)
			}
		}
		if has.rows != p.rows || has.boundary != p.captured {
			rt.Fatalf("the holder ends with %+v, captured %d rows and boundary %d", has, p.rows, p.captured)
		}
	})
}
