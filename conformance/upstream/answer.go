// SPDX-License-Identifier: Apache-2.0
// Copyright The Segue Authors

package upstream

import "strings"

const (
	// Model is the name of the only model.
	Model = "conformance"
	// CallID is the id that the server gives its tool call.
	CallID = "call_of_upstream"
	// CallName is the called function, CallArguments what it is called with.
	CallName      = "get_weather"
	CallArguments = `{"city":"Zürich","days":[1,2,3],"unit":"celsius"}`
	// AfterDeltas and CallDeltas are how many pieces of text come before the ending at After and InCall.
	AfterDeltas = 3
	CallDeltas  = 2
	// PromptTokens is the usage that the server reports for every prompt.
	PromptTokens = 7
	// callFragments is how many fragments of the arguments come before an ending inside them.
	callFragments = 2
)

// answerDeltas are the pieces of an answer in text: multi-byte letters, a terminator and an event's prefix as text.
func answerDeltas() []string {
	return []string{"Grüße", " to", " all:", " [DONE]", " data: is", " no\n\n", "terminator", " 🙂."}
}

// callText are the pieces of text before a tool call.
func callText() []string { return []string{"Let me", " look."} }

// fragments are the pieces of the tool call's arguments.
func fragments() []string {
	return []string{`{"city":`, `"Zürich","da`, `ys":[1,2,3],`, `"unit":"celsius"}`}
}

// deltas are the pieces of text of the whole answer at a place.
func (p Place) deltas() []string {
	if p == InCall {
		return callText()
	}
	return answerDeltas()
}

// Text is the text of the whole answer.
func (p Place) Text() string { return strings.Join(p.deltas(), "") }

// Deltas is how many pieces of text the whole answer has; usage counts each as a token.
func (p Place) Deltas() int { return len(p.deltas()) }

// Begun is the text that comes before an ending at this place.
func (p Place) Begun() string {
	n := 0
	switch p {
	case After:
		n = AfterDeltas
	case InCall:
		n = CallDeltas
	}
	return strings.Join(p.deltas()[:n], "")
}

// BegunCall is the part of the tool call's arguments that comes before an ending inside it.
func BegunCall() string { return strings.Join(fragments()[:callFragments], "") }
