// SPDX-License-Identifier: Apache-2.0
// Copyright The Segue Authors

package scrape

import (
	"context"
	"errors"
	"strings"

	"github.com/tidwall/gjson"

	"github.com/seguekv/segue/health"
)

const (
	metricsPath = "/metrics"
	modelsPath  = "/v1/models"
	propsPath   = "/props"
	slotsPath   = "/slots"
	// chunkTries is how often SGLang is asked for its chunk size, per process.
	chunkTries = 3
)

// Read looks once. It returns soon after ctx ends; a caller gives it a deadline. Nothing that it asks for takes a slot of the model
// or wakes it.
func (t *Target) Read(ctx context.Context) health.Reading {
	if t.track.Balancer() {
		return t.readModels(ctx, true)
	}
	switch t.Kind() {
	case VLLM:
		return t.readMetrics(ctx, VLLM)
	case SGLang:
		r := t.readMetrics(ctx, SGLang)
		t.askChunk(ctx, r)
		return r
	case LlamaCPP:
		return t.readLlama(ctx)
	case OpenAI:
		r := t.readModels(ctx, false)
		if r.Outcome == health.Opaque && t.auto && gone(r) {
			t.become(Auto)
		}
		return r
	case Proxy:
		return t.readModels(ctx, true)
	default:
		return t.detect(ctx)
	}
}

// gone reports whether the page that made the kind is no longer there.
func gone(r health.Reading) bool { return strings.HasSuffix(r.Detail, notThere) }

const notThere = ": not there"

// readMetrics reads a kind's metrics page.
func (t *Target) readMetrics(ctx context.Context, kind Kind) health.Reading {
	a, err := t.get(ctx, metricsPath)
	if err != nil {
		return failed(ctx, metricsPath, err)
	}
	return t.metrics(ctx, kind, a)
}

// metrics makes a reading of a metrics page, or of what came instead.
func (t *Target) metrics(ctx context.Context, kind Kind, a answer) health.Reading {
	switch {
	case a.loading():
		return t.track.Reading(Facts{Kind: kind, Loading: true})
	case a.broken():
		return t.confirm(ctx, a)
	case !a.ok():
		if !a.denied() && t.auto {
			t.become(Auto)
		}
		return health.Reading{Outcome: health.Opaque, Detail: a.detail()}
	}
	f, err := Metrics(kind, a.body)
	if errors.Is(err, ErrForeign) && t.auto {
		t.become(Auto)
	}
	if err != nil {
		return health.Reading{Outcome: health.Opaque, Detail: "GET " + a.path + ": " + err.Error()}
	}
	if f.Incarnation == "" {
		f.Incarnation = a.header.Get(LlamaStart)
	}
	r := t.track.Reading(f)
	if t.track.Balancer() {
		t.become(Proxy)
	}
	return r
}

// confirm asks for the list of models where another page failed: only a server that answers nothing else is Failed.
func (t *Target) confirm(ctx context.Context, first answer) health.Reading {
	r := t.readModels(ctx, false)
	if r.Outcome == health.Failed || r.Outcome == health.Opaque {
		r.Detail = first.detail()
	}
	return r
}

// readModels reads the list of models: the server is there, and more isn't known.
func (t *Target) readModels(ctx context.Context, proxy bool) health.Reading {
	a, err := t.get(ctx, modelsPath)
	if err != nil {
		r := failed(ctx, modelsPath, err)
		r.Proxy = proxy
		return r
	}
	r := t.models(a)
	r.Proxy = proxy
	if proxy && r.Detail == "" && t.track.Balancer() {
		r.Detail = balanced
	}
	return r
}

func (t *Target) models(a answer) health.Reading {
	switch {
	case a.ok():
		t.list(gjson.GetBytes(a.body, "data.0.id").String())
		return health.Reading{Outcome: health.Opaque}
	case a.loading():
		return health.Reading{Outcome: health.Answered, Loading: true}
	case a.broken():
		return health.Reading{Outcome: health.Failed, Detail: a.detail()}
	case a.status == 404:
		return health.Reading{Outcome: health.Opaque, Detail: "GET " + a.path + notThere}
	}
	return health.Reading{Outcome: health.Opaque, Detail: a.detail()}
}

// readLlama reads llama-server. /props comes first: it is answered at once whatever the server does, and says whether it
// sleeps, in which case nothing else is asked for.
func (t *Target) readLlama(ctx context.Context) health.Reading {
	a, err := t.get(ctx, propsPath)
	if err != nil {
		return failed(ctx, propsPath, err)
	}
	var props Props
	switch {
	case a.loading():
		return t.track.Reading(Facts{Kind: LlamaCPP, Loading: true})
	case a.broken():
		return t.confirm(ctx, a)
	case a.ok():
		if props, err = ReadProps(a.body); err != nil {
			if t.auto {
				t.become(Auto)
			}
			return health.Reading{Outcome: health.Opaque, Detail: "GET " + propsPath + ": " + err.Error()}
		}
	}
	if props.Router {
		t.become(Proxy)
		return health.Reading{Outcome: health.Opaque, Proxy: true, Detail: "llama-server as a router: give the servers behind it"}
	}
	if props.Sleeping {
		return t.track.Reading(Facts{Kind: LlamaCPP, Sleeping: true})
	}
	return t.readQueue(ctx, a, props)
}

// readQueue reads the page that llama-server's task queue answers: its metrics, or its slots where those are off.
func (t *Target) readQueue(ctx context.Context, first answer, props Props) health.Reading {
	reason := first
	for _, path := range []string{metricsPath, slotsPath} {
		if path == metricsPath && props.MetricsOff || path == slotsPath && props.SlotsOff {
			continue
		}
		part, cancel := t.patience.share(ctx)
		a, err := t.get(part, path)
		cancel()
		if err != nil {
			r := failed(part, path, err)
			if r.Outcome == health.TimedOut && first.ok() {
				t.patience.lost()
				return t.track.silent(r.Detail + ", " + propsPath + " does: its task queue stands still, or a batch is long")
			}
			return r
		}
		t.patience.kept()
		if a.loading() || a.broken() {
			return t.metrics(ctx, LlamaCPP, a)
		}
		if !a.ok() {
			reason = a
			continue
		}
		if path == metricsPath {
			return t.metrics(ctx, LlamaCPP, a)
		}
		f, err := Slots(a.body)
		if err != nil {
			return health.Reading{Outcome: health.Opaque, Detail: "GET " + path + ": " + err.Error()}
		}
		return t.track.Reading(f)
	}
	r := health.Reading{Outcome: health.Opaque, Detail: "neither metrics nor slots: start the server with --metrics"}
	if reason.denied() {
		r.Detail = reason.detail()
	}
	if !first.ok() && !first.denied() && reason.status == 404 && t.auto {
		t.become(Auto)
	}
	return r
}

// askChunk asks SGLang how long a step can be. Its scheduler answers between two steps.
func (t *Target) askChunk(ctx context.Context, r health.Reading) {
	if r.Outcome != health.Answered {
		return
	}
	if t.chunkOf != r.Incarnation {
		t.chunkOf, t.tries, t.track.Chunk = r.Incarnation, 0, 0
	}
	if t.track.Chunk != 0 || t.tries >= chunkTries {
		return
	}
	t.tries++
	for _, path := range []string{"/server_info", "/get_server_info"} {
		a, err := t.get(ctx, path)
		if err != nil {
			return
		}
		if n := gjson.GetBytes(a.body, "chunked_prefill_size"); a.ok() && n.Type == gjson.Number {
			t.track.Chunk = max(int(n.Int()), -1)
			return
		}
	}
}
