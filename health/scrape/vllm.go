// SPDX-License-Identifier: Apache-2.0
// Copyright The Segue Authors

package scrape

import (
	"strconv"

	"github.com/seguekv/segue/health"
)

const (
	vllmRunning   = "vllm:num_requests_running"
	vllmWaiting   = "vllm:num_requests_waiting"
	vllmSteps     = "vllm:iteration_tokens_total_count" // of steps with output
	vllmGenerated = "vllm:generation_tokens_total"
	vllmPrompt    = "vllm:prompt_tokens_total"
	vllmCache     = "vllm:kv_cache_usage_perc"
	vllmFinished  = "vllm:request_success_total"
	vllmSleep     = "vllm:engine_sleep_state"
	processStart  = "process_start_time_seconds"
)

func vllmNames() []string {
	return []string{vllmRunning, vllmWaiting, vllmSteps, vllmGenerated, vllmPrompt, vllmCache, vllmFinished, vllmSleep, processStart}
}

// vllm reads a page of vLLM. Engines of one server differ in the label engine.
func vllm(s samples) Facts {
	const by = "engine"
	var f Facts
	for _, e := range groups(s, by, vllmRunning, vllmGenerated) {
		one := engine(e.name)
		one.InFlight = add(count(s.sum(vllmRunning, e.wanted...)), count(s.sum(vllmWaiting, e.wanted...)))
		one.Counters = []health.Counter{
			{Name: vllmSteps, Value: s.sum(vllmSteps, e.wanted...)},
			{Name: vllmGenerated, Value: s.sum(vllmGenerated, e.wanted...), Tokens: true},
			{Name: vllmPrompt, Value: s.sum(vllmPrompt, e.wanted...)},
			{Name: vllmFinished, Value: s.sum(vllmFinished, e.wanted...)},
			{Name: vllmCache, Value: s.gauge(vllmCache, e.wanted...), Gauge: true},
		}
		f.Engines = append(f.Engines, one)
	}
	const state, awake = "sleep_state", "awake"
	f.Sleeping = s.has(vllmSleep, state, awake) && s.sum(vllmSleep, state, awake) == 0
	f.Incarnation = start(s)
	return f
}

// start is the process's start time as a name. Values of several processes in one page name none.
func start(s samples) string {
	if len(s[processStart]) != 1 {
		return ""
	}
	return strconv.FormatFloat(s.sum(processStart), 'f', -1, 64)
}

// group is one engine of a page and what its series' labels are.
type group struct {
	name   string
	wanted []string
}

// groups splits a page by a label. More than MaxEngines are one.
func groups(s samples, by string, names ...string) []group {
	var out []group
	for _, v := range s.values(by, names...) {
		out = append(out, group{v, []string{by, v}})
	}
	if out == nil {
		return []group{{}}
	}
	return out
}
