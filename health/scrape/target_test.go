// SPDX-License-Identifier: Apache-2.0
// Copyright The Segue Authors

package scrape_test

import (
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/seguekv/segue/health"
	"github.com/seguekv/segue/health/scrape"
	"github.com/seguekv/segue/health/watch"
)

var (
	_ watch.Source = (*scrape.Target)(nil)
	_ watch.Prober = (*scrape.Target)(nil)
)

// site answers paths with fixed answers, and everything else with 404.
type site struct {
	mu    sync.Mutex
	pages map[string]reply
	asked []string
	last  *http.Request
	body  string
}

type reply struct {
	status int
	body   string
	header map[string]string
}

func (s *site) ServeHTTP(w http.ResponseWriter, req *http.Request) {
	body, _ := io.ReadAll(req.Body)
	s.mu.Lock()
	s.asked = append(s.asked, req.URL.Path)
	if req.Method == http.MethodPost {
		s.last, s.body = req, string(body)
	}
	r, ok := s.pages[req.URL.Path]
	s.mu.Unlock()
	if !ok {
		r = reply{status: 404}
	}
	for k, v := range r.header {
		w.Header().Set(k, v)
	}
	w.WriteHeader(r.status)
	_, _ = io.WriteString(w, r.body)
}

func (s *site) set(path string, r reply) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.pages[path] = r
}

// paths are what was asked for since the last call.
func (s *site) paths() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	out := strings.Join(s.asked, " ")
	s.asked = nil
	return out
}

const models = `{"object":"list","data":[{"id":"m1","owned_by":"someone"}]}`

func serve(t *testing.T, pages map[string]reply) (*site, string) {
	t.Helper()
	s := &site{pages: pages}
	srv := httptest.NewServer(s)
	t.Cleanup(srv.Close)
	return s, srv.URL
}

func target(t *testing.T, c scrape.Config) *scrape.Target {
	t.Helper()
	out, err := scrape.New(c)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(out.Close)
	return out
}

func read(t *testing.T, from *scrape.Target) health.Reading {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	return from.Read(ctx)
}

func text(t *testing.T, name string) reply { return reply{200, string(fixture(t, name)), nil} }

var loading = reply{503, `{"error":{"message":"Loading model","type":"unavailable_error","code":503}}`, nil}

func TestNew_Refuses(t *testing.T) {
	for _, c := range []scrape.Config{
		{}, {URL: "localhost:8000"}, {URL: "http://"}, {URL: "http://:80"}, {URL: "ftp://a"}, {URL: "http://a/?x=1"}, {URL: "http://user:key@a"}, {URL: "http://a b"},
		{URL: "http://a", Kind: "tgi"}, {URL: "http://a", APIKey: "two words"},
	} {
		if _, err := scrape.New(c); !errors.Is(err, scrape.ErrConfig) || strings.Contains(err.Error(), "user:key") {
			t.Errorf("%+v: %v", c, err)
		}
	}
}

func TestParseKind_RoundTrip(t *testing.T) {
	for _, k := range scrape.Kinds() {
		if got, err := scrape.ParseKind(k.String()); err != nil || got != k {
			t.Errorf("%v: %v, %v", k, got, err)
		}
	}
	if k, err := scrape.ParseKind(""); k != scrape.Auto || err != nil || scrape.Kind("").String() != "auto" {
		t.Errorf("%v, %v", k, err)
	}
}

