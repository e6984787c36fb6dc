// SPDX-License-Identifier: Apache-2.0
// Copyright The Segue Authors

package link_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/seguekv/segue/engines"
	"github.com/seguekv/segue/engines/link"
	"github.com/seguekv/segue/snapshot"
)

func TestClient_DescribesEngine(t *testing.T) {
	f := newFake(64)
	c, _ := connect(t, f)
	got, err := c.Describe(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(f.d, got); diff != "" {
		t.Errorf("description (-want +got):\n%s", diff)
	}
}

// A run over the link is the run itself, but for the size of prefill pieces.
func TestClient_RunEqualsEngine(t *testing.T) {
	for _, rowBytes := range []int{3, 64, 4096, link.BulkBytes/3 + 5, link.BulkBytes + 9} {
		for _, capture := range []bool{false, true} {
			t.Run(fmt.Sprintf("row=%d capture=%v", rowBytes, capture), func(t *testing.T) {
				f := newFake(rowBytes)
				f.prompt, f.chunk = 11, 8
				c, _ := connect(t, f)
				var want, got record
				if err := f.Run(t.Context(), job(capture), &want); err != nil {
					t.Fatal(err)
				}
				if err := c.Run(t.Context(), job(capture), &got); err != nil {
					t.Fatal(err)
				}
				if diff := cmp.Diff(want.tokens, got.tokens); diff != "" {
					t.Errorf("tokens (-want +got):\n%s", diff)
				}
				if diff := cmp.Diff(want.prompt, got.prompt); diff != "" {
					t.Errorf("prompt (-want +got):\n%s", diff)
				}
				if !bytes.Equal(want.rows, got.rows) {
					t.Errorf("rows differ: %d and %d bytes", len(want.rows), len(got.rows))
				}
				next := 0
				for _, c := range got.chunks {
					if c[0] != next {
						t.Errorf("chunks %v have a gap", got.chunks)
					}
					next = c[0] + c[1]
				}
				if next != f.prompt {
					t.Errorf("chunks %v end at %d, want %d", got.chunks, next, f.prompt)
				}
			})
		}
	}
}

func TestClient_RestoresState(t *testing.T) {
	for _, rowBytes := range []int{1, 64, 23 << 10, 128 << 10, link.BulkBytes + 9} {
		for _, rows := range []int{1, 2, 15, 16, 17, 32, 50} {
			if rowBytes > 1<<20 && rows > 17 {
				continue
			}
			t.Run(fmt.Sprintf("row=%d rows=%d", rowBytes, rows), func(t *testing.T) {
				f := newFake(rowBytes)
				from := state(f.d, max(1, rows-2), rows+1-max(1, rows-2))
				f.tokens = len(from.Output) + 2
				c, _ := connect(t, f)
				j := job(true)
				j.From = from
				var got record
				if err := c.Run(t.Context(), j, &got); err != nil {
					t.Fatal(err)
				}
				host := *f.got()[0].From
				if err := host.Validate(); err != nil {
					t.Fatal(err)
				}
				if host.Rows() != rows {
					t.Fatalf("host has %d rows, want %d", host.Rows(), rows)
				}
				for i := range rows {
					if !bytes.Equal(host.RowData(i), from.RowData(i)) {
						t.Fatalf("row %d differs", i)
					}
				}
				host.Blocks = nil
				want := *from
				want.Blocks = nil
				if diff := cmp.Diff(want, host); diff != "" {
					t.Errorf("state (-want +got):\n%s", diff)
				}
				if n := len(got.tokens); n != f.tokens || !got.tokens[0].Restored || got.tokens[n-1].Restored {
					t.Errorf("got %d tokens: %v", n, got.tokens)
				}
				if want := append(row(rowBytes, rows), row(rowBytes, rows+1)...); !bytes.Equal(got.rows, want) {
					t.Errorf("got %d bytes of new rows, want %d", len(got.rows), len(want))
				}
			})
		}
	}
}

// The host is at most RunCredit events ahead of the sink, and rows live in at most RunCredit buffers.
func TestClient_CreditBoundsHost(t *testing.T) {
	f := newFake(4096)
	f.tokens = 64
	var mu sync.Mutex
	produced, consumed := 0, 0
	f.before = func(context.Context, int) error {
		mu.Lock()
		defer mu.Unlock()
		produced++ // is about to produce one more, which may wait
		if produced-1 > consumed+link.RunCredit {
			return fmt.Errorf("%d tokens produced, %d consumed", produced-1, consumed)
		}
		return nil
	}
	c, _ := connect(t, f)
	got := record{}
	got.before = func() error {
		mu.Lock()
		defer mu.Unlock()
		if len(got.tokens) > 0 {
			consumed++
		}
		return nil
	}
	if err := c.Run(t.Context(), job(true), &got); err != nil {
		t.Fatal(err)
	}
	if len(got.tokens) != f.tokens {
		t.Errorf("got %d tokens, want %d", len(got.tokens), f.tokens)
	}
	// Two prefill buffers may have been given up for smaller ones.
	if n := len(got.lent); n > 2*link.RunCredit {
		t.Errorf("rows came in %d buffers", n)
	}
}

// Under a sink that takes nothing the engine stops, and facts go on.
func TestClient_BlockedSinkBlocksEngine(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFake(64)
		f.prompt = 1
		a, b := net.Pipe()
		c := connectOver(t, f, a, b)
		release := make(chan struct{})
		got := record{before: func() error { <-release; return nil }}
		var wg sync.WaitGroup
		wg.Go(func() {
			if err := c.Run(t.Context(), job(true), &got); err != nil {
				t.Error(err)
			}
		})
		time.Sleep(time.Minute)
		synctest.Wait()
		// Prompt, prefilled and two tokens have credit, the third token waits for it.
		if n := f.steps.Load(); n != 3 {
			t.Errorf("engine has made %d steps, want 3", n)
		}
		if age := time.Since(c.LastHeard()); age > 200*time.Millisecond {
			t.Errorf("last facts are %v old", age)
		}
		close(release)
		wg.Wait()
		if len(got.tokens) != f.tokens {
			t.Errorf("got %d tokens, want %d", len(got.tokens), f.tokens)
		}
	})
}

