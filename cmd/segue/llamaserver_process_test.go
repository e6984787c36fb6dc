// SPDX-License-Identifier: Apache-2.0
// Copyright The Segue Authors

package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"strings"
	"testing"

	"github.com/seguekv/segue/router"
)

// llamaServer is a real llama-server.
type llamaServer struct {
	url  string
	proc *exec.Cmd
}

func startLlamaServer(t *testing.T, model string) *llamaServer {
	t.Helper()
	path := os.Getenv("SEGUE_LLAMA_SERVER")
	file := os.Getenv("SEGUE_LLAMA_MODEL")
	python, err := exec.LookPath("python3")
	if path == "" || file == "" || err != nil {
		if os.Getenv("SEGUE_REQUIRE_MODEL") != "" && path != "" {
			t.Fatalf("model %q, python3: %v; run: make deps", file, err)
		}
		t.Skip("SKIPPED: no llama-server; run: make test, or set SEGUE_LLAMA_SERVER to the folder that `go run ./tools/deps -only server` fills")
	}
	cmd := exec.CommandContext(t.Context(), python, "testdata/llamaserver.py", file, model)
	cmd.Env = append(os.Environ(), "PYTHONPATH="+path)
	log := &syncBuffer{}
	cmd.Stderr = log
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	})
	line, err := bufio.NewReader(out).ReadString('\n')
	url, ok := strings.CutPrefix(strings.TrimSpace(line), "listening ")
	if err != nil || !ok {
		t.Fatalf("llama-server said %q, %v\n%s", line, err, log.String())
	}
	return &llamaServer{url: url, proc: cmd}
}

// llamaPair is a router before two llama-servers with the same model.
type llamaPair struct {
	t       *testing.T
	servers map[string]*llamaServer
	router  *program
}

func newLlamaPair(t *testing.T) *llamaPair {
	t.Helper()
	slowTest(t)
	t.Parallel()
	p := &llamaPair{t: t, servers: map[string]*llamaServer{}}
	args := []string{"router", "--listen", "127.0.0.1:0", "--admin", "127.0.0.1:0"}
	for _, id := range []string{"u1", "u2"} {
		p.servers[id] = startLlamaServer(t, "small")
		args = append(args, "--upstream", id+"="+p.servers[id].url)
	}
	p.router = start(t, args...)
	eventually(t, "both upstreams are ready", func() error {
		var nodes []struct {
			ID    string `json:"id"`
			Ready bool   `json:"ready"`
		}
		if err := p.router.get("/v1/agents", &nodes); err != nil {
			return err
		}
		for _, n := range nodes {
			if !n.Ready {
				return fmt.Errorf("%s isn't", n.ID)
			}
		}
		return nil
	})
	return p
}

// open begins a greedy stream.
func (p *llamaPair) open(prompt string, tokens int) *http.Response {
	p.t.Helper()
	body, err := json.Marshal(map[string]any{
		"model": "small", "stream": true, "temperature": 0, "seed": 1, "max_tokens": tokens, "cache_prompt": false,
		"messages": []map[string]string{{"role": "user", "content": prompt}},
	})
	if err != nil {
		p.t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(p.t.Context())
	p.t.Cleanup(cancel)
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, "http://"+p.router.listen+"/v1/chat/completions", strings.NewReader(string(body)))
	if err != nil {
		p.t.Fatal(err)
	}
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		p.t.Fatal(err)
	}
	return res
}

// llamaAnswer is what a stream came to.
type llamaAnswer struct {
	text   string
	done   bool
	object struct {
		Code      string `json:"code"`
		Cause     string `json:"cause"`
		Partial   bool   `json:"partial_output"`
		Delivered int    `json:"delivered_output_tokens"`
	}
	deltas int
}