// TestAuto_FindsOut: which pages it asks for, and what it takes the server for. None makes a server generate or wakes it.
func TestAuto_FindsOut(t *testing.T) {
	props := text(t, "llamacpp_props.json")
	llama := reply{200, string(fixture(t, "llamacpp_models.json")), map[string]string{"Server": "llama.cpp"}}
	off := reply{501, `{"error":{"code":501,"message":"This server does not support it","type":"not_supported_error"}}`, nil}
	list := reply{200, models, nil}
	for name, c := range map[string]struct {
		pages   map[string]reply
		want    scrape.Kind
		outcome health.Outcome
		asked   string
	}{
		"vllm":   {map[string]reply{"/v1/models": list, "/metrics": text(t, "vllm_busy.txt")}, scrape.VLLM, health.Answered, "/v1/models /metrics"},
		"sglang": {map[string]reply{"/v1/models": list, "/metrics": text(t, "sglang.txt")}, scrape.SGLang, health.Answered, "/v1/models /metrics"},
		"vllm with a key for its API": {
			map[string]reply{"/v1/models": {401, "", nil}, "/metrics": text(t, "vllm_busy.txt")}, scrape.VLLM, health.Answered, "/v1/models /metrics",
		},
		"llama-server": {
			map[string]reply{"/v1/models": llama, "/props": props, "/metrics": text(t, "llamacpp_metrics_busy.txt")}, scrape.LlamaCPP, health.Answered, "/v1/models /props /metrics",
		},
		"llama-server without metrics": {
			map[string]reply{"/v1/models": llama, "/props": {200, `{"total_slots":2,"endpoint_metrics":false,"endpoint_slots":true}`, nil}, "/slots": text(t, "llamacpp_slots_busy.json")},
			scrape.LlamaCPP, health.Answered, "/v1/models /props /slots",
		},
		"an older llama-server without metrics": {
			map[string]reply{"/v1/models": llama, "/props": {200, `{"total_slots":2}`, nil}, "/metrics": off, "/slots": text(t, "llamacpp_slots_busy.json")},
			scrape.LlamaCPP, health.Answered, "/v1/models /props /metrics /slots",
		},
		"llama-server without both": {
			map[string]reply{"/v1/models": llama, "/props": {200, `{"total_slots":2}`, nil}, "/metrics": off, "/slots": off},
			scrape.LlamaCPP, health.Opaque, "/v1/models /props /metrics /slots",
		},
		"llama-server asleep": {
			map[string]reply{"/v1/models": llama, "/props": text(t, "llamacpp_props_sleeping.json")}, scrape.LlamaCPP, health.Answered, "/v1/models /props",
		},
		"llama-server loading":       {map[string]reply{"/v1/models": loading}, scrape.Auto, health.Answered, "/v1/models"},
		"llama-server loading later": {map[string]reply{"/v1/models": llama, "/props": loading}, scrape.LlamaCPP, health.Answered, "/v1/models /props"},
		"llama-server as a router":   {map[string]reply{"/v1/models": llama, "/props": {200, `{"role":"router"}`, nil}}, scrape.Proxy, health.Opaque, "/v1/models /props"},
		"a server":                   {map[string]reply{"/v1/models": list}, scrape.OpenAI, health.Opaque, "/v1/models /metrics"},
		"a server with metrics":      {map[string]reply{"/v1/models": list, "/metrics": {200, "go_goroutines 3\n", nil}}, scrape.OpenAI, health.Opaque, "/v1/models /metrics"},
		"a proxy by its metrics":     {map[string]reply{"/v1/models": list, "/metrics": {200, "# HELP x\nlitellm_requests 3\n", nil}}, scrape.Proxy, health.Opaque, "/v1/models /metrics"},
		"a proxy by its header":      {map[string]reply{"/v1/models": {200, models, map[string]string{"Via": "1.1 front"}}}, scrape.Proxy, health.Opaque, "/v1/models"},
		"nothing of the kind":        {map[string]reply{}, scrape.Auto, health.Opaque, "/v1/models /metrics"},
		"503 to all":                 {map[string]reply{"/v1/models": {503, "", nil}, "/metrics": {503, "", nil}}, scrape.Auto, health.Failed, "/v1/models /metrics"},
	} {
		t.Run(name, func(t *testing.T) {
			s, url := serve(t, c.pages)
			auto := target(t, scrape.Config{URL: url + "/v1/"})
			r := read(t, auto)
			if r.Outcome != c.outcome || auto.Kind() != c.want || s.paths() != c.asked {
				t.Errorf("%v, %v: %+v", auto.Kind(), r.Outcome, r)
			}
			if r.Proxy != (c.want == scrape.Proxy) || r.Loading != strings.Contains(name, "loading") || r.Sleeping != strings.Contains(name, "asleep") {
				t.Errorf("%+v", r)
			}
		})
	}
}

