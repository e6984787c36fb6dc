// SPDX-License-Identifier: Apache-2.0
// Copyright The Segue Authors

package scrape

import (
	"bytes"
	"context"
	"net/http"
	"strings"

	"github.com/tidwall/gjson"

	"github.com/seguekv/segue/health"
)

// detect finds out what the server is, as far as this read can tell, and makes a reading of what it got. The list of models
// comes first: it never wakes a server that sleeps.
func (t *Target) detect(ctx context.Context) health.Reading {
	a, err := t.get(ctx, modelsPath)
	if err != nil {
		return failed(ctx, modelsPath, err)
	}
	r := t.models(a)
	if a.loading() {
		return r
	}
	if proxyHeader(a.header) {
		t.become(Proxy)
		r.Proxy = true
		return r
	}
	if gjson.GetBytes(a.body, "data.0.owned_by").String() == "llamacpp" || a.header.Get("Server") == "llama.cpp" {
		t.become(LlamaCPP)
		return t.readLlama(ctx)
	}
	m, err := t.get(ctx, metricsPath)
	if err != nil {
		return failed(ctx, metricsPath, err)
	}
	kind := Auto
	switch {
	case m.ok():
		kind = named(m.body)
	case m.loading():
		return t.metrics(ctx, LlamaCPP, m)
	}
	switch {
	case kind == Proxy:
		t.become(Proxy)
		r.Proxy = true
		return r
	case kind != Auto:
		t.become(kind)
		return t.metrics(ctx, kind, m)
	case m.denied():
		r.Detail = m.detail()
	case a.ok() && !m.broken():
		t.become(OpenAI)
	}
	return r
}

// proxyHeader reports whether an answer says that it went through something.
func proxyHeader(h http.Header) bool {
	if h.Get("Via") != "" || h.Get("X-Envoy-Upstream-Service-Time") != "" {
		return true
	}
	for name := range h {
		if strings.HasPrefix(name, "X-Litellm-") {
			return true
		}
	}
	return false
}

// named tells a kind by the first metric names of a page that say so.
func named(page []byte) Kind {
	for line := range bytes.Lines(page) {
		for _, known := range []struct {
			prefix string
			kind   Kind
		}{
			{"vllm:", VLLM}, {"sglang:", SGLang}, {"llamacpp:", LlamaCPP},
			{"litellm_", Proxy}, {"sgl_router_", Proxy}, {"smg_", Proxy}, {"envoy_", Proxy}, {"haproxy_", Proxy}, {"segue_", Proxy},
		} {
			if bytes.HasPrefix(line, []byte(known.prefix)) {
				return known.kind
			}
		}
	}
	return Auto
}
