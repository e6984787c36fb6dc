// SPDX-License-Identifier: Apache-2.0
// Copyright The Segue Authors

package router_test

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/seguekv/segue/router"
	"github.com/seguekv/segue/router/fleet"
	"github.com/seguekv/segue/router/journal"
)

// oai is a scripted OpenAI-compatible server. Its functions may be set before the first request.
type oai struct {
	id     string
	models []string
	// play answers one completion request.
	play func(*answer)

	listener *pipes
	server   *http.Server

	mu       sync.Mutex
	down     bool
	conns    []net.Conn
	accepted int
	requests []*asked
	// metrics is the page of its counters; nil: it has none.
	metrics func() string
	// broken: every answer is a 503. refused counts them, those to completions apart.
	broken  bool
	refused struct{ all, completions int }
}

// asked is one request as the server saw it.
type asked struct {
	path   string
	header http.Header
	body   []byte
	at     time.Time

	mu sync.Mutex
	// written counts bytes of the answer that its connection took; fault says which ending was played; closed is when
	// the router ended the request, zero when the server did.
	written int
	fault   string
	closed  time.Time
	over    bool
}

type askedState struct {
	written int
	fault   string
	closed  time.Time
	over    bool
}

// ended reports that a script which never ends has noticed that the router is gone.
func (s askedState) ended() bool { return s.over || !s.closed.IsZero() }

func (q *asked) state() askedState {
	q.mu.Lock()
	defer q.mu.Unlock()
	return askedState{q.written, q.fault, q.closed, q.over}
}

// member is a member of the request's body, raw; "" when it isn't there.
func (q *asked) member(t *testing.T, name string) string {
	t.Helper()
	var m map[string]json.RawMessage
	if err := json.Unmarshal(q.body, &m); err != nil {
		t.Fatalf("the server got %q: %v", q.body, err)
	}
	return string(m[name])
}

func newOAI(id string) *oai {
	o := &oai{id: id, models: []string{model}, listener: newPipes(), play: func(a *answer) { a.whole(total) }}
	o.server = &http.Server{Handler: http.HandlerFunc(o.serve), ErrorLog: slog.NewLogLogger(slog.DiscardHandler, slog.LevelDebug)}
	return o
}

func (o *oai) start() { go o.server.Serve(acceptor{o.listener, o}) } // ends with kill

// acceptor keeps accepted connections, so that they can be cut.
type acceptor struct {
	*pipes
	o *oai
}

func (a acceptor) Accept() (net.Conn, error) {
	conn, err := a.pipes.Accept()
	if err != nil {
		return nil, err
	}
	a.o.mu.Lock()
	defer a.o.mu.Unlock()
	a.o.conns = append(a.o.conns, conn)
	a.o.accepted++
	return conn, nil
}

func (o *oai) dial(ctx context.Context) (net.Conn, error) {
	o.mu.Lock()
	down := o.down
	o.mu.Unlock()
	if down {
		return nil, &net.OpError{Op: "dial", Net: "tcp", Err: syscall.ECONNREFUSED}
	}
	return o.listener.dial(ctx)
}

// refuse takes no new connections, and goes on with what it has.
func (o *oai) refuse() {
	o.mu.Lock()
	o.down = true
	o.mu.Unlock()
	o.server.SetKeepAlivesEnabled(false)
}

// cut breaks all connections, and with down the server can't be reached any more.
func (o *oai) cut(down bool) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.down = down
	for _, c := range o.conns {
		c.Close()
	}
	o.conns = nil
}

func (o *oai) kill() {
	o.cut(true)
	_ = o.server.Close()
}

// asked lists the completion requests so far.
func (o *oai) asked() []*asked {
	o.mu.Lock()
	defer o.mu.Unlock()
	return slices.Clone(o.requests)
}

func (o *oai) connections() int {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.accepted
}

