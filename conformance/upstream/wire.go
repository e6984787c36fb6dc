// SPDX-License-Identifier: Apache-2.0
// Copyright The Segue Authors

package upstream

import (
	"encoding/json"
	"slices"
)

// wire builds the JSON of one answer.
type wire struct {
	chat      bool
	nullError bool
	usage     bool
}

// object is JSON of one object; the maps here always encode.
func object(m map[string]any) []byte {
	b, err := json.Marshal(m)
	if err != nil {
		return []byte(`{"error":{"message":"the script is broken"}}`)
	}
	return b
}

func (w wire) chunk(choices []any, usage any) []byte {
	m := map[string]any{
		"id": "chunk-of-upstream", "object": "text_completion", "created": 1700000000, "model": Model, "choices": choices,
		"x_upstream": map[string]any{"kept": true},
	}
	if w.chat {
		m["object"] = "chat.completion.chunk"
	}
	if usage != nil {
		m["usage"] = usage
	}
	if w.nullError {
		m["error"] = nil
	}
	return object(m)
}

func (w wire) choice(delta map[string]any, finish any) []byte {
	c := map[string]any{"index": 0, "finish_reason": finish}
	if w.chat {
		c["delta"] = delta
	} else {
		text, _ := delta["content"].(string)
		c["text"] = text
	}
	return w.chunk([]any{c}, nil)
}

// role is the first chunk of a chat answer.
func (w wire) role() []byte { return w.choice(map[string]any{"role": "assistant", "content": ""}, nil) }

func (w wire) text(s string) []byte { return w.choice(map[string]any{"content": s}, nil) }

// call is a fragment of the tool call; the first names it.
func (w wire) call(first bool, arguments string) []byte {
	c := map[string]any{"index": 0, "function": map[string]any{"arguments": arguments}}
	if first {
		c["id"], c["type"], c["function"] = CallID, "function", map[string]any{"name": CallName, "arguments": arguments}
	}
	return w.choice(map[string]any{"tool_calls": []any{c}}, nil)
}

func (w wire) finish(reason string) []byte { return w.choice(map[string]any{}, reason) }

func usage(tokens int) map[string]any {
	return map[string]any{"prompt_tokens": PromptTokens, "completion_tokens": tokens, "total_tokens": PromptTokens + tokens}
}

func (w wire) usageChunk(tokens int) []byte { return w.chunk([]any{}, usage(tokens)) }

// failure is an error object as servers write it.
func failure(message string) []byte {
	return object(map[string]any{"error": map[string]any{"message": message, "type": "InternalServerError", "code": 500}})
}

// payloads are the events' data before the ending at a place, or of the whole answer.
func (w wire) payloads(place Place, whole bool) [][]byte {
	var out [][]byte
	if w.chat {
		out = append(out, w.role())
	}
	deltas, pieces := place.deltas(), fragments()
	if !whole {
		deltas, pieces = deltas[:map[Place]int{After: AfterDeltas, InCall: CallDeltas}[place]], pieces[:callFragments]
	}
	for _, d := range deltas {
		out = append(out, w.text(d))
	}
	if place == InCall {
		out = append(out, w.call(true, ""))
		for _, p := range pieces {
			out = append(out, w.call(false, p))
		}
	}
	return out
}

// body is an answer in one piece. cut leaves out the end of the arguments.
func (w wire) body(place Place, finish string, cut bool) []byte {
	m := map[string]any{
		"id": "answer-of-upstream", "object": "text_completion", "created": 1700000000, "model": Model,
		"usage": usage(place.Deltas()), "x_upstream": map[string]any{"kept": true},
	}
	if w.nullError {
		m["error"] = nil
	}
	choice := map[string]any{"index": 0, "finish_reason": finish}
	if !w.chat {
		choice["text"] = place.Text()
		m["choices"] = []any{choice}
		return object(m)
	}
	m["object"] = "chat.completion"
	message := map[string]any{"role": "assistant", "content": place.Text()}
	if place == InCall {
		arguments := CallArguments
		if cut {
			arguments = BegunCall()
		}
		message["tool_calls"] = []any{map[string]any{
			"id": CallID, "type": "function", "function": map[string]any{"name": CallName, "arguments": arguments},
		}}
	}
	choice["message"] = message
	m["choices"] = []any{choice}
	return object(m)
}

// finishReason is that of the whole answer.
func (p Place) finishReason() string {
	if p == InCall {
		return "tool_calls"
	}
	return "stop"
}

// half is the first half of b.
func half(b []byte) []byte { return slices.Clone(b[:len(b)/2]) }
