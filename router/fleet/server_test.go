// SPDX-License-Identifier: Apache-2.0
// Copyright The Segue Authors

package fleet_test

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/seguekv/segue/router/fleet"
)

func seconds(list ...float64) []time.Duration {
	var out []time.Duration
	for _, s := range list {
		out = append(out, time.Duration(s*float64(time.Second)))
	}
	return out
}

func TestServer_ProbeRhythm(t *testing.T) {
	bubble(t, "s:m", nil, func(t *testing.T, w *world) {
		s := w.servers["s"]
		pass(5 * time.Second)
		if got := s.probes(); !slices.Equal(got, seconds(0, 2, 4)) {
			t.Errorf("while ready: probes at %v", got)
		}
		s.set(func(u *upstream) { u.err = errRefused })
		pass(2 * time.Second)
		if got := w.status("s"); !got.Ready {
			t.Errorf("one missed probe: %+v", got)
		}
		pass(2 * time.Second)
		if got := w.status("s"); got.Ready || got.Reason != "models: connection refused" {
			t.Errorf("two missed probes: %+v", got)
		}
		pass(time.Second)
		if got := s.probes(); !slices.Equal(got, seconds(6, 8, 8.5, 9, 9.5, 10)) && !slices.Equal(got, seconds(6, 8, 8.5, 9, 9.5)) {
			t.Errorf("while not ready: probes at %v", got)
		}
		s.set(func(u *upstream) { u.err = nil })
		pass(500 * time.Millisecond)
		if got := w.status("s"); !got.Ready || got.Reason != "" {
			t.Errorf("one answered probe: %+v", got)
		}
	})
}

func TestServer_ProbeTimesOut(t *testing.T) {
	bubble(t, "s:m", nil, func(t *testing.T, w *world) {
		s := w.servers["s"]
		s.set(func(u *upstream) { u.hangs = true })
		s.probes()
		// The probe at 2 s ends at 3 s, that at 5 s at 6 s.
		pass(5900 * time.Millisecond)
		if got := w.status("s"); !got.Ready {
			t.Errorf("before the second timeout: %+v", got)
		}
		pass(200 * time.Millisecond)
		if got := w.status("s"); got.Ready {
			t.Errorf("after the second timeout: %+v", got)
		}
		if got := s.probes(); !slices.Equal(got, seconds(2, 5)) {
			t.Errorf("probes at %v", got)
		}
	})
}

// Misses count only in a row.
func TestServer_AnAnswerClearsAMiss(t *testing.T) {
	bubble(t, "s:m", nil, func(t *testing.T, w *world) {
		for i := range 6 {
			w.servers["s"].set(func(u *upstream) {
				if u.err = nil; i%2 == 0 {
					u.err = errRefused
				}
			})
			pass(2 * time.Second)
			if got := w.status("s"); !got.Ready {
				t.Fatalf("after %d probes: %+v", i+1, got)
			}
		}
		if got := len(w.servers["s"].probes()); got != 7 {
			t.Errorf("%d probes", got)
		}
	})
}

func TestServer_SuspectDownProbesAtOnce(t *testing.T) {
	bubble(t, "s:m", nil, func(t *testing.T, w *world) {
		s, n := w.servers["s"], w.Node("s")
		pass(100 * time.Millisecond)
		s.set(func(u *upstream) { u.err = errRefused })
		n.Suspect(true, "connection reset")
		if n.Ready() || w.status("s").Reason != "connection reset" || w.try(server(nil)) != nil {
			t.Errorf("right after Suspect: %+v", w.status("s"))
		}
		pass(0)
		s.set(func(u *upstream) { u.err = nil })
		ready := w.Readied()
		pass(500 * time.Millisecond)
		if got := s.probes(); !slices.Equal(got, seconds(0, 0.1, 0.6)) || !n.Ready() {
			t.Errorf("probes at %v: %+v", got, w.status("s"))
		}
		select {
		case <-ready:
		default:
			t.Error("Readied stays open")
		}
	})
}

// A probe that was under way when the server was suspected says nothing about what happened after it began.
func TestServer_SuspectOutlivesAnEarlierProbe(t *testing.T) {
	release := make(chan struct{})
	var calls int
	bubble(t, "", func(c *fleet.Config) {
		release = make(chan struct{}) // of the bubble
		c.Servers = []fleet.Server{{ID: "s", Probe: func(ctx context.Context) ([]string, error) {
			if calls++; calls == 2 {
				<-release
			}
			if calls > 2 {
				return nil, errRefused
			}
			return []string{"m"}, nil
		}}}
	}, func(t *testing.T, w *world) {
		pass(2 * time.Second)
		w.Node("s").Suspect(true, "connection reset")
		close(release)
		pass(100 * time.Millisecond)
		if got := w.status("s"); got.Ready || calls != 3 {
			t.Errorf("after %d probes: %+v", calls, got)
		}
	})
}

