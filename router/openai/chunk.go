// SPDX-License-Identifier: Apache-2.0
// Copyright The Segue Authors

package openai

import "encoding/json"

// Kind is the endpoint a request came by.
type Kind int

// Endpoints.
const (
	Chat Kind = iota
	Completion
)

// Usage counts tokens of a finished request.
type Usage struct {
	PromptTokens     int `json:"prompt_tokens"`
	CompletionTokens int `json:"completion_tokens"`
	TotalTokens      int `json:"total_tokens"`
}

// Tokens are consecutive output ids and the index of the first.
type Tokens struct {
	IDs   []int32
	First int
}

// Envelope is what all chunks of one answer share. It doesn't change during an answer, whatever happens
// upstream. Methods return one line of JSON each and may be called concurrently.
type Envelope struct {
	Kind        Kind
	ID          string
	Model       string
	Created     int64 // Unix seconds
	Fingerprint string
	// IncludeUsage adds "usage": null to every chunk, as the API does when a usage chunk will follow.
	IncludeUsage bool
}

type chunk struct {
	ID          string          `json:"id"`
	Object      string          `json:"object"`
	Created     int64           `json:"created"`
	Model       string          `json:"model"`
	Fingerprint string          `json:"system_fingerprint,omitempty"`
	Choices     []any           `json:"choices"`
	Usage       json.RawMessage `json:"usage,omitempty"`
}

type tokenFields struct {
	IDs   []int32 `json:"token_ids,omitempty"`
	First *int    `json:"token_index,omitempty"`
}

type delta struct {
	Role    string  `json:"role,omitempty"`
	Content *string `json:"content,omitempty"`
}

type chatChoice struct {
	Index        int     `json:"index"`
	Delta        delta   `json:"delta"`
	Logprobs     *bool   `json:"logprobs"`
	FinishReason *string `json:"finish_reason"`
	tokenFields
}

type textChoice struct {
	Text         string  `json:"text"`
	Index        int     `json:"index"`
	Logprobs     *bool   `json:"logprobs"`
	FinishReason *string `json:"finish_reason"`
	tokenFields
}

// Role is the chunk that opens a chat stream; nil for completions, which have none.
func (e *Envelope) Role() []byte {
	if e.Kind != Chat {
		return nil
	}
	var empty string
	return e.chunk(chatChoice{Delta: delta{Role: "assistant", Content: &empty}})
}

// Content is a chunk with text, and with ids when the client asked for them.
func (e *Envelope) Content(text string, t Tokens) []byte {
	if e.Kind == Chat {
		return e.chunk(chatChoice{Delta: delta{Content: &text}, tokenFields: t.fields()})
	}
	return e.chunk(textChoice{Text: text, tokenFields: t.fields()})
}

// Finish is the last chunk with a choice.
func (e *Envelope) Finish(reason string, t Tokens) []byte {
	if e.Kind == Chat {
		return e.chunk(chatChoice{FinishReason: &reason, tokenFields: t.fields()})
	}
	return e.chunk(textChoice{FinishReason: &reason, tokenFields: t.fields()})
}

// Usage is the chunk with no choices that stream_options.include_usage asks for.
func (e *Envelope) Usage(u Usage) []byte {
	c := e.head(streamObject[e.Kind])
	c.Choices, c.Usage = []any{}, encode(u)
	return encode(c)
}

// Whole is the body of an answer that isn't streamed. ids may be nil.
func (e *Envelope) Whole(text, reason string, u Usage, ids []int32) []byte {
	c := e.head(wholeObject[e.Kind])
	f := tokenFields{IDs: ids}
	if e.Kind == Chat {
		c.Choices = []any{wholeChat{Message: message{Role: "assistant", Content: text}, FinishReason: reason, tokenFields: f}}
	} else {
		c.Choices = []any{textChoice{Text: text, FinishReason: &reason, tokenFields: f}}
	}
	c.Usage = encode(u)
	return encode(c)
}

type message struct {
	Role    string  `json:"role"`
	Content string  `json:"content"`
	Refusal *string `json:"refusal"`
}

type wholeChat struct {
	Index        int     `json:"index"`
	Message      message `json:"message"`
	Logprobs     *bool   `json:"logprobs"`
	FinishReason string  `json:"finish_reason"`
	tokenFields
}

var (
	streamObject = [...]string{Chat: "chat.completion.chunk", Completion: "text_completion"}
	wholeObject  = [...]string{Chat: "chat.completion", Completion: "text_completion"}
	idPrefix     = [...]string{Chat: "chatcmpl-", Completion: "cmpl-"}
)

// ResponseID is the id clients see for a session.
func ResponseID(k Kind, session string) string { return idPrefix[k] + session }

func (e *Envelope) head(object string) chunk {
	return chunk{ID: e.ID, Object: object, Created: e.Created, Model: e.Model, Fingerprint: e.Fingerprint}
}

func (e *Envelope) chunk(choice any) []byte {
	c := e.head(streamObject[e.Kind])
	c.Choices = []any{choice}
	if e.IncludeUsage {
		c.Usage = json.RawMessage("null")
	}
	return encode(c)
}

func (t Tokens) fields() tokenFields {
	if len(t.IDs) == 0 {
		return tokenFields{}
	}
	return tokenFields{IDs: t.IDs, First: &t.First}
}

// Models is the body of GET /v1/models.
func Models(names []string, created int64) []byte {
	list := struct {
		Object string  `json:"object"`
		Data   []model `json:"data"`
	}{Object: "list", Data: []model{}}
	for _, n := range names {
		list.Data = append(list.Data, model{ID: n, Object: "model", Created: created, OwnedBy: "segue"})
	}
	return encode(list)
}

// Model is the body of GET /v1/models/{name}.
func Model(name string, created int64) []byte {
	return encode(model{ID: name, Object: "model", Created: created, OwnedBy: "segue"})
}

type model struct {
	ID      string `json:"id"`
	Object  string `json:"object"`
	Created int64  `json:"created"`
	OwnedBy string `json:"owned_by"`
}
