// SPDX-License-Identifier: Apache-2.0
// Copyright The Segue Authors

package sim

import (
	"fmt"

	"github.com/seguekv/segue/engines"
)

// template describes render's chat template, for the fingerprint.
const template = "{begin}role{endrole}content{end}…{begin}assistant{endrole}"

// render turns a prompt into ids. Different prompts of one kind have different ids: spelling is reversible
// (the pieces of a text's ids join to the text) and the template's control ids are in no text.
func render(p engines.Prompt) ([]int32, error) {
	kinds, size := 0, len(p.Text)
	for _, set := range []bool{len(p.Messages) > 0, p.Text != "", len(p.IDs) > 0} {
		if set {
			kinds++
		}
	}
	if kinds != 1 {
		return nil, &engines.RequestError{Field: "prompt", Reason: "send exactly one of messages, a text and token ids, and not an empty one"}
	}
	if n := len(p.Messages); n > engines.MaxMessages {
		return nil, &engines.RequestError{Field: "messages", Reason: fmt.Sprintf("%d of them, limit %d", n, engines.MaxMessages)}
	}
	for i, m := range p.Messages {
		if m.Role == "" {
			return nil, &engines.RequestError{Field: "messages", Reason: fmt.Sprintf("message %d has no role", i)}
		}
		size += len(m.Role) + len(m.Content)
	}
	if size > engines.MaxPromptBytes {
		return nil, &engines.RequestError{Field: "prompt", Reason: fmt.Sprintf("%d bytes of text, limit %d", size, engines.MaxPromptBytes)}
	}
	for i, id := range p.IDs {
		if id < 0 || id >= vocabulary {
			return nil, &engines.RequestError{Field: "prompt", Reason: fmt.Sprintf("token id %d at %d is outside the vocabulary of %d", id, i, vocabulary)}
		}
	}
	if len(p.IDs) > 0 {
		return p.IDs, nil
	}
	if p.Text != "" {
		return tokenize(nil, p.Text), nil
	}
	var ids []int32
	for _, m := range p.Messages {
		ids = tokenize(append(ids, beginMessage), m.Role)
		ids = tokenize(append(ids, endRole), m.Content)
		ids = append(ids, endMessage)
	}
	ids = tokenize(append(ids, beginMessage), "assistant")
	return append(ids, endRole), nil
}

// tokenize appends the ids that spell s.
func tokenize(ids []int32, s string) []int32 {
	for s != "" {
		switch {
		case len(s) >= 3 && s[0]|s[1]|s[2] < 0x80:
			ids = append(ids, triples+(int32(s[0])<<14|int32(s[1])<<7|int32(s[2])))
			s = s[3:]
		case len(s) >= 2:
			ids = append(ids, pairs+(int32(s[0])<<8|int32(s[1])))
			s = s[2:]
		default:
			ids = append(ids, singles+int32(s[0]))
			s = ""
		}
	}
	return ids
}
