// SPDX-License-Identifier: Apache-2.0
// Copyright The Segue Authors

package bench_test

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/seguekv/segue/bench"
	"github.com/seguekv/segue/bench/client"
	"github.com/seguekv/segue/bench/cluster"
)

func TestFaultPlan_CoversTargetsAndSecondKills(t *testing.T) {
	const kills = 1056
	targets, seconds := map[cluster.Target]int{}, map[string]int{}
	firsts := map[cluster.Target]bool{}
	for run := range kills {
		prompt, target, second := bench.FaultPlan(run, 10)
		if prompt != run/10 {
			t.Fatalf("kill %d is of prompt %d", run, prompt)
		}
		targets[target]++
		if second != nil {
			seconds[second.When+" "+string(second.Target)]++
			seconds["all"]++
			firsts[target] = true
			if second.Delay <= 0 {
				t.Errorf("kill %d: delay %v", run, second.Delay)
			}
		}
	}
	if len(targets) != 3 || targets[cluster.TargetNode] != kills/3 || len(firsts) != 3 {
		t.Errorf("targets %v, first kills of seconds %v", targets, firsts)
	}
	// Kills that a third node can't help with must leave room for a continued rate of 95 %.
	lost := seconds["takeover node"] + seconds["takeover agent"]
	if len(seconds) != 7 || seconds["all"] != kills/11 || lost == 0 || lost > kills*3/100 {
		t.Errorf("second kills %v", seconds)
	}
}

func TestFaultPrompt_TakesTurnsThroughEverything(t *testing.T) {
	samplings, kinds := map[string]int{}, map[string]int{}
	short, long, derived := 0, 0, 0
	for i := range 128 {
		b, sampling, kind, target, derives := bench.FaultPrompt(3, i)
		again, _, _, _, _ := bench.FaultPrompt(3, i)
		if diff := cmp.Diff(b, again); diff != "" {
			t.Fatalf("prompt %d is not a function of seed and number:\n%s", i, diff)
		}
		samplings[sampling]++
		kinds[kind+" "+sampling]++
		if target < 16 || target > 1500 {
			t.Errorf("prompt %d: %d tokens", i, target)
		}
		if target < 155 { // the middle of 16 and 1,500 on a logarithmic scale
			short++
		}
		if target > 1000 {
			long++
		}
		if derives {
			derived++
		}
		if seeded := strings.HasPrefix(sampling, "seeded"); seeded != (b.Temperature > 0) {
			t.Errorf("%s: temperature %v", sampling, b.Temperature)
		}
		if with := strings.HasSuffix(sampling, "penalties"); with != (b.RepetitionPenalty > 0 && b.PresencePenalty > 0 && b.FrequencyPenalty > 0) {
			t.Errorf("%s: %+v", sampling, b)
		}
		if b.MinTokens < 64 || b.MaxTokens < b.MinTokens {
			t.Errorf("prompt %d: %d to %d tokens", i, b.MinTokens, b.MaxTokens)
		}
	}
	if len(samplings) != 8 || len(kinds) != 32 || derived != 64 {
		t.Errorf("%d samplings, %d combinations, %d derived", len(samplings), len(kinds), derived)
	}
	if short < 56 || short > 72 || long < 6 || long > 18 {
		t.Errorf("%d of 128 below the middle, %d above 1,000: not log-uniform", short, long)
	}
}

// words is an answer of n tokens, one word each, as the client reads it; there are 40 different ids.
func words(t *testing.T, n int, word func(int) string) *client.Transcript {
	t.Helper()
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		const object = `"id":"c","object":"chat.completion.chunk"`
		fmt.Fprintf(w, "data: {%s,\"choices\":[{\"index\":0,\"delta\":{\"role\":\"assistant\"}}]}\n\n", object)
		for i := range n {
			fmt.Fprintf(w, "data: {%s,\"choices\":[{\"index\":0,\"delta\":{\"content\":%q},\"token_ids\":[%d],\"token_index\":%d}]}\n\n", object, word(i), i%40, i)
		}
		fmt.Fprintf(w, "data: {%s,\"choices\":[{\"index\":0,\"delta\":{},\"finish_reason\":\"length\"}]}\n\n", object)
		fmt.Fprintf(w, "data: {%s,\"choices\":[],\"usage\":{\"prompt_tokens\":9,\"completion_tokens\":%d,\"total_tokens\":%d}}\n\ndata: [DONE]\n\n", object, n, n+9)
	}))
	defer server.Close()
	c := client.New(server.URL)
	defer c.Close()
	tr, err := c.Stream(t.Context(), client.Call{Body: client.Body{Messages: []client.Message{{Role: "user", Content: "x"}}}})
	if err != nil || !tr.Complete() {
		t.Fatalf("%v, %s", err, tr.Failure())
	}
	return tr
}

func TestDerive_StopEndsBehindTheRequiredLength(t *testing.T) {
	tr := words(t, 100, func(i int) string { return fmt.Sprintf("w%d ", i) })
	b := bench.Derive(false, tr)
	if len(b.Stop) != 2 {
		t.Fatalf("got %q", b.Stop)
	}
	required := strings.Index(tr.Text(), "w68 ")
	if at := strings.Index(tr.Text(), b.Stop[0]); at < required {
		t.Errorf("stop %q ends the text at byte %d, before %d", b.Stop[0], at, required)
	}
	if strings.Contains(tr.Text(), b.Stop[1]) {
		t.Errorf("stop %q is in the text", b.Stop[1])
	}
}

func TestDerive_NoStopInATextThatOnlyRepeats(t *testing.T) {
	b := bench.Derive(false, words(t, 100, func(int) string { return "啊🙂 " }))
	if len(b.Stop) != 1 {
		t.Errorf("got %q, want only the stop that is never completed", b.Stop)
	}
}

func TestDerive_BiasNamesTokensOfTheAnswer(t *testing.T) {
	b := bench.Derive(true, words(t, 100, func(int) string { return "x" }))
	if diff := cmp.Diff(map[string]float64{"10": -100, "20": -100, "30": 1.5}, b.LogitBias); diff != "" {
		t.Error(diff)
	}
}

func TestFirstNew(t *testing.T) {
	for _, c := range []struct {
		text string
		from int
		want string
	}{
		{"abcabcd", 3, "abcd"},
		{"ababab", 2, ""},
		{"", 0, ""},
		{"ab\ufffd\ufffd", 2, ""},
		{"日本日本語", 6, "日本語"},
		{"abc", 3, ""},
	} {
		if got := bench.FirstNew(c.text, c.from); got != c.want {
			t.Errorf("%q from %d: got %q, want %q", c.text, c.from, got, c.want)
		}
	}
}
