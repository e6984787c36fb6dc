// SPDX-License-Identifier: Apache-2.0
// Copyright The Segue Authors

// Command openai-go is the driver of the official Go library.
//
// It reads one task per line and writes one result per line, as described in ../../matrix/task.go. It is a module of
// its own, so that the library is no dependency of the product. A goroutine per task makes one request.
package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"sync"

	"github.com/openai/openai-go/v3"
	"github.com/openai/openai-go/v3/option"
	"github.com/openai/openai-go/v3/packages/ssestream"
)

type task struct {
	ID         int    `json:"id"`
	BaseURL    string `json:"base_url"`
	APIKey     string `json:"api_key"`
	Endpoint   string `json:"endpoint"`
	Stream     bool   `json:"stream"`
	Model      string `json:"model"`
	Prompt     string `json:"prompt"`
	Tools      bool   `json:"tools"`
	MaxRetries *int   `json:"max_retries"`
	RequestID  string `json:"request_id"`
}

type call struct {
	ID        string `json:"id"`
	Name      string `json:"name"`
	Arguments string `json:"arguments"`
}

type usage struct {
	Prompt     int64 `json:"prompt_tokens"`
	Completion int64 `json:"completion_tokens"`
	Total      int64 `json:"total_tokens"`
}

type failure struct {
	Kind    string          `json:"kind"`
	Class   string          `json:"class"`
	Status  *int            `json:"status"`
	Code    *string         `json:"code"`
	Message string          `json:"message"`
	Body    json.RawMessage `json:"body"`
}

type result struct {
	ID      int      `json:"id"`
	Text    string   `json:"text"`
	Finish  *string  `json:"finish_reason"`
	Calls   []call   `json:"tool_calls"`
	Partial []call   `json:"partial_calls"`
	Usage   *usage   `json:"usage"`
	Chunks  int      `json:"chunks"`
	Error   *failure `json:"error"`
}

func main() {
	if err := serve(context.Background()); err != nil {
		fmt.Fprintln(os.Stderr, "openai-go driver:", err)
		os.Exit(1)
	}
}

func serve(ctx context.Context) error {
	var wg sync.WaitGroup
	defer wg.Wait()
	var mu sync.Mutex // guards standard output
	in := bufio.NewScanner(os.Stdin)
	for in.Scan() {
		var t task
		if err := json.Unmarshal(in.Bytes(), &t); err != nil {
			return fmt.Errorf("read task: %w", err)
		}
		wg.Go(func() {
			r := &result{ID: t.ID}
			if err := ask(ctx, t, r); err != nil {
				r.Error = describe(err)
			}
			if r.Finish == nil || *r.Finish != "tool_calls" {
				r.Partial, r.Calls = r.Calls, nil
			}
			b, err := json.Marshal(r)
			if err != nil {
				fmt.Fprintln(os.Stderr, "openai-go driver:", err)
				return
			}
			mu.Lock()
			defer mu.Unlock()
			_, _ = os.Stdout.Write(append(b, '\n'))
		})
	}
	return in.Err()
}

func ask(ctx context.Context, t task, r *result) error {
	options := []option.RequestOption{
		option.WithBaseURL(t.BaseURL), option.WithAPIKey(t.APIKey), option.WithHeader("X-Request-Id", t.RequestID),
	}
	if t.MaxRetries != nil {
		options = append(options, option.WithMaxRetries(*t.MaxRetries))
	}
	client := openai.NewClient(options...)
	if t.Endpoint == "chat" {
		return chat(ctx, client, t, r)
	}
	return completion(ctx, client, t, r)
}

func completion(ctx context.Context, client openai.Client, t task, r *result) error {
	params := openai.CompletionNewParams{
		Model:  openai.CompletionNewParamsModel(t.Model),
		Prompt: openai.CompletionNewParamsPromptUnion{OfString: openai.String(t.Prompt)},
	}
	if !t.Stream {
		a, err := client.Completions.New(ctx, params)
		if err != nil {
			return err
		}
		r.completion(*a)
		return nil
	}
	params.StreamOptions = openai.ChatCompletionStreamOptionsParam{IncludeUsage: openai.Bool(true)}
	s := client.Completions.NewStreaming(ctx, params)
	defer s.Close()
	for s.Next() {
		r.Chunks++
		r.completion(s.Current())
	}
	return s.Err()
}

