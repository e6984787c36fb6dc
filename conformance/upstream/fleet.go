// SPDX-License-Identifier: Apache-2.0
// Copyright The Segue Authors

package upstream

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log"
	"maps"
	"net"
	"net/http"
	"regexp"
	"slices"
	"sync"
	"time"
)

// keyPattern finds the name of a request's case.
var keyPattern = regexp.MustCompile(`case-[0-9]+`)

// maxBody bounds a request.
const maxBody = 1 << 20

// Key makes the word of a prompt that names case n.
func Key(n int) string { return fmt.Sprintf("case-%d", n) }

// Attempt is one request as it arrived.
type Attempt struct {
	// Upstream is the listener's index.
	Upstream int
	Stream   bool
	Header   http.Header
	Begun    time.Time
	// Ended is when the answer was over, zero while it isn't. Left: the client went away before.
	Ended time.Time
	Left  bool
	// Emitted are the times at which the events of a stream were flushed, the role's first.
	Emitted []time.Time
}

// record is a case: what is to be played and what arrived.
type record struct {
	plan     Plan
	attempts []*Attempt
}

// Fleet is the scripted upstreams.
type Fleet struct {
	servers []*http.Server
	urls    []string

	mu    sync.Mutex
	cases map[string]*record
}

// New starts n upstreams on loopback.
func New(n int) (*Fleet, error) {
	f := &Fleet{cases: map[string]*record{}}
	for i := range n {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			return nil, errors.Join(fmt.Errorf("start upstream: %w", err), f.Close())
		}
		mux := http.NewServeMux()
		mux.HandleFunc("GET /health", func(w http.ResponseWriter, _ *http.Request) {})
		mux.HandleFunc("GET /v1/models", models)
		for path, chat := range map[string]bool{"/v1/chat/completions": true, "/v1/completions": false} {
			mux.HandleFunc("POST "+path, func(w http.ResponseWriter, r *http.Request) { f.serve(w, r, i, chat) })
		}
		s := &http.Server{Handler: mux, ReadHeaderTimeout: 10 * time.Second, ErrorLog: log.New(io.Discard, "", 0)}
		f.servers, f.urls = append(f.servers, s), append(f.urls, "http://"+l.Addr().String())
		go func() { _ = s.Serve(l) }() // ends with Close
	}
	return f, nil
}

// Close ends all answers.
func (f *Fleet) Close() error {
	var errs []error
	for _, s := range f.servers {
		errs = append(errs, s.Close())
	}
	return errors.Join(errs...)
}

// URLs are the upstreams' addresses, without a path.
func (f *Fleet) URLs() []string { return slices.Clone(f.urls) }

// Script sets what is played for a key, and forgets what arrived for it.
func (f *Fleet) Script(key string, p Plan) error {
	if err := p.validate(); err != nil {
		return err
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.cases[key] = &record{plan: p}
	return nil
}

// Attempts returns copies of what arrived for a key, in order.
func (f *Fleet) Attempts(key string) []Attempt {
	f.mu.Lock()
	defer f.mu.Unlock()
	var out []Attempt
	if c := f.cases[key]; c != nil {
		for _, a := range c.attempts {
			b := *a
			b.Emitted = slices.Clone(a.Emitted)
			out = append(out, b)
		}
	}
	return out
}

// Headers are the names of all request headers that arrived for a key, sorted.
func (a Attempt) Headers() []string { return slices.Sorted(maps.Keys(a.Header)) }

func models(w http.ResponseWriter, _ *http.Request) {
	w.Header().Set("Content-Type", "application/json")
	_, _ = w.Write(object(map[string]any{"object": "list", "data": []any{map[string]any{"id": Model, "object": "model", "owned_by": "upstream"}}}))
}

func (f *Fleet) serve(w http.ResponseWriter, r *http.Request, index int, chat bool) {
	body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, maxBody))
	if err != nil {
		http.Error(w, "read request", http.StatusBadRequest)
		return
	}
	var q struct {
		Stream  bool `json:"stream"`
		Options struct {
			Usage bool `json:"include_usage"`
		} `json:"stream_options"`
	}
	if err := json.Unmarshal(body, &q); err != nil {
		http.Error(w, "request is not JSON", http.StatusBadRequest)
		return
	}
	plan, n, a, err := f.arrive(keyPattern.FindString(string(body)), &Attempt{Upstream: index, Stream: q.Stream, Header: r.Header.Clone(), Begun: time.Now()})
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	defer func() { // also after an abort
		f.mu.Lock()
		defer f.mu.Unlock()
		a.Ended, a.Left = time.Now(), r.Context().Err() != nil
	}()
	ending := plan.ending(n)
	p := player{
		w: w, rc: http.NewResponseController(w), ending: ending, place: plan.Place, gap: plan.Gap,
		wire: wire{chat: chat, usage: q.Options.Usage, nullError: ending == ErrorNull},
		emitted: func() {
			f.mu.Lock()
			defer f.mu.Unlock()
			a.Emitted = append(a.Emitted, time.Now())
		},
	}
	p.play(r.Context(), q.Stream)
}

// arrive records an attempt.
func (f *Fleet) arrive(key string, a *Attempt) (Plan, int, *Attempt, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	c := f.cases[key]
	if c == nil {
		return Plan{}, 0, nil, fmt.Errorf("no script for %q", key)
	}
	c.attempts = append(c.attempts, a)
	return c.plan, len(c.attempts) - 1, a, nil
}
