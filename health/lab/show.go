// SPDX-License-Identifier: Apache-2.0
// Copyright The Segue Authors

package lab

import (
	"fmt"
	"math"
	"time"

	"github.com/seguekv/segue/health/scrape"
)

const (
	// logSteps and logIdle are when SGLang renews its gauges.
	logSteps = 40
	logIdle  = 30 * time.Second
)

// moment is what an engine shows.
type moment struct {
	scene
	sums
	running, waiting int
	open             int     // HTTP requests for tokens
	usage            float64 // of the cache
}

// at looks at the engine at that time.
func (e *Engine) at(t time.Time) moment {
	s := e.scene(t)
	shown := t
	if s.State == Frozen {
		shown = s.from
	}
	d := shown.Sub(s.from)
	m := moment{scene: s, sums: s.after(min(d, s.For))}
	if last := e.phases[len(e.phases)-1]; s.from.Equal(last.from) {
		m.sums = s.after(d)
	}
	switch s.State {
	case Decode, Frozen, HangDecode, SlotsHang:
		m.running, m.waiting = s.Streams, s.Queue
		m.open = s.Streams + s.Queue
	case PrefillChunked:
		m.running, m.waiting = 1+s.Streams, s.Queue
		m.open = 1 + s.Streams + s.Queue
	case PrefillWhole, HangPrefill:
		// The request that is computed isn't counted before its first step is over.
		m.running, m.waiting = s.Streams, s.Queue
		m.open = 1 + s.Streams + s.Queue
	}
	m.usage = 0.001 * float64(m.running)
	if s.State == PrefillChunked {
		m.usage += float64(d/s.step()%800) / 1000
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.life.Equal(s.began) {
		m.steps, m.batches, m.tokens = m.steps+e.extra, m.batches+e.extra, m.tokens+e.extra
	}
	m.running, m.open = m.running+e.live, m.open+e.live
	return m
}

// metrics is the page of that time.
func (e *Engine) metrics(t time.Time) []byte {
	m := e.at(t)
	switch e.kind {
	case scrape.VLLM:
		return e.vllm(m)
	case scrape.SGLang:
		return e.sglang(m, e.gauge(t, m))
	default:
		return llama(m, e.rate)
	}
}

// gauge is how many requests SGLang says are running: as many as when it last logged.
func (e *Engine) gauge(t time.Time, m moment) int {
	if m.State != Idle || m.running > 0 {
		return m.running
	}
	i := e.index(t)
	if i == 0 || m.Restarted {
		return 0
	}
	before := e.phases[i-1]
	since := t.Sub(m.from)
	if before.decodes() && before.Streams > 0 {
		since += before.For % (logSteps * before.step())
	}
	if since >= logIdle || !before.Busy() {
		return 0
	}
	return max(before.Streams, 1)
}

func (e *Engine) vllm(m moment) []byte {
	labels := fmt.Sprintf(`{engine="0",model_name=%q}`, e.name)
	var b []byte
	add := func(kind, name, labels string, v float64) {
		b = fmt.Appendf(b, "# TYPE %s %s\n%s%s %s\n", name, kind, name, labels, number(v))
	}
	add("gauge", "process_start_time_seconds", "", float64(m.began.UnixMilli())/1000)
	add("gauge", "vllm:num_requests_running", labels, float64(m.running))
	add("gauge", "vllm:num_requests_waiting", labels, float64(m.waiting))
	b = append(b, "# TYPE vllm:engine_sleep_state gauge\n"...)
	asleep := 0.0
	if m.State == Sleeping {
		asleep = 1
	}
	for _, s := range []struct {
		name string
		v    float64
	}{{"awake", 1 - asleep}, {"weights_offloaded", asleep}, {"discard_all", 0}} {
		b = fmt.Appendf(b, "vllm:engine_sleep_state{engine=\"0\",model_name=%q,sleep_state=%q} %s\n", e.name, s.name, number(s.v))
	}
	add("gauge", "vllm:kv_cache_usage_perc", labels, m.usage)
	prompt := m.prompt
	if m.State == PrefillChunked {
		prompt = m.scene.sums.prompt // It is counted when it is complete.
	}
	add("counter", "vllm:prompt_tokens_total", labels, float64(prompt))
	add("counter", "vllm:generation_tokens_total", labels, float64(m.tokens))
	b = fmt.Appendf(b, "# TYPE vllm:request_success_total counter\nvllm:request_success_total{engine=\"0\",finished_reason=\"length\",model_name=%q} %s\n", e.name, number(float64(m.finished)))
	b = fmt.Appendf(b, "# TYPE vllm:iteration_tokens_total histogram\nvllm:iteration_tokens_total_bucket{engine=\"0\",le=\"+Inf\",model_name=%q} %s\nvllm:iteration_tokens_total_count%s %s\nvllm:iteration_tokens_total_sum%s %s\n",
		e.name, number(float64(m.steps)), labels, number(float64(m.steps)), labels, number(float64(m.tokens)))
	return b
}

func (e *Engine) sglang(m moment, running int) []byte {
	labels := fmt.Sprintf(`engine_type="unified",model_name=%q,tp_rank="0"`, e.name)
	var b []byte
	add := func(name, extra string, v float64) {
		b = fmt.Appendf(b, "%s{%s%s} %s\n", name, labels, extra, number(v))
	}
	b = fmt.Appendf(b, "sglang:startup_time_seconds{engine_type=\"unified\",model_name=%q,phase=\"tokenizer_e2e\"} %s\n", e.name, number(30+float64(m.began.UnixMilli()%1e7)/1e7))
	for _, path := range []string{"/v1/chat/completions", "/metrics"} {
		method, n := "POST", float64(m.open)
		if path == "/metrics" {
			method, n = "GET", 1
		}
		b = fmt.Appendf(b, "sglang:http_requests_active{endpoint=%q,method=%q} %s\n", path, method, number(n))
	}
	b = append(b, "# TYPE sglang:scheduler_idle_seconds_total counter\n"...)
	add("sglang:scheduler_idle_seconds_total", "", m.idle.Seconds())
	b = append(b, "# TYPE sglang:realtime_tokens_total counter\n"...)
	add("sglang:realtime_tokens_total", `,mode="prefill_compute"`, float64(m.prompt))
	add("sglang:realtime_tokens_total", `,mode="decode"`, float64(m.tokens))
	add("sglang:per_stage_req_latency_seconds_sum", `,stage="prefill_forward"`, float64(m.prompt)/e.rate)
	b = append(b, "# TYPE sglang:num_running_reqs gauge\n"...)
	add("sglang:num_running_reqs", "", float64(running))
	b = append(b, "# TYPE sglang:num_queue_reqs gauge\n"...)
	add("sglang:num_queue_reqs", "", float64(m.waiting))
	add("sglang:token_usage", "", m.usage)
	b = fmt.Appendf(b, "# TYPE sglang:generation_tokens_total counter\nsglang:generation_tokens_total{engine_type=\"unified\",is_streaming=\"true\",model_name=%q} %s\n", e.name, number(float64(m.finished*200)))
	return b
}

func llama(m moment, rate float64) []byte {
	var b []byte
	for _, s := range []struct {
		kind, name string
		v          float64
	}{
		{"counter", "prompt_tokens_total", float64(m.prompt)},
		{"counter", "prompt_seconds_total", float64(m.prompt) / rate},
		{"counter", "tokens_predicted_total", float64(m.finished * 200)},
		{"counter", "n_decode_total", float64(m.batches)},
		{"gauge", "requests_processing", float64(m.running)},
		{"gauge", "requests_deferred", float64(m.waiting)},
	} {
		b = fmt.Appendf(b, "# TYPE llamacpp:%s %s\nllamacpp:%s %s\n", s.name, s.kind, s.name, number(s.v))
	}
	return b
}

func number(v float64) string {
	if v == math.Trunc(v) && math.Abs(v) < 1e15 {
		return fmt.Sprintf("%.1f", v)
	}
	return fmt.Sprintf("%v", v)
}
