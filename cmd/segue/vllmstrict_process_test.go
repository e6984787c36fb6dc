// SPDX-License-Identifier: Apache-2.0
// Copyright The Segue Authors

package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"
	"syscall"
	"testing"
	"time"
)

const vllmQuestion = "Count from one to twenty in words."

// vllmLong is a prompt that takes a server a second or more, before which nothing can come.
func vllmLong() string {
	return strings.Repeat("The quick brown fox jumps over the lazy dog. ", 140) + "How many sentences are there?"
}

// ask sends a request to the router.
func (p *vllmPair) ask(ctx context.Context, prompt string, tokens int) vllmAnswer {
	p.t.Helper()
	return readVLLM(p.t, ask(p.t, ctx, "http://"+p.router.listen, prompt, tokens, true), func(int) {})
}

// Through the router an answer is what the server itself gives, with its usage, in both forms.
func TestVLLM_AnswerAndUsage(t *testing.T) {
	p := newVLLMPair(t)
	const tokens = 40
	var direct [2]vllmAnswer
	for i, id := range []string{"u1", "u2"} {
		direct[i] = readVLLM(t, ask(t, t.Context(), p.servers[id].url, vllmQuestion, tokens, true), func(int) {})
		if !direct[i].whole(tokens) {
			t.Fatalf("%s: %v", id, direct[i])
		}
	}
	if direct[0].text != direct[1].text {
		t.Fatalf("the servers differ: %v, %v", direct[0], direct[1])
	}
	got := p.ask(t.Context(), vllmQuestion, tokens)
	if !got.whole(tokens) || got.text != direct[0].text || *got.usage != *direct[0].usage {
		t.Errorf("streamed: %v, want %v", got, direct[0])
	}
	res := ask(t, t.Context(), "http://"+p.router.listen, vllmQuestion, tokens, false)
	b, err := io.ReadAll(res.Body)
	if err != nil {
		t.Fatal(err)
	}
	var whole struct {
		Choices []struct {
			Message struct {
				Content string `json:"content"`
			} `json:"message"`
			Finish string `json:"finish_reason"`
		} `json:"choices"`
		Usage vllmUsage `json:"usage"`
	}
	if err := json.Unmarshal(b, &whole); err != nil || len(whole.Choices) != 1 {
		t.Fatalf("%v: %s", err, b)
	}
	if c := whole.Choices[0]; c.Message.Content != direct[0].text || c.Finish != "length" || whole.Usage != *direct[0].usage {
		t.Errorf("in one piece: %s, want %v", b, direct[0])
	}
	p.clientGone()
}

// clientGone drops a connection in mid-stream: the server works no more for it within a second.
func (p *vllmPair) clientGone() {
	t := p.t
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	var server *vllmServer
	var left time.Time
	readVLLM(t, ask(t, ctx, "http://"+p.router.listen, vllmQuestion, 1500, true), func(n int) {
		if n == 5 {
			server = p.servers[p.session("").Primary]
			if f := server.facts(); f.Engines[0].InFlight != 1 {
				t.Errorf("in flight before the client leaves: %+v", f)
			}
			left = time.Now()
			cancel()
		}
	})
	if server == nil {
		t.Fatal("no answer")
	}
	server.free()
	took := time.Since(left)
	t.Logf("the slot was free %v after the client left", took)
	if took > time.Second {
		t.Errorf("the slot was free after %v, want at most 1 s", took)
	}
	eventually(t, "the session is over", func() error {
		if info := p.session(""); len(info.Attempts) != 1 || info.Attempts[0].Cause != "client_gone" {
			return fmt.Errorf("session %+v", info)
		}
		return nil
	})
}

// A server dies before the first delta: the other one answers, whole and the same. One dies after it: the answer ends in the
// error, with the exact count and without the terminator, and nothing is generated again.
func TestVLLM_Killed(t *testing.T) {
	p := newVLLMPair(t)
	const tokens = 24
	prompt := vllmLong()
	want := p.ask(t.Context(), prompt, tokens)
	if !want.whole(tokens) {
		t.Fatalf("without a kill: %v", want)
	}
	begun := p.session("").Session
	answered := make(chan vllmAnswer, 1)
	go func() { answered <- p.ask(t.Context(), prompt, tokens) }()
	died := p.session(begun).Primary
	p.servers[died].computes(300 * time.Millisecond)
	p.servers[died].kill(syscall.SIGKILL)
	got := <-answered
	info := p.session("")
	if len(info.Attempts) != 2 || info.Attempts[0].Accepted != 0 || info.Attempts[0].Cause == "" || info.Attempts[1].FromIndex != 0 {
		t.Fatalf("the fault came too late, or wasn't one: %+v", info)
	}
	if !got.whole(tokens) || got.text != want.text || *got.usage != *want.usage {
		t.Errorf("killed before the first delta: %v, want %v", got, want)
	}
	t.Logf("killed before the first delta: cause %s, then %s answered", info.Attempts[0].Cause, info.Primary)

	// The survivor's engine dies, its server for HTTP lives on for a while: that ends the stream with an error and [DONE].
	other := p.servers[info.Primary]
	p.interrupted("its engine is killed", func() {
		if err := syscall.Kill(other.process("VLLM::EngineCore"), syscall.SIGKILL); err != nil {
			t.Error(err)
		}
	})
}

// The whole server dies after the first delta, while the other one could answer.
func TestVLLM_KilledAfterTheFirstDelta(t *testing.T) {
	p := newVLLMPair(t)
	p.interrupted("it is killed", func() { p.servers[p.session("").Primary].kill(syscall.SIGKILL) })
}

// interrupted has a server die in mid-stream.
func (p *vllmPair) interrupted(how string, die func()) {
	t := p.t
	t.Helper()
	got := readVLLM(t, ask(t, t.Context(), "http://"+p.router.listen, vllmQuestion, 1000, true), func(n int) {
		if n == 10 {
			die()
		}
	})
	if got.object == nil || got.object.Code != "upstream_decode_interrupted" || !got.object.Partial || got.done != 0 || got.after != 0 || got.finish != "" {
		t.Fatalf("%s: the stream ends with %v", how, got)
	}
	if got.object.Delivered != got.deltas || got.deltas < 10 {
		t.Errorf("%s: %d tokens delivered, the client has %d deltas", how, got.object.Delivered, got.deltas)
	}
	eventually(t, "the session is over", func() error {
		if info := p.session(""); info.Phase != "failed" {
			return errors.New(info.Phase)
		}
		return nil
	})
	if info := p.session(""); len(info.Attempts) != 1 || !info.FirstDeltaSent {
		t.Errorf("%s: session %+v", how, info)
	}
	t.Logf("%s: %v", how, got)
}
