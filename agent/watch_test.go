// SPDX-License-Identifier: Apache-2.0
// Copyright The Segue Authors

package agent_test

import (
	"context"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	seguev1 "github.com/seguekv/segue/api/segue/v1"
	"github.com/seguekv/segue/health"
)

// heardReport is a report and when it came.
type heardReport struct {
	*seguev1.WatchHealthResponse
	at time.Time
}

func (r heardReport) verdict() health.Verdict { return health.Verdict(r.GetVerdict()) }

// reports are those of one call of WatchHealth.
type reports struct {
	began  time.Time
	cancel context.CancelFunc

	mu   sync.Mutex
	list []heardReport
	err  error // set when the call is over
}

// watch hears a node's reports until it stops.
func (b *testNode) watch(t *testing.T) *reports {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	st, err := b.client.WatchHealth(ctx, &seguev1.WatchHealthRequest{})
	if err != nil {
		t.Fatal(err)
	}
	w := &reports{began: time.Now(), cancel: cancel}
	go func() { // ends with the node
		defer cancel()
		for {
			r, err := st.Recv()
			w.mu.Lock()
			if err != nil {
				w.err = err
				w.mu.Unlock()
				return
			}
			w.list = append(w.list, heardReport{r, time.Now()})
			w.mu.Unlock()
		}
	}()
	synctest.Wait()
	return w
}

// since returns the reports that came at a time or later.
func (w *reports) since(at time.Time) []heardReport {
	w.mu.Lock()
	defer w.mu.Unlock()
	i := slices.IndexFunc(w.list, func(r heardReport) bool { return !r.at.Before(at) })
	if i < 0 {
		return nil
	}
	return slices.Clone(w.list[i:])
}

func (w *reports) latest(t *testing.T) heardReport {
	t.Helper()
	all := w.since(w.began)
	if len(all) == 0 {
		t.Fatal("no report has come")
	}
	return all[len(all)-1]
}

// until waits for a report of a verdict that comes after now, for so long.
func (w *reports) until(t *testing.T, v health.Verdict, within time.Duration) heardReport {
	t.Helper()
	for from := time.Now(); time.Since(from) <= within; pass(time.Millisecond) {
		for _, r := range w.since(from) {
			if r.verdict() == v {
				return r
			}
		}
	}
	t.Fatalf("not %s within %v, but %v", v, within, w.verdicts(time.Time{}))
	return heardReport{}
}

// verdicts are the changes since a time, with their first reasons.
func (w *reports) verdicts(since time.Time) []string {
	var out []string
	for _, r := range w.since(since) {
		if v := r.verdict().String(); len(out) == 0 || out[len(out)-1] != v {
			out = append(out, v)
		}
	}
	return out
}

// pass lets virtual time go by and what is due happen.
func pass(d time.Duration) {
	time.Sleep(d)
	synctest.Wait()
}

// follow reads a stream to its end on its own.
func follow(recv stream) *follower {
	f := new(follower)
	go func() { // ends with the stream
		for {
			e, err := recv()
			f.mu.Lock()
			if err != nil {
				f.x.err = err
				f.mu.Unlock()
				return
			}
			f.x.add(e)
			f.mu.Unlock()
		}
	}()
	return f
}

type follower struct {
	mu sync.Mutex
	x  transcript
}

// now is a copy of what has come.
func (f *follower) now() transcript {
	f.mu.Lock()
	defer f.mu.Unlock()
	x := f.x
	x.tokens = slices.Clone(f.x.tokens)
	return x
}

// got waits until so many tokens have come.
func (f *follower) got(t *testing.T, n int) transcript {
	t.Helper()
	for range 100000 {
		if x := f.now(); len(x.tokens) >= n || x.err != nil {
			if x.err != nil {
				t.Fatalf("the run ended: %v", x.err)
			}
			return x
		}
		pass(time.Millisecond)
	}
	t.Fatalf("%d tokens don't come", n)
	return transcript{}
}

// refuses checks that nothing new is begun on a node: neither a session nor the takeover of one that it holds, and that it
// says so to everybody.
func refuses(t *testing.T, b *testNode, why string, takeovers ...*seguev1.TakeoverRequest) {
	t.Helper()
	runs := b.host.runs.Load()
	_, err := generate(t, t.Context(), b, &seguev1.GenerateRequest{Session: newID(t), Epoch: 1, Request: request(5), Protection: modeOff})()
	wantReason(t, err, seguev1.Reason_REASON_NOT_READY)
	for _, o := range takeovers {
		_, err := b.client.Prepare(t.Context(), &seguev1.PrepareRequest{Session: o.GetSession(), Epoch: o.GetEpoch() - 1})
		wantReason(t, err, seguev1.Reason_REASON_NOT_READY)
		_, err = takeover(t, t.Context(), b, o)()
		wantReason(t, err, seguev1.Reason_REASON_NOT_READY)
	}
	if d := b.describe(t); d.GetReady() || !strings.Contains(d.GetNotReadyReason(), why) {
		t.Errorf("ready %v, reason %q, want one with %q", d.GetReady(), d.GetNotReadyReason(), why)
	}
	if code, body := b.get(t, "/readyz"); code != 503 || !strings.Contains(body, why) {
		t.Errorf("/readyz: %d %s", code, body)
	}
	if got := b.host.runs.Load(); got != runs {
		t.Errorf("%d runs were begun", got-runs)
	}
}

// wantOnly checks that of the reports since a time, which cover so much of it, each has one of the verdicts.
func wantOnly(t *testing.T, w *reports, since time.Time, covers time.Duration, want ...health.Verdict) {
	t.Helper()
	all := w.since(since)
	if len(all) < int(covers/time.Second) {
		t.Errorf("%d reports in %v", len(all), covers)
	}
	for _, r := range all {
		if !slices.Contains(want, r.verdict()) {
			t.Fatalf("after %v: %v, want %v", r.at.Sub(since), r.WatchHealthResponse, want)
		}
	}
}

// stops checks that a node stops soon, and that whoever hears its reports is told.
func stops(t *testing.T, a *testNode, w *reports) {
	t.Helper()
	at := time.Now()
	a.stop()
	if took := time.Since(at); took > 1500*time.Millisecond {
		t.Errorf("stopped after %v", took)
	}
	synctest.Wait()
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.err == nil {
		t.Error("its reports haven't ended")
	}
}

// warm has a node's engine seen at work for long enough to know its pace.
func warm(t *testing.T, b *testNode) {
	t.Helper()
	for began := time.Now(); time.Since(began) < 4*time.Second; {
		reference(t, b, request(400))
	}
	pass(time.Second) // until the last one's context is free
}
