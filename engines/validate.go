// SPDX-License-Identifier: Apache-2.0
// Copyright The Segue Authors

package engines

import (
	"errors"
	"fmt"
	"unicode/utf8"

	"github.com/seguekv/segue/engines/sampling"
	"github.com/seguekv/segue/snapshot"
)

// Limits of names in a request, in bytes.
const (
	MaxModelBytes = 256
	MaxRoleBytes  = 64
)

// Validate reports everything that is wrong with the request by itself, a *RequestError each, joined. What
// depends on a model (vocabulary, context length) is the engine's to check.
func (r Request) Validate() error {
	var errs []error
	add := func(field, format string, args ...any) {
		errs = append(errs, &RequestError{Field: field, Reason: fmt.Sprintf(format, args...)})
	}
	switch n := len(r.Model); {
	case n == 0:
		add("model", "is empty, name a model that /v1/models lists")
	case n > MaxModelBytes:
		add("model", "has %d bytes, limit %d", n, MaxModelBytes)
	case !utf8.ValidString(r.Model):
		add("model", "is not valid UTF-8")
	}
	r.Prompt.validate(add)
	if r.MaxTokens < 0 || r.MaxTokens > snapshot.MaxTokens {
		add("max_tokens", "must be between 0 (up to the context length) and %d, is %d", snapshot.MaxTokens, r.MaxTokens)
	}
	if r.MinTokens < 0 || r.MinTokens > snapshot.MaxTokens {
		add("min_tokens", "must be between 0 and %d, is %d", snapshot.MaxTokens, r.MinTokens)
	} else if r.MaxTokens > 0 && r.MinTokens > r.MaxTokens {
		add("min_tokens", "is %d, more than max_tokens %d", r.MinTokens, r.MaxTokens)
	}
	if n := len(r.Stop); n > MaxStops {
		add("stop", "has %d strings, limit %d", n, MaxStops)
	} else {
		for i, s := range r.Stop {
			switch {
			case s == "":
				add("stop", "string %d is empty", i)
			case len(s) > MaxStopBytes:
				add("stop", "string %d has %d bytes, limit %d", i, len(s), MaxStopBytes)
			case !utf8.ValidString(s):
				add("stop", "string %d is not valid UTF-8", i)
			}
		}
	}
	errs = append(errs, samplingErrors(r.Sampling.Validate())...)
	return errors.Join(errs...)
}

func (p Prompt) validate(add func(field, format string, args ...any)) {
	set := 0
	for _, is := range []bool{len(p.Messages) > 0, p.Text != "", len(p.IDs) > 0} {
		if is {
			set++
		}
	}
	switch {
	case set == 0:
		add("prompt", "is empty, give messages, a text or token ids")
	case set > 1:
		add("prompt", "has more than one of messages, text and token ids")
	}
	if n := len(p.Messages); n > MaxMessages {
		add("messages", "has %d messages, limit %d", n, MaxMessages)
	} else {
		bytes := 0
		for i, m := range p.Messages {
			bytes += len(m.Content)
			switch {
			case m.Role == "":
				add("messages", "message %d has no role", i)
			case len(m.Role) > MaxRoleBytes:
				add("messages", "role of message %d has %d bytes, limit %d", i, len(m.Role), MaxRoleBytes)
			case !utf8.ValidString(m.Role) || !utf8.ValidString(m.Content):
				add("messages", "message %d is not valid UTF-8", i)
			}
		}
		if bytes > MaxPromptBytes {
			add("messages", "have %d bytes of text, limit %d", bytes, MaxPromptBytes)
		}
	}
	if n := len(p.Text); n > MaxPromptBytes {
		add("prompt", "has %d bytes, limit %d", n, MaxPromptBytes)
	} else if !utf8.ValidString(p.Text) {
		add("prompt", "is not valid UTF-8")
	}
	if n := len(p.IDs); n > snapshot.MaxTokens {
		add("prompt", "has %d token ids, limit %d", n, snapshot.MaxTokens)
		return
	}
	for i, id := range p.IDs {
		if id < 0 {
			add("prompt", "token id %d at index %d is negative", id, i)
			return
		}
	}
}

// samplingErrors turns the joined errors of the parameters into request errors.
func samplingErrors(err error) []error {
	if err == nil {
		return nil
	}
	all := []error{err}
	if joined, ok := err.(interface{ Unwrap() []error }); ok {
		all = joined.Unwrap()
	}
	list := make([]error, len(all))
	for i, e := range all {
		list[i] = e
		if p, ok := errors.AsType[*sampling.ParamError](e); ok {
			list[i] = &RequestError{Field: p.Field, Reason: p.Reason}
		}
	}
	return list
}
