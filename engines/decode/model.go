// SPDX-License-Identifier: Apache-2.0
// Copyright The Segue Authors

package decode

import (
	"github.com/seguekv/segue/engines"
	"github.com/seguekv/segue/engines/sampling"
	"github.com/seguekv/segue/snapshot"
)

// Model is what the token loop needs of an engine: one context of it, used by one goroutine at a time.
type Model interface {
	// Render turns a prompt into ids: chat template and tokenizer, raw text, or given ids, which it checks
	// against the vocabulary. Its errors are *engines.RequestError.
	Render(p engines.Prompt) ([]int32, error)
	// Piece is the text of an id, possibly a fragment of a character.
	Piece(id int32) []byte
	// EOG reports whether id ends a generation.
	EOG(id int32) bool
	// Prefill computes positions [first, first+len(ids)); last says that the logits of the final one are wanted.
	Prefill(ids []int32, first int, last bool) error
	// Step computes one position.
	Step(id int32, pos int) error
	// Logits are those of the last computed position, valid until the next compute call.
	Logits() sampling.Logits
	// Capture writes the rows of positions [first, first+count) in canonical layout into dst, which has
	// count*RowBytes bytes.
	Capture(first, count int, dst []byte) error
	// Load empties the context and puts exactly the state's rows into it. It computes nothing.
	Load(s *snapshot.State) error
	// Reset empties the context.
	Reset() error
}
