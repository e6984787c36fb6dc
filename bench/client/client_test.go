// SPDX-License-Identifier: Apache-2.0
// Copyright The Segue Authors

package client_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"

	"github.com/seguekv/segue/bench/client"
)

// event builds one chat chunk.
func event(id, delta, rest string) string {
	return fmt.Sprintf(`data: {"id":%q,"object":"chat.completion.chunk","choices":[{"index":0,"delta":%s%s}]}`+"\n\n", id, delta, rest)
}

func role() string { return event("c1", `{"role":"assistant"}`, `,"finish_reason":null`) }

func content(index int, text string, ids ...int32) string {
	list, _ := json.Marshal(ids)
	word, _ := json.Marshal(text)
	return event("c1", fmt.Sprintf(`{"content":%s}`, word), fmt.Sprintf(`,"finish_reason":null,"token_ids":%s,"token_index":%d`, list, index))
}

func finish() string { return event("c1", `{}`, `,"finish_reason":"length"`) }

const (
	usage = `data: {"id":"c1","object":"chat.completion.chunk","choices":[],"usage":{"prompt_tokens":5,"completion_tokens":3,"total_tokens":8}}` + "\n\n"
	done  = "data: [DONE]\n\n"
)

// good is a whole answer of three tokens.
func good() string {
	return role() + content(0, "Hé", 7, 8) + content(2, "🙂", 9) + finish() + usage + done
}

// interrupted is the error event with the given facts.
func interrupted(code string, delivered int, partial bool) string {
	return fmt.Sprintf(`data: {"error":{"code":%q,"message":"gone","partial_output":%t,"delivered_output_tokens":%d,"retryable":false}}`+"\n\n", code, partial, delivered)
}

// stream serves body once and returns what the client made of it.
func stream(t *testing.T, body string) *client.Transcript {
	t.Helper()
	return streamFrom(t, func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("X-Segue-Session", "abc")
		w.Header().Set("X-Segue-Protection", "sync")
		_, _ = io.WriteString(w, body)
	})
}

func streamFrom(t *testing.T, h http.HandlerFunc) *client.Transcript {
	t.Helper()
	server := httptest.NewServer(h)
	defer server.Close()
	c := client.New(server.URL)
	defer c.Close()
	got, err := c.Stream(t.Context(), client.Call{Body: client.Body{Messages: []client.Message{{Role: "user", Content: "x"}}}})
	if err != nil {
		t.Fatal(err)
	}
	return got
}

func TestClient_AcceptsWholeAnswerInEveryFraming(t *testing.T) {
	for name, body := range map[string]string{
		"lf":       good(),
		"crlf":     strings.ReplaceAll(good(), "\n", "\r\n"),
		"cr":       strings.ReplaceAll(good(), "\n", "\r"),
		"bom":      "\ufeff" + good(),
		"comments": ": hi\n\n" + strings.ReplaceAll(good(), "data: {", ": keep-alive\nretry: 10\ndata: {"),
		"no space": strings.ReplaceAll(good(), "data: ", "data:"),
		"lines":    strings.ReplaceAll(good(), `,"choices"`, "\ndata: ,\"choices\""),
	} {
		t.Run(name, func(t *testing.T) {
			got := stream(t, body)
			if !got.Complete() {
				t.Fatalf("not complete: %s", got.Failure())
			}
			if got.Text() != "Hé🙂" || !slices.Equal(got.Tokens(), []int32{7, 8, 9}) || got.Finish != "length" {
				t.Errorf("got %q %v %q", got.Text(), got.Tokens(), got.Finish)
			}
			if got.Session != "abc" || got.Granted != "sync" || got.Usage.CompletionTokens != 3 {
				t.Errorf("got session %q, protection %q, usage %+v", got.Session, got.Granted, got.Usage)
			}
			if len(got.Chunks) != 2 || got.Chunks[0].Last() != 1 || got.Chunks[1].First != 2 || got.Chunks[1].At.Before(got.Chunks[0].At) {
				t.Errorf("chunks %+v", got.Chunks)
			}
		})
	}
}

