// SPDX-License-Identifier: Apache-2.0
// Copyright The Segue Authors

package sim_test

import (
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/seguekv/segue/internal/sim"
)

// bubble runs f in a world of its own, heals it, and sees that nothing is left in use.
func bubble(t *testing.T, c sim.Config, f func(*testing.T, *sim.World)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		w, err := sim.NewWorld(c)
		defer func() {
			if err := w.Close(); err != nil {
				t.Errorf("close: %v", err)
			}
			if t.Failed() {
				for _, l := range w.Trace.Lines() {
					t.Log(l)
				}
			}
		}()
		if err != nil {
			t.Fatal(err)
		}
		f(t, w)
		if err := w.Heal(); err != nil {
			t.Errorf("heal: %v", err)
		}
		if err := w.Rest(2 * time.Minute); err != nil {
			t.Error(err)
		}
	})
}

func smallWorld() sim.Config {
	return sim.Config{Seed: 1, Nodes: 3, Engine: sim.DefaultEngine(), Verbose: true}
}

func smallRequest() sim.Request {
	return sim.Request{Label: 77, Stream: true, Chat: true, PromptWords: 30, MaxTokens: 20, IgnoreEOS: true, Protection: "sync"}
}

func TestWorld_UndisturbedAnswerIsTheReference(t *testing.T) {
	bubble(t, smallWorld(), func(t *testing.T, w *sim.World) {
		r := smallRequest()
		ref, err := sim.Refer(sim.DefaultEngine(), r)
		if err != nil {
			t.Fatal(err)
		}
		c := w.NewClient("client")
		defer c.Close()
		a := c.Ask(t.Context(), r, sim.Manner{})
		if why := sim.Judge(a, ref, r); len(why) > 0 || !a.Whole() {
			t.Errorf("%+v: %v", a, why)
		}
	})
}

func TestWorld_NodeCrashIsContinued(t *testing.T) {
	c := smallWorld()
	var w *sim.World
	var crashed atomic.Bool
	c.Hook = func(m sim.Moment) {
		if m.Point == sim.PointCaptured && m.Index == 7 && crashed.CompareAndSwap(false, true) {
			w.Node(m.Node).Crash()
		}
	}
	bubble(t, c, func(t *testing.T, world *sim.World) {
		w = world
		r := smallRequest()
		ref, err := sim.Refer(sim.DefaultEngine(), r)
		if err != nil {
			t.Fatal(err)
		}
		client := w.NewClient("client")
		defer client.Close()
		a := client.Ask(t.Context(), r, sim.Manner{})
		if why := sim.Judge(a, ref, r); len(why) > 0 || !a.Whole() {
			t.Errorf("%+v: %v", a, why)
		}
		s := w.Router.Session(a.Session)
		if !crashed.Load() || s == nil || len(s.Seams) != 1 {
			t.Errorf("no takeover: crashed %v, %+v", crashed.Load(), s)
		}
	})
}