func TestClient_SlowSinkHoldsUpNoOther(t *testing.T) {
	f := newFake(256 << 10)
	f.tokens = 40
	c, _ := connect(t, f)
	blocked, release := make(chan struct{}), make(chan struct{})
	var once sync.Once
	slow := record{before: func() error {
		once.Do(func() { close(blocked) })
		<-release
		return nil
	}}
	var wg sync.WaitGroup
	var slowErr error
	wg.Go(func() { slowErr = c.Run(t.Context(), job(true), &slow) })
	<-blocked
	for range 3 {
		var fast record
		if err := c.Run(t.Context(), job(true), &fast); err != nil {
			t.Error(err)
		}
	}
	close(release)
	wg.Wait()
	if slowErr != nil || len(slow.tokens) != f.tokens {
		t.Errorf("slow run: %d tokens, %v", len(slow.tokens), slowErr)
	}
}

func TestClient_ConcurrentRuns(t *testing.T) {
	f := newFake(8 << 10)
	f.tokens = 50
	c, _ := connect(t, f)
	var want record
	if err := f.Run(t.Context(), job(true), &want); err != nil {
		t.Fatal(err)
	}
	var wg sync.WaitGroup
	for range f.d.Contexts {
		wg.Go(func() {
			for range 5 {
				var got record
				if err := c.Run(t.Context(), job(true), &got); err != nil {
					t.Error(err)
					return
				}
				if !bytes.Equal(want.rows, got.rows) || !cmp.Equal(want.tokens, got.tokens) {
					t.Error("run differs from a run alone")
				}
			}
		})
	}
	wg.Wait()
}

func TestClient_CancelReachesEngine(t *testing.T) {
	f := newFake(64)
	f.before = func(ctx context.Context, index int) error {
		if index < 3 {
			return nil
		}
		<-ctx.Done()
		return fmt.Errorf("%w: %w", engines.ErrCanceled, context.Cause(ctx))
	}
	c, _ := connect(t, f)
	ctx, cancel := context.WithCancelCause(t.Context())
	cause := errors.New("client went away")
	got := record{}
	got.before = func() error {
		if len(got.tokens) == 3 {
			cancel(cause)
		}
		return nil
	}
	err := c.Run(ctx, job(true), &got)
	if !errors.Is(err, engines.ErrCanceled) || !errors.Is(err, cause) {
		t.Errorf("got %v, want ErrCanceled with its cause", err)
	}
	if facts, err := c.Observe(t.Context()); err != nil || facts.Running != 0 {
		t.Errorf("after the run: %+v, %v", facts, err)
	}
	if err := c.Run(ctx, job(true), &got); !errors.Is(err, engines.ErrCanceled) || !errors.Is(err, cause) {
		t.Errorf("run with an ended context: %v", err)
	}
}