// TestAuto_StartsOverWhenThePageVanishes: another server listens there now.
func TestAuto_StartsOverWhenThePageVanishes(t *testing.T) {
	s, url := serve(t, map[string]reply{"/v1/models": {200, models, nil}, "/metrics": text(t, "vllm_busy.txt")})
	auto, fixed := target(t, scrape.Config{URL: url}), target(t, scrape.Config{URL: url, Kind: scrape.VLLM})
	read(t, auto)
	read(t, fixed)
	s.set("/metrics", text(t, "sglang.txt"))
	if r := read(t, auto); r.Outcome != health.Opaque {
		t.Errorf("%+v", r)
	}
	if r := read(t, auto); r.Outcome != health.Answered || auto.Kind() != scrape.SGLang {
		t.Errorf("%v: %+v", auto.Kind(), r)
	}
	if r := read(t, fixed); r.Outcome != health.Opaque || fixed.Kind() != scrape.VLLM || r.Detail == "" {
		t.Errorf("%v: %+v", fixed.Kind(), r)
	}
	s.set("/metrics", reply{404, "", nil})
	read(t, auto)
	if r := read(t, auto); r.Outcome != health.Opaque || auto.Kind() != scrape.OpenAI {
		t.Errorf("%v: %+v", auto.Kind(), r)
	}
}

// TestRead_SGLangAsksForItsChunkOnce, and for nothing that makes it generate.
func TestRead_SGLangAsksForItsChunkOnce(t *testing.T) {
	s, url := serve(t, map[string]reply{"/metrics": text(t, "sglang.txt"), "/get_server_info": {200, `{"chunked_prefill_size":2048}`, nil}})
	sglang := target(t, scrape.Config{URL: url, Kind: scrape.SGLang})
	for range 3 {
		read(t, sglang)
	}
	if got := s.paths(); got != "/metrics /server_info /get_server_info /metrics /metrics" {
		t.Error(got)
	}
	s.set("/get_server_info", reply{404, "", nil})
	other := target(t, scrape.Config{URL: url, Kind: scrape.SGLang})
	for range 6 {
		read(t, other)
	}
	if got := strings.Count(s.paths(), "/server_info"); got != 3 {
		t.Errorf("asked %d times", got)
	}
}

// TestRead_LlamaServerLifeIsInAHeader.
func TestRead_LlamaServerLifeIsInAHeader(t *testing.T) {
	metrics := text(t, "llamacpp_metrics_busy.txt")
	metrics.header = map[string]string{"Process-Start-Time-Unix": "35353991170"}
	_, url := serve(t, map[string]reply{"/props": text(t, "llamacpp_props.json"), "/metrics": metrics})
	if r := read(t, target(t, scrape.Config{URL: url, Kind: scrape.LlamaCPP})); r.Incarnation != "35353991170" || r.InFlight != 1 {
		t.Errorf("%+v", r)
	}
}

