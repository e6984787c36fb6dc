// SPDX-License-Identifier: Apache-2.0
// Copyright The Segue Authors

package lab

import (
	"fmt"
	"net/http"
	"time"

	"github.com/seguekv/segue/health/scrape"
)

// Answer is what comes of a request.
type Answer struct {
	Status int
	Header map[string]string
	Body   []byte
	// After is how long it takes.
	After time.Duration
	// Never: nothing comes, the connection stays. Refused, Reset: it doesn't.
	Never, Refused, Reset bool
}

const (
	jsonType  = "application/json"
	plainType = "text/plain; version=0.0.4"
	// hop is how long an answer takes that waits for nothing.
	hop = time.Millisecond
)

func jsonAnswer(status int, body string) Answer {
	return Answer{Status: status, Header: map[string]string{"Content-Type": jsonType}, Body: []byte(body), After: hop}
}

func errorAnswer(status int, kind, message string) Answer {
	return jsonAnswer(status, fmt.Sprintf(`{"error":{"message":%q,"type":%q,"code":%d}}`, message, kind, status))
}

// Get is what a GET of the path at that time comes to.
func (e *Engine) Get(path string, t time.Time) Answer {
	a, ok := e.down(t)
	if !ok {
		a = e.page(path, t)
	}
	if e.kind == scrape.LlamaCPP && a.Header != nil {
		a.Header["Server"] = "llama.cpp"
	}
	return a
}

// down is what everything gets in states in which nothing else matters.
func (e *Engine) down(t time.Time) (Answer, bool) {
	switch e.scene(t).State {
	case Dead:
		return Answer{Refused: true}, true
	case Cut:
		return Answer{Reset: true}, true
	case HalfOpen:
		return Answer{Never: true}, true
	case Failing:
		return errorAnswer(http.StatusServiceUnavailable, "server_error", "nothing works"), true
	case Loading:
		if e.kind == scrape.VLLM || e.kind == scrape.SGLang {
			return Answer{Refused: true}, true // Their port isn't open yet.
		}
	}
	return Answer{}, false
}

func (e *Engine) page(path string, t time.Time) Answer {
	s := e.scene(t)
	switch path {
	case "/v1/models":
		return e.models(s)
	case "/metrics":
		return e.metricsPage(s, t)
	case "/health", "/health_generate":
		return e.healthPage(s, t)
	}
	switch {
	case e.kind == scrape.LlamaCPP && (path == "/props" || path == "/slots"):
		if s.State == Loading {
			return loadingAnswer()
		}
		if path == "/props" {
			return jsonAnswer(200, fmt.Sprintf(`{"default_generation_settings":{"n_ctx":8192},"total_slots":%d,"model_alias":%q,"endpoint_slots":%v,"endpoint_metrics":%v,"is_sleeping":%v}`,
				DefaultPlaces, e.name, !s.NoMetrics, !s.NoMetrics, s.State == Sleeping))
		}
		return e.slotsPage(s, t)
	case e.kind == scrape.SGLang && path == "/server_info":
		a := e.queued(s, t)
		if a.Status == http.StatusOK {
			a.Body = fmt.Appendf(nil, `{"chunked_prefill_size":%d}`, e.chunk)
		}
		return a
	}
	return errorAnswer(http.StatusNotFound, "not_found_error", "no such page")
}

func loadingAnswer() Answer {
	return errorAnswer(http.StatusServiceUnavailable, "unavailable_error", "Loading model")
}

func (e *Engine) models(s scene) Answer {
	owner := map[scrape.Kind]string{scrape.VLLM: "vllm", scrape.SGLang: "sglang", scrape.LlamaCPP: "llamacpp"}[e.kind]
	if s.State == Loading && e.kind != scrape.LlamaCPP {
		return loadingAnswer()
	}
	if owner == "" {
		owner = "lab"
	}
	a := jsonAnswer(200, fmt.Sprintf(`{"object":"list","data":[{"id":%q,"object":"model","owned_by":%q}]}`, e.name, owner))
	if e.kind == scrape.Proxy {
		a.Header["Via"] = "1.1 lab"
	}
	return a
}