func TestClient_CancelDuringUpload(t *testing.T) {
	f := newFake(128 << 10)
	c, _ := connect(t, f)
	j := job(true)
	j.From = state(f.d, 500, 2)
	ctx, cancel := context.WithCancel(t.Context())
	var wg sync.WaitGroup
	var err error
	wg.Go(func() { err = c.Run(ctx, j, &record{}) })
	cancel()
	wg.Wait()
	if err != nil && !errors.Is(err, engines.ErrCanceled) {
		t.Errorf("got %v, want ErrCanceled", err)
	}
	if err := c.Run(t.Context(), job(true), &record{}); err != nil {
		t.Errorf("next run: %v", err)
	}
}

func TestClient_SinkErrorEndsRun(t *testing.T) {
	f := newFake(64)
	f.tokens = 1000
	c, _ := connect(t, f)
	full := errors.New("store full")
	got := record{}
	got.before = func() error {
		if len(got.tokens) == 2 {
			return full
		}
		return nil
	}
	if err := c.Run(t.Context(), job(true), &got); !errors.Is(err, full) {
		t.Errorf("got %v, want the sink's error", err)
	}
	if len(got.tokens) != 2 {
		t.Errorf("sink called again after its error: %d tokens", len(got.tokens))
	}
	if n := f.steps.Load(); n > 2+2*link.RunCredit {
		t.Errorf("engine went on for %d steps", n)
	}
}

func TestClient_LostLinkEndsEveryRun(t *testing.T) {
	f := newFake(64)
	f.before = func(ctx context.Context, index int) error {
		if index == 2 {
			<-ctx.Done()
		}
		return nil
	}
	c, hostConn := connect(t, f)
	var wg sync.WaitGroup
	reached := make(chan struct{}, 3)
	for range 3 {
		wg.Go(func() {
			got := record{}
			got.before = func() error {
				if len(got.tokens) == 2 {
					reached <- struct{}{}
				}
				return nil
			}
			if err := c.Run(t.Context(), job(true), &got); !errors.Is(err, engines.ErrLost) {
				t.Errorf("got %v, want ErrLost", err)
			}
		})
	}
	for range 3 {
		<-reached
	}
	hostConn.Close()
	wg.Wait()
	<-c.Done()
	if err := c.Run(t.Context(), job(false), &record{}); !errors.Is(err, engines.ErrLost) {
		t.Errorf("run on a lost link: %v", err)
	}
	if _, err := c.Describe(t.Context()); !errors.Is(err, engines.ErrLost) {
		t.Errorf("describe on a lost link: %v", err)
	}
	if _, err := c.Observe(t.Context()); !errors.Is(err, engines.ErrLost) {
		t.Errorf("observe on a lost link: %v", err)
	}
}

func TestClient_NoCapacityAtOnce(t *testing.T) {
	f := newFake(64 << 10)
	f.d.Contexts = 1
	hold := make(chan struct{})
	f.before = func(context.Context, int) error { <-hold; return nil }
	c, _ := connect(t, f)
	started := make(chan struct{})
	var once sync.Once
	var wg sync.WaitGroup
	wg.Go(func() {
		r := record{before: func() error { once.Do(func() { close(started) }); return nil }}
		if err := c.Run(t.Context(), job(false), &r); err != nil {
			t.Error(err)
		}
	})
	<-started
	j := job(true)
	j.From = state(f.d, 300, 3)
	for range 3 {
		if err := c.Run(t.Context(), j, &record{}); !errors.Is(err, engines.ErrNoCapacity) {
			t.Errorf("got %v, want ErrNoCapacity", err)
		}
	}
	close(hold)
	wg.Wait()
	if len(f.got()) != 1 {
		t.Errorf("engine got %d jobs, want 1", len(f.got()))
	}
	if err := c.Run(t.Context(), job(false), &record{}); err != nil {
		t.Errorf("after the first run: %v", err)
	}
}