// TestRead_SilentTaskQueueIsWorkWithoutProgress is case E4: what is beside the queue answers.
func TestRead_SilentTaskQueueIsWorkWithoutProgress(t *testing.T) {
	s := &site{pages: map[string]reply{"/props": text(t, "llamacpp_props.json"), "/health": {200, `{"status":"ok"}`, nil}, "/metrics": text(t, "llamacpp_metrics_busy.txt")}}
	var silent sync.Map
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		if _, ok := silent.Load(req.URL.Path); ok {
			<-req.Context().Done()
			return
		}
		s.ServeHTTP(w, req)
	}))
	t.Cleanup(srv.Close)
	llama := target(t, scrape.Config{URL: srv.URL, Kind: scrape.LlamaCPP})
	before := read(t, llama)
	silent.Store("/metrics", true)
	silent.Store("/slots", true)
	began := time.Now()
	ctx, cancel := context.WithTimeout(t.Context(), 3*time.Second)
	defer cancel()
	r := llama.Read(ctx)
	if r.Outcome != health.Answered || r.InFlight != 1 || !slices.Equal(r.Counters, before.Counters) || !strings.Contains(r.Detail, "queue") {
		t.Errorf("%+v", r)
	}
	if took := time.Since(began); took < 500*time.Millisecond || ctx.Err() != nil {
		t.Errorf("it waited for %v", took)
	}
	if got := target(t, scrape.Config{URL: srv.URL, Kind: scrape.LlamaCPP}).Read(short(t)); got.InFlight != 1 || got.Steps {
		t.Errorf("without a page before: %+v", got)
	}
}

func short(t *testing.T) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
	t.Cleanup(cancel)
	return ctx
}

// TestRead_Outcomes: what each way of not answering is.
func TestRead_Outcomes(t *testing.T) {
	closed, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	_ = closed.Close()
	hang := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, req *http.Request) { <-req.Context().Done() }))
	t.Cleanup(hang.Close)
	abort := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Length", "100")
		_, _ = io.WriteString(w, "vllm:")
		panic(http.ErrAbortHandler)
	}))
	t.Cleanup(abort.Close)
	secure := httptest.NewTLSServer(http.NotFoundHandler())
	secure.Config.ErrorLog = nil
	t.Cleanup(secure.Close)
	_, plain := serve(t, map[string]reply{})
	for name, c := range map[string]struct {
		url     string
		outcome health.Outcome
		detail  string
	}{
		"nobody listens":  {"http://" + closed.Addr().String(), health.Refused, "refused"},
		"no answer":       {hang.URL, health.TimedOut, "in time"},
		"half an answer":  {abort.URL, health.Cut, "closed in the middle"},
		"own certificate": {secure.URL, health.Cut, "trust the authority"},
		"no TLS":          {"https" + strings.TrimPrefix(plain, "http"), health.Cut, "give an http:// address"},
		"TLS where plain": {"http" + strings.TrimPrefix(secure.URL, "https"), health.Opaque, "give an https:// address"},
		"no such host":    {"http://segue-health.invalid", health.Cut, "lookup"},
		"no page":         {plain, health.Opaque, "404"},
	} {
		for _, kind := range []scrape.Kind{scrape.VLLM, scrape.SGLang, scrape.LlamaCPP, scrape.OpenAI, scrape.Proxy, scrape.Auto} {
			wait := 20 * time.Second
			if c.outcome == health.TimedOut {
				wait = 100 * time.Millisecond
			}
			ctx, cancel := context.WithTimeout(t.Context(), wait)
			r := target(t, scrape.Config{URL: c.url, Kind: kind}).Read(ctx)
			cancel()
			if r.Outcome != c.outcome {
				t.Errorf("%s, %v: %v: %s", name, kind, r.Outcome, r.Detail)
			}
			if kind == scrape.VLLM && !strings.Contains(r.Detail, c.detail) {
				t.Errorf("%s: %s", name, r.Detail)
			}
		}
	}
}

