// SPDX-License-Identifier: Apache-2.0
// Copyright The Segue Authors

package link

import (
	"errors"
	"fmt"
	"strings"

	enginev1 "github.com/seguekv/segue/api/segue/engine/v1"
	seguev1 "github.com/seguekv/segue/api/segue/v1"
	"github.com/seguekv/segue/engines"
)

// maxDetail bounds the text of an end frame.
const maxDetail = 4 << 10

// sentinels are the errors whose identity crosses the link; the detail is the whole text.
func sentinels() []struct {
	reason seguev1.Reason
	err    error
} {
	return []struct {
		reason seguev1.Reason
		err    error
	}{
		{seguev1.Reason_REASON_CANCELLED, engines.ErrCanceled},
		{seguev1.Reason_REASON_NO_CAPACITY, engines.ErrNoCapacity},
		{seguev1.Reason_REASON_GEOMETRY_MISMATCH, engines.ErrState},
		{seguev1.Reason_REASON_NOT_READY, engines.ErrNotReady},
		{seguev1.Reason_REASON_ENGINE_LOST, engines.ErrLost},
	}
}

// endFromError is the end frame of a run whose engine returned err.
//
//	nil                  unspecified      ""
//	*RequestError        invalid_request  field, line feed, reason
//	*PromptTooLongError  prompt_too_long  "<tokens> <limit>"
//	a sentinel           its reason       the text
//	anything else        engine_error     the text
func endFromError(run uint32, err error) *enginev1.End {
	end := &enginev1.End{Run: run}
	if err == nil {
		return end
	}
	if e, ok := errors.AsType[*engines.RequestError](err); ok {
		end.Reason = seguev1.Reason_REASON_INVALID_REQUEST
		end.Detail = detail(strings.ReplaceAll(e.Field, "\n", " ") + "\n" + e.Reason)
		return end
	}
	if e, ok := errors.AsType[*engines.PromptTooLongError](err); ok {
		end.Reason = seguev1.Reason_REASON_PROMPT_TOO_LONG
		end.Detail = fmt.Sprintf("%d %d", e.Tokens, e.Limit)
		return end
	}
	for _, s := range sentinels() {
		if errors.Is(err, s.err) {
			end.Reason, end.Detail = s.reason, detail(err.Error())
			return end
		}
	}
	end.Reason = seguev1.Reason_REASON_ENGINE_ERROR
	if e, ok := errors.AsType[*EngineError](err); ok {
		end.Detail = detail(e.Text)
	} else {
		end.Detail = detail(err.Error())
	}
	return end
}

// errorFromEnd is the inverse of endFromError. A reason it doesn't know is an *EngineError.
func errorFromEnd(end *enginev1.End) error {
	text := detail(end.GetDetail())
	switch end.GetReason() {
	case seguev1.Reason_REASON_UNSPECIFIED:
		if text == "" {
			return nil
		}
	case seguev1.Reason_REASON_INVALID_REQUEST:
		if field, reason, ok := strings.Cut(text, "\n"); ok {
			return &engines.RequestError{Field: field, Reason: reason}
		}
		return &engines.RequestError{Field: "request", Reason: text}
	case seguev1.Reason_REASON_PROMPT_TOO_LONG:
		e := &engines.PromptTooLongError{}
		if _, err := fmt.Sscanf(text, "%d %d", &e.Tokens, &e.Limit); err == nil {
			return e
		}
	case seguev1.Reason_REASON_ENGINE_ERROR:
		return &EngineError{Text: text}
	default:
		for _, s := range sentinels() {
			if s.reason == end.GetReason() {
				return &remoteError{text: text, kind: s.err}
			}
		}
	}
	return &EngineError{Text: fmt.Sprintf("%v: %s", end.GetReason(), text)}
}

// remoteError has the host's text and the identity of a sentinel.
type remoteError struct {
	text string
	kind error
}

func (e *remoteError) Error() string {
	if e.text == "" {
		return e.kind.Error()
	}
	return e.text
}

func (e *remoteError) Unwrap() error { return e.kind }

// detail makes s fit a protobuf string of bounded length.
func detail(s string) string {
	if len(s) > maxDetail {
		s = s[:maxDetail]
	}
	return strings.ToValidUTF8(s, "\uFFFD")
}
