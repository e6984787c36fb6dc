// SPDX-License-Identifier: Apache-2.0
// Copyright The Segue Authors

package link_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	enginev1 "github.com/seguekv/segue/api/segue/engine/v1"
	seguev1 "github.com/seguekv/segue/api/segue/v1"
	"github.com/seguekv/segue/engines"
	"github.com/seguekv/segue/engines/link"
)

func TestEnd_ErrorsRoundTrip(t *testing.T) {
	tests := map[string]struct {
		err    error
		reason seguev1.Reason
		is     error // identity that survives
		as     error // equal value that survives
		text   string
	}{
		"ok":               {nil, seguev1.Reason_REASON_UNSPECIFIED, nil, nil, ""},
		"request":          {&engines.RequestError{Field: "top_p", Reason: "is 3: above 1\nreally"}, seguev1.Reason_REASON_INVALID_REQUEST, nil, &engines.RequestError{Field: "top_p", Reason: "is 3: above 1\nreally"}, ""},
		"request, wrapped": {fmt.Errorf("render: %w", &engines.RequestError{Field: "f", Reason: "r"}), seguev1.Reason_REASON_INVALID_REQUEST, nil, &engines.RequestError{Field: "f", Reason: "r"}, ""},
		"request, empty":   {&engines.RequestError{}, seguev1.Reason_REASON_INVALID_REQUEST, nil, &engines.RequestError{}, ""},
		"prompt too long":  {&engines.PromptTooLongError{Tokens: 5000, Limit: 4096}, seguev1.Reason_REASON_PROMPT_TOO_LONG, nil, &engines.PromptTooLongError{Tokens: 5000, Limit: 4096}, ""},
		"no capacity":      {engines.ErrNoCapacity, seguev1.Reason_REASON_NO_CAPACITY, engines.ErrNoCapacity, nil, engines.ErrNoCapacity.Error()},
		"state":            {fmt.Errorf("%w: layer 3 is q8_0", engines.ErrState), seguev1.Reason_REASON_GEOMETRY_MISMATCH, engines.ErrState, nil, "engines: state refused: layer 3 is q8_0"},
		"cancelled":        {fmt.Errorf("%w: %w", engines.ErrCanceled, context.Canceled), seguev1.Reason_REASON_CANCELLED, engines.ErrCanceled, nil, "engines: run cancelled: context canceled"},
		"not ready":        {engines.ErrNotReady, seguev1.Reason_REASON_NOT_READY, engines.ErrNotReady, nil, engines.ErrNotReady.Error()},
		"lost":             {engines.ErrLost, seguev1.Reason_REASON_ENGINE_LOST, engines.ErrLost, nil, engines.ErrLost.Error()},
		"other":            {errors.New("decode failed"), seguev1.Reason_REASON_ENGINE_ERROR, nil, &link.EngineError{Text: "decode failed"}, ""},
		"engine error":     {&link.EngineError{Text: "x"}, seguev1.Reason_REASON_ENGINE_ERROR, nil, &link.EngineError{Text: "x"}, ""},
		"empty text":       {errors.New(""), seguev1.Reason_REASON_ENGINE_ERROR, nil, &link.EngineError{}, ""},
		"not UTF-8":        {errors.New("a\xffb"), seguev1.Reason_REASON_ENGINE_ERROR, nil, &link.EngineError{Text: "a\uFFFDb"}, ""},
		"long":             {errors.New(strings.Repeat("x", 1<<20)), seguev1.Reason_REASON_ENGINE_ERROR, nil, &link.EngineError{Text: strings.Repeat("x", 4<<10)}, ""},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			frame, err := link.EncodeFrame(9, link.EndFromError(7, tt.err), nil)
			if err != nil {
				t.Fatal(err)
			}
			end := &enginev1.End{}
			decodeMessage(t, frame, end)
			if end.GetRun() != 7 || end.GetReason() != tt.reason {
				t.Errorf("end frame %v, want reason %v", end, tt.reason)
			}
			got := link.ErrorFromEnd(end)
			switch {
			case tt.err == nil:
				if got != nil {
					t.Errorf("got %v, want nil", got)
				}
			case tt.as != nil:
				if diff := cmp.Diff(tt.as, got); diff != "" {
					t.Errorf("(-want +got):\n%s", diff)
				}
			default:
				if !errors.Is(got, tt.is) || got.Error() != tt.text {
					t.Errorf("got %v, want %v with text %q", got, tt.is, tt.text)
				}
			}
		})
	}
}

func TestEnd_UnknownReasonIsEngineError(t *testing.T) {
	for _, end := range []*enginev1.End{
		{Reason: 99, Detail: "new"},
		{Reason: seguev1.Reason_REASON_FENCED, Detail: "x"},
		{Reason: seguev1.Reason_REASON_UNSPECIFIED, Detail: "x"},
		{Reason: seguev1.Reason_REASON_PROMPT_TOO_LONG, Detail: "many"},
	} {
		if _, ok := errors.AsType[*link.EngineError](link.ErrorFromEnd(end)); !ok {
			t.Errorf("%v: got %v", end, link.ErrorFromEnd(end))
		}
	}
}