func TestClient_RefusesStates(t *testing.T) {
	f := newFake(64)
	c, _ := connect(t, f)
	for name, change := range map[string]func(*snapshot.State){
		"geometry": func(s *snapshot.State) { *s = *state(description(128), 5, 2) },
		"type": func(s *snapshot.State) {
			s.Geometry.Layers = []snapshot.LayerRows{{KBytes: 32, VBytes: 32, KType: "q8_0", VType: "f16"}}
		},
		"no block":    func(s *snapshot.State) { s.Blocks = nil },
		"short block": func(s *snapshot.State) { s.Blocks[0] = s.Blocks[0][:100] },
		"draws":       func(s *snapshot.State) { s.Sampler.Draws++ },
		"vocabulary":  func(s *snapshot.State) { s.Output[1] = 1000 },
		"negative id": func(s *snapshot.State) { s.Prompt[1] = -1 },
		"too long":    func(s *snapshot.State) { *s = *state(f.d, 4095, 2) },
		"no output":   func(s *snapshot.State) { s.Output = nil },
	} {
		t.Run(name, func(t *testing.T) {
			j := job(true)
			j.From = state(f.d, 5, 2)
			change(j.From)
			if err := c.Run(t.Context(), j, &record{}); !errors.Is(err, engines.ErrState) {
				t.Errorf("got %v, want ErrState", err)
			}
		})
	}
	bad := job(false)
	bad.Request.Model = ""
	if err := c.Run(t.Context(), bad, &record{}); err == nil {
		t.Error("invalid request accepted")
	} else if _, ok := errors.AsType[*engines.RequestError](err); !ok {
		t.Errorf("got %v, want a RequestError", err)
	}
	if len(f.got()) != 0 {
		t.Errorf("engine got %d jobs", len(f.got()))
	}
}

// Facts come every 200 ms while the engine computes, and are current when a run returns.
func TestClient_FactsWhileEngineComputes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFake(64)
		f.before = func(context.Context, int) error { time.Sleep(10 * time.Second); return nil }
		a, b := net.Pipe()
		c := connectOver(t, f, a, b)
		var wg sync.WaitGroup
		wg.Go(func() {
			if err := c.Run(t.Context(), job(true), &record{}); err != nil {
				t.Error(err)
			}
			if facts, err := c.Observe(t.Context()); err != nil || facts.DecodeSteps != uint64(f.tokens) || facts.Running != 0 {
				t.Errorf("facts after the run: %+v, %v", facts, err)
			}
		})
		time.Sleep(200 * time.Millisecond) // the first facts may be older than the run
		for range 40 {
			time.Sleep(100 * time.Millisecond)
			synctest.Wait()
			if age := time.Since(c.LastHeard()); age >= 200*time.Millisecond {
				t.Fatalf("last facts are %v old", age)
			}
			if facts, err := c.Observe(t.Context()); err != nil || facts.Running != 1 || facts.BusyMillis != 8 {
				t.Fatalf("facts: %+v, %v", facts, err)
			}
		}
		wg.Wait()
	})
}

func TestConnect_EndsWithContext(t *testing.T) {
	a, b, err := link.SocketPair()
	if err != nil {
		t.Fatal(err)
	}
	defer b.Close()
	cause := errors.New("too slow")
	ctx, cancel := context.WithCancelCause(t.Context())
	cancel(cause)
	if _, err := link.Connect(ctx, a); !errors.Is(err, cause) {
		t.Errorf("got %v, want %v", err, cause)
	}
}

func TestServe_EndsWithContext(t *testing.T) {
	f := newFake(64)
	f.before = func(ctx context.Context, index int) error { <-ctx.Done(); return ctx.Err() }
	a, b, err := link.SocketPair()
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancelCause(t.Context())
	cause := errors.New("shutdown")
	var wg sync.WaitGroup
	wg.Go(func() {
		if err := link.Serve(ctx, b, f); !errors.Is(err, cause) {
			t.Errorf("host: %v", err)
		}
	})
	c, err := link.Connect(t.Context(), a)
	if err != nil {
		t.Fatal(err)
	}
	wg.Go(func() {
		if err := c.Serve(t.Context()); !errors.Is(err, engines.ErrLost) {
			t.Errorf("agent: %v", err)
		}
	})
	r := record{before: func() error { cancel(cause); return nil }}
	if err := c.Run(t.Context(), job(false), &r); !errors.Is(err, engines.ErrLost) {
		t.Errorf("got %v, want ErrLost, since the host ended", err)
	}
	wg.Wait()
}
