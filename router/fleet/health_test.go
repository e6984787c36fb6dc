// SPDX-License-Identifier: Apache-2.0
// Copyright The Segue Authors

package fleet_test

import (
	"context"
	"encoding/json"
	"net"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc"

	seguev1 "github.com/seguekv/segue/api/segue/v1"
	"github.com/seguekv/segue/health"
	"github.com/seguekv/segue/router/fleet"
)

// doctor is a scripted agent's side of WatchHealth. Nothing is reported before it is told to.
type doctor struct {
	mu sync.Mutex
	// calls are the moments at which calls came.
	calls []time.Time
	tells chan *seguev1.WatchHealthResponse
	// ends ends the call that runs.
	ends chan error
}

func (d *doctor) open() (chan *seguev1.WatchHealthResponse, chan error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.tells == nil {
		d.tells, d.ends = make(chan *seguev1.WatchHealthResponse), make(chan error)
	}
	return d.tells, d.ends
}

func (d *doctor) called() []time.Time {
	d.mu.Lock()
	defer d.mu.Unlock()
	return slices.Clone(d.calls)
}

func (a *agent) WatchHealth(_ *seguev1.WatchHealthRequest, st grpc.ServerStreamingServer[seguev1.WatchHealthResponse]) error {
	tells, ends := a.doctor.open()
	a.doctor.mu.Lock()
	a.doctor.calls = append(a.doctor.calls, time.Now())
	a.doctor.mu.Unlock()
	for {
		select {
		case <-st.Context().Done():
			return st.Context().Err()
		case err := <-ends:
			return err
		case r := <-tells:
			if err := st.Send(r); err != nil {
				return err
			}
		}
	}
}

// says reports a verdict on an engine, on the call that runs.
func (a *agent) says(r *seguev1.WatchHealthResponse) {
	tells, _ := a.doctor.open()
	tells <- r
	pass(time.Millisecond)
}

func (a *agent) verdict(v health.Verdict) {
	a.says(&seguev1.WatchHealthResponse{Verdict: seguev1.Verdict(v)})
}

// heard is what the fleet's owner was told.
type heard struct {
	mu   sync.Mutex
	list []fleet.Health
	of   []string
}

func (h *heard) judged(n *fleet.Node, v fleet.Health) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.list, h.of = append(h.list, v), append(h.of, n.ID())
}

// take returns what came since the last time.
func (h *heard) take() []fleet.Health {
	h.mu.Lock()
	defer h.mu.Unlock()
	l := h.list
	h.list = nil
	return l
}

// watched is bubble with an owner that is told of verdicts.
func watched(t *testing.T, nodes string, f func(t *testing.T, w *world, h *heard)) {
	t.Helper()
	h := new(heard)
	bubble(t, nodes, func(c *fleet.Config) { c.Judged = h.judged }, func(t *testing.T, w *world) {
		pass(100 * time.Millisecond) // until the agents are ready
		f(t, w, h)
	})
}

