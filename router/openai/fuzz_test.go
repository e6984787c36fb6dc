// SPDX-License-Identifier: Apache-2.0
// Copyright The Segue Authors

package openai_test

import (
	"encoding/json"
	"errors"
	"testing"

	"github.com/seguekv/segue/internal/invariant"
	"github.com/seguekv/segue/router/openai"
)

// FuzzParse reads arbitrary bodies: an accepted one is a request that engines accept, a refused one has an error that
// clients can read.
func FuzzParse(f *testing.F) {
	f.Add([]byte(chat(`"stop":["a"],"logit_bias":{"1":2},"seed":-3`)), true)
	f.Add([]byte(completion(`[[1,2]]`, `"stream":true,"stream_options":{}`)), false)
	f.Add([]byte(`{"model":"m","prompt":[[]]}`), false)
	f.Add([]byte(`{"model":"m","prompt":["`), false)
	f.Add([]byte(`[`), true)
	f.Fuzz(func(t *testing.T, body []byte, isChat bool) {
		kind := openai.Completion
		if isChat {
			kind = openai.Chat
		}
		var r *openai.Request
		var err error
		if over := invariant.WithinBytes(1<<20+256*len(body), func() { r, err = openai.Parse(kind, body) }); over != nil {
			t.Fatalf("a body of %d bytes: %v", len(body), over)
		}
		if err != nil {
			e, ok := errors.AsType[*openai.Error](err)
			if !ok || e.Status < 400 || e.Status > 499 || e.Message == "" || !json.Valid(e.Body()) {
				t.Errorf("Parse = %#v", err)
			}
			return
		}
		if err := r.Engine.Validate(); err != nil {
			t.Errorf("accepted an invalid request: %v", err)
		}
	})
}
