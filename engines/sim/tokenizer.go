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
	switch {
	case len(p.IDs) > 0:
		for i, id := range p.IDs {
			if id < 0 || id >= vocabulary {
				return nil, &engines.RequestError{Field: "prompt", Reason: fmt.Sprintf("token id %d at index %d is outside the vocabulary of %d", id, i, vocabulary)}
			}
		}
		return p.IDs, nil
	case len(p.Messages) > 0:
		var ids []int32
		for _, m := range p.Messages {
			ids = tokenize(append(ids, beginMessage), m.Role)
			ids = tokenize(append(ids, endRole), m.Content)
			ids = append(ids, endMessage)
		}
		ids = tokenize(append(ids, beginMessage), "assistant")
		return append(ids, endRole), nil
	}
	return tokenize(nil, p.Text), nil
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
