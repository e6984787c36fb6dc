// SPDX-License-Identifier: Apache-2.0
// Copyright The Segue Authors

package openai

import (
	"errors"
	"strings"

	"github.com/seguekv/segue/engines"
	"github.com/seguekv/segue/engines/sampling"
	"github.com/seguekv/segue/snapshot"
)

// completionTokens is the API's default of max_tokens on /v1/completions. Chat has no default: up to the
// context length.
const completionTokens = 16

// Request is a parsed request body.
type Request struct {
	Kind   Kind
	Engine engines.Request
	// Seeded says that the client gave a seed; without one Engine.Sampling.Seed is 0 and the caller mints it.
	Seeded         bool
	Stream         bool
	IncludeUsage   bool
	ReturnTokenIDs bool
	// Body is the request as it came, when it is passed on as it is; then Engine has no prompt and no sampling.
	Body []byte

	promptBytes int
}

// PromptEstimate is a rough length of the prompt in tokens: exact for token ids, else a token per four bytes.
func (r *Request) PromptEstimate() int {
	p := r.Engine.Prompt
	n := len(p.Text) + r.promptBytes
	for _, m := range p.Messages {
		n += len(m.Content)
	}
	return len(p.IDs) + n/4 + 1
}

// Parse reads the body of a chat or completion request and fills in the API's defaults. The error is
// always an *Error with a 4xx status.
func Parse(kind Kind, body []byte) (*Request, error) {
	raw, err := parseObject(body)
	if err != nil {
		return nil, err
	}
	if err := refuse(raw); err != nil {
		return nil, err
	}
	f := &fields{raw: raw}
	r := &Request{Kind: kind}
	r.Engine.Model = f.str("model")
	if r.Engine.Model == "" {
		f.fail("model", "is required; GET /v1/models lists what is served")
	}
	if kind == Chat {
		r.Engine.Prompt.Messages = f.messages()
	} else {
		r.Engine.Prompt = f.prompt()
	}
	f.limits(r)
	f.sampling(r)
	f.streaming(r)
	if f.err != nil {
		return nil, f.err
	}
	if err := r.Engine.Validate(); err != nil {
		return nil, invalid(err)
	}
	return r, nil
}

// invalid turns what engines.Request.Validate found into one error that names every field.
func invalid(err error) *Error {
	list := []error{err}
	if joined, ok := err.(interface{ Unwrap() []error }); ok {
		list = joined.Unwrap()
	}
	param := ""
	problems := make([]string, 0, len(list))
	for _, e := range list {
		if r, ok := errors.AsType[*engines.RequestError](e); ok {
			if param == "" {
				param = r.Field
			}
			problems = append(problems, r.Field+": "+r.Reason)
			continue
		}
		problems = append(problems, e.Error())
	}
	return Invalid(param, strings.Join(problems, "; "))
}

func (f *fields) limits(r *Request) {
	limit := 0
	if r.Kind == Completion {
		limit = completionTokens
	}
	limit = f.integer("max_tokens", limit, 1, maxTokens)
	if r.Kind == Chat {
		limit = f.integer("max_completion_tokens", limit, 1, maxTokens)
	}
	r.Engine.MaxTokens = min(limit, snapshot.MaxTokens)
	r.Engine.MinTokens = f.integer("min_tokens", 0, 0, snapshot.MaxTokens)
	r.Engine.Stop = f.stop()
	r.Engine.IgnoreEOS = f.boolean("ignore_eos")
}

// maxTokens is what a client may ask for; more than the context holds is cut, not refused.
const maxTokens = 1 << 31

func (f *fields) sampling(r *Request) {
	p := sampling.Params{
		Temperature:       f.float("temperature", 1),
		TopK:              f.topK(),
		TopP:              f.float("top_p", 1),
		MinP:              f.float("min_p", 0),
		RepetitionPenalty: f.float("repetition_penalty", 1),
		PresencePenalty:   f.float("presence_penalty", 0),
		FrequencyPenalty:  f.float("frequency_penalty", 0),
		LogitBias:         f.logitBias(),
	}
	p.Seed, r.Seeded = f.seed("seed")
	r.Engine.Sampling = p
}

// topK reads top_k; -1 means "all" to many clients.
func (f *fields) topK() int {
	k := f.integer("top_k", 0, -1, maxTokens-1)
	return max(k, 0)
}

func (f *fields) streaming(r *Request) {
	r.Stream = f.boolean("stream")
	r.ReturnTokenIDs = f.boolean("return_token_ids")
	var options struct {
		IncludeUsage *bool `json:"include_usage"`
	}
	if !f.decode("stream_options", "an object with include_usage", &options) {
		return
	}
	if !r.Stream {
		f.fail("stream_options", `is only allowed with "stream": true`)
		return
	}
	r.IncludeUsage = options.IncludeUsage != nil && *options.IncludeUsage
}