func (o *oai) serve(w http.ResponseWriter, r *http.Request) {
	o.mu.Lock()
	broken := o.broken
	if broken {
		o.refused.all++
		if r.Method == http.MethodPost {
			o.refused.completions++
		}
	}
	o.mu.Unlock()
	if broken {
		http.Error(w, `{"error":{"message":"engine is dead"}}`, http.StatusServiceUnavailable)
		return
	}
	if r.URL.Path == "/v1/models" {
		type entry struct {
			ID string `json:"id"`
		}
		list := struct {
			Data []entry `json:"data"`
		}{}
		for _, m := range o.models {
			list.Data = append(list.Data, entry{m})
		}
		_ = json.NewEncoder(w).Encode(list)
		return
	}
	if r.Method == http.MethodGet {
		o.mu.Lock()
		metrics := o.metrics
		o.mu.Unlock()
		if r.URL.Path != "/metrics" || metrics == nil {
			http.NotFound(w, r)
			return
		}
		_, _ = io.WriteString(w, metrics())
		return
	}
	body, err := io.ReadAll(r.Body)
	if err != nil {
		return
	}
	q := &asked{path: r.URL.Path, header: r.Header.Clone(), body: body, at: time.Now()}
	o.mu.Lock()
	o.requests = append(o.requests, q)
	play := o.play
	o.mu.Unlock()
	defer func() {
		q.mu.Lock()
		defer q.mu.Unlock()
		if r.Context().Err() != nil && q.closed.IsZero() {
			q.closed = time.Now()
		}
		q.over = true
	}()
	defer context.AfterFunc(r.Context(), func() {
		q.mu.Lock()
		defer q.mu.Unlock()
		if !q.over {
			q.closed = time.Now()
		}
	})()
	var asks struct{ Stream bool }
	_ = json.Unmarshal(body, &asks)
	play(&answer{o: o, q: q, w: w, r: r, chat: r.URL.Path == "/v1/chat/completions", stream: asks.Stream})
}

// answer writes what a server says to one request.
type answer struct {
	o            *oai
	q            *asked
	w            http.ResponseWriter
	r            *http.Request
	chat, stream bool
	opened       bool
	next         int
}

// send writes raw bytes, opening the stream first; false: the router is gone.
func (a *answer) send(raw string) bool {
	if !a.opened {
		a.opened = true
		a.w.Header().Set("Content-Type", "text/event-stream")
		a.w.WriteHeader(http.StatusOK)
	}
	n, err := io.WriteString(a.w, raw)
	a.q.mu.Lock()
	a.q.written += n
	a.q.mu.Unlock()
	if err != nil {
		return false
	}
	return http.NewResponseController(a.w).Flush() == nil
}

func (a *answer) event(data string) bool { return a.send("data: " + data + "\n\n") }

// chunk sends one choice's members in the server's own envelope.
func (a *answer) chunk(choice string) bool {
	return a.event(fmt.Sprintf(`{"id":"theirs-%s","object":%q,"created":1,"model":"their-model","system_fingerprint":"theirs","choices":[{"index":0,%s}]}`,
		a.o.id, a.object(), choice))
}

func (a *answer) object() string {
	switch {
	case !a.chat:
		return "text_completion"
	case a.stream:
		return "chat.completion.chunk"
	}
	return "chat.completion"
}

// role opens a chat stream; a completion has no role.
func (a *answer) role() bool {
	if !a.chat {
		return a.send(": hello\n\n")
	}
	return a.chunk(`"delta":{"role":"assistant","content":""},"finish_reason":null`)
}

// text sends one content delta.
func (a *answer) text(s string) bool {
	quoted, _ := json.Marshal(s)
	if a.chat {
		return a.chunk(`"delta":{"content":` + string(quoted) + `},"finish_reason":null`)
	}
	return a.chunk(`"text":` + string(quoted) + `,"finish_reason":null`)
}

// deltas sends the deltas up to number n-1.
func (a *answer) deltas(n int) bool {
	for a.next < n {
		if !a.text(word(a.next)) {
			return false
		}
		a.next++
	}
	return true
}

