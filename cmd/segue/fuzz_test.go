// SPDX-License-Identifier: Apache-2.0
// Copyright The Segue Authors

package main

import (
	"bytes"
	"net/http"
	"net/http/httptest"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"unicode/utf8"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"go.yaml.in/yaml/v3"

	"github.com/seguekv/segue/bench/client"
	"github.com/seguekv/segue/internal/invariant"
	"github.com/seguekv/segue/router/openai"
)

// FuzzConfig reads arbitrary files: an accepted one can be judged, printed, and read again as the same.
func FuzzConfig(f *testing.F) {
	example, err := os.ReadFile(exampleFile)
	if err != nil {
		f.Fatal(err)
	}
	f.Add(example)
	f.Add([]byte("router: {window: 8, commit_timeout: 1s, agents: [{id: a, addr: \"127.0.0.1:1\"}]}\nagent: {snapshot_memory: 2GiB}\n"))
	f.Add([]byte("router:\n  window: 99999999999999999999\n"))
	f.Add([]byte("agent: {snapshot_memory: 9223372036854775807TiB}\n"))
	f.Add([]byte("a: &a [x, x, x, x, x, x, x, x, x]\nb: &b [*a, *a, *a, *a, *a, *a, *a, *a, *a]\nrouter: {agents: [*b, *b, *b, *b, *b, *b]}\n"))
	f.Add([]byte("router: &r {agents: [*r]}\n"))
	f.Fuzz(func(t *testing.T, file []byte) {
		c := defaultConfig()
		var err error
		if over := invariant.WithinBytes(8<<20+4096*len(file), func() { err = decode(file, &c) }); over != nil {
			t.Fatalf("a file of %d bytes: %v", len(file), over)
		}
		if err != nil {
			if err.Error() == "" {
				t.Fatal("an error without words")
			}
			return
		}
		problems := []error{c.validateAgent(), c.Router.Validate()}
		printed, err := yaml.Marshal(c)
		if err != nil {
			t.Fatalf("print: %v", err)
		}
		again := defaultConfig()
		if err := decode(printed, &again); err != nil {
			t.Fatalf("read what was printed: %v\n%s", err, printed)
		}
		if problems[0] == nil && problems[1] == nil {
			if diff := cmp.Diff(c, again, cmpopts.EquateEmpty()); diff != "" {
				t.Fatalf("(-read +read again):\n%s", diff)
			}
		}
	})
}

// FuzzOverride sets arbitrary keys as the environment and --set do. A flag's text arrives as it was given.
func FuzzOverride(f *testing.F) {
	f.Add("router.window", "16")
	f.Add("agent.id", "a: b\n- c")
	f.Add("agent.id", "\x00\x1b[2J\u2028\U0010ffff")
	f.Add("router.queue", "{depth: 1}")
	f.Add("", "{}")
	f.Add("agent..id", "&a *a")
	f.Fuzz(func(t *testing.T, key, value string) {
		c := defaultConfig()
		var err error
		if over := invariant.WithinBytes(8<<20+4096*(len(key)+len(value)), func() { err = override(&c, key, value) }); over != nil {
			t.Fatalf("%d bytes: %v", len(key)+len(value), over)
		}
		if err == nil {
			_ = c.validateAgent()
			_ = c.Router.Validate()
		}
		if !utf8.ValidString(value) {
			return
		}
		c = defaultConfig()
		if err := override(&c, "agent.id", strconv.Quote(value)); err != nil || c.Agent.ID != value {
			t.Fatalf("text %q became %q, %v", value, c.Agent.ID, err)
		}
	})
}

// FuzzListing prints whatever a router answers.
func FuzzListing(f *testing.F) {
	f.Add([]byte(`[{"session":"0123","phase":"decode","model":"m","epoch":2,"protected":true,"accepted_tokens":3,"seams":[{}]}]`))
	f.Add([]byte(`[]`))
	f.Add([]byte(`[{"session":7}]`))
	f.Add([]byte(`[{"model":"\u001b[2J\n\t"}]`))
	f.Add([]byte(`[null,{"seams":null},`))
	f.Fuzz(func(t *testing.T, listing []byte) {
		var out bytes.Buffer
		var err error
		if over := invariant.WithinBytes(2<<20+1024*len(listing), func() { err = table(&out, listing) }); over != nil {
			t.Fatalf("a listing of %d bytes: %v", len(listing), over)
		}
		if err != nil && out.Len() > 0 {
			t.Fatalf("prints %q and fails with %v", out.String(), err)
		}
		if err == nil && !strings.HasPrefix(out.String(), "SESSION") {
			t.Fatalf("prints %q", out.String())
		}
	})
}

