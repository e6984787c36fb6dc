// SPDX-License-Identifier: Apache-2.0
// Copyright The Segue Authors

package lab_test

import (
	"bufio"
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/seguekv/segue/health"
	"github.com/seguekv/segue/health/lab"
	"github.com/seguekv/segue/health/scrape"
	"github.com/seguekv/segue/health/watch"
)

// clock runs with real time from a moment of the script that a test sets.
type clock struct {
	began time.Time
	ahead atomic.Int64
}

func newClock() *clock { return &clock{began: time.Now()} }

func (c *clock) now() time.Time {
	return origin.Add(time.Since(c.began) + time.Duration(c.ahead.Load()))
}

// to sets the clock to a moment of the script.
func (c *clock) to(after time.Duration) { c.ahead.Store(int64(after - time.Since(c.began))) }

// running has f run until the test is over, and its error be nil.
func running(t *testing.T, f func(context.Context) error) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	var wg sync.WaitGroup
	wg.Go(func() {
		if err := f(ctx); err != nil {
			t.Error(err)
		}
	})
	t.Cleanup(func() {
		cancel()
		wg.Wait()
	})
}

func listen(t *testing.T, e *lab.Engine, c *clock) *lab.Server {
	t.Helper()
	s, err := lab.Listen(e, c.now)
	if err != nil {
		t.Fatal(err)
	}
	running(t, s.Run)
	return s
}

// quick finds hangs sooner than is wise on a busy machine: for engines that do hang.
func quick() health.Config {
	c := health.Defaults()
	c.Interval, c.ReadTimeout, c.Slack = 20*time.Millisecond, 200*time.Millisecond, 5*time.Second
	c.Floor, c.Cold, c.BlindFloor, c.IdleLimit = 300*time.Millisecond, 300*time.Millisecond, 500*time.Millisecond, 300*time.Millisecond
	return c
}

// watched has the server watched, and returns how to wait for a verdict.
func watched(t *testing.T, cfg health.Config, kind scrape.Kind, url string, also ...func(health.Assessment)) func(health.Verdict) health.Assessment {
	t.Helper()
	target, err := scrape.New(scrape.Config{URL: url, Kind: kind})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(target.Close)
	all := make(chan health.Assessment, 1<<14)
	w, err := watch.New(watch.Config{Health: cfg, Source: target, Prober: target, ProbeTimeout: time.Second, Assessed: func(a health.Assessment) {
		for _, f := range also {
			f(a)
		}
		select {
		case all <- a:
		default:
		}
	}})
	if err != nil {
		t.Fatal(err)
	}
	running(t, w.Run)
	return func(v health.Verdict) health.Assessment {
		t.Helper()
		late := time.After(30 * time.Second)
		var last health.Assessment
		for {
			select {
			case last = <-all:
				if last.Verdict == v {
					return last
				}
			case <-late:
				t.Fatalf("never %v; last %v %v %s", v, last.Verdict, last.Reasons, last.Detail)
			}
		}
	}
}

