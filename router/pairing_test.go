// SPDX-License-Identifier: Apache-2.0
// Copyright The Segue Authors

package router_test

import (
	"fmt"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	seguev1 "github.com/seguekv/segue/api/segue/v1"
)

// The node that died comes back, becomes the holder, and takes over in its turn.
func TestRouter_PairsAgain(t *testing.T) {
	bubble(t, "a b", nil, func(t *testing.T, w *world) {
		a, b := w.agents["a"], w.agents["b"]
		a.generate = a.dies("b", 2)
		paired := make(chan string, 8)
		b.pair = func(r *seguev1.PairRequest) error {
			paired <- fmt.Sprintf("%s epoch %d", r.GetHolder().GetId(), r.GetEpoch())
			return nil
		}
		b.takeover = func(r *seguev1.TakeoverRequest, e *events) error {
			e.next, e.textEnd = int(r.GetDelivered()), int(r.GetTextEnd())
			e.seam(3)
			e.protection("", "no_holder")
			e.tokens(4)
			time.Sleep(500 * time.Millisecond)
			a.start()
			for len(paired) == 0 {
				time.Sleep(100 * time.Millisecond)
				e.progress(4, 4, 4)
			}
			for range 50 { // a long base
				time.Sleep(100 * time.Millisecond)
				e.progress(4, 4, 4)
			}
			e.protection("a", "")
			e.tokens(6)
			time.Sleep(time.Millisecond)
			go b.kill()
			return e.hang()
		}
		a.takeover = continues(6)
		resp := w.post("/v1/chat/completions", chat(true, ""))
		tr := w.stream(resp)
		if tr.text != words(0, total) || !tr.done {
			t.Errorf("%s", tr.raw)
		}
		if got := <-paired; got != "a epoch 2" || len(paired) != 0 {
			t.Errorf("paired with %q and %d more: a base on its way isn't started again", got, len(paired))
		}
		if info := w.session(resp); len(info.Seams) != 2 || info.Primary != "a" {
			t.Errorf("session %+v", info)
		}
		w.settle()
	})
}

// A holder whose state can't be loaded is not asked again; others are, at most once a second.
func TestRouter_PairingIsPaced(t *testing.T) {
	bubble(t, "a b c", nil, func(t *testing.T, w *world) {
		a := w.agents["a"]
		start := time.Now()
		var times []time.Duration
		a.pair = func(r *seguev1.PairRequest) error {
			if r.GetHolder().GetId() != "c" {
				t.Errorf("paired with %s", r.GetHolder().GetId())
			}
			times = append(times, time.Since(start))
			return refusal(seguev1.Reason_REASON_NOT_READY, "not now")
		}
		a.generate = func(_ *seguev1.GenerateRequest, e *events) error {
			e.begin("", 1)
			e.protection("b", "fingerprint_mismatch")
			for range 100 {
				time.Sleep(100 * time.Millisecond)
				e.progress(1, 0, 0)
			}
			return e.finish("stop")
		}
		if tr := w.stream(w.post("/v1/chat/completions", chat(true, ""))); !tr.done {
			t.Errorf("%s", tr.raw)
		}
		synctest.Wait()
		want := []time.Duration{time.Second, 2 * time.Second, 4 * time.Second, 8 * time.Second}
		if !slices.Equal(times, want) {
			t.Errorf("paired at %v, want %v", times, want)
		}
		w.settle()
	})
}

// A base of which nothing is heard is asked for again, and in the end given up for another holder.
func TestRouter_SilentBaseIsGivenUp(t *testing.T) {
	bubble(t, "a b c", nil, func(t *testing.T, w *world) {
		a := w.agents["a"]
		a.generate = func(_ *seguev1.GenerateRequest, e *events) error {
			e.begin("", 1)
			for range 350 {
				time.Sleep(100 * time.Millisecond)
				if err := e.progress(1, 0, 0); err != nil {
					return err
				}
			}
			return e.finish("stop")
		}
		if tr := w.stream(w.post("/v1/chat/completions", chat(true, ""), "X-Segue-Protection", "async")); !tr.done {
			t.Errorf("%s", tr.raw)
		}
		first := a.calls().generates[0].GetHolder().GetId()
		other := map[string]string{"b": "c", "c": "b"}[first]
		var paired []string
		for _, p := range a.calls().pairs {
			paired = append(paired, p.GetHolder().GetId())
		}
		if want := []string{first, first, first, first, other}; !slices.Equal(paired, want) {
			t.Errorf("paired with %v, want %v", paired, want)
		}
		w.settle()
		for _, id := range []string{"b", "c"} {
			if n := len(w.agents[id].calls().cancels); n != 1 {
				t.Errorf("%d cancels on %s", n, id)
			}
		}
	})
}

// pairedWith runs a session whose holder b is lost at once, or never announced, for the time, and lists with
// which nodes its primary was told to pair.
func pairedWith(t *testing.T, names string, lost bool, d time.Duration) (list []string) {
	bubble(t, names, three, func(t *testing.T, w *world) {
		a := w.agents["a"]
		a.generate = func(r *seguev1.GenerateRequest, e *events) error {
			if id := r.GetHolder().GetId(); id != "b" {
				t.Errorf("first holder %q", id)
			}
			e.begin("", 1)
			if lost {
				e.protection("b", "holder_lost")
			}
			for range d / (100 * time.Millisecond) {
				time.Sleep(100 * time.Millisecond)
				e.progress(1, 0, 0)
			}
			return e.finish("stop")
		}
		w.stream(w.post("/v1/chat/completions", chat(true, "")))
		for _, p := range a.calls().pairs {
			list = append(list, p.GetHolder().GetId())
		}
	})
	return list
}

func TestRouter_PairsWithAnotherThanTheLost(t *testing.T) {
	if got := pairedWith(t, "a b c", true, 1500*time.Millisecond); !slices.Equal(got, []string{"c"}) {
		t.Errorf("paired with %v, though b was lost", got)
	}
	if got := pairedWith(t, "a b", true, 1500*time.Millisecond); !slices.Equal(got, []string{"b"}) {
		t.Errorf("paired with %v, though nobody else is left", got)
	}
}

func TestRouter_PairsAgainAfterSilence(t *testing.T) {
	if got := pairedWith(t, "a b", false, 6500*time.Millisecond); !slices.Equal(got, []string{"b"}) {
		t.Errorf("paired with %v after 6.5s of silence", got)
	}
	if got := pairedWith(t, "a b", false, 40*time.Second); len(got) < 4 {
		t.Errorf("paired with %v in 40s of silence", got)
	}
}

func TestRouter_OffIsNeverPaired(t *testing.T) {
	bubble(t, "a b", nil, func(t *testing.T, w *world) {
		a := w.agents["a"]
		a.generate = func(_ *seguev1.GenerateRequest, e *events) error {
			e.begin("", 1)
			for range 50 {
				time.Sleep(100 * time.Millisecond)
				e.progress(1, 0, 0)
			}
			return e.finish("stop")
		}
		w.stream(w.post("/v1/chat/completions", chat(true, ""), "X-Segue-Protection", "off"))
		if c := a.calls(); len(c.pairs) != 0 {
			t.Errorf("pairs %v", c.pairs)
		}
	})
}