// The last verdict that says something stays: neither Unknown nor one that this version doesn't know changes it. The owner
// hears of each change once.
func TestHealth_KeepsTheLastWord(t *testing.T) {
	watched(t, "A:m", func(t *testing.T, w *world, h *heard) {
		a, n := w.agents["A"], w.Node("A")
		if got := n.Health(); got.Verdict != health.Unknown || w.status("A").Health != nil || len(h.take()) > 0 {
			t.Errorf("before the first report: %+v", got)
		}
		one, two := []byte{1}, []byte{2}
		type r = seguev1.WatchHealthResponse
		since := time.Time{}
		for _, step := range []struct {
			name   string
			says   *r
			want   health.Verdict
			engine string
			told   bool
		}{
			{"unknown first", &r{}, health.Unknown, "", false},
			{"the first word", &r{Verdict: seguev1.Verdict_VERDICT_IDLE, EngineBootId: one, Gpu: "off"}, health.Idle, "01", true},
			{"the same again", &r{Verdict: seguev1.Verdict_VERDICT_IDLE, EngineBootId: one, Gpu: "read"}, health.Idle, "01", false},
			{"another", &r{Verdict: seguev1.Verdict_VERDICT_HUNG, EngineBootId: one, Reasons: []string{"no_progress"}}, health.Hung, "01", true},
			{"unknown", &r{EngineBootId: one}, health.Hung, "01", false},
			{"one of a later version", &r{Verdict: 13, EngineBootId: one}, health.Hung, "01", false},
			{"one that can't be", &r{Verdict: -1, EngineBootId: two}, health.Hung, "01", false},
			{"the same of another engine", &r{Verdict: seguev1.Verdict_VERDICT_HUNG, EngineBootId: two}, health.Hung, "02", true},
			{"the same, working", &r{Verdict: seguev1.Verdict_VERDICT_HUNG, EngineBootId: two, Working: true}, health.Hung, "02", true},
			{"dead, of none", &r{Verdict: seguev1.Verdict_VERDICT_DEAD}, health.Dead, "", true},
			{"well", &r{Verdict: seguev1.Verdict_VERDICT_BUSY, EngineBootId: one}, health.Busy, "01", true},
		} {
			a.says(step.says)
			got, told := n.Health(), h.take()
			if got.Verdict != step.want || got.Engine != step.engine {
				t.Errorf("%s: %+v", step.name, got)
			}
			if (len(told) == 1) != step.told || len(told) > 1 {
				t.Fatalf("%s: told %d times", step.name, len(told))
			}
			if step.told && (told[0].Verdict != step.want || told[0].Engine != step.engine || !told[0].Since.After(since)) {
				t.Errorf("%s: told %+v", step.name, told[0])
			}
			if !step.told && !got.Since.Equal(since) {
				t.Errorf("%s: since %v, was %v", step.name, got.Since, since)
			}
			since = got.Since
		}
		if len(h.of) == 0 || slices.ContainsFunc(h.of, func(id string) bool { return id != "A" }) {
			t.Errorf("told of %v", h.of)
		}
		a.says(&r{Verdict: seguev1.Verdict_VERDICT_BUSY, EngineBootId: one, Reasons: []string{"quiet"}, Detail: "x", Gpu: "read"})
		if got := n.Health(); !slices.Equal(got.Reasons, []health.Reason{"quiet"}) || got.Detail != "x" || got.GPU != "read" {
			t.Errorf("reasons of the latest report: %+v", got)
		}
		text, err := json.Marshal(w.status("A").Health)
		if err != nil {
			t.Fatal(err)
		}
		if s := string(text); !strings.Contains(s, `"verdict":"busy","reasons":["quiet"],"detail":"x","engine":"01","gpu":"read","since":"`) {
			t.Error(s)
		}
	})
}

// As long as reports come the call goes on. Silence means that the agent is out of reach; the call is made anew then, and
// so is one that ended. A call on which nothing was ever reported is waited for.
func TestHealth_AsksAgain(t *testing.T) {
	watched(t, "A:m", func(t *testing.T, w *world, h *heard) {
		a, n := w.agents["A"], w.Node("A")
		pass(time.Minute)
		if got := n.Health(); got.Verdict != health.Unknown || len(a.doctor.called()) != 1 {
			t.Fatalf("before the first report: %+v, %d calls", got, len(a.doctor.called()))
		}
		for range 8 {
			a.verdict(health.Busy)
			pass(2900 * time.Millisecond)
		}
		if got := n.Health(); got.Verdict != health.Busy || len(h.take()) != 1 || len(a.doctor.called()) != 1 {
			t.Fatalf("while reports come: %+v, %d calls", got, len(a.doctor.called()))
		}
		pass(200 * time.Millisecond) // 3.1 s of silence
		if got := n.Health(); got.Verdict != health.CutOff || !got.Lost() || !slices.Equal(got.Reasons, []health.Reason{health.ReasonNoAnswer}) {
			t.Errorf("after three seconds of silence: %+v", got)
		}
		pass(500 * time.Millisecond)
		if got := a.doctor.called(); len(got) != 2 {
			t.Fatalf("a silent call goes on: %d calls", len(got))
		}
		pass(time.Minute)
		if got := h.take(); len(got) != 1 || got[0].Verdict != health.CutOff || len(a.doctor.called()) != 2 {
			t.Errorf("told %+v, %d calls", got, len(a.doctor.called()))
		}
		a.verdict(health.Degraded)
		for i, err := range []error{nil, errRefused} {
			_, ends := a.doctor.open()
			ends <- err
			pass(400 * time.Millisecond)
			if got := a.doctor.called(); len(got) != 2+i {
				t.Fatalf("asked again at once: %d calls", len(got))
			}
			pass(200 * time.Millisecond)
			if got := a.doctor.called(); len(got) != 3+i {
				t.Fatalf("a call that ended with %v isn't made again", err)
			}
		}
		if got := n.Health().Verdict; got != health.Degraded {
			t.Errorf("a broken call made it %s", got)
		}
		a.verdict(health.Idle)
		if got := n.Health().Verdict; got != health.Idle {
			t.Errorf("%s after the call was renewed", got)
		}
	})
}