// served is a server that answers with what it is told, and a client of it.
type served struct {
	mu   sync.Mutex
	body []byte
	c    *client.Client
}

func newServed(f *testing.F) *served {
	s := new(served)
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		s.mu.Lock()
		defer s.mu.Unlock()
		w.Header().Set("Content-Type", openai.ContentType)
		_, _ = w.Write(s.body)
	}))
	f.Cleanup(server.Close)
	s.c = client.New(server.URL)
	f.Cleanup(s.c.Close)
	return s
}

func (s *served) read(t *testing.T, kind openai.Kind, body []byte) *client.Transcript {
	t.Helper()
	s.mu.Lock()
	s.body = body
	s.mu.Unlock()
	request := client.Body{Model: "m", PromptIDs: []int32{1}}
	if kind == openai.Chat {
		request = client.Body{Model: "m", Messages: []client.Message{{Role: "user", Content: "x"}}}
	}
	tr, err := s.c.Stream(t.Context(), client.Call{Body: request})
	if err != nil {
		t.Fatal(err)
	}
	return tr
}

// FuzzStream writes what a model says as the router does and reads it as a client does: text, ids, model name
// and error arrive as they were, wherever the text is cut, and whatever it contains.
func FuzzStream(f *testing.F) {
	f.Add("Hello, \"world\"\\n", "m", "", uint16(3), true)
	f.Add("data: [DONE]\n\n", "data: x\n\n", "event: e\r\n\r\n", uint16(6), true)
	f.Add("\u2028\u2029\x00\x1f\r\n\r\n:\ufeff", "</script>&", "\ufffd", uint16(1), false)
	f.Add("🙂👩‍👩‍👧 e\u0301 \U0010ffff", "模型", "gone", uint16(5), false)
	f.Add("", "", "", uint16(0), true)
	s := newServed(f)
	f.Fuzz(func(t *testing.T, text, model, failure string, cut uint16, chat bool) {
		// Engines and requests refuse other text.
		if !utf8.ValidString(text) || !utf8.ValidString(model) || !utf8.ValidString(failure) || len(text)+len(model)+len(failure) > 1<<18 {
			return
		}
		kind := openai.Completion
		if chat {
			kind = openai.Chat
		}
		e := openai.Envelope{Kind: kind, ID: "id", Model: model, Created: 1, IncludeUsage: true}
		var body []byte
		put := func(payload []byte) {
			if payload != nil {
				body = openai.AppendEvent(body, payload)
			}
		}
		put(e.Role())
		var ids []int32
		for rest := text; rest != ""; {
			n := min(len(rest), 1+int(cut))
			for n < len(rest) && !utf8.RuneStart(rest[n]) {
				n++
			}
			put(e.Content(rest[:n], openai.Tokens{IDs: []int32{int32(n)}, First: len(ids)}))
			ids, rest = append(ids, int32(n)), rest[n:]
			body = append(body, openai.KeepAlive...)
		}
		if failure != "" {
			ae := &openai.Error{Status: 502, Code: openai.CodeInterrupted, Message: failure, RequestID: "r", PartialOutput: text != "", Delivered: len(ids)}
			put(ae.Body())
		} else {
			put(e.Finish("stop", openai.Tokens{}))
			put(e.Usage(openai.Usage{PromptTokens: 1, CompletionTokens: len(ids), TotalTokens: 1 + len(ids)}))
			body = append(body, openai.Done...)
		}
		got := s.read(t, kind, body)
		if got.Text() != text || !slices.Equal(got.Tokens(), ids) {
			t.Fatalf("text %q and ids %v arrive as %q and %v", text, ids, got.Text(), got.Tokens())
		}
		switch {
		case failure == "" && !got.Complete():
			t.Fatalf("not whole: %s\n%s", got.Failure(), body)
		case failure != "" && (got.Err == nil || got.Err.Message != failure || len(got.Problems) > 0):
			t.Fatalf("failure %q arrives as %+v, %v", failure, got.Err, got.Problems)
		}
	})
}