// TestServer_EachStateOverHTTP: what virtual time shows at length, once over a network.
func TestServer_EachStateOverHTTP(t *testing.T) {
	before := lab.Phase{State: lab.Decode, For: time.Hour, Streams: 4}
	for _, c := range []struct {
		state lab.State
		want  health.Verdict
		kinds string // all without one
		idle  bool   // before, instead of busy
	}{
		{state: lab.Idle, want: health.Idle},
		{state: lab.PrefillChunked, want: health.Busy},
		{state: lab.HangDecode, want: health.Hung},
		{state: lab.HangPrefill, want: health.Hung},
		{state: lab.Frozen, want: health.Hung},
		{state: lab.SlotsHang, want: health.Hung, kinds: "llamacpp"},
		{state: lab.Sleeping, want: health.Sleeping, kinds: "vllm llamacpp"},
		{state: lab.Loading, want: health.Starting, kinds: "llamacpp"},
		{state: lab.Loading, want: health.Dead, kinds: "vllm sglang"},
		{state: lab.Dead, want: health.Dead},
		{state: lab.Cut, want: health.CutOff},
		{state: lab.HalfOpen, want: health.Hung},
		{state: lab.HalfOpen, want: health.CutOff, idle: true},
		{state: lab.Failing, want: health.Dead},
	} {
		each(t, func(t *testing.T, kind scrape.Kind) {
			if c.kinds != "" && !strings.Contains(c.kinds, kind.String()) {
				return
			}
			t.Run(string(c.state), func(t *testing.T) {
				t.Parallel()
				first, want := before, health.Busy
				if c.idle {
					first, want = lab.Phase{State: lab.Idle, For: time.Hour}, health.Idle
				}
				e := scripted(t, kind, first, lab.Phase{State: c.state, For: time.Hour, Streams: 4})
				clk := newClock()
				until := watched(t, quick(), scrape.Auto, listen(t, e, clk).URL())
				until(want)
				clk.to(time.Hour + time.Second)
				until(c.want)
				if s := e.Stats(); s.Generated != 0 || s.Woken != 0 {
					t.Errorf("%+v", s)
				}
			})
		})
	}
}

// TestServer_RestartOverHTTP: the port is closed, then another process answers.
func TestServer_RestartOverHTTP(t *testing.T) {
	t.Parallel()
	e := scripted(t, scrape.VLLM, lab.Phase{State: lab.Decode, For: time.Hour, Streams: 4}, lab.Phase{State: lab.Dead, For: time.Hour},
		lab.Phase{State: lab.Decode, For: time.Hour, Streams: 2, Restarted: true})
	clk := newClock()
	var news atomic.Int32
	until := watched(t, health.Defaults(), scrape.Auto, listen(t, e, clk).URL(), func(a health.Assessment) {
		if a.NewEngine {
			news.Add(1)
		}
	})
	until(health.Busy)
	clk.to(time.Hour + time.Second)
	until(health.Dead)
	clk.to(2*time.Hour + time.Second)
	for until(health.Busy).InFlight != 2 {
		// What was read before the clock was set may still come.
	}
	if news.Load() != 1 {
		t.Errorf("%d new engines", news.Load())
	}
}

// TestServer_ProbeOfAnIdleEngine passes, and is seen as one.
func TestServer_ProbeOfAnIdleEngine(t *testing.T) {
	t.Parallel()
	e := scripted(t, scrape.SGLang, lab.Phase{State: lab.Idle, For: time.Hour})
	until := watched(t, quick(), scrape.SGLang, listen(t, e, newClock()).URL())
	for !until(health.Idle).Probe {
	}
	for e.Stats().Probes == 0 {
		until(health.Idle)
	}
	if s := e.Stats(); s.ProbesWhileBusy != 0 || s.Chats != 0 {
		t.Errorf("%+v", s)
	}
}

// TestServer_StreamsTokensAndCountsThem.
func TestServer_StreamsTokensAndCountsThem(t *testing.T) {
	t.Parallel()
	e := scripted(t, scrape.VLLM, lab.Phase{State: lab.Idle, For: time.Hour, Step: 2 * time.Millisecond})
	s := listen(t, e, newClock())
	res, err := http.Post(s.URL()+"/v1/chat/completions", "application/json", strings.NewReader(`{"stream":true,"max_tokens":5}`))
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	var events []string
	for lines := bufio.NewScanner(res.Body); lines.Scan(); {
		if lines.Text() != "" {
			events = append(events, lines.Text())
		}
	}
	if len(events) != 6 || events[5] != "data: [DONE]" || !strings.Contains(events[4], `"length"`) {
		t.Errorf("%q", events)
	}
	if got := string(e.Get("/metrics", origin.Add(time.Minute)).Body); !strings.Contains(got, `vllm:generation_tokens_total{engine="0",model_name="lab-model"} 5.0`) {
		t.Error(got)
	}
	if s := e.Stats(); s.Chats != 1 || s.ChatsWhileBusy != 0 {
		t.Errorf("%+v", s)
	}
}

