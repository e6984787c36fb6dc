// SPDX-License-Identifier: Apache-2.0
// Copyright The Segue Authors

package openai_test

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/tidwall/gjson"

	"github.com/seguekv/segue/engines/openai"
)

func envelope() openai.Envelope {
	return openai.Envelope{ID: "chatcmpl-ours", Model: "ours", Created: 7, Fingerprint: "fp", Tenant: "t", Session: "s"}
}

// answered is what a client gets of an answer.
type answered struct {
	lines   []string // emitted while it came
	final   []string
	content []bool // of lines
	tokens  int    // of lines
	rest    openai.Final
	err     error
}

func (a *answered) all() []string { return append(append([]string(nil), a.lines...), a.final...) }

// joined is a value of all chunks, joined.
func (a *answered) joined(path string) string {
	var b strings.Builder
	for _, line := range a.all() {
		b.WriteString(gjson.Get(line, path).String())
	}
	return b.String()
}

// count is how many chunks have a value.
func (a *answered) count(path string) int {
	n := 0
	for _, line := range a.all() {
		if v := gjson.Get(line, path); v.Exists() && v.Type != gjson.Null {
			n++
		}
	}
	return n
}

// play judges a stream as the bytes of it come.
func play(t *testing.T, r openai.Rules, stream string) *answered {
	t.Helper()
	return playOn(t, openai.NewTranscript(r), stream)
}

func playOn(t *testing.T, tr *openai.Transcript, stream string) *answered {
	t.Helper()
	p := openai.NewParser(strings.NewReader(stream), 0)
	a := new(answered)
	for {
		e, err := p.Next()
		if err != nil {
			a.err = tr.End(err)
			return a
		}
		step, err := tr.Push(e)
		if err != nil {
			a.err = err
			return a
		}
		if len(step.Emit) > 0 {
			a.lines = append(a.lines, string(step.Emit))
			a.content = append(a.content, step.Content)
			a.tokens += step.Tokens
		} else if step.Content || step.Tokens > 0 {
			t.Errorf("a step without bytes has content or tokens: %+v", step)
		}
		if step.Done {
			a.rest = tr.Final()
			for _, c := range a.rest.Chunks {
				a.final = append(a.final, string(c))
			}
			for _, line := range a.all() {
				if !gjson.Valid(line) || strings.ContainsAny(line, "\r\n") {
					t.Errorf("not one line of JSON: %q", line)
				}
			}
			return a
		}
	}
}

// frames makes a stream of events.
func frames(data ...string) string {
	var b strings.Builder
	for _, d := range data {
		b.WriteString("data: " + d + "\n\n")
	}
	return b.String()
}

func page(t *testing.T, name string) string {
	t.Helper()
	b, err := os.ReadFile(filepath.Join("testdata", name))
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

// ends checks that an answer failed, and how.
func (a *answered) ends(t *testing.T, cause openai.Cause) *openai.EndError {
	t.Helper()
	e, ok := errors.AsType[*openai.EndError](a.err)
	if !ok || e.Cause != cause {
		t.Fatalf("the answer ends with %v, want %s", a.err, cause)
	}
	for _, line := range a.lines {
		for _, f := range gjson.Get(line, "choices.#.finish_reason").Array() {
			if f.String() != "" {
				t.Errorf("a finish was emitted before the end: %s", line)
			}
		}
	}
	if len(a.final) > 0 {
		t.Errorf("a failed answer has a rest: %q", a.final)
	}
	return e
}

func (a *answered) good(t *testing.T) {
	t.Helper()
	if a.err != nil {
		t.Fatalf("the answer fails: %v", a.err)
	}
}
