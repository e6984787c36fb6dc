// SPDX-License-Identifier: Apache-2.0
// Copyright The Segue Authors

package scrape

import (
	"math"
	"slices"
	"strconv"
	"strings"

	dto "github.com/prometheus/client_model/go"

	"github.com/seguekv/segue/health"
)

const (
	sglangRunning   = "sglang:num_running_reqs"
	sglangQueued    = "sglang:num_queue_reqs"
	sglangGrammar   = "sglang:num_grammar_queue_reqs"
	sglangRealtime  = "sglang:realtime_tokens_total" // with every forward pass, by mode
	sglangGenerated = "sglang:generation_tokens_total"
	sglangPrompt    = "sglang:prompt_tokens_total"
	sglangFinished  = "sglang:e2e_request_latency_seconds_count"
	sglangUsage     = "sglang:token_usage"
	sglangIdle      = "sglang:scheduler_idle_seconds_total"
	sglangOpen      = "sglang:http_requests_active"
	sglangStages    = "sglang:per_stage_req_latency_seconds_sum"
	sglangStartup   = "sglang:startup_time_seconds"
	sglangStartup1  = "sglang:engine_startup_time" // of older versions
)

func sglangNames() []string {
	return []string{
		sglangRunning, sglangQueued, sglangGrammar, sglangRealtime, sglangGenerated, sglangPrompt, sglangFinished, sglangUsage,
		sglangIdle, sglangOpen, sglangStages, sglangStartup, sglangStartup1,
	}
}

// sglang reads a page of SGLang. Engines of one server differ in the label dp_rank. Ranks of one engine say the same, so
// the greatest value counts where a sum would count requests twice.
func sglang(s samples) Facts {
	const by, mode = "dp_rank", "mode"
	live := s.any(sglangRealtime)
	found := groups(s, by, sglangRunning, sglangQueued)
	f := Facts{Stepwise: live}
	for _, e := range found {
		one := engine(e.name)
		// A priority is a label of its own, next to a series for all of them.
		for _, gauge := range []string{sglangRunning, sglangQueued, sglangGrammar} {
			one.InFlight = add(one.InFlight, count(s.greatest(gauge, e.wanted...)))
		}
		usage := math.NaN()
		if !live {
			usage = s.gauge(sglangUsage, e.wanted...)
		}
		realtime := func(m string) float64 { return s.sum(sglangRealtime, slices.Concat(e.wanted, []string{mode, m})...) }
		one.Counters = []health.Counter{
			{Name: sglangRealtime + ".decode", Value: realtime("decode"), Tokens: true},
			{Name: sglangRealtime + ".prefill_compute", Value: realtime("prefill_compute")},
			{Name: sglangRealtime + ".prefill_cache", Value: realtime("prefill_cache")},
			{Name: sglangUsage, Value: usage, Gauge: true},
		}
		one.Idle = s.gauge(sglangIdle, e.wanted...)
		f.Engines = append(f.Engines, one)
	}
	if len(found) == 1 {
		// These are the HTTP server's, of all engines together.
		one := &f.Engines[0]
		one.Open = open(s)
		one.Counters = append(one.Counters,
			health.Counter{Name: sglangGenerated, Value: s.sum(sglangGenerated), Tokens: true},
			health.Counter{Name: sglangPrompt, Value: s.sum(sglangPrompt)},
			health.Counter{Name: sglangFinished, Value: s.sum(sglangFinished)},
		)
	}
	if t := s.sum(sglangStages, "stage", "prefill_forward"); t > 0 {
		f.PromptRate = s.sum(sglangRealtime, mode, "prefill_compute") / t
	}
	f.Incarnation = startup(s)
	return f
}

// open counts the HTTP requests that want something of the model.
func open(s samples) int {
	if len(s[sglangOpen]) == 0 {
		return -1
	}
	n := 0
	s.each(sglangOpen, []string{"method", "POST"}, func(m *dto.Metric, v float64) {
		path := label(m, "endpoint")
		for _, part := range []string{"completions", "/generate", "/chat", "responses", "messages", "embed", "rerank", "score", "classify", "/encode"} {
			if strings.Contains(path, part) {
				n = add(n, count(v))
				return
			}
		}
	})
	return n
}

// startup takes how long the process took to start for its name: a number of many digits that no other has.
func startup(s samples) string {
	for _, v := range []float64{s.sum(sglangStartup, "phase", "tokenizer_e2e"), s.sum(sglangStartup1)} {
		if v > 0 {
			return strconv.FormatFloat(v, 'g', -1, 64)
		}
	}
	return ""
}
