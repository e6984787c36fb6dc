// SPDX-License-Identifier: Apache-2.0
// Copyright The Segue Authors

package openai

import (
	"encoding/json"
	"fmt"
	"math"
	"strings"

	"github.com/seguekv/segue/engines"
)

// roles that a text chat can have. "developer" is the API's newer name for "system".
var roles = map[string]string{"system": "system", "developer": "system", "user": "user", "assistant": "assistant"}

type wireMessage struct {
	Role         *string         `json:"role"`
	Content      json.RawMessage `json:"content"`
	ToolCalls    json.RawMessage `json:"tool_calls"`
	FunctionCall json.RawMessage `json:"function_call"`
	Audio        json.RawMessage `json:"audio"`
}

func (f *fields) messages() []engines.Message {
	raw, ok := f.get("messages")
	if !ok {
		f.fail("messages", "is required: a non-empty list of {role, content}")
		return nil
	}
	var list []wireMessage
	if err := json.Unmarshal(raw, &list); err != nil {
		f.fail("messages", "must be a list of {role, content} objects")
		return nil
	}
	if len(list) == 0 || len(list) > engines.MaxMessages {
		f.fail("messages", "must have 1 to %d entries, got %d", engines.MaxMessages, len(list))
		return nil
	}
	out := make([]engines.Message, len(list))
	for i, m := range list {
		at := fmt.Sprintf("messages[%d]", i)
		for name, v := range map[string]json.RawMessage{"tool_calls": m.ToolCalls, "function_call": m.FunctionCall, "audio": m.Audio} {
			if v != nil && string(v) != "null" && !empty(v) && f.err == nil {
				f.err = Unsupported(at+"."+name, at+"."+name+": only text messages are supported")
			}
		}
		if m.Role == nil {
			f.fail(at+".role", "is required")
			return nil
		}
		role, known := roles[*m.Role]
		if !known {
			if f.err == nil {
				f.err = Unsupported(at+".role", fmt.Sprintf("%s.role: must be system, developer, user or assistant", at))
			}
			return nil
		}
		out[i] = engines.Message{Role: role, Content: f.content(at+".content", role, m.Content)}
		if f.err != nil {
			return nil
		}
	}
	return out
}

// content reads a string or a list of text parts, which are joined without a separator.
func (f *fields) content(at, role string, raw json.RawMessage) string {
	if raw == nil || string(raw) == "null" {
		if role != "assistant" {
			f.fail(at, "is required")
		}
		return ""
	}
	var s string
	if json.Unmarshal(raw, &s) == nil {
		return s
	}
	var parts []struct {
		Type string  `json:"type"`
		Text *string `json:"text"`
	}
	if err := json.Unmarshal(raw, &parts); err != nil {
		f.fail(at, "must be a string or a list of text parts")
		return ""
	}
	var b strings.Builder
	for i, p := range parts {
		if p.Type != "text" && f.err == nil {
			f.err = Unsupported(fmt.Sprintf("%s[%d]", at, i), fmt.Sprintf("%s[%d]: only parts of type text are supported", at, i))
			return ""
		}
		if p.Text == nil {
			f.fail(fmt.Sprintf("%s[%d].text", at, i), "is required")
			return ""
		}
		b.WriteString(*p.Text)
	}
	return b.String()
}

// prompt reads a string or a list of token ids; a list with one of either counts as that one.
func (f *fields) prompt() engines.Prompt {
	raw, ok := f.get("prompt")
	if !ok {
		f.fail("prompt", "is required: a string or a list of token ids")
		return engines.Prompt{}
	}
	var list []json.RawMessage
	if json.Unmarshal(raw, &list) == nil && len(list) > 0 && (list[0][0] == '"' || list[0][0] == '[') {
		if len(list) > 1 {
			f.fail("prompt", "one prompt per request is supported, got %d", len(list))
			return engines.Prompt{}
		}
		raw = list[0]
	}
	var p engines.Prompt
	if json.Unmarshal(raw, &p.Text) == nil {
		if p.Text == "" {
			f.fail("prompt", "must not be empty")
		}
		return p
	}
	if err := json.Unmarshal(raw, &p.IDs); err != nil {
		f.fail("prompt", "must be a string or a list of token ids")
		return engines.Prompt{}
	}
	if len(p.IDs) == 0 {
		f.fail("prompt", "must not be empty")
	}
	return p
}

// stop reads a string or a list of strings.
func (f *fields) stop() []string {
	raw, ok := f.get("stop")
	if !ok {
		return nil
	}
	var list []string
	var s string
	if json.Unmarshal(raw, &s) == nil {
		list = []string{s}
	} else if err := json.Unmarshal(raw, &list); err != nil {
		f.fail("stop", "must be a string or a list of strings")
		return nil
	}
	return list
}

func (f *fields) logitBias() map[int32]float64 {
	raw := map[string]float64{}
	if !f.decode("logit_bias", "an object of token id to number", &raw) || len(raw) == 0 {
		return nil
	}
	out := make(map[int32]float64, len(raw))
	for k, v := range raw {
		var id int64
		if err := json.Unmarshal([]byte(k), &id); err != nil || id < 0 || id > math.MaxInt32 {
			f.fail("logit_bias", "key %q is not a token id", excerpt(json.RawMessage(k)))
			return nil
		}
		out[int32(id)] = v
	}
	return out
}