// A connection that breaks means that the agent is out of reach. What it says when it is back counts.
func TestHealth_ALostConnection(t *testing.T) {
	var conns conns
	h := new(heard)
	bubble(t, "A:m", func(c *fleet.Config) {
		c.Judged = h.judged
		c.Dial = conns.through(c.Dial)
	}, func(t *testing.T, w *world) {
		pass(100 * time.Millisecond)
		a, n := w.agents["A"], w.Node("A")
		a.verdict(health.Busy)
		h.take()
		conns.refuse(true)
		pass(10 * time.Millisecond)
		if got := n.Health(); got.Verdict != health.CutOff || !slices.Equal(got.Reasons, []health.Reason{health.ReasonCut}) || len(h.take()) != 1 {
			t.Errorf("without a connection: %+v", got)
		}
		pass(5 * time.Second)
		if got := h.take(); len(got) > 0 {
			t.Errorf("told again: %+v", got)
		}
		conns.refuse(false)
		pass(2 * time.Second)
		if got := n.Health(); got.Shunned() || w.try(fleet.Want{Model: "m"}) == nil {
			t.Errorf("back again: %+v", got)
		}
		a.verdict(health.Busy)
		if got := h.take(); len(got) != 1 || got[0].Verdict != health.Busy {
			t.Errorf("told %+v", got)
		}
	})
}

// conns are connections that can be broken.
type conns struct {
	mu      sync.Mutex
	open    []net.Conn
	refused bool
}

func (c *conns) through(dial func(context.Context, string) (net.Conn, error)) func(context.Context, string) (net.Conn, error) {
	return func(ctx context.Context, addr string) (net.Conn, error) {
		c.mu.Lock()
		defer c.mu.Unlock()
		if c.refused {
			return nil, errRefused
		}
		x, err := dial(ctx, addr)
		if err == nil {
			c.open = append(c.open, x)
		}
		return x, err
	}
}

// refuse breaks all connections and lets none be made, or some again.
func (c *conns) refuse(on bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.refused = on
	for _, x := range c.open {
		x.Close()
	}
	c.open = nil
}

// What is lost or to be left gets neither sessions nor holds; what waited comes as soon as that is over.
func TestHealth_ShunnedGetsNothingNew(t *testing.T) {
	for _, v := range health.Verdicts()[1:] {
		for _, working := range []bool{false, true} {
			watched(t, "A:m B:m", func(t *testing.T, w *world, _ *heard) {
				a, b := w.agents["A"], w.agents["B"]
				b.verdict(health.Idle)
				a.says(&seguev1.WatchHealthResponse{Verdict: seguev1.Verdict(v), Working: working})
				shunned := v == health.Evacuate || v == health.CutOff || v == health.Hung || v == health.Dead
				got := w.Node("A").Health()
				if got.Shunned() != shunned || got.Lost() != (shunned && v != health.Evacuate && !working) || got.Leave() != (shunned && !got.Lost()) {
					t.Errorf("%s, working %v: shunned %v, lost %v, leave %v", v, working, got.Shunned(), got.Lost(), got.Leave())
				}
				want := fleet.Want{Model: "m", Avoid: []string{"B"}}
				if c := w.try(want); (c == nil) != shunned {
					t.Errorf("%s, working %v: placed %v", v, working, c != nil)
				} else if c != nil {
					c.Release()
				}
				if hold := w.PickHolder(w.Node("B"), nil); (hold == nil) != shunned {
					t.Errorf("%s, working %v: holds %v", v, working, hold != nil)
				} else if hold != nil {
					hold.Drop()
				}
				if !shunned {
					return
				}
				ticket := w.enqueue(want)
				defer ticket.Close()
				pass(2 * time.Second) // through several descriptions that say it is ready
				if c := received(ticket); c != nil {
					t.Errorf("%s, working %v: what waited was placed", v, working)
				}
				a.verdict(health.Unknown)
				if c := received(ticket); c != nil {
					t.Errorf("%s, working %v: unknown made it well", v, working)
				}
				a.verdict(health.Idle)
				c := received(ticket)
				if c == nil {
					t.Fatalf("%s: well again, and what waited still does", v)
				}
				c.Release()
			})
		}
	}
}

