// SPDX-License-Identifier: Apache-2.0
// Copyright The Segue Authors

package journal_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil/promlint"

	"github.com/seguekv/segue/router/journal"
)

// slow is a storage whose commits take virtual time.
type slow struct {
	*journal.Memory
	mu   sync.Mutex
	time time.Duration
}

func (s *slow) Commit(ops []journal.Op) error {
	s.mu.Lock()
	d := s.time
	s.mu.Unlock()
	time.Sleep(d)
	return s.Memory.Commit(ops)
}

func (s *slow) set(d time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.time = d
}

func TestJournal_TokensShareCommits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const requests, tokens = 64, 640
		s := &slow{Memory: journal.NewMemory(), time: 5 * time.Millisecond}
		j, stop := open(t, journal.Options{Storage: s})
		var group sync.WaitGroup
		for i := range requests {
			group.Go(func() {
				e := begin(t, j, request(i, ""))
				time.Sleep(time.Duration(i) * time.Millisecond)
				for k := range tokens {
					start := time.Now()
					reserve(t, e, k+1)
					if waited := time.Since(start); k > 0 && waited > 0 {
						t.Errorf("request %d waited %v for token %d", i, waited, k)
					}
					time.Sleep(20 * time.Millisecond) // 50 tokens a second
				}
				e.Done("stop", journal.Usage{}, nil)
			})
		}
		group.Wait()
		if err := stop(); err != nil {
			t.Fatal(err)
		}
		commits := s.Commits()
		t.Logf("%d commits for %d requests of %d tokens: one for %d tokens", commits, requests, tokens, requests*tokens/commits)
		if commits > requests*tokens/40 {
			t.Errorf("%d commits for %d tokens", commits, requests*tokens)
		}
	})
}

func TestJournal_BurstSharesCommits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &slow{Memory: journal.NewMemory(), time: 5 * time.Millisecond}
		j, _ := open(t, journal.Options{Storage: s})
		synctest.Wait()
		before := s.Commits()
		var group sync.WaitGroup
		for i := range 500 {
			group.Go(func() { reserve(t, begin(t, j, request(i, "")), 1) })
		}
		group.Wait()
		if n := s.Commits() - before; n > 3 {
			t.Errorf("500 requests that begin at once took %d commits", n)
		}
	})
}

func TestJournal_FailingStorage(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		reg := prometheus.NewRegistry()
		m := journal.NewMemory()
		j, stop := open(t, journal.Options{Storage: m, Registerer: reg})
		e := begin(t, j, request(1, "key"))
		reserve(t, e, 1)
		m.Fail(errors.New("no space left on device"))
		reserve(t, e, 64) // what is reserved stays so
		if err := e.Reserve(t.Context(), 65); !errors.Is(err, journal.ErrUnavailable) || !strings.Contains(err.Error(), "no space left") {
			t.Fatalf("reserve on a failing disk: %v", err)
		}
		if err := j.Healthy(); !errors.Is(err, journal.ErrUnavailable) {
			t.Fatalf("healthy: %v", err)
		}
		start := time.Now()
		for n := 65; n < 300; n++ {
			if err := e.Reserve(t.Context(), n); err == nil {
				t.Fatalf("token %d is reserved on a failing disk", n)
			}
			e.Delivered(n)
		}
		if took := time.Since(start); took > 0 {
			t.Errorf("the stream waited %v for a disk known to fail", took)
		}
		if _, err := j.Claim("t", "r", "c", [32]byte{}, "b"); !errors.Is(err, journal.ErrUnavailable) {
			t.Errorf("claim on a failing disk: %v", err)
		}
		if err := j.Sync(t.Context()); !errors.Is(err, journal.ErrUnavailable) {
			t.Errorf("sync on a failing disk: %v", err)
		}
		if r := get(t, j, "req_1"); r.Delivered != 299 {
			t.Errorf("delivered reads %d", r.Delivered)
		}
		if n := metric(t, reg, "segue_journal_unhealthy"); n != 1 {
			t.Errorf("metric unhealthy is %v", n)
		}
		other := begin(t, j, request(2, ""))
		other.Done("stop", journal.Usage{}, nil)

		m.Fail(nil)
		time.Sleep(time.Second)
		if err := j.Healthy(); err != nil {
			t.Errorf("after recovery: %v", err)
		}
		reserve(t, e, 310)
		if a, err := j.Claim("t", "r", "c", [32]byte{}, "b"); err != nil || !a.Granted {
			t.Errorf("claim after recovery: %+v, %v", a, err)
		}
		if n := metric(t, reg, "segue_journal_unhealthy"); n != 0 {
			t.Errorf("metric unhealthy is %v", n)
		}
		j2 := reopened(t, m, stop, true)
		if r := get(t, j2, "req_1"); r.Delivered < 310 || !r.FirstDeltaSent {
			t.Errorf("after a crash: %d delivered", r.Delivered)
		}
		if r := get(t, j2, "req_2"); r.Phase != journal.PhaseDone {
			t.Errorf("what ended meanwhile reads %s", r.Phase)
		}
	})
}

