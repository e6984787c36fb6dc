// SPDX-License-Identifier: Apache-2.0
// Copyright The Segue Authors

package openai_test

import (
	"strings"
	"testing"

	"github.com/seguekv/segue/engines/openai"
)

const (
	typical = `{"id":"chatcmpl-9f1c0d2e3f4a5b6c7d8e9f00","object":"chat.completion.chunk","created":1796001543,"model":"m","choices":[{"index":0,"delta":{"content":" Paris"},"logprobs":null,"finish_reason":null,"token_ids":null}],"usage":{"prompt_tokens":31,"total_tokens":35,"completion_tokens":4}}`
	calling = `{"id":"chatcmpl-9f1c0d2e3f4a5b6c7d8e9f00","object":"chat.completion.chunk","created":1796001543,"model":"m","choices":[{"index":0,"delta":{"tool_calls":[{"index":0,"function":{"arguments":"{}"}}]},"logprobs":null,"finish_reason":null}]}`
)

// steady is a rewriter whose role and call are written.
func steady(tb testing.TB) *openai.Rewriter {
	tb.Helper()
	w := openai.NewRewriter(envelope())
	for _, c := range []string{role, opened} {
		if _, err := w.Append(nil, []byte(c)); err != nil {
			tb.Fatal(err)
		}
	}
	return w
}

func TestRewriter_DoesNotAllocate(t *testing.T) {
	for _, chunk := range []string{typical, calling} {
		w := steady(t)
		in, out := []byte(chunk), make([]byte, 0, 4096)
		if n := testing.AllocsPerRun(100, func() { out, _ = w.Append(out[:0], in) }); n > 0 {
			t.Errorf("%v allocations for %s", n, chunk)
		}
	}
}

func TestTranscript_DoesNotAllocate(t *testing.T) {
	tr := openai.NewTranscript(openai.Rules{Envelope: envelope()})
	p := openai.NewParser(&forever{text: "data: " + typical + "\n\n: keep-alive\n\n"}, 0)
	step := func() {
		for range 2 {
			e, err := p.Next()
			if err != nil {
				t.Fatal(err)
			}
			if _, err := tr.Push(e); err != nil {
				t.Fatal(err)
			}
		}
	}
	if n := testing.AllocsPerRun(1000, step); n > 0 {
		t.Errorf("%v allocations per event", n)
	}
}

func BenchmarkParser(b *testing.B) {
	for name, text := range map[string]string{
		"lf": "data: " + typical + "\n\n", "crlf": "data: " + typical + "\r\n\r\n", "cr": "data: " + typical + "\r\r", "mebibyte": "data: " + strings.Repeat("x", 1<<20) + "\n\n",
	} {
		b.Run(name, func(b *testing.B) {
			p := openai.NewParser(&forever{text: text}, 0)
			b.SetBytes(int64(len(text)))
			b.ReportAllocs()
			for b.Loop() {
				if _, err := p.Next(); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

func BenchmarkChunk(b *testing.B) {
	var c openai.Chunk
	in := []byte(typical)
	b.SetBytes(int64(len(in)))
	b.ReportAllocs()
	for b.Loop() {
		if err := c.Parse(in); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkRewriter(b *testing.B) {
	for name, chunk := range map[string]string{"text": typical, "call": calling} {
		b.Run(name, func(b *testing.B) {
			w := steady(b)
			in, out := []byte(chunk), make([]byte, 0, 4096)
			b.SetBytes(int64(len(in)))
			b.ReportAllocs()
			for b.Loop() {
				out, _ = w.Append(out[:0], in)
			}
		})
	}
}

// BenchmarkTranscript is the whole way of one event: parse, judge, rewrite.
func BenchmarkTranscript(b *testing.B) {
	tr := openai.NewTranscript(openai.Rules{Envelope: envelope()})
	text := "data: " + typical + "\n\n"
	p := openai.NewParser(&forever{text: text}, 0)
	b.SetBytes(int64(len(text)))
	b.ReportAllocs()
	for b.Loop() {
		e, err := p.Next()
		if err != nil {
			b.Fatal(err)
		}
		if _, err := tr.Push(e); err != nil {
			b.Fatal(err)
		}
	}
}