// call sends one fragment of tool call i.
func (a *answer) call(i int, members string) bool {
	return a.chunk(fmt.Sprintf(`"delta":{"tool_calls":[{"index":%d,%s}]},"finish_reason":null`, i, members))
}

func (a *answer) callBegins(i int, name string) bool {
	return a.call(i, fmt.Sprintf(`"id":"their-call-%s-%d","type":"function","function":{"name":%q,"arguments":""}`, a.o.id, i, name))
}

func (a *answer) arguments(i int, fragment string) bool {
	return a.call(i, fmt.Sprintf(`"function":{"arguments":%q}`, fragment))
}

// finish sends the finish chunk and the usage chunk that the router always asks for.
func (a *answer) finish(reason string) bool {
	if a.chat {
		a.chunk(`"delta":{},"finish_reason":"` + reason + `"`)
	} else {
		a.chunk(`"text":"","finish_reason":"` + reason + `"`)
	}
	return a.event(fmt.Sprintf(`{"id":"theirs","object":%q,"created":1,"model":"their-model","choices":[],"usage":{"prompt_tokens":7,"completion_tokens":%d,"total_tokens":%d}}`,
		a.object(), a.next, a.next+7))
}

func (a *answer) done() bool { return a.event("[DONE]") }

// whole is a good answer of n deltas, streamed or not.
func (a *answer) whole(n int) {
	if !a.stream {
		a.json(http.StatusOK, a.wholeBody(n, "stop"))
		return
	}
	_ = a.role() && a.deltas(n) && a.finish("stop") && a.done()
}

// wholeBody is an answer in one piece.
func (a *answer) wholeBody(n int, finish string) string {
	return a.wholeChoice(fmt.Sprintf(map[bool]string{true: `"message":{"role":"assistant","content":%q}`, false: `"text":%q`}[a.chat], words(0, n)), n, finish)
}

func (a *answer) wholeChoice(content string, n int, finish string) string {
	if finish != "null" {
		finish = `"` + finish + `"`
	}
	return fmt.Sprintf(`{"id":"theirs-%s","object":%q,"created":1,"model":"their-model","system_fingerprint":"theirs","choices":[{"index":0,%s,"finish_reason":%s}],"usage":{"prompt_tokens":7,"completion_tokens":%d,"total_tokens":%d}}`,
		a.o.id, a.object(), content, finish, n, n+7)
}

// json answers in one piece.
func (a *answer) json(status int, body string, header ...string) {
	for i := 0; i+1 < len(header); i += 2 {
		a.w.Header().Set(header[i], header[i+1])
	}
	a.w.Header().Set("Content-Type", "application/json")
	a.w.WriteHeader(status)
	_, _ = io.WriteString(a.w, body)
}

// abort cuts the connection in the middle of the answer.
func (a *answer) abort() {
	if conn, _, err := http.NewResponseController(a.w).Hijack(); err == nil {
		conn.Close()
		return
	}
	panic(http.ErrAbortHandler)
}

// hang says nothing until the router is gone.
func (a *answer) hang() { <-a.r.Context().Done() }

// played notes which fault the script played.
func (a *answer) played(fault string) {
	a.q.mu.Lock()
	defer a.q.mu.Unlock()
	a.q.fault = fault
}

// relays is a world with servers.
type relays struct {
	*world
	servers map[string]*oai
	journal *journal.Memory
}

// relay runs f against a router with the named agents and servers, in virtual time.
func relay(t *testing.T, agents, servers string, change func(*router.Config, *relays), f func(*testing.T, *relays)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		w := newRelays(t, agents, servers, change, nil)
		defer w.close()
		f(t, w)
	})
}

