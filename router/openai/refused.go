// SPDX-License-Identifier: Apache-2.0
// Copyright The Segue Authors

package openai

import (
	"bytes"
	"encoding/json"
	"sort"
)

// refusal is a field that changes the answer's meaning and isn't supported. harmless reports a value that
// asks for nothing; absent and null always do.
type refusal struct {
	reason   string
	harmless func(json.RawMessage) bool
}

const (
	noTools      = "tool calls are not supported"
	noGrammar    = "guided decoding is not supported: its grammar state is not part of a snapshot"
	noLogprobs   = "log probabilities are not supported"
	noAdapters   = "adapters are not supported"
	noMedia      = "only text in and out is supported"
	noChoices    = "one choice per request is supported; send one request per choice"
	noBeam       = "beam search is not supported"
	noTemplate   = "the model's own chat template is used, and cannot be changed by a request"
	noTokenRules = "rules on single tokens other than logit_bias are not supported"
)

// refused is a read-only table.
var refused = map[string]refusal{
	"n":       {noChoices, one},
	"best_of": {noChoices, one},

	"tools":         {noTools, empty},
	"functions":     {noTools, empty},
	"tool_choice":   {noTools, none},
	"function_call": {noTools, none},

	"response_format":            {noGrammar, textFormat},
	"guided_json":                {noGrammar, empty},
	"guided_regex":               {noGrammar, empty},
	"guided_choice":              {noGrammar, empty},
	"guided_grammar":             {noGrammar, empty},
	"guided_decoding_backend":    {noGrammar, empty},
	"guided_whitespace_pattern":  {noGrammar, empty},
	"structured_outputs":         {noGrammar, empty},
	"structural_tag":             {noGrammar, empty},
	"json_schema":                {noGrammar, empty},
	"grammar":                    {noGrammar, empty},
	"regex":                      {noGrammar, empty},
	"ebnf":                       {noGrammar, empty},
	"logprobs":                   {noLogprobs, empty},
	"top_logprobs":               {noLogprobs, zero},
	"prompt_logprobs":            {noLogprobs, empty},
	"n_probs":                    {noLogprobs, zero},
	"echo":                       {"echo is not supported: the answer has output tokens only", empty},
	"suffix":                     {"text after the answer (suffix) is not supported", empty},
	"adapter":                    {noAdapters, empty},
	"adapters":                   {noAdapters, empty},
	"adapter_id":                 {noAdapters, empty},
	"lora":                       {noAdapters, empty},
	"lora_path":                  {noAdapters, empty},
	"lora_request":               {noAdapters, empty},
	"audio":                      {noMedia, empty},
	"modalities":                 {noMedia, textOnly},
	"mm_processor_kwargs":        {noMedia, empty},
	"prompt_embeds":              {noMedia, empty},
	"prediction":                 {"predicted outputs are not supported", empty},
	"web_search_options":         {"web search is not supported", absent},
	"use_beam_search":            {noBeam, empty},
	"beam_width":                 {noBeam, one},
	"length_penalty":             {noBeam, one},
	"chat_template":              {noTemplate, empty},
	"chat_template_kwargs":       {noTemplate, empty},
	"documents":                  {noTemplate, empty},
	"continue_final_message":     {"continuing the last message is not supported", empty},
	"add_generation_prompt":      {"an answer always opens a new assistant message", isTrue},
	"stop_token_ids":             {noTokenRules, empty},
	"bad_words":                  {noTokenRules, empty},
	"allowed_token_ids":          {noTokenRules, empty},
	"logits_processors":          {noTokenRules, empty},
	"mirostat":                   {"this sampler is not supported", zero},
	"typical_p":                  {"this sampler is not supported", one},
	"include_stop_str_in_output": {"a stop string is never part of the answer", empty},
	"add_special_tokens":         {"the tokenizer's own special-token rule is used", isTrue},
	"skip_special_tokens":        {"special tokens have no text in the answer", isTrue},
}

// refuse reports the first unsupported field, by name.
func refuse(raw map[string]json.RawMessage) error {
	names := make([]string, 0, 4)
	for name, v := range raw {
		if r, ok := refused[name]; ok && string(v) != "null" && !r.harmless(v) {
			names = append(names, name)
		}
	}
	if len(names) == 0 {
		return nil
	}
	sort.Strings(names)
	return Unsupported(names[0], names[0]+": "+refused[names[0]].reason)
}

func absent(json.RawMessage) bool { return false }

func empty(v json.RawMessage) bool {
	switch compact(v) {
	case "false", `""`, "[]", "{}":
		return true
	}
	return false
}

func zero(v json.RawMessage) bool {
	var n float64
	return json.Unmarshal(v, &n) == nil && n == 0
}

func one(v json.RawMessage) bool {
	var n float64
	return json.Unmarshal(v, &n) == nil && n == 1
}

func isTrue(v json.RawMessage) bool { return compact(v) == "true" }

func none(v json.RawMessage) bool { return compact(v) == `"none"` || empty(v) }

func textOnly(v json.RawMessage) bool { return compact(v) == `["text"]` || empty(v) }

func textFormat(v json.RawMessage) bool {
	var f struct {
		Type string `json:"type"`
	}
	return json.Unmarshal(v, &f) == nil && f.Type == "text"
}

func compact(v json.RawMessage) string {
	var b bytes.Buffer
	if json.Compact(&b, v) != nil {
		return string(v)
	}
	return b.String()
}