func (r *result) completion(a openai.Completion) {
	r.used(a.Usage)
	if len(a.Choices) > 0 {
		r.Text += a.Choices[0].Text
		r.finished(string(a.Choices[0].FinishReason))
	}
}

func chat(ctx context.Context, client openai.Client, t task, r *result) error {
	params := openai.ChatCompletionNewParams{
		Model:    openai.ChatModel(t.Model),
		Messages: []openai.ChatCompletionMessageParamUnion{openai.UserMessage(t.Prompt)},
	}
	if t.Tools {
		params.Tools = []openai.ChatCompletionToolUnionParam{openai.ChatCompletionFunctionTool(openai.FunctionDefinitionParam{
			Name: "get_weather", Description: openai.String("The weather of a city."),
			Parameters: openai.FunctionParameters{"type": "object", "properties": map[string]any{
				"city": map[string]any{"type": "string"},
				"days": map[string]any{"type": "array", "items": map[string]any{"type": "integer"}},
				"unit": map[string]any{"type": "string"},
			}},
		})}
	}
	if !t.Stream {
		a, err := client.Chat.Completions.New(ctx, params)
		if err != nil {
			return err
		}
		r.used(a.Usage)
		if len(a.Choices) > 0 {
			m := a.Choices[0].Message
			r.Text = m.Content
			r.finished(a.Choices[0].FinishReason)
			for _, c := range m.ToolCalls {
				r.Calls = append(r.Calls, call{c.ID, c.Function.Name, c.Function.Arguments})
			}
		}
		return nil
	}
	params.StreamOptions = openai.ChatCompletionStreamOptionsParam{IncludeUsage: openai.Bool(true)}
	s := client.Chat.Completions.NewStreaming(ctx, params)
	defer s.Close()
	for s.Next() {
		r.Chunks++
		r.chunk(s.Current())
	}
	return s.Err()
}

// maxCalls bounds the tool calls of one answer.
const maxCalls = 64

func (r *result) chunk(c openai.ChatCompletionChunk) {
	r.used(c.Usage)
	if len(c.Choices) == 0 {
		return
	}
	d := c.Choices[0].Delta
	r.Text += d.Content
	r.finished(c.Choices[0].FinishReason)
	for _, f := range d.ToolCalls {
		for int64(len(r.Calls)) <= f.Index && len(r.Calls) < maxCalls {
			r.Calls = append(r.Calls, call{})
		}
		if f.Index < int64(len(r.Calls)) {
			r.Calls[f.Index].ID += f.ID
			r.Calls[f.Index].Name += f.Function.Name
			r.Calls[f.Index].Arguments += f.Function.Arguments
		}
	}
}

func (r *result) finished(reason string) {
	if reason != "" {
		r.Finish = &reason
	}
}

func (r *result) used(u openai.CompletionUsage) {
	if u.TotalTokens > 0 {
		r.Usage = &usage{u.PromptTokens, u.CompletionTokens, u.TotalTokens}
	}
}

// describe tells what the library's user can learn from an error.
func describe(err error) *failure {
	f := &failure{Kind: "transport", Class: fmt.Sprintf("%T", err), Message: err.Error()}
	if e, ok := errors.AsType[*openai.Error](err); ok {
		f.Kind, f.Status, f.Code, f.Message, f.Body = "status", &e.StatusCode, &e.Code, e.Message, json.RawMessage(e.RawJSON())
	} else if e, ok := errors.AsType[*ssestream.StreamError](err); ok {
		var event struct {
			Error struct {
				Code    string `json:"code"`
				Message string `json:"message"`
			} `json:"error"`
		}
		var raw struct {
			Error json.RawMessage `json:"error"`
		}
		if json.Unmarshal(e.Event.Data, &event) == nil && json.Unmarshal(e.Event.Data, &raw) == nil {
			f.Kind, f.Code, f.Message, f.Body = "stream", &event.Error.Code, event.Error.Message, raw.Error
		}
	}
	if !json.Valid(f.Body) {
		f.Body = nil
	}
	return f
}