func TestClient_ReportsProblems(t *testing.T) {
	for name, c := range map[string]struct{ body, want string }{
		"no role":            {content(0, "a", 1) + finish() + usage + done, "0 role chunks"},
		"two roles":          {role() + role() + content(0, "a", 1) + finish() + usage + done, "2 role chunks"},
		"late role":          {role() + content(0, "a", 1) + role() + finish() + usage + done, "role chunk in mid-stream"},
		"other role":         {event("c1", `{"role":"user"}`, ``) + finish() + usage + done, `role "user"`},
		"second id":          {role() + event("c2", `{}`, ``) + finish() + usage + done, "2 ids"},
		"no id":              {role() + event("", `{}`, ``) + finish() + usage + done, "event without id"},
		"gap":                {role() + content(1, "a", 1) + finish() + usage + done, "token_index 1 instead of 0"},
		"repeat":             {role() + content(0, "a", 1) + content(0, "a", 1) + finish() + usage + done, "token_index 0 instead of 1"},
		"no index":           {role() + event("c1", `{"content":"a"}`, `,"token_ids":[1]`) + finish() + usage + done, "without token_index"},
		"no ids":             {role() + event("c1", `{"content":"a"}`, ``) + finish() + usage + done, "0 token ids where the usage counts 3"},
		"fewer ids":          {strings.Replace(good(), "[7,8]", "[7]", 1), "token_index 2 instead of 1"},
		"no finish":          {role() + content(0, "a", 1) + usage + done, "0 finish reasons"},
		"two finishes":       {role() + finish() + finish() + usage + done, "2 finish reasons"},
		"no done":            {role() + finish() + usage, "0 [DONE]"},
		"two dones":          {good() + done, "[DONE] more than once"},
		"event after done":   {good() + content(3, "b", 2), "event after [DONE]"},
		"text after finish":  {role() + finish() + content(0, "a", 1) + usage + done, "output after the finish"},
		"no usage":           {role() + finish() + done, "no usage"},
		"usage before":       {role() + content(0, "a", 1) + usage + content(1, "b", 2, 3) + finish() + done, "output after the final usage"},
		"usage sum":          {role() + finish() + strings.Replace(usage, "8}", "9}", 1) + done, "does not add up"},
		"error null":         {role() + strings.Replace(content(0, "a", 1), `"object"`, `"error":null,"object"`, 1) + finish() + usage + done, "error member"},
		"bad json":           {role() + "data: {\n\n" + finish() + usage + done, "bad JSON"},
		"object":             {strings.Replace(good(), "chat.completion.chunk", "chat.completion", 1), "object"},
		"cut event":          {strings.TrimSuffix(good(), "\n"), "inside an event"},
		"cut line":           {strings.TrimSuffix(good(), "\n\n"), "inside an event"},
		"empty":              {"", "0 role chunks"},
		"two choices":        {role() + strings.Replace(content(0, "a", 1), `"choices":[{`, `"choices":[{"index":1},{`, 1), "more than one choice"},
		"half character":     {role() + strings.Replace(content(0, "a", 1), `"a"`, `"\ud83d"`, 1) + finish() + usage + done, "part of a character"},
		"invalid utf-8":      {role() + strings.Replace(content(0, "a", 1), `"a"`, "\"\xf0\x9f\"", 1) + finish() + usage + done, "invalid UTF-8"},
		"usage, then error":  {role() + content(0, "a", 1) + usage + interrupted("x", 1, true) + done, "event after the error"},
		"done after error":   {role() + content(0, "a", 1) + interrupted("x", 1, true) + done, "event after the error"},
		"error after finish": {role() + finish() + interrupted("x", 0, false), "error event after the finish"},
		"neither":            {role() + `data: {"id":"c1","object":"chat.completion.chunk","choices":[]}` + "\n\n" + finish() + usage + done, "neither choices nor usage"},
		"long line":          {"data: " + strings.Repeat("x", 5<<20) + "\n\n", "longer than"},
	} {
		t.Run(name, func(t *testing.T) {
			got := stream(t, c.body)
			if got.Complete() {
				t.Fatal("taken as complete")
			}
			if all := strings.Join(got.Problems, "; "); !strings.Contains(all, c.want) {
				t.Errorf("problems %q lack %q", all, c.want)
			}
		})
	}
}

func TestClient_TextMayGoBeforeItsID(t *testing.T) {
	got := stream(t, role()+event("c1", `{"content":" "}`, ``)+content(0, "é", 7, 8, 9)+finish()+usage+done)
	if !got.Complete() || got.Text() != " é" || got.Chunks[0].Last() != -1 || got.Chunks[1].Last() != 2 {
		t.Errorf("%s: %q %+v", got.Failure(), got.Text(), got.Chunks)
	}
}