// A degraded node gets a quarter of its share, of whatever kind it is.
func TestHealth_DegradedWeighsAQuarter(t *testing.T) {
	for _, kind := range []string{"agents", "servers"} {
		t.Run(kind, func(t *testing.T) {
			nodes, bad := "A:m B:m", "A"
			want := fleet.Want{Model: "m", Tokens: 100}
			if kind == "servers" {
				nodes, bad, want = "a:m b:m", "a", server(func(x *fleet.Want) { x.Tokens = 100 })
			}
			bubble(t, nodes, nil, func(t *testing.T, w *world) {
				pass(100 * time.Millisecond)
				share := func() (n int) {
					for range 2 {
						c := w.claim(want)
						defer c.Release()
						if c.Node.ID() == bad {
							n++
						}
					}
					return n
				}
				if got := share(); got != 1 {
					t.Errorf("%d of 2 while both are well", got)
				}
				if kind == "agents" {
					w.agents[bad].verdict(health.Degraded)
				} else {
					w.Node(bad).Assess(health.Assessment{Verdict: health.Degraded, Reasons: []health.Reason{health.ReasonZombie}}, "engine")
				}
				if got := w.Node(bad).Health(); got.Verdict != health.Degraded || got.Shunned() {
					t.Errorf("%+v", got)
				}
				if got := share(); got != 0 {
					t.Errorf("%d of 2 while it is degraded", got)
				}
				// Its share is a quarter, not none: 100 tokens more weigh as much as 400 there.
				other := w.claim(want)
				for tokens, sick := range map[int]bool{290: false, 310: true} {
					other.Expect(tokens)
					c := w.claim(want)
					if (c.Node.ID() == bad) != sick {
						t.Errorf("%d tokens outstanding on the other: placed on %s", tokens, c.Node.ID())
					}
					c.Release()
				}
				other.Release()
			})
		})
	}
}

// A server's verdicts are those of whoever looks after it, for as long as the fleet runs.
func TestHealth_OfAServer(t *testing.T) {
	h := new(heard)
	bubble(t, "s:m", func(c *fleet.Config) {
		c.Judged = h.judged
		c.Servers[0].Watch = func(ctx context.Context, n *fleet.Node) {
			n.Assess(health.Assessment{Verdict: health.Idle}, "1")
			n.Assess(health.Assessment{Verdict: health.Unknown}, "2")
			n.Assess(health.Assessment{Verdict: health.Idle}, "2")
			n.Assess(health.Assessment{Verdict: health.CutOff, Reasons: []health.Reason{health.ReasonCut}, Detail: "eof"}, "2")
			<-ctx.Done()
		}
	}, func(t *testing.T, w *world) {
		pass(100 * time.Millisecond)
		var got []string
		for _, v := range h.take() {
			got = append(got, v.Verdict.String()+v.Engine)
		}
		if !slices.Equal(got, []string{"idle1", "idle2", "cut_off2"}) {
			t.Errorf("told %v", got)
		}
		if s := w.status("s").Health; s == nil || s.Verdict != health.CutOff || s.Detail != "eof" || !slices.Equal(s.Reasons, []health.Reason{health.ReasonCut}) {
			t.Errorf("%+v", s)
		}
		if w.try(server(nil)) != nil {
			t.Error("placed on a server that is cut off")
		}
	})
}

// Each verdict has one number on both sides, and one name.
func TestHealth_VerdictsTravelByNumber(t *testing.T) {
	for _, v := range health.Verdicts() {
		name := "VERDICT_" + strings.ToUpper(v.String())
		if v == health.Unknown {
			name = "VERDICT_UNSPECIFIED"
		}
		if got, ok := seguev1.Verdict_value[name]; !ok || got != int32(v) {
			t.Errorf("%s is %d here, %s is %d, %v", v, v, name, got, ok)
		}
	}
	if got, want := len(seguev1.Verdict_name), len(health.Verdicts()); got != want {
		t.Errorf("%d verdicts travel, %d are known", got, want)
	}
}