// read takes the whole stream; at is called after each content delta.
func (p *llamaPair) read(res *http.Response, at func(deltas int)) llamaAnswer {
	p.t.Helper()
	defer res.Body.Close()
	var a llamaAnswer
	lines := bufio.NewReader(res.Body)
	for {
		line, err := lines.ReadString('\n')
		if errors.Is(err, io.EOF) {
			return a
		}
		if err != nil {
			p.t.Fatalf("after %d deltas: %v", a.deltas, err)
		}
		data, ok := strings.CutPrefix(strings.TrimSpace(line), "data: ")
		if !ok {
			continue
		}
		if data == "[DONE]" {
			a.done = true
			continue
		}
		var chunk struct {
			Choices []struct {
				Delta struct {
					Content string `json:"content"`
				} `json:"delta"`
			} `json:"choices"`
			Error json.RawMessage `json:"error"`
		}
		if err := json.Unmarshal([]byte(data), &chunk); err != nil {
			p.t.Fatalf("%s: %v", data, err)
		}
		if chunk.Error != nil {
			if err := json.Unmarshal(chunk.Error, &a.object); err != nil {
				p.t.Fatal(err)
			}
		}
		for _, c := range chunk.Choices {
			if c.Delta.Content != "" {
				a.text += c.Delta.Content
				a.deltas++
				at(a.deltas)
			}
		}
	}
}

// session waits until the newest session has begun somewhere.
func (p *llamaPair) session() router.SessionInfo {
	p.t.Helper()
	var info router.SessionInfo
	eventually(p.t, "the session runs", func() error {
		var all []router.SessionInfo
		if err := p.router.get("/v1/sessions", &all); err != nil {
			return err
		}
		if len(all) == 0 || all[0].Primary == "" {
			return errors.New("no session has begun")
		}
		info = all[0]
		return nil
	})
	return info
}

// kill ends the server that the newest session runs on.
func (p *llamaPair) kill() {
	p.t.Helper()
	if err := p.servers[p.session().Primary].proc.Process.Kill(); err != nil {
		p.t.Fatal(err)
	}
}

// A real llama-server dies in mid-stream: the answer ends in the error, and nothing is generated again.
func TestLlamaServer_KilledAfterTheFirstDelta(t *testing.T) {
	p := newLlamaPair(t)
	whole := p.read(p.open("Count from one to ten.", 40), func(int) {})
	if !whole.done || whole.deltas < 10 {
		t.Fatalf("without a kill: %+v", whole)
	}
	got := p.read(p.open("Count from one to ten.", 40), func(n int) {
		if n == 5 {
			p.kill()
		}
	})
	if got.done || got.object.Code != "upstream_decode_interrupted" || !got.object.Partial {
		t.Errorf("the stream ends with %+v", got)
	}
	if got.object.Delivered != got.deltas || !strings.HasPrefix(whole.text, got.text) {
		t.Errorf("delivered %d, got %d deltas %q of %q", got.object.Delivered, got.deltas, got.text, whole.text)
	}
	if info := p.session(); len(info.Attempts) != 1 || !info.FirstDeltaSent || info.Phase != "failed" {
		t.Errorf("%+v", info)
	}
}

// It dies while it reads the prompt: the other one answers, whole.
func TestLlamaServer_KilledBeforeTheFirstDelta(t *testing.T) {
	p := newLlamaPair(t)
	prompt := strings.Repeat("The quick brown fox jumps over the lazy dog. ", 50) + "How many sentences are there?"
	whole := p.read(p.open(prompt, 24), func(int) {})
	if !whole.done {
		t.Fatalf("without a kill: %+v", whole)
	}
	answered := make(chan llamaAnswer, 1)
	begun := p.session().Session
	go func() { answered <- p.read(p.open(prompt, 24), func(int) {}) }()
	eventually(t, "the second session runs", func() error {
		if p.session().Session == begun {
			return errors.New("not yet")
		}
		return nil
	})
	p.kill()
	got := <-answered
	info := p.session()
	if len(info.Attempts) != 2 || info.Attempts[0].FromIndex != 0 || info.Attempts[0].Cause == "" {
		t.Fatalf("the fault came too late: %+v", info)
	}
	if !got.done || got.text != whole.text {
		t.Errorf("got %+v, want %q", got, whole.text)
	}
}