func TestClient_ReplacementCharacterOfTheModelIsNoProblem(t *testing.T) {
	for _, text := range []string{`"\ufffd"`, `"\uFFFD"`, "\"\ufffd\""} {
		body := role() + strings.Replace(content(0, "a", 1, 2, 3), `"a"`, text, 1) + finish() + usage + done
		if got := stream(t, body); !got.Complete() {
			t.Errorf("%s: %s", text, got.Failure())
		}
	}
}

func TestClient_AbortedConnectionIsAProblem(t *testing.T) {
	got := streamFrom(t, func(w http.ResponseWriter, _ *http.Request) {
		_, _ = io.WriteString(w, role()+content(0, "a", 1))
		w.(http.Flusher).Flush()
		panic(http.ErrAbortHandler)
	})
	if got.Complete() || !strings.Contains(strings.Join(got.Problems, ";"), "transport") {
		t.Errorf("problems %q", got.Problems)
	}
}

func TestClient_RefusalBeforeTheStream(t *testing.T) {
	got := streamFrom(t, func(w http.ResponseWriter, _ *http.Request) {
		w.WriteHeader(http.StatusTooManyRequests)
		_, _ = io.WriteString(w, `{"error":{"code":"no_capacity","message":"full"}}`)
	})
	if got.Status != 429 || got.Err == nil || got.Err.Code != "no_capacity" || got.Complete() {
		t.Errorf("got %d %v", got.Status, got.Err)
	}
	got = streamFrom(t, func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusBadGateway) })
	if got.Err != nil || len(got.Problems) == 0 {
		t.Errorf("an answer without error object passed: %+v", got)
	}
}

func TestClient_CancelledContextIsAnError(t *testing.T) {
	ctx, cancel := context.WithCancelCause(t.Context())
	why := errors.New("enough")
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.WriteString(w, role())
		w.(http.Flusher).Flush()
		cancel(why)
		<-r.Context().Done()
	}))
	defer server.Close()
	c := client.New(server.URL)
	defer c.Close()
	if _, err := c.Stream(ctx, client.Call{}); !errors.Is(err, why) && !errors.Is(err, context.Canceled) {
		t.Errorf("got %v", err)
	}
}

func TestClient_SendsExactlyTheBody(t *testing.T) {
	var got map[string]any
	var path, wish string
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		path, wish = r.URL.Path, r.Header.Get("X-Segue-Protection")
		_ = json.NewDecoder(r.Body).Decode(&got)
		_, _ = io.WriteString(w, `data: {"id":"x","object":"text_completion","choices":[{"index":0,"text":"a","token_ids":[1],"token_index":0,"finish_reason":"stop"}]}`+"\n\n")
		_, _ = io.WriteString(w, `data: {"id":"x","object":"text_completion","choices":[],"usage":{"prompt_tokens":2,"completion_tokens":1,"total_tokens":3}}`+"\n\n"+done)
	}))
	defer server.Close()
	c := client.New(server.URL)
	defer c.Close()
	var chunks int
	tr, err := c.Stream(t.Context(), client.Call{
		Body:       client.Body{Model: "m", PromptIDs: []int32{3, 4}, MaxTokens: 9, Seed: 1 << 52},
		Protection: client.ProtectionAsync,
		OnChunk:    func(client.Chunk) { chunks++ },
	})
	if err != nil || !tr.Complete() || chunks != 1 {
		t.Fatalf("%v, %s, %d chunks", err, tr.Failure(), chunks)
	}
	if path != "/v1/completions" || wish != "async" {
		t.Errorf("path %q, protection %q", path, wish)
	}
	if got["temperature"] != 0.0 || got["return_token_ids"] != true || got["stream"] != true || got["seed"] != float64(1<<52) || got["messages"] != nil {
		t.Errorf("body %v", got)
	}
}

func TestClient_Model(t *testing.T) {
	for body, want := range map[string]string{`{"data":[{"id":"m1"},{"id":"m2"}]}`: "m1", `{"data":[]}`: "", `nonsense`: ""} {
		server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, body) }))
		c := client.New(server.URL)
		got, err := c.Model(t.Context())
		if got != want || (err == nil) != (want != "") {
			t.Errorf("%s: %q, %v", body, got, err)
		}
		c.Close()
		server.Close()
	}
}