func newRelays(t *testing.T, agents, servers string, change func(*router.Config, *relays), wrap func(*journal.Memory) journal.Storage) *relays {
	t.Helper()
	w := &relays{
		world:   &world{t: t, agents: map[string]*agent{}, client: newPipes(), admin: newPipes(), metrics: prometheus.NewRegistry(), log: &bytes.Buffer{}, done: make(chan error, 1)},
		servers: map[string]*oai{}, journal: journal.NewMemory(),
	}
	cfg := router.DefaultConfig()
	cfg.InsecurePlaintext = true // the names aren't those of this machine
	cfg.UpstreamSilence = router.Silence{Prefill: 8 * time.Second, Decode: 5 * time.Second, Whole: 20 * time.Second}
	for id := range strings.FieldsSeq(agents) {
		w.agents[id] = newAgent(id)
		cfg.Agents = append(cfg.Agents, fleet.Member{ID: id, Addr: id + ":1"})
	}
	for id := range strings.FieldsSeq(servers) {
		w.servers[id] = newOAI(id)
		cfg.Upstreams = append(cfg.Upstreams, router.Upstream{ID: id, URL: "http://" + id + ":8000"})
	}
	if change != nil {
		change(&cfg, w)
	}
	for _, a := range w.agents {
		a.start()
	}
	for _, o := range w.servers {
		o.start()
	}
	deps := w.deps(cfg)
	deps.JournalStorage = w.journal
	if wrap != nil {
		deps.JournalStorage = wrap(w.journal)
	}
	r, err := router.New(cfg, deps)
	if err != nil {
		t.Fatal(err)
	}
	w.router = r
	w.http = over(w.client, w.admin)
	ctx, stop := context.WithCancel(t.Context())
	w.stop = stop
	go func() { w.done <- r.Run(ctx) }() // ends with close
	synctest.Wait()
	return w
}

// over is a client of one router's listeners.
func over(client, admin *pipes) *http.Client {
	return &http.Client{Transport: &http.Transport{DialContext: func(ctx context.Context, _, addr string) (net.Conn, error) {
		if addr == "admin:80" {
			return admin.dial(ctx)
		}
		return client.dial(ctx)
	}}}
}

func (w *relays) deps(cfg router.Config) router.Deps {
	var locked sync.Mutex
	return router.Deps{
		Log:        slog.New(slog.NewTextHandler(lockedWriter{&locked, w.log}, &slog.HandlerOptions{Level: slog.LevelDebug})),
		Registerer: w.metrics, Gatherer: w.metrics, Clock: virtual(),
		Dial: func(ctx context.Context, addr string) (net.Conn, error) {
			return w.agents[strings.TrimSuffix(addr, ":1")].dial(ctx)
		},
		DialUpstream: func(ctx context.Context, _, addr string) (net.Conn, error) {
			return w.servers[strings.TrimSuffix(addr, ":8000")].dial(ctx)
		},
		Listen: func(_, addr string) (net.Listener, error) {
			if addr == cfg.Admin {
				return w.admin, nil
			}
			return w.client, nil
		},
	}
}

// close stops everything; servers outlive the router.
func (w *relays) close() {
	w.t.Helper()
	w.world.close()
	for _, o := range w.servers {
		o.kill()
	}
	if strings.Contains(w.log.String(), word(0)) {
		w.t.Error("the log has output in it")
	}
}

// asked is what a server was asked so far: exactly n requests.
func (w *relays) asked(server string, n int) []*asked {
	w.t.Helper()
	list := w.servers[server].asked()
	if len(list) != n {
		w.t.Fatalf("%s was asked %d times, want %d", server, len(list), n)
	}
	return list
}

// ran is which server ran each attempt, and how it ended.
func ran(info router.SessionInfo) string {
	var list []string
	for _, a := range info.Attempts {
		list = append(list, a.Node+" "+string(a.Cause))
	}
	return strings.TrimSpace(strings.Join(list, ", "))
}

const completionBody = `{"model":"sim","prompt":"hi","stream":%v%s}`

// ask is path and body of a request by endpoint.
func ask(endpoint string, stream bool, more string) (path, body string) {
	if endpoint == "chat" {
		return "/v1/chat/completions", chat(stream, more)
	}
	if more != "" {
		more = "," + more
	}
	return "/v1/completions", fmt.Sprintf(completionBody, stream, more)
}

const includeUsage = `"stream_options":{"include_usage":true}`
