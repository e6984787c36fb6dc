// SPDX-License-Identifier: Apache-2.0
// Copyright The Segue Authors

package openai

import "crypto/sha256"

// ToolCall is one call of a good answer.
type ToolCall struct {
	// ID is the one that the client gets.
	ID, Name string
	// Arguments is their digest.
	Arguments [sha256.Size]byte
}

// ToolCalls lists the tool calls of an answer that was judged to be good, by choice and ordinal. The older function calls,
// which have no id, are not in it.
func (t *Transcript) ToolCalls() []ToolCall {
	var out []ToolCall
	for i := range t.choices {
		for n := range t.choices[i].calls {
			k := &t.choices[i].calls[n]
			out = append(out, ToolCall{
				ID:   CallID(t.rules.Envelope.Tenant, t.rules.Envelope.Session, i, n),
				Name: string(unquoted(inQuotes(k.name))), Arguments: sha256.Sum256(unquoted(inQuotes(k.arguments))),
			})
		}
	}
	return out
}

// FinishReason is the first choice's; empty before its finish.
func (t *Transcript) FinishReason() string {
	if len(t.choices) == 0 {
		return ""
	}
	return t.choices[0].finish
}

// Whole judges and rewrites an answer that isn't streamed, instead of events. The error is an *EndError. What the
// envelope says of usage is about streams only.
func (t *Transcript) Whole(body []byte) (out []byte, u Usage, err error) {
	t.w.whole = true
	t.rules.Limit = len(body) + 1 // It is in memory already.
	if t.err = t.judgeWhole(body); t.err != nil {
		return nil, Usage{}, t.err
	}
	t.done = true
	return t.w.append(nil, &t.c, false), t.c.Usage, nil
}

func (t *Transcript) judgeWhole(body []byte) *EndError {
	if err := t.c.Parse(body); err != nil {
		return malformed(err)
	}
	if t.c.Error != nil {
		return errorEvent(t.c.Error)
	}
	for i := range t.c.Choices {
		if _, _, err := t.judge(i); err != nil {
			return err
		}
	}
	return t.complete()
}

// Whole is Transcript.Whole with no rules but the envelope.
func Whole(body []byte, e Envelope) (out []byte, u Usage, err error) {
	return NewTranscript(Rules{Envelope: e}).Whole(body)
}
