// SPDX-License-Identifier: Apache-2.0
// Copyright The Segue Authors

package journal_test

import (
	"context"
	"crypto/sha256"
	"fmt"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/seguekv/segue/router/journal"
)

func TestMain(m *testing.M) {
	if child() {
		return
	}
	goleak.VerifyTestMain(m)
}

// open runs a journal until stop, or the test's end.
func open(t testing.TB, o journal.Options) (j *journal.Journal, stop func() error) {
	t.Helper()
	j, err := journal.Open(o)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	ran := make(chan error, 1)
	go func() { ran <- j.Run(ctx) }()
	stop = sync.OnceValue(func() error {
		cancel()
		err := <-ran
		if err := j.Close(); err != nil {
			t.Error(err)
		}
		return err
	})
	t.Cleanup(func() { _ = stop() })
	return j, stop
}

// request is a request of tenant t.
func request(n int, key string) journal.New {
	return journal.New{
		Tenant: "t", RequestID: fmt.Sprintf("req_%d", n), Session: fmt.Sprintf("%032x", n), Model: "m", Endpoint: "/v1/chat/completions",
		Stream: true, Protection: "sync", RetryBudget: 2, Key: key, Payload: sha256.Sum256([]byte("p")),
	}
}

func begin(t testing.TB, j *journal.Journal, n journal.New) *journal.Entry {
	t.Helper()
	e, err := j.Begin(n)
	if err != nil {
		t.Fatal(err)
	}
	return e
}

func reserve(t testing.TB, e *journal.Entry, n int) {
	t.Helper()
	if err := e.Reserve(context.Background(), n); err != nil {
		t.Fatal(err)
	}
	e.Delivered(n)
}

func flush(t testing.TB, j *journal.Journal) {
	t.Helper()
	if err := j.Sync(context.Background()); err != nil {
		t.Fatal(err)
	}
}

func get(t testing.TB, j *journal.Journal, id string) journal.Request {
	t.Helper()
	r, ok := j.Get("t", id)
	if !ok {
		t.Fatalf("request %s is unknown", id)
	}
	return r
}

// clock is a wall clock that tests move.
type clock struct {
	mu  sync.Mutex
	now time.Time
}

func newClock() *clock { return &clock{now: time.Date(2026, 5, 4, 3, 2, 1, 0, time.UTC)} }

func (c *clock) Now() time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.now
}

func (c *clock) advance(d time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.now = c.now.Add(d)
}