// TestRead_Refusals: a page that isn't given is no failure of the engine.
func TestRead_Refusals(t *testing.T) {
	for name, c := range map[string]struct {
		pages   map[string]reply
		outcome health.Outcome
		detail  string
	}{
		"a key is wanted":          {map[string]reply{"/metrics": {401, "", nil}, "/props": {401, "", nil}, "/slots": {401, "", nil}}, health.Opaque, "give the server's API key"},
		"forbidden":                {map[string]reply{"/metrics": {403, "", nil}, "/props": {403, "", nil}, "/slots": {403, "", nil}}, health.Opaque, "give the server's API key"},
		"sent away":                {map[string]reply{"/metrics": {307, "", map[string]string{"Location": "http://elsewhere.invalid/"}}, "/props": {307, "", nil}, "/slots": {307, "", nil}}, health.Opaque, ""},
		"500 to one page":          {map[string]reply{"/metrics": {500, "", nil}, "/props": {500, "", nil}, "/v1/models": {200, models, nil}}, health.Opaque, "500"},
		"503 to all":               {map[string]reply{"/metrics": {503, "", nil}, "/props": {503, "", nil}, "/slots": {503, "", nil}, "/v1/models": {503, "", nil}}, health.Failed, "503"},
		"a page without the names": {map[string]reply{"/metrics": {200, "up 1\n", nil}, "/props": {200, "{}", nil}}, health.Opaque, ""},
		"a page that is no page":   {map[string]reply{"/metrics": {200, "vllm:num_requests_running x\nsglang:num_running_reqs x\n", nil}, "/props": {200, "<", nil}}, health.Opaque, ""},
		"a page without an end":    {map[string]reply{"/metrics": {200, strings.Repeat("x", scrape.MaxPage+1), nil}, "/props": {200, strings.Repeat("x", scrape.MaxPage+1), nil}}, health.Opaque, ""},
		"it loads":                 {map[string]reply{"/metrics": loading, "/props": loading}, health.Answered, ""},
	} {
		for _, kind := range []scrape.Kind{scrape.VLLM, scrape.SGLang, scrape.LlamaCPP} {
			_, url := serve(t, c.pages)
			r := read(t, target(t, scrape.Config{URL: url, Kind: kind}))
			if r.Outcome != c.outcome || !strings.Contains(r.Detail, c.detail) || r.Loading != (name == "it loads") {
				t.Errorf("%s, %v: %v: %s", name, kind, r.Outcome, r.Detail)
			}
		}
	}
}

// TestRead_SendsTheKeyAndFollowsWithinTheServer.
func TestRead_SendsTheKeyAndFollowsWithinTheServer(t *testing.T) {
	busy := string(fixture(t, "vllm_busy.txt"))
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		switch {
		case req.Header.Get("Authorization") != "Bearer secret":
			w.WriteHeader(401)
		case req.URL.Path == "/metrics":
			http.Redirect(w, req, "/metrics/", http.StatusTemporaryRedirect)
		default:
			_, _ = io.WriteString(w, busy)
		}
	}))
	t.Cleanup(srv.Close)
	if r := read(t, target(t, scrape.Config{URL: srv.URL, Kind: scrape.VLLM, APIKey: "secret"})); r.Outcome != health.Answered || r.InFlight != 1 {
		t.Errorf("%+v", r)
	}
	if r := read(t, target(t, scrape.Config{URL: srv.URL, Kind: scrape.VLLM})); r.Outcome != health.Opaque {
		t.Errorf("%+v", r)
	}
}

// TestRead_UsesOneConnection, and none that has ended.
func TestRead_UsesOneConnection(t *testing.T) {
	s := &site{pages: map[string]reply{"/metrics": text(t, "vllm_busy.txt")}}
	srv := httptest.NewUnstartedServer(s)
	var opened atomic.Int32
	srv.Config.ConnState = func(_ net.Conn, state http.ConnState) {
		if state == http.StateNew {
			opened.Add(1)
		}
	}
	srv.Start()
	t.Cleanup(srv.Close)
	vllm := target(t, scrape.Config{URL: srv.URL, Kind: scrape.VLLM})
	for range 5 {
		if r := read(t, vllm); r.Outcome != health.Answered {
			t.Errorf("%+v", r)
		}
	}
	srv.CloseClientConnections()
	if r := read(t, vllm); r.Outcome != health.Answered {
		t.Errorf("after the server closed the connection: %+v", r)
	}
	srv.Close()
	if n := opened.Load(); n != 2 {
		t.Errorf("%d connections", n)
	}
	if r := read(t, vllm); r.Outcome != health.Refused {
		t.Errorf("after the server ended: %+v", r)
	}
}
