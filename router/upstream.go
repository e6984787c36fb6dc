// SPDX-License-Identifier: Apache-2.0
// Copyright The Segue Authors

package router

import (
	"context"
	"fmt"
	"net/http"
	"net/url"
	"os"
	"slices"
	"strings"
	"time"

	upstream "github.com/seguekv/segue/engines/openai"
	"github.com/seguekv/segue/health"
	"github.com/seguekv/segue/health/scrape"
	"github.com/seguekv/segue/health/watch"
	"github.com/seguekv/segue/router/fleet"
)

// Upstream is an OpenAI-compatible server without an agent. What runs on it can't be continued elsewhere.
type Upstream struct {
	ID string `yaml:"id"`
	// URL is the server's root or its /v1.
	URL string `yaml:"url"`
	// Models are the names it serves; empty: those that it lists.
	Models []string `yaml:"models"`
	// Weight is its share of the work among replicas of a model; 0 stands for 1.
	Weight float64 `yaml:"weight"`
	// Contexts is the largest number of requests at once; 0 is no limit.
	Contexts int `yaml:"contexts"`
	// KeyFile has the key that the server wants.
	KeyFile string `yaml:"key_file"`
	// Health is how its engine is watched: auto, vllm, sglang, llamacpp, openai or proxy; empty stands for auto, off for
	// nobody.
	Health string `yaml:"health"`
	// ContinuousUsage asks for usage in every chunk, which vLLM and SGLang know: token counts are exact then.
	ContinuousUsage bool `yaml:"continuous_usage"`
}

// Silence is how long an upstream may send no content.
type Silence struct {
	// Prefill is until the first content, Decode between two pieces of it, Whole until an answer in one piece.
	Prefill time.Duration `yaml:"prefill"`
	Decode  time.Duration `yaml:"decode"`
	Whole   time.Duration `yaml:"whole"`
}

func (c Config) validateUpstreams(bad func(key, format string, args ...any)) {
	ids := map[string]bool{}
	for _, a := range c.Agents {
		ids[a.ID] = true
	}
	for i, u := range c.Upstreams {
		key := fmt.Sprintf("upstreams[%d]", i)
		if u.ID == "" || len(u.ID) > 64 {
			bad(key+".id", "has %d bytes, want 1 to 64", len(u.ID))
		}
		if ids[u.ID] {
			bad(key+".id", "%q is used twice among agents and upstreams", u.ID)
		}
		ids[u.ID] = true
		if parsed, err := url.Parse(u.URL); err != nil || parsed.Host == "" || parsed.Scheme != "http" && parsed.Scheme != "https" {
			bad(key+".url", "%q is not the URL of a server, e.g. http://127.0.0.1:8000", u.URL)
		}
		if u.Weight < 0 || u.Weight > 1e6 {
			bad(key+".weight", "is %v, want above 0 to 1000000", u.Weight)
		}
		if _, err := scrape.ParseKind(u.Health); err != nil && u.Health != healthOff {
			bad(key+".health", "is %q, want auto, off, vllm, sglang, llamacpp, openai or proxy", u.Health)
		}
		if u.Contexts < 0 {
			bad(key+".contexts", "is %d, want 0 (no limit) or more", u.Contexts)
		}
	}
	between := func(key string, v time.Duration) {
		if v < 100*time.Millisecond || v > 24*time.Hour {
			bad("upstream_silence."+key, "is %v, want 100ms to 24h", v)
		}
	}
	between("prefill", c.UpstreamSilence.Prefill)
	between("decode", c.UpstreamSilence.Decode)
	between("whole", c.UpstreamSilence.Whole)
}

// server is what the fleet's node of an upstream carries.
type server struct {
	*upstream.Server
	continuous bool
}

// servers are the configuration's upstreams for the fleet.
func servers(list []Upstream, deps Deps) ([]fleet.Server, error) {
	out := make([]fleet.Server, 0, len(list))
	for i, u := range list {
		key := ""
		if u.KeyFile != "" {
			b, err := os.ReadFile(u.KeyFile)
			if err != nil {
				return nil, fmt.Errorf("router.upstreams[%d].key_file: %w", i, err)
			}
			key = strings.TrimSpace(string(b))
		}
		s, err := upstream.New(upstream.Config{URL: u.URL, Key: key, Dial: deps.DialUpstream})
		if err != nil {
			return nil, fmt.Errorf("router.upstreams[%d]: %w", i, err)
		}
		looks, err := watching(u, key, deps)
		if err != nil {
			return nil, fmt.Errorf("router.upstreams[%d]: %w", i, err)
		}
		weight := u.Weight
		if weight == 0 {
			weight = 1
		}
		out = append(out, fleet.Server{
			ID: u.ID, Addr: u.URL, Weight: weight, Contexts: u.Contexts, Models: slices.Clone(u.Models),
			Probe:  func(ctx context.Context) ([]string, error) { return s.Models(ctx) },
			Watch:  looks,
			Handle: server{s, u.ContinuousUsage},
		})
	}
	return out, nil
}

const (
	healthOff = "off"
	// watchUpstreamEvery is the pause between two reads of an upstream's counters.
	watchUpstreamEvery = time.Second
)

// watching is what looks after an upstream's engine: it reads counters and sends no request of its own.
func watching(u Upstream, key string, deps Deps) (func(context.Context, *fleet.Node), error) {
	if u.Health == healthOff {
		return nil, nil
	}
	target, err := scrape.New(scrape.Config{
		URL: u.URL, Kind: scrape.Kind(u.Health), APIKey: key,
		Client: &http.Client{Transport: &http.Transport{DialContext: deps.DialUpstream, MaxIdleConnsPerHost: 1, IdleConnTimeout: idleTimeout}},
	})
	if err != nil {
		return nil, err
	}
	cfg := health.Defaults()
	cfg.Interval = watchUpstreamEvery
	return func(ctx context.Context, n *fleet.Node) {
		defer target.Close()
		w, err := watch.New(watch.Config{Health: cfg, Source: target, Ours: n.Ours, Assessed: func(a health.Assessment) { n.Assess(a, "") }})
		if err != nil {
			panic("router: watch an upstream: " + err.Error()) // the configuration is a constant
		}
		_ = w.Run(ctx) // it ends with ctx only
	}, nil
}
