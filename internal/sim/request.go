// SPDX-License-Identifier: Apache-2.0
// Copyright The Segue Authors

package sim

import (
	"context"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"strings"

	"github.com/seguekv/segue/engines"
	enginesim "github.com/seguekv/segue/engines/sim"
	"github.com/seguekv/segue/router/openai"
)

// Request is what a client asks for. Its zero value but for Label, PromptWords and MaxTokens is a plain greedy completion.
type Request struct {
	// Label is the sampling seed; the prompt follows from it too. Give each request of a world its own, below 1<<53:
	// moments name requests by it.
	Label       uint64
	Chat        bool
	Stream      bool
	PromptWords int
	MaxTokens   int
	IgnoreEOS   bool
	Temperature float64
	TopK        int
	TopP        float64
	Presence    float64
	Frequency   float64
	Repetition  float64
	Stop        []string
	// Protection is the header's value.
	Protection string
}

type requestMessage struct {
	Role    string `json:"role"`
	Content string `json:"content"`
}

type requestBody struct {
	Model         string           `json:"model"`
	Messages      []requestMessage `json:"messages,omitempty"`
	Prompt        string           `json:"prompt,omitempty"`
	Stream        bool             `json:"stream"`
	StreamOptions any              `json:"stream_options,omitempty"`
	TokenIDs      bool             `json:"return_token_ids"`
	MaxTokens     int              `json:"max_tokens"`
	IgnoreEOS     bool             `json:"ignore_eos,omitempty"`
	Seed          uint64           `json:"seed"`
	Temperature   float64          `json:"temperature"`
	TopK          int              `json:"top_k,omitempty"`
	TopP          float64          `json:"top_p,omitempty"`
	Presence      float64          `json:"presence_penalty,omitempty"`
	Frequency     float64          `json:"frequency_penalty,omitempty"`
	Repetition    float64          `json:"repetition_penalty,omitempty"`
	Stop          []string         `json:"stop,omitempty"`
}

// prompt is words that follow from the label.
func (r Request) prompt() string {
	words := strings.Fields("the a of sea wind stone river quiet night light über naïve 東京 🙂 walks sings turns over under never again soft bright")
	rng := rand.New(rand.NewPCG(r.Label, 7))
	out := make([]string, max(r.PromptWords, 1))
	for i := range out {
		out[i] = words[rng.IntN(len(words))]
	}
	return strings.Join(out, " ")
}

// Body is the HTTP request's.
func (r Request) Body() []byte {
	b := requestBody{
		Model: "sim", Stream: r.Stream, TokenIDs: true, MaxTokens: r.MaxTokens, IgnoreEOS: r.IgnoreEOS, Seed: r.Label,
		Temperature: r.Temperature, TopK: r.TopK, TopP: r.TopP, Presence: r.Presence, Frequency: r.Frequency,
		Repetition: r.Repetition, Stop: r.Stop,
	}
	if r.Stream {
		b.StreamOptions = map[string]bool{"include_usage": true}
	}
	if r.Chat {
		b.Messages = []requestMessage{{"user", r.prompt()}}
	} else {
		b.Prompt = r.prompt()
	}
	body, err := json.Marshal(b)
	if err != nil {
		panic("sim: encode request: " + err.Error()) // strings and numbers only
	}
	return body
}

func (r Request) path() string {
	if r.Chat {
		return "/v1/chat/completions"
	}
	return "/v1/completions"
}

// Engine is the request as the router passes it on.
func (r Request) Engine() (engines.Request, error) {
	kind := openai.Completion
	if r.Chat {
		kind = openai.Chat
	}
	p, err := openai.Parse(kind, r.Body())
	if err != nil {
		return engines.Request{}, fmt.Errorf("parse request %d: %w", r.Label, err)
	}
	return p.Engine, nil
}

// Reference is what an undisturbed run yields.
type Reference struct {
	PromptIDs []int32
	IDs       []int32
	// Text is what was released; Whole[i] is how many bytes of it complete token i, TextEnd[i] how many were released
	// with it.
	Text           string
	Whole, TextEnd []int
	Finish         string
}

// Refer computes the reference of a request on an engine of its own that takes no time.
func Refer(shape enginesim.Config, r Request) (*Reference, error) {
	shape.Step, shape.PrefillToken, shape.Contexts = 0, 0, 1
	e, err := enginesim.New(shape)
	if err != nil {
		return nil, err
	}
	req, err := r.Engine()
	if err != nil {
		return nil, err
	}
	ref := &Reference{}
	if err := e.Run(context.Background(), engines.Job{Request: req}, (*referenceSink)(ref)); err != nil {
		return nil, fmt.Errorf("compute reference of %d: %w", r.Label, err)
	}
	return ref, nil
}

type referenceSink Reference

func (s *referenceSink) Prompt(ids []int32) error {
	s.PromptIDs = append(s.PromptIDs, ids...)
	return nil
}

func (s *referenceSink) Prefilled(int, int, []byte) error { return nil }

func (s *referenceSink) Token(t engines.Token) error {
	s.IDs = append(s.IDs, t.ID)
	s.Text += string(t.Text)
	s.Whole = append(s.Whole, t.RawEnd)
	s.TextEnd = append(s.TextEnd, t.TextEnd)
	s.Finish = string(t.Finish)
	return nil
}
