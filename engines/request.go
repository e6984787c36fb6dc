// SPDX-License-Identifier: Apache-2.0
// Copyright The Segue Authors

package engines

import (
	"github.com/seguekv/segue/engines/sampling"
)

// Limits of a request, enforced by Validate.
const (
	MaxStops     = 16
	MaxStopBytes = 256
	MaxMessages  = 1024
	// MaxPromptBytes bounds the text of a prompt, all messages together.
	MaxPromptBytes = 8 << 20
)

// Request is one generation, complete: nothing is defaulted below this type.
type Request struct {
	Model    string
	Prompt   Prompt
	Sampling sampling.Params
	// MaxTokens is the largest number of output tokens; 0 = up to the context length.
	MaxTokens int
	// MinTokens makes end-of-generation tokens impossible before that many output tokens.
	MinTokens int
	Stop      []string
	IgnoreEOS bool
}

// Prompt has exactly one field set.
type Prompt struct {
	Messages []Message
	Text     string
	IDs      []int32
}

// Message is one chat message.
type Message struct {
	Role, Content string
}
