// SPDX-License-Identifier: Apache-2.0
// Copyright The Segue Authors

package sim_test

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/seguekv/segue/engines"
	"github.com/seguekv/segue/engines/enginetest"
)

func TestEngine_StepBeginsAfterTheSinkReturns(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := quick()
		c.Step, c.PrefillToken, c.Chunk = 7*time.Millisecond, time.Millisecond, 4
		e := newEngine(t, c)
		begin := time.Now()
		q := greedy(4)
		q.Prompt = engines.Prompt{IDs: make([]int32, 10)}
		want := []time.Duration{10 * time.Millisecond, 20 * time.Millisecond, 30 * time.Millisecond, 40 * time.Millisecond}
		err := e.Run(t.Context(), engines.Job{Request: q}, hook{enginetest.NewRecorder(mustDescribe(t, e).Geometry, false), func(k engines.Token) {
			if got := time.Since(begin); got != want[k.Index] {
				t.Errorf("token %d after %v, want %v", k.Index, got, want[k.Index])
			}
			time.Sleep(3 * time.Millisecond)
		}})
		if err != nil {
			t.Fatal(err)
		}
	})
}

func TestEngine_CancelEndsTheStepInFlight(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := quick()
		c.Step, c.PrefillToken = time.Hour, time.Millisecond
		e := newEngine(t, c)
		cause := errors.New("enough")
		ctx, cancel := context.WithTimeoutCause(t.Context(), time.Second, cause)
		defer cancel()
		begin := time.Now()
		err := e.Run(ctx, engines.Job{Request: greedy(4)}, enginetest.NewRecorder(mustDescribe(t, e).Geometry, false))
		if !errors.Is(err, engines.ErrCanceled) || !errors.Is(err, cause) {
			t.Errorf("Run: %v, want an error that is %v and %v", err, engines.ErrCanceled, cause)
		}
		if got := time.Since(begin); got != time.Second {
			t.Errorf("Run ended after %v, want a second", got)
		}
	})
}

func TestEngine_ObserveTimesTheCallInFlight(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := quick()
		c.Step, c.PrefillToken = time.Second, 0
		e := newEngine(t, c)
		expect := func(busy, running int) {
			t.Helper()
			f, err := e.Observe(t.Context())
			if err != nil || f.BusyMillis != busy || f.Running != running {
				t.Errorf("Observe: busy %d ms, %d running, error %v; want %d ms, %d", f.BusyMillis, f.Running, err, busy, running)
			}
		}
		expect(0, 0)
		run := func() {
			r := enginetest.NewRecorder(mustDescribe(t, e).Geometry, false)
			if err := e.Run(t.Context(), engines.Job{Request: greedy(3)}, hook{r, func(engines.Token) { time.Sleep(100 * time.Millisecond) }}); err != nil {
				t.Error(err)
			}
		}
		go run()
		time.Sleep(50 * time.Millisecond)
		expect(0, 1) // the sink has token 0
		time.Sleep(450 * time.Millisecond)
		expect(400, 1)
		go run()
		time.Sleep(500 * time.Millisecond)
		expect(900, 2)
		time.Sleep(150 * time.Millisecond)
		expect(550, 2) // the first run's sink has token 1
		time.Sleep(time.Hour)
		expect(0, 0)
	})
}
