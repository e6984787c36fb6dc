// SPDX-License-Identifier: Apache-2.0
// Copyright The Segue Authors

package client

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"time"
)

// Protection wishes for the X-Segue-Protection header.
const (
	ProtectionOff   = "off"
	ProtectionAsync = "async"
	ProtectionSync  = "sync"
)

// Message is one chat message.
type Message struct {
	Role    string `json:"role"`
	Content string `json:"content"`
}

// Body is the request body. Two calls with equal bodies ask for the same tokens.
type Body struct {
	Model string `json:"model"`
	// Messages makes it a chat completion; otherwise PromptIDs is the prompt of a plain completion.
	Messages  []Message `json:"messages,omitempty"`
	PromptIDs []int32   `json:"prompt,omitempty"`

	MaxTokens         int     `json:"max_tokens"`
	MinTokens         int     `json:"min_tokens,omitempty"`
	IgnoreEOS         bool    `json:"ignore_eos,omitempty"`
	Seed              uint64  `json:"seed"`
	Temperature       float64 `json:"temperature"`
	TopP              float64 `json:"top_p,omitempty"`
	TopK              int     `json:"top_k,omitempty"`
	MinP              float64 `json:"min_p,omitempty"`
	PresencePenalty   float64 `json:"presence_penalty,omitempty"`
	FrequencyPenalty  float64 `json:"frequency_penalty,omitempty"`
	RepetitionPenalty float64 `json:"repetition_penalty,omitempty"`
	// LogitBias maps token ids, in decimal, to what is added to their logits.
	LogitBias map[string]float64 `json:"logit_bias,omitempty"`
	Stop      []string           `json:"stop,omitempty"`
}

// Chat reports whether the body is a chat completion.
func (b Body) Chat() bool { return len(b.Messages) > 0 }

// wireBody adds what every call of this client asks for.
type wireBody struct {
	Body
	Stream         bool          `json:"stream"`
	StreamOptions  streamOptions `json:"stream_options"`
	ReturnTokenIDs bool          `json:"return_token_ids"`
}

type streamOptions struct {
	IncludeUsage bool `json:"include_usage"`
}

// Call is one request. The hooks run on the goroutine that reads the answer; time they take delays its clock.
type Call struct {
	Body Body
	// Protection is the wish for this request; empty sends no header.
	Protection string
	// OnStart is called once, when the response headers are in.
	OnStart func(session string)
	// OnChunk is called for each chunk with text or tokens.
	OnChunk func(Chunk)
}

// Client streams completions from one base address. It is safe for concurrent use.
type Client struct {
	base string
	http *http.Client
}

// New makes a client for a base address such as http://127.0.0.1:8080.
func New(base string) *Client {
	return &Client{base: base, http: &http.Client{Transport: &http.Transport{DisableCompression: true, MaxIdleConnsPerHost: 16}}}
}

// Close gives up kept connections.
func (c *Client) Close() { c.http.CloseIdleConnections() }

// Model is the id of the first model the server lists.
func (c *Client) Model(ctx context.Context) (string, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, c.base+"/v1/models", nil)
	if err != nil {
		return "", fmt.Errorf("list models: %w", err)
	}
	resp, err := c.http.Do(req)
	if err != nil {
		return "", fmt.Errorf("list models: %w", err)
	}
	defer resp.Body.Close()
	var list struct {
		Data []struct {
			ID string `json:"id"`
		} `json:"data"`
	}
	if err := json.NewDecoder(io.LimitReader(resp.Body, maxEvent)).Decode(&list); err != nil {
		return "", fmt.Errorf("list models: %s: %w", resp.Status, err)
	}
	if resp.StatusCode != http.StatusOK || len(list.Data) == 0 {
		return "", fmt.Errorf("list models: %s with %d models", resp.Status, len(list.Data))
	}
	return list.Data[0].ID, nil
}

// Stream sends one request and reads its answer to the end. The error is about the exchange having been impossible;
// everything that a server can answer, however broken, is in the transcript.
func (c *Client) Stream(ctx context.Context, call Call) (*Transcript, error) {
	body, err := json.Marshal(wireBody{Body: call.Body, Stream: true, StreamOptions: streamOptions{true}, ReturnTokenIDs: true})
	if err != nil {
		return nil, fmt.Errorf("encode request: %w", err)
	}
	path := "/v1/completions"
	if call.Body.Chat() {
		path = "/v1/chat/completions"
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, c.base+path, bytes.NewReader(body))
	if err != nil {
		return nil, fmt.Errorf("make request: %w", err)
	}
	req.Header.Set("Content-Type", "application/json")
	if call.Protection != "" {
		req.Header.Set("X-Segue-Protection", call.Protection)
	}
	begun := time.Now()
	resp, err := c.http.Do(req)
	if err != nil {
		return nil, err // names method and address already
	}
	defer resp.Body.Close()
	t := &Transcript{
		Session: resp.Header.Get("X-Segue-Session"),
		Granted: resp.Header.Get("X-Segue-Protection"),
		Status:  resp.StatusCode,
		Begun:   begun,
		chat:    call.Body.Chat(),
	}
	if resp.StatusCode != http.StatusOK {
		t.readRefusal(resp.Body)
		return t, nil
	}
	if call.OnStart != nil {
		call.OnStart(t.Session)
	}
	t.read(resp.Body, call.OnChunk)
	if ctx.Err() != nil {
		return t, fmt.Errorf("read answer: %w", context.Cause(ctx))
	}
	return t, nil
}
