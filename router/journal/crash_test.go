// SPDX-License-Identifier: Apache-2.0
// Copyright The Segue Authors

package journal_test

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"pgregory.net/rapid"

	"github.com/seguekv/segue/router/journal"
)

// dying is a storage whose process ends at one commit: before it was applied, or right after.
type dying struct {
	*journal.Memory
	at, commits int
	applied     bool
	dead        atomic.Bool
}

func (d *dying) Commit(ops []journal.Op) error {
	d.commits++
	if d.commits == d.at && d.applied {
		_ = d.Memory.Commit(ops)
	}
	if d.commits >= d.at {
		d.dead.Store(true)
		return errors.New("the process has ended")
	}
	return d.Memory.Commit(ops)
}

// client is what the outside saw of one request.
type client struct {
	entry    *journal.Entry
	new      journal.New
	seen     int  // output tokens written to it
	reserved bool // a Reserve has returned nil
	ended    bool
	durable  *journal.Request // as read after a Sync that followed the end
}

// world drives a journal and remembers what a crash must not change. It runs in a synctest bubble.
type world struct {
	store   *dying
	j       *journal.Journal
	stop    context.CancelFunc
	ran     chan struct{}
	clients []*client
	byKey   map[string]bool // keys whose request has delivered something
	grants  map[string]int
	results map[string]string
	crashes int
}

func newWorld(at int, applied bool) *world {
	w := &world{byKey: map[string]bool{}, grants: map[string]int{}, results: map[string]string{}}
	w.start(&dying{Memory: journal.NewMemory(), at: at, applied: applied})
	return w
}

// violation is what a world panics with.
type violation string

func (w *world) fatalf(format string, args ...any) { panic(violation(fmt.Sprintf(format, args...))) }

func (w *world) start(s *dying) {
	w.store = s
	var err error
	if w.j, err = journal.Open(journal.Options{Storage: s}); err != nil {
		if !s.dead.Load() {
			w.fatalf("open: %v", err)
		}
		w.start(&dying{Memory: s.Memory.Crash(), at: 1 << 30})
		return
	}
	var ctx context.Context
	ctx, w.stop = context.WithCancel(context.Background())
	w.ran = make(chan struct{})
	go func(j *journal.Journal, ran chan struct{}) {
		_ = j.Run(ctx)
		close(ran)
	}(w.j, w.ran)
}

// crash starts a new process from what was committed, and compares what it reads with what clients saw.
func (w *world) crash(at int, applied bool) {
	w.crashes++
	next := &dying{Memory: w.store.Memory.Crash(), at: at, applied: applied}
	w.stop()
	<-w.ran
	w.start(next)
	for _, c := range w.clients {
		r, ok := w.j.Get("t", c.new.Session)
		if !ok {
			if c.seen > 0 || c.reserved || c.durable != nil {
				w.fatalf("request %s is unknown, but its client saw %d tokens", c.new.Session, c.seen)
			}
			c.ended = true
			continue
		}
		if r.Delivered < c.seen || r.Delivered > c.seen && !r.UpperBound {
			w.fatalf("request %s reads %d delivered (upper bound: %t), its client saw %d", c.new.Session, r.Delivered, r.UpperBound, c.seen)
		}
		if r.Delivered > c.seen+64+32 {
			w.fatalf("request %s reads %d delivered, its client saw only %d", c.new.Session, r.Delivered, c.seen)
		}
		if c.reserved && !r.FirstDeltaSent && !c.ended {
			w.fatalf("request %s reserved output and reads first_delta_sent false", c.new.Session)
		}
		if !r.Ended() || r.EndedAt.IsZero() {
			w.fatalf("request %s reads phase %s after a crash", c.new.Session, r.Phase)
		}
		if !c.ended && len(r.Error) == 0 {
			w.fatalf("request %s failed without an error object", c.new.Session)
		}
		if c.durable != nil && (r.Phase != c.durable.Phase || r.Delivered != c.durable.Delivered || string(r.Error) != string(c.durable.Error)) {
			w.fatalf("request %s ended as %+v and reads %+v", c.new.Session, *c.durable, r)
		}
		c.ended = true
		if c.durable == nil {
			c.durable = &r
		}
	}
	for name, want := range w.results {
		if a, ok := w.j.Action("t", "r", name); !ok || string(a.Result) != want {
			w.fatalf("action %s has result %q, want %q", name, a.Result, want)
		}
	}
}

func (w *world) begin(key string) {
	n := request(len(w.clients), key)
	e, err := w.j.Begin(n)
	if err != nil {
		if key == "" {
			w.fatalf("begin: %v", err)
		}
		return
	}
	if w.byKey[key] && key != "" {
		w.fatalf("key %s runs again after a delivery", key)
	}
	w.clients = append(w.clients, &client{entry: e, new: n})
}

func (w *world) open() []*client {
	var out []*client
	for _, c := range w.clients {
		if !c.ended {
			out = append(out, c)
		}
	}
	return out
}

func (w *world) write(c *client, n int) {
	for range n {
		if w.store.dead.Load() {
			return // nobody is there to write
		}
		if err := c.entry.Reserve(context.Background(), c.seen+1); err != nil {
			if !w.store.dead.Load() {
				w.fatalf("reserve: %v", err)
			}
			return
		}
		c.reserved = true
		c.seen++
		if c.new.Key != "" {
			w.byKey[c.new.Key] = true
		}
		c.entry.Delivered(c.seen)
	}
}

func (w *world) end(c *client, ok bool) {
	c.ended = true
	if ok {
		c.entry.Done("stop", journal.Usage{CompletionTokens: c.seen}, &journal.Answer{Status: 200, Body: []byte("x")})
	} else {
		c.entry.Fail([]byte(`{"code":"x"}`), c.seen, c.seen > 0)
	}
}