func metric(t testing.TB, reg *prometheus.Registry, name string) float64 {
	t.Helper()
	families, err := reg.Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range families {
		if f.GetName() == name {
			sum := 0.0
			for _, m := range f.GetMetric() {
				sum += m.GetGauge().GetValue() + m.GetCounter().GetValue()
			}
			return sum
		}
	}
	t.Fatalf("no metric %s", name)
	return 0
}

func TestJournal_HangingStorage(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &slow{Memory: journal.NewMemory()}
		j, _ := open(t, journal.Options{Storage: s})
		e := begin(t, j, request(1, ""))
		reserve(t, e, 1)
		s.set(time.Minute)
		start := time.Now()
		if err := e.Reserve(t.Context(), 65); !errors.Is(err, journal.ErrUnavailable) {
			t.Fatalf("reserve: %v", err)
		}
		if took := time.Since(start); took != 2*time.Second {
			t.Errorf("the stream waited %v for a hanging disk", took)
		}
		start = time.Now()
		for n := 66; n < 200; n++ {
			if err := e.Reserve(t.Context(), n); err == nil {
				t.Fatalf("token %d is reserved on a hanging disk", n)
			}
		}
		if took := time.Since(start); took > 0 {
			t.Errorf("the stream waited %v more", took)
		}
		if err := j.Healthy(); !errors.Is(err, journal.ErrUnavailable) {
			t.Errorf("healthy: %v", err)
		}
		s.set(0)
		time.Sleep(2 * time.Minute)
		if err := j.Healthy(); err != nil {
			t.Errorf("after the hang: %v", err)
		}
		if err := e.Reserve(t.Context(), 200); err != nil {
			t.Errorf("after the hang: %v", err)
		}
	})
}

func TestEntry_ReserveEndsWithItsContext(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &slow{Memory: journal.NewMemory()}
		j, _ := open(t, journal.Options{Storage: s})
		e := begin(t, j, request(1, ""))
		flush(t, j)
		s.set(time.Second)
		cause := errors.New("client gone")
		ctx, cancel := context.WithCancelCause(t.Context())
		time.AfterFunc(time.Millisecond, func() { cancel(cause) })
		if err := e.Reserve(ctx, 1); !errors.Is(err, cause) {
			t.Fatalf("got %v", err)
		}
		s.set(0)
		reserve(t, e, 1)
	})
}

func TestJournal_RunFlushes(t *testing.T) {
	for _, failing := range []bool{false, true} {
		t.Run(fmt.Sprintf("failing %t", failing), func(t *testing.T) {
			m := journal.NewMemory()
			j, stop := open(t, journal.Options{Storage: m})
			flush(t, j)
			if failing {
				m.Fail(errors.New("gone"))
			}
			var entries []*journal.Entry
			for i := range 5000 { // more than one batch
				e := begin(t, j, request(i, ""))
				e.Done("stop", journal.Usage{}, nil)
				entries = append(entries, e)
			}
			if err := stop(); (err != nil) != failing {
				t.Fatalf("run: %v", err)
			}
			if err := entries[0].Reserve(t.Context(), 1); !errors.Is(err, journal.ErrFinished) && !errors.Is(err, journal.ErrClosed) {
				t.Errorf("reserve after the end: %v", err)
			}
			if _, err := j.Begin(request(9999, "")); !errors.Is(err, journal.ErrClosed) {
				t.Errorf("begin after the end: %v", err)
			}
			if err := j.Sync(t.Context()); !errors.Is(err, journal.ErrClosed) {
				t.Errorf("sync after the end: %v", err)
			}
			if failing {
				return
			}
			j2, _ := open(t, journal.Options{Storage: m})
			if n := len(j2.List(journal.Filter{Phase: journal.PhaseDone})); n != 5000 {
				t.Errorf("%d requests are durable", n)
			}
		})
	}
}

func TestJournal_MetricsAreClean(t *testing.T) {
	reg := prometheus.NewRegistry()
	j, stop := open(t, journal.Options{Registerer: reg})
	reserve(t, begin(t, j, request(1, "key")), 1)
	families, err := reg.Gather()
	if err != nil {
		t.Fatal(err)
	}
	problems, err := promlint.NewWithMetricFamilies(families).Lint()
	if err != nil || len(problems) > 0 {
		t.Errorf("lint: %v, %v", problems, err)
	}
	if n := metric(t, reg, "segue_journal_open_requests"); n != 1 {
		t.Errorf("%v requests are open", n)
	}
	if n := metric(t, reg, "segue_journal_bytes"); n <= 0 {
		t.Errorf("%v bytes", n)
	}
	if _, err := journal.Open(journal.Options{Registerer: reg}); err == nil {
		t.Error("two journals share a registry")
	}
	if err := stop(); err != nil {
		t.Fatal(err)
	}
	if families, err := reg.Gather(); err != nil || len(families) > 0 {
		t.Errorf("after Close: %v, %v", families, err)
	}
}