// TestServer_RestartCutsStreams: the client sees no end of its answer.
func TestServer_RestartCutsStreams(t *testing.T) {
	t.Parallel()
	e := scripted(t, scrape.VLLM, lab.Phase{State: lab.Idle, For: time.Hour, Step: 2 * time.Millisecond}, lab.Phase{State: lab.Idle, For: time.Hour, Restarted: true})
	clk := newClock()
	s := listen(t, e, clk)
	res, err := http.Post(s.URL()+"/v1/chat/completions", "application/json", strings.NewReader(`{"stream":true,"max_tokens":60000}`))
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	if _, err := io.ReadFull(res.Body, make([]byte, 100)); err != nil {
		t.Fatal(err)
	}
	clk.to(time.Hour + time.Second)
	if text, err := io.ReadAll(res.Body); err == nil || strings.Contains(string(text), "[DONE]") {
		t.Errorf("%v, %d bytes", err, len(text))
	}
}

// TestBalancer_IsReadAsAProxy: two processes behind one address.
func TestBalancer_IsReadAsAProxy(t *testing.T) {
	t.Parallel()
	var bases []string
	var engines []*lab.Engine
	for i := range 2 {
		e, err := lab.New(scrape.VLLM, origin.Add(-time.Duration(i)*time.Hour), lab.Phase{State: lab.Decode, For: 10 * time.Hour, Streams: 3})
		if err != nil {
			t.Fatal(err)
		}
		engines = append(engines, e)
		bases = append(bases, listen(t, e, newClock()).URL())
	}
	b, err := lab.NewBalancer(bases...)
	if err != nil {
		t.Fatal(err)
	}
	front := httptest.NewServer(b)
	t.Cleanup(front.Close)
	target, err := scrape.New(scrape.Config{URL: front.URL})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(target.Close)
	d, err := health.New(health.Defaults())
	if err != nil {
		t.Fatal(err)
	}
	fresh := 0
	for i := range 40 {
		r := target.Read(t.Context())
		r.At = origin.Add(time.Duration(i) * 250 * time.Millisecond)
		r.Until = r.At.Add(time.Millisecond)
		a := d.Observe(r)
		if a.NewEngine {
			fresh++
		}
		if i > 10 && (a.Verdict != health.Reachable || !r.Proxy || a.Probe) {
			t.Fatalf("read %d: %v %v", i, a.Verdict, a.Reasons)
		}
	}
	if fresh == 0 || fresh > 3 || target.Kind() != scrape.Proxy {
		t.Errorf("%d new engines, %v", fresh, target.Kind())
	}
	for _, e := range engines {
		if s := e.Stats(); s != (lab.Stats{}) {
			t.Errorf("%+v", s)
		}
	}
}

// TestStall_IsTimedOut: nothing after the connection, nothing after the head, nothing after half of the page.
func TestStall_IsTimedOut(t *testing.T) {
	t.Parallel()
	for name, part := range map[string]string{
		"nothing": "", "half a head": "HTTP/1.1 200 OK\r\nContent-", "half a page": "HTTP/1.1 200 OK\r\nContent-Length: 1000\r\n\r\nvllm:num_requests_running 1\n",
	} {
		t.Run(name, func(t *testing.T) {
			ln, err := net.Listen("tcp", "127.0.0.1:0")
			if err != nil {
				t.Fatal(err)
			}
			running(t, lab.Stall{Listener: ln, Part: []byte(part)}.Run)
			target, err := scrape.New(scrape.Config{URL: "http://" + ln.Addr().String(), Kind: scrape.VLLM})
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(target.Close)
			for range 2 {
				ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
				if r := target.Read(ctx); r.Outcome != health.TimedOut || !errors.Is(ctx.Err(), context.DeadlineExceeded) {
					t.Errorf("%+v", r)
				}
				if p := target.Probe(ctx); p != health.ProbeFailed {
					t.Errorf("probe: %v", p)
				}
				cancel()
			}
		})
	}
}