func (w *world) sync() {
	if w.j.Sync(context.Background()) != nil {
		return
	}
	for _, c := range w.clients {
		if c.ended && c.durable == nil {
			if r, ok := w.j.Get("t", c.new.Session); ok {
				c.durable = &r
				if r.Phase == journal.PhaseDone {
					w.byKey[c.new.Key] = true // a finished key doesn't run again either
				}
			}
		}
	}
}

func (w *world) claim(name string) {
	a, err := w.j.Claim("t", "r", name, [32]byte{1}, "b")
	if err == nil && a.Granted {
		if w.grants[name]++; w.grants[name] > 1 {
			w.fatalf("action %s was granted twice", name)
		}
	}
}

func (w *world) result(name, body string) {
	a, err := w.j.Result("t", "r", name, [32]byte{1}, []byte(body))
	if err != nil {
		return
	}
	if want, ok := w.results[name]; ok && want != string(a.Result) {
		w.fatalf("action %s: result %q became %q", name, want, a.Result)
	}
	w.results[name] = string(a.Result)
}

func (w *world) close() {
	w.stop()
	<-w.ran
}

// bubble runs f in virtual time and returns the rule that it broke.
func bubble(t *testing.T, f func()) (broken violation) {
	synctest.Test(t, func(*testing.T) {
		defer func() {
			if p := recover(); p != nil {
				var ok bool
				if broken, ok = p.(violation); !ok {
					panic(p)
				}
			}
		}()
		f()
	})
	return broken
}

// step is one act of a world; numbers are taken modulo what there is.
type step struct {
	act          string
	key, request int
	n            int
	at           int
	applied      bool
}

func (w *world) take(s step) {
	names := []string{"c1", "c2"}
	open := w.open()
	var c *client
	if len(open) > 0 {
		c = open[s.request%len(open)]
	}
	switch s.act {
	case "begin":
		w.begin([]string{"", "k1", "k2"}[s.key])
	case "write":
		if c != nil {
			w.write(c, s.n)
		}
	case "done", "fail":
		if c != nil {
			w.end(c, s.act == "done")
		}
	case "sync":
		w.sync()
	case "wait":
		time.Sleep(time.Duration(s.n) * time.Millisecond)
	case "claim":
		w.claim(names[s.key%2])
	case "result":
		w.result(names[s.key%2], []string{"", "a", "b"}[s.n%3])
	}
	if s.act == "crash" || w.store.dead.Load() {
		w.crash(s.at, s.applied)
	}
}

// TestJournal_CrashAnywhere runs random requests and crashes, with the process ending at random commits.
func TestJournal_CrashAnywhere(t *testing.T) {
	steps := rapid.SliceOfN(rapid.Custom(func(t *rapid.T) step {
		return step{
			act: rapid.SampledFrom([]string{"begin", "write", "write", "done", "fail", "sync", "wait", "claim", "result", "crash"}).Draw(t, "act"),
			key: rapid.IntRange(0, 2).Draw(t, "key"), request: rapid.IntRange(0, 9).Draw(t, "request"), n: rapid.IntRange(1, 80).Draw(t, "n"),
			at: rapid.IntRange(2, 12).Draw(t, "at"), applied: rapid.Bool().Draw(t, "applied"),
		}
	}), 10, 150)
	crashes, tokens := 0, 0
	rapid.Check(t, func(rt *rapid.T) {
		at, applied, list := rapid.IntRange(2, 12).Draw(rt, "at"), rapid.Bool().Draw(rt, "applied"), steps.Draw(rt, "steps")
		broken := bubble(t, func() {
			w := newWorld(at, applied)
			defer func() { w.close() }()
			for _, s := range list {
				w.take(s)
			}
			w.crash(1<<30, false)
			for _, c := range w.clients {
				tokens += c.seen
			}
			crashes += w.crashes
		})
		if broken != "" {
			rt.Fatal(broken)
		}
	})
	t.Logf("%d crashes, %d tokens", crashes, tokens)
	if !testing.Short() && (crashes < 100 || tokens < 1000) { // with -short there are fewer histories
		t.Fatal("too little happened")
	}
}

// TestJournal_CrashAtEveryCommit ends the process at each commit of one script, before and after it was applied.
func TestJournal_CrashAtEveryCommit(t *testing.T) {
	script := func(w *world) {
		for i := range 3 {
			if w.store.dead.Load() {
				return
			}
			w.begin("k")
			w.begin(fmt.Sprintf("k%d", i))
			for range 3 {
				for _, c := range w.open() {
					w.write(c, 50)
					time.Sleep(20 * time.Millisecond)
				}
				w.claim("c1")
				w.result("c1", "a")
			}
			for k, c := range w.open() {
				if w.store.dead.Load() {
					return
				}
				w.end(c, i+k == 2)
			}
			w.sync()
		}
	}
	deaths := 0
	for _, applied := range []bool{false, true} {
		for at, died := 2, true; died; at++ {
			broken := bubble(t, func() {
				w := newWorld(at, applied)
				defer func() { w.close() }()
				script(w)
				died = w.store.dead.Load()
				w.crash(1<<30, false)
				w.claim("c1")
				w.begin("k")
				w.begin("k0")
			})
			if broken != "" {
				t.Fatalf("end at commit %d, applied: %t: %s", at, applied, broken)
			}
			if died {
				deaths++
			}
		}
	}
	t.Logf("%d crash points", deaths)
	if deaths < 20 {
		t.Fatalf("the script has only %d crash points", deaths)
	}
}