// A server says nothing of its load: one that refused is left alone until the next regular probe.
func TestServer_SuspectFullLastsUntilTheNextProbe(t *testing.T) {
	bubble(t, "s:m", nil, func(t *testing.T, w *world) {
		pass(500 * time.Millisecond)
		w.Node("s").Suspect(false, "429")
		ticket := w.enqueue(server(nil))
		defer ticket.Close()
		pass(1400 * time.Millisecond)
		if !w.Node("s").Ready() || received(ticket) != nil {
			t.Errorf("a full server is ready and takes nothing: %+v", w.status("s"))
		}
		pass(200 * time.Millisecond)
		if received(ticket) == nil {
			t.Error("nothing after the probe")
		}
		if got := w.servers["s"].probes(); !slices.Equal(got, seconds(0, 2)) {
			t.Errorf("probes at %v", got)
		}
	})
}

func TestServer_Models(t *testing.T) {
	many := make([]string, 1025)
	for i := range many {
		many[i] = fmt.Sprint("m", i)
	}
	bubble(t, "s:m", nil, func(t *testing.T, w *world) {
		s := w.servers["s"]
		for _, tt := range []struct {
			lists  []string
			ready  bool
			reason string
			models []string
		}{
			{[]string{"m", "n"}, true, "", []string{"m", "n"}},
			{nil, false, "it lists no model; load one, or name its models in the configuration", []string{"m", "n"}},
			{many, false, "it lists 1025 models, more than 1024; name those to use in the configuration", []string{"m", "n"}},
			{[]string{"n"}, true, "", []string{"n"}},
		} {
			s.set(func(u *upstream) { u.models = tt.lists })
			pass(2 * time.Second)
			if got := w.status("s"); got.Ready != tt.ready || got.Reason != tt.reason || !slices.Equal(got.Models, tt.models) {
				t.Errorf("lists %d: %+v", len(tt.lists), got)
			}
		}
		if c := w.try(server(nil)); c != nil {
			t.Error("m is gone from the list and still served")
		}
	})
}

// The queue is served when a server lists a model for the first time.
func TestServer_NewModelServesTheQueue(t *testing.T) {
	bubble(t, "s:m", nil, func(t *testing.T, w *world) {
		ticket := w.enqueue(server(func(x *fleet.Want) { x.Model = "new" }))
		defer ticket.Close()
		pass(3 * time.Second)
		if received(ticket) != nil {
			t.Fatal("a claim for a model nobody lists")
		}
		w.servers["s"].set(func(u *upstream) { u.models = []string{"m", "new"} })
		pass(2 * time.Second)
		if c := received(ticket); c == nil || c.Node.ID() != "s" {
			t.Errorf("claim %v", c)
		}
	})
}

func TestServer_FixedModels(t *testing.T) {
	bubble(t, "s:listed t:x", func(c *fleet.Config) {
		c.Servers[0].Models = []string{"m"}
		c.Servers[1].Models, c.Servers[1].Probe = []string{"n"}, nil
	}, func(t *testing.T, w *world) {
		if got := w.Models(); strings.Join(got, " ") != "m n" {
			t.Errorf("models %v", got)
		}
		if w.claim(server(nil)).Node.ID() != "s" || w.claim(server(func(x *fleet.Want) { x.Model = "n" })).Node.ID() != "t" {
			t.Error("a fixed name isn't served")
		}
		w.servers["s"].set(func(u *upstream) { u.err = errRefused })
		pass(4 * time.Second)
		if w.Node("s").Ready() || !w.Node("t").Ready() {
			t.Errorf("%+v", w.Status())
		}
	})
}

func TestServer_Contexts(t *testing.T) {
	for _, tt := range []struct{ limit, asked, got int }{{0, 100, 100}, {-1, 3, 3}, {3, 4, 3}} {
		bubble(t, "s:m", func(c *fleet.Config) { c.Servers[0].Contexts, c.QueueDepth = tt.limit, 1 }, func(t *testing.T, w *world) {
			got := 0
			for range tt.asked {
				if w.try(server(nil)) != nil {
					got++
				}
			}
			if got != tt.got {
				t.Errorf("limit %d: %d of %d at once", tt.limit, got, tt.asked)
			}
		})
	}
}
