// SPDX-License-Identifier: Apache-2.0
// Copyright The Segue Authors

package engines_test

import (
	"errors"
	"math"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/seguekv/segue/engines"
	"github.com/seguekv/segue/engines/sampling"
	"github.com/seguekv/segue/snapshot"
)

func fieldsOf(t *testing.T, err error) (list []string) {
	t.Helper()
	if err == nil {
		return nil
	}
	all := []error{err}
	if joined, ok := err.(interface{ Unwrap() []error }); ok {
		all = joined.Unwrap()
	}
	for _, e := range all {
		r, ok := errors.AsType[*engines.RequestError](e)
		if !ok {
			t.Fatalf("%v is a %T, want a *RequestError", e, e)
		}
		list = append(list, r.Field)
	}
	return list
}

// plain is a valid request.
func plain() engines.Request {
	return engines.Request{Model: "m", Prompt: engines.Prompt{Text: "hello"}, MaxTokens: 8}
}

func TestRequest_Validate(t *testing.T) {
	text := func(n int) string { return strings.Repeat("x", n) }
	for _, c := range []struct {
		name   string
		change func(r *engines.Request)
		want   []string
	}{
		{"valid", func(r *engines.Request) {}, nil},
		{"no model", func(r *engines.Request) { r.Model = "" }, []string{"model"}},
		{"long model", func(r *engines.Request) { r.Model = text(engines.MaxModelBytes + 1) }, []string{"model"}},
		{"invalid model", func(r *engines.Request) { r.Model = "\xFF" }, []string{"model"}},
		{"no prompt", func(r *engines.Request) { r.Prompt = engines.Prompt{} }, []string{"prompt"}},
		{"empty lists", func(r *engines.Request) {
			r.Prompt = engines.Prompt{Messages: []engines.Message{}, IDs: []int32{}}
		}, []string{"prompt"}},
		{"two prompts", func(r *engines.Request) { r.Prompt.IDs = []int32{1} }, []string{"prompt"}},
		{"ids", func(r *engines.Request) { r.Prompt = engines.Prompt{IDs: []int32{0, math.MaxInt32}} }, nil},
		{"negative ids", func(r *engines.Request) { r.Prompt = engines.Prompt{IDs: []int32{1, -1, -2}} }, []string{"prompt"}},
		{"too many ids", func(r *engines.Request) { r.Prompt = engines.Prompt{IDs: make([]int32, snapshot.MaxTokens+1)} }, []string{"prompt"}},
		{"long text", func(r *engines.Request) { r.Prompt.Text = text(engines.MaxPromptBytes + 1) }, []string{"prompt"}},
		{"longest text", func(r *engines.Request) { r.Prompt.Text = text(engines.MaxPromptBytes) }, nil},
		{"invalid text", func(r *engines.Request) { r.Prompt.Text = "a\xC3" }, []string{"prompt"}},
		{"messages", func(r *engines.Request) {
			r.Prompt = engines.Prompt{Messages: []engines.Message{{Role: "system"}, {Role: "user", Content: "hi"}}}
		}, nil},
		{"bad messages", func(r *engines.Request) {
			r.Prompt = engines.Prompt{Messages: []engines.Message{{Content: "x"}, {Role: text(engines.MaxRoleBytes + 1)}, {Role: "user", Content: "\xFF"}}}
		}, []string{"messages", "messages", "messages"}},
		{"too many messages", func(r *engines.Request) {
			r.Prompt = engines.Prompt{Messages: make([]engines.Message, engines.MaxMessages+1)}
		}, []string{"messages"}},
		{"long messages", func(r *engines.Request) {
			half := engines.Message{Role: "user", Content: text(engines.MaxPromptBytes/2 + 1)}
			r.Prompt = engines.Prompt{Messages: []engines.Message{half, half}}
		}, []string{"messages"}},
		{"max_tokens 0", func(r *engines.Request) { r.MaxTokens = 0; r.MinTokens = 100 }, nil},
		{"negative counts", func(r *engines.Request) { r.MaxTokens, r.MinTokens = -1, -1 }, []string{"max_tokens", "min_tokens"}},
		{"large counts", func(r *engines.Request) { r.MaxTokens, r.MinTokens = snapshot.MaxTokens+1, snapshot.MaxTokens+1 }, []string{"max_tokens", "min_tokens"}},
		{"min above max", func(r *engines.Request) { r.MinTokens = 9 }, []string{"min_tokens"}},
		{"stop strings", func(r *engines.Request) { r.Stop = []string{"a", text(engines.MaxStopBytes)} }, nil},
		{"bad stop strings", func(r *engines.Request) { r.Stop = []string{"", text(engines.MaxStopBytes + 1), "\xC3"} }, []string{"stop", "stop", "stop"}},
		{"too many stop strings", func(r *engines.Request) { r.Stop = make([]string, engines.MaxStops+1) }, []string{"stop"}},
		{"sampling", func(r *engines.Request) { r.Sampling = sampling.Params{Temperature: 3, TopP: 2} }, []string{"temperature", "top_p"}},
		{"everything", func(r *engines.Request) {
			*r = engines.Request{MaxTokens: -1, MinTokens: -1, Stop: []string{""}, Sampling: sampling.Params{TopK: -1}}
		}, []string{"model", "prompt", "max_tokens", "min_tokens", "stop", "top_k"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			r := plain()
			c.change(&r)
			err := r.Validate()
			if d := cmp.Diff(c.want, fieldsOf(t, err)); d != "" {
				t.Errorf("fields (-want +got)\n%s\nerror: %v", d, err)
			}
		})
	}
}