func (e *Engine) metricsPage(s scene, t time.Time) Answer {
	switch {
	case e.kind == scrape.LlamaCPP && s.State == Loading:
		return loadingAnswer()
	case e.kind == scrape.LlamaCPP && s.NoMetrics:
		return errorAnswer(http.StatusNotImplemented, "not_supported_error", "This server does not support metrics endpoint. Start it with `--metrics`")
	case s.NoMetrics, e.kind == scrape.OpenAI, e.kind == scrape.Proxy:
		return errorAnswer(http.StatusNotFound, "not_found_error", "no such page")
	}
	a := Answer{Status: 200, After: hop}
	if e.kind == scrape.LlamaCPP && s.State != Sleeping {
		if a = e.queued(s, t); a.Status != 200 {
			return a
		}
	}
	a.Header = map[string]string{"Content-Type": plainType}
	if e.kind == scrape.LlamaCPP {
		a.Header[scrape.LlamaStart] = fmt.Sprint(s.began.UnixMicro())
	}
	a.After += s.Slow
	a.Body = e.metrics(t.Add(a.After))
	return a
}

// slotsPage wakes an engine that sleeps.
func (e *Engine) slotsPage(s scene, t time.Time) Answer {
	if s.NoMetrics {
		return errorAnswer(http.StatusNotImplemented, "not_supported_error", "This server does not support slots endpoint. Start it with `--slots`")
	}
	if s.State == Sleeping {
		e.wake(t)
	}
	a := e.queued(s, t)
	if a.Status != 200 {
		return a
	}
	a.After += s.Slow
	m := e.at(t.Add(a.After))
	a.Body = []byte{'['}
	for i := range DefaultPlaces {
		if i > 0 {
			a.Body = append(a.Body, ',')
		}
		if i >= m.running {
			a.Body = fmt.Appendf(a.Body, `{"id":%d,"is_processing":false}`, i)
			continue
		}
		a.Body = fmt.Appendf(a.Body, `{"id":%d,"is_processing":true,"id_task":%d,"n_prompt_tokens_processed":%d,"next_token":[{"n_decoded":%d}]}`, i, i+1, m.prompt, m.steps)
	}
	a.Body = append(a.Body, ']')
	return a
}

// healthPage is the one of a kind that must not be asked often: SGLang generates a token for it.
func (e *Engine) healthPage(s scene, t time.Time) Answer {
	switch {
	case e.kind == scrape.LlamaCPP && s.State == Loading:
		return loadingAnswer()
	case e.kind == scrape.SGLang:
		e.mu.Lock()
		e.stats.Generated++
		e.mu.Unlock()
		return e.Complete(t, 1)
	}
	return jsonAnswer(200, `{"status":"ok"}`)
}

// queued is when a task queue answers that runs between two steps.
func (e *Engine) queued(s scene, t time.Time) Answer {
	d := t.Sub(s.from)
	a := jsonAnswer(200, "")
	switch s.State {
	case Decode, Frozen, PrefillChunked:
		a.After += s.step() - d%s.step()
	case PrefillWhole, HangDecode, HangPrefill, SlotsHang:
		next := e.index(t) + 1
		if next == len(e.phases) {
			return Answer{Never: true}
		}
		a.After += s.For - d
		if e.phases[next].Restarted || e.phases[next].State == Dead {
			return Answer{Reset: true, After: s.For - d}
		}
	}
	return a
}

// Complete is what a request for so many tokens at that time comes to, by the script. It waits in the queue while all places are
// taken, or a prompt is computed.
func (e *Engine) Complete(t time.Time, tokens int) Answer {
	if a, ok := e.down(t); ok {
		return a
	}
	if e.scene(t).State == Loading {
		return loadingAnswer()
	}
	for i := e.index(t); i < len(e.phases); i++ {
		s := e.phases[i]
		from := t
		if s.from.After(t) {
			from = s.from
			if s.Restarted || s.State == Dead || s.State == Cut || s.State == Failing {
				return Answer{Reset: true, After: from.Sub(t)}
			}
		}
		free := s.State == Idle || s.State == Sleeping || s.decodes() && s.Queue == 0 && s.Streams < DefaultPlaces
		if free {
			a := jsonAnswer(200, fmt.Sprintf(`{"object":"text_completion","choices":[{"index":0,"text":" a","finish_reason":"length"}],"usage":{"completion_tokens":%d}}`, tokens))
			a.After = from.Sub(t) + time.Duration(tokens+1)*s.step()
			return a
		}
	}
	return Answer{Never: true}
}
