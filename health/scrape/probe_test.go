// SPDX-License-Identifier: Apache-2.0
// Copyright The Segue Authors

package scrape_test

import (
	"context"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/tidwall/gjson"

	"github.com/seguekv/segue/health"
	"github.com/seguekv/segue/health/scrape"
)

const (
	completions = "/v1/completions"
	chat        = "/v1/chat/completions"
	answered    = `{"choices":[{"index":0,"text":"a"}]}`
)

// TestProbe_AsksForOneTokenAndSaysWhatItIs.
func TestProbe_AsksForOneTokenAndSaysWhatItIs(t *testing.T) {
	for kind, path := range map[scrape.Kind]string{scrape.VLLM: completions, scrape.SGLang: completions, scrape.LlamaCPP: completions, scrape.OpenAI: chat} {
		s, url := serve(t, map[string]reply{"/v1/models": {200, models, nil}, path: {200, answered, nil}})
		if got := target(t, scrape.Config{URL: url, Kind: kind}).Probe(t.Context()); got != health.ProbePassed {
			t.Errorf("%v: %v", kind, got)
		}
		v := gjson.GetMany(s.body, "model", "max_tokens", "temperature", "user")
		if v[0].String() != "m1" || v[1].Int() != 1 || v[2].Float() != 0 || !v[2].Exists() || v[3].String() != scrape.ProbeUser {
			t.Errorf("%v: %s", kind, s.body)
		}
		id := s.last.Header.Get("X-Request-Id")
		if s.last.Header.Get(scrape.ProbeHeader) != "1" || !strings.HasPrefix(id, "segue-probe-") || len(id) < 20 {
			t.Errorf("%v: %v", kind, s.last.Header)
		}
		if name := map[scrape.Kind]string{scrape.VLLM: "request_id", scrape.SGLang: "rid"}[kind]; name != "" && gjson.Get(s.body, name).String() != id {
			t.Errorf("%v: %s", kind, s.body)
		}
	}
}

func TestProbe_HowItEnds(t *testing.T) {
	for name, c := range map[string]struct {
		first, second reply
		want          health.Probe
	}{
		"a choice":            {reply{200, answered, nil}, reply{500, "", nil}, health.ProbePassed},
		"no choice":           {reply{200, `{"error":{"message":"engine dead"}}`, nil}, reply{200, answered, nil}, health.ProbeFailed},
		"nothing":             {reply{200, "", nil}, reply{}, health.ProbeFailed},
		"too many requests":   {reply{429, "", nil}, reply{200, answered, nil}, health.ProbeDropped},
		"no room":             {reply{503, `{"error":{"message":"overloaded"}}`, nil}, reply{200, answered, nil}, health.ProbeDropped},
		"an error":            {reply{500, "", nil}, reply{200, answered, nil}, health.ProbeFailed},
		"no such page":        {reply{404, "", nil}, reply{200, answered, nil}, health.ProbePassed},
		"refused":             {reply{400, "", nil}, reply{400, "", nil}, health.ProbeDropped},
		"a key is wanted":     {reply{401, "", nil}, reply{401, "", nil}, health.ProbeDropped},
		"the other one fails": {reply{404, "", nil}, reply{502, "", nil}, health.ProbeFailed},
	} {
		for _, kind := range []scrape.Kind{scrape.VLLM, scrape.OpenAI} {
			first, second := completions, chat
			if kind == scrape.OpenAI {
				first, second = chat, completions
			}
			_, url := serve(t, map[string]reply{first: c.first, second: c.second})
			if got := target(t, scrape.Config{URL: url, Kind: kind, Model: "mine"}).Probe(t.Context()); got != c.want {
				t.Errorf("%s, %v: %v, want %v", name, kind, got, c.want)
			}
		}
	}
}

// TestProbe_DeadlineFailsAndCancelDrops.
func TestProbe_DeadlineFailsAndCancelDrops(t *testing.T) {
	arrived := make(chan struct{}, 1)
	srv := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, req *http.Request) {
		_, _ = io.Copy(io.Discard, req.Body) // Only then the end of the connection is noticed.
		arrived <- struct{}{}
		<-req.Context().Done()
	}))
	t.Cleanup(srv.Close)
	vllm := target(t, scrape.Config{URL: srv.URL, Kind: scrape.VLLM, Model: "m"})
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	if got := vllm.Probe(ctx); got != health.ProbeFailed {
		t.Errorf("after its deadline: %v", got)
	}
	<-arrived
	ctx, cancel = context.WithCancel(t.Context())
	ended := make(chan health.Probe, 1)
	go func() { ended <- vllm.Probe(ctx) }()
	<-arrived
	cancel()
	if got := <-ended; got != health.ProbeDropped {
		t.Errorf("cancelled: %v", got)
	}
	srv.CloseClientConnections()
	srv.Close()
	if got := vllm.Probe(t.Context()); got != health.ProbeFailed {
		t.Errorf("refused: %v", got)
	}
}

// TestProbe_UntrustedCertificateSaysNothing of the engine.
func TestProbe_UntrustedCertificateSaysNothing(t *testing.T) {
	srv := httptest.NewTLSServer(http.NotFoundHandler())
	t.Cleanup(srv.Close)
	if got := target(t, scrape.Config{URL: srv.URL, Kind: scrape.VLLM, Model: "m"}).Probe(t.Context()); got != health.ProbeDropped {
		t.Errorf("%v", got)
	}
	if got := target(t, scrape.Config{URL: srv.URL, Kind: scrape.VLLM, Model: "m", Client: srv.Client()}).Probe(t.Context()); got != health.ProbeDropped {
		t.Errorf("trusted, and without the pages: %v", got)
	}
}
