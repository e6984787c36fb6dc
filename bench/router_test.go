// SPDX-License-Identifier: Apache-2.0
// Copyright The Segue Authors

package bench_test

import (
	"strings"
	"testing"
	"testing/iotest"
	"time"

	"github.com/seguekv/segue/bench"
)

func TestRouterConfig_NamesEveryProblem(t *testing.T) {
	c := bench.RouterConfig{Kinds: []string{"agent", "vllm", "agent"}, Rate: -1}
	err := c.Validate()
	if err == nil {
		t.Fatal("valid")
	}
	for _, want := range []string{"--seconds", "--streams", "--rate", "--rounds", `not "vllm"`, "agent twice"} {
		if !strings.Contains(err.Error(), want) {
			t.Errorf("%v lacks %q", err, want)
		}
	}
	c = bench.RouterConfig{Kinds: []string{bench.RouterOpenAI}, Seconds: time.Second, Streams: 1, Rounds: 1}
	if err := c.Validate(); err != nil {
		t.Error(err)
	}
}

const (
	deltaLine  = `data: {"choices":[{"index":0,"delta":{"content":"delta "}}]}` + "\n\n"
	finishLine = `data: {"choices":[{"index":0,"delta":{},"finish_reason":"length"}]}` + "\n\n"
	doneLine   = "data: [DONE]\n\n"
)

func TestCountDeltas_CountsOnlyWholeAnswers(t *testing.T) {
	role := `data: {"choices":[{"index":0,"delta":{"role":"assistant","content":""}}]}` + "\n\n"
	for name, c := range map[string]struct {
		text string
		n    int
		err  string
	}{
		"whole":       {role + deltaLine + ": keep-alive\n\n" + deltaLine + finishLine + doneLine, 2, ""},
		"no finish":   {role + deltaLine + doneLine, 1, "without its end"},
		"no done":     {role + deltaLine + finishLine, 1, "without its end"},
		"cut":         {role + deltaLine + finishLine + "data: [DO", 1, "without its end"},
		"error event": {role + deltaLine + `data: {"error":{"message":"interrupted"}}` + "\n\n", 1, "interrupted"},
		"long line":   {role + deltaLine + "data: " + strings.Repeat("x", 32<<10), 1, "buffer full"},
		"nothing":     {"", 0, "without its end"},
	} {
		t.Run(name, func(t *testing.T) {
			received := 0
			n, err := bench.CountDeltas(iotest.OneByteReader(strings.NewReader(c.text)), func() { received++ })
			if n != c.n || received != c.n {
				t.Errorf("%d deltas, %d calls, want %d", n, received, c.n)
			}
			if c.err == "" && err != nil || c.err != "" && (err == nil || !strings.Contains(err.Error(), c.err)) {
				t.Errorf("error %v, want %q", err, c.err)
			}
		})
	}
}

func TestStatTime_SumsUserAndSystemTime(t *testing.T) {
	d, err := bench.StatTime([]byte("12 (a (b) c) S 1 12 12 0 -1 4194560 1 2 3 4 150 25 7 8 20 0 9 0 100 1 1"))
	if err != nil || d != 1750*time.Millisecond {
		t.Errorf("%v, %v", d, err)
	}
	for _, line := range []string{"", "12 (a) S 1 2", "12 (a) S 1 12 12 0 -1 4194560 1 2 3 4 x 25 7"} {
		if d, err := bench.StatTime([]byte(line)); err == nil {
			t.Errorf("%q gives %v", line, d)
		}
	}
}

func TestRouterAllocs_AreUnknownWithoutTheMetric(t *testing.T) {
	if a := bench.RouterAllocs([2]float64{100, 500}, true, [2]int64{50, 150}); a == nil || *a != 4 {
		t.Errorf("got %v", a)
	}
	if a := bench.RouterAllocs([2]float64{0, 0}, false, [2]int64{50, 150}); a != nil {
		t.Errorf("got %v", *a)
	}
	if a := bench.RouterAllocs([2]float64{1, 2}, true, [2]int64{50, 50}); a != nil {
		t.Errorf("got %v", *a)
	}
}

func TestRouterSource_StreamsDirectly(t *testing.T) {
	for _, kind := range []string{bench.RouterAgent, bench.RouterOpenAI} {
		t.Run(kind, func(t *testing.T) {
			s, err := bench.NewRouterSource(kind, 1)
			if err != nil {
				t.Fatal(err)
			}
			defer s.Close()
			begun := time.Now()
			ages, err := s.Direct(t.Context(), 200, 21)
			if err != nil || len(ages) != 21 {
				t.Fatalf("%d deltas, %v", len(ages), err)
			}
			if took := time.Since(begun); took < 100*time.Millisecond {
				t.Errorf("20 intervals of 5 ms took %v", took)
			}
			for i, age := range ages {
				if age <= 0 || age > time.Since(begun) {
					t.Errorf("delta %d was received after %v", i, age)
				}
			}
			if err := s.Again(t.Context()); err == nil {
				t.Error("a script for one stream served two")
			}
			emitted, received, err := s.Endless(t.Context(), 100)
			if err != nil || received < 100 || int64(received) != emitted {
				t.Errorf("%d deltas emitted, %d received, %v", emitted, received, err)
			}
		})
	}
}
