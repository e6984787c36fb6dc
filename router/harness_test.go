// SPDX-License-Identifier: Apache-2.0
// Copyright The Segue Authors

package router_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/seguekv/segue/fence"
	"github.com/seguekv/segue/router"
	"github.com/seguekv/segue/router/fleet"
	"github.com/seguekv/segue/snapshot"
)

// pipes is a listener of synchronous in-memory connections: a write waits for its reader, and deadlines
// work.
type pipes struct {
	conns chan net.Conn
	once  sync.Once
	done  chan struct{}
}

func newPipes() *pipes { return &pipes{conns: make(chan net.Conn), done: make(chan struct{})} }

func (p *pipes) Accept() (net.Conn, error) {
	select {
	case c := <-p.conns:
		return c, nil
	case <-p.done:
		return nil, net.ErrClosed
	}
}

func (p *pipes) Close() error   { p.once.Do(func() { close(p.done) }); return nil }
func (p *pipes) Addr() net.Addr { return pipeAddr{} }

func (p *pipes) dial(ctx context.Context) (net.Conn, error) {
	a, b := net.Pipe()
	select {
	case p.conns <- b:
		return a, nil
	case <-p.done:
		return nil, errors.New("connection refused")
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

type pipeAddr struct{}

func (pipeAddr) Network() string { return "pipe" }
func (pipeAddr) String() string  { return "pipe" }

// world is a router with scripted agents, in a bubble.
type world struct {
	t       *testing.T
	agents  map[string]*agent
	router  *router.Router
	metrics *prometheus.Registry
	client  *pipes
	admin   *pipes
	http    *http.Client
	log     *bytes.Buffer
	stop    context.CancelFunc
	done    chan error
}

// bubble runs f against a router and the named agents in virtual time.
func bubble(t *testing.T, names string, change func(*router.Config, map[string]*agent), f func(*testing.T, *world)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, names, change)
		defer w.close()
		f(t, w)
	})
}

func newWorld(t *testing.T, names string, change func(*router.Config, map[string]*agent)) *world {
	t.Helper()
	return observed(t, names, change, nil)
}

// observed is newWorld with an observer of the gates.
func observed(t *testing.T, names string, change func(*router.Config, map[string]*agent), gate func(snapshot.SessionID, fence.Op)) *world {
	t.Helper()
	w := &world{t: t, agents: map[string]*agent{}, client: newPipes(), admin: newPipes(), metrics: prometheus.NewRegistry(), log: &bytes.Buffer{}, done: make(chan error, 1)}
	cfg := router.DefaultConfig()
	cfg.InsecurePlaintext = true // the names aren't those of this machine
	for id := range strings.FieldsSeq(names) {
		w.agents[id] = newAgent(id)
		cfg.Agents = append(cfg.Agents, fleet.Member{ID: id, Addr: id + ":1"})
	}
	if change != nil {
		change(&cfg, w.agents)
	}
	for _, a := range w.agents {
		a.start()
	}
	var locked sync.Mutex
	r, err := router.New(cfg, router.Deps{
		Log:        slog.New(slog.NewTextHandler(lockedWriter{&locked, w.log}, &slog.HandlerOptions{Level: slog.LevelDebug})),
		Registerer: w.metrics, Gatherer: w.metrics, Clock: virtual(), Gate: gate,
		Dial: func(ctx context.Context, addr string) (net.Conn, error) {
			return w.agents[strings.TrimSuffix(addr, ":1")].dial(ctx)
		},
		Listen: func(_, addr string) (net.Listener, error) {
			if addr == cfg.Admin {
				return w.admin, nil
			}
			return w.client, nil
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	w.router = r
	w.http = &http.Client{Transport: &http.Transport{DialContext: func(ctx context.Context, _, addr string) (net.Conn, error) {
		if addr == "admin:80" {
			return w.admin.dial(ctx)
		}
		return w.client.dial(ctx)
	}}}
	ctx, stop := context.WithCancel(t.Context())
	w.stop = stop
	go func() { w.done <- r.Run(ctx) }() // ends with close
	synctest.Wait()
	return w
}

// virtual is a clock of the bubble alone.
func virtual() *fence.Clock {
	start := time.Now()
	elapsed := func() time.Duration { return time.Since(start) }
	return fence.ClockOf(elapsed, elapsed)
}

type lockedWriter struct {
	mu *sync.Mutex
	w  io.Writer
}

func (l lockedWriter) Write(b []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.w.Write(b)
}

// close stops everything and checks that the router ended in good order.
func (w *world) close() {
	w.t.Helper()
	w.http.CloseIdleConnections()
	w.stop()
	if err := <-w.done; err != nil {
		w.t.Errorf("Run = %v", err)
	}
	for _, a := range w.agents {
		a.kill()
	}
	time.Sleep(time.Minute) // virtual: scripts that sleep come to their end
}

// settle lets background calls end.
func (w *world) settle() {
	time.Sleep(10 * time.Millisecond) // virtual
	synctest.Wait()
}

const chatBody = `{"model":"sim","messages":[{"role":"user","content":"hi"}],"stream":%v%s}`

func chat(stream bool, more string) string {
	if more != "" {
		more = "," + more
	}
	return fmt.Sprintf(chatBody, stream, more)
}

func (w *world) post(path, body string, header ...string) *http.Response {
	w.t.Helper()
	resp, err := w.tryPost(w.t.Context(), path, body, header...)
	if err != nil {
		w.t.Fatalf("POST %s: %v", path, err)
	}
	return resp
}

func (w *world) tryPost(ctx context.Context, path, body string, header ...string) (*http.Response, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, "http://router"+path, strings.NewReader(body))
	if err != nil {
		return nil, err
	}
	for i := 0; i+1 < len(header); i += 2 {
		req.Header.Set(header[i], header[i+1])
	}
	return w.http.Do(req)
}

func (w *world) get(path string, into any) int {
	w.t.Helper()
	resp, err := w.http.Get("http://admin" + path)
	if err != nil {
		w.t.Fatalf("GET %s: %v", path, err)
	}
	defer resp.Body.Close()
	if into != nil {
		if err := json.NewDecoder(resp.Body).Decode(into); err != nil {
			w.t.Fatalf("GET %s: %v", path, err)
		}
	}
	return resp.StatusCode
}

func (w *world) session(resp *http.Response) router.SessionInfo {
	w.t.Helper()
	var info router.SessionInfo
	if code := w.get("/v1/sessions/"+resp.Header.Get("X-Segue-Session"), &info); code != http.StatusOK {
		w.t.Fatalf("session: status %d", code)
	}
	return info
}

// counter sums a metric's series that have all the label values.
func (w *world) counter(name string, labels ...string) float64 {
	w.t.Helper()
	families, err := w.metrics.Gather()
	if err != nil {
		w.t.Fatal(err)
	}
	sum := 0.0
	for _, f := range families {
		if f.GetName() != name {
			continue
		}
		for _, m := range f.GetMetric() {
			matched := 0
			for _, l := range m.GetLabel() {
				for _, want := range labels {
					if l.GetValue() == want {
						matched++
					}
				}
			}
			if matched == len(labels) {
				sum += m.GetCounter().GetValue() + m.GetGauge().GetValue() + float64(m.GetHistogram().GetSampleCount())
			}
		}
	}
	return sum
}

func newTestContext(t *testing.T) (context.Context, context.CancelFunc) {
	return context.WithCancel(t.Context())
}
