// SPDX-License-Identifier: Apache-2.0
// Copyright The Segue Authors

package router_test

import (
	"testing"
)

func TestRouter_StreamsChat(t *testing.T) {
	bubble(t, "a b", nil, func(t *testing.T, w *world) {
		resp := w.post("/v1/chat/completions", chat(true, `"return_token_ids":true,"stream_options":{"include_usage":true}`))
		tr := w.stream(resp)
		if tr.text != words(0, 5) || tr.finish != "length" || !tr.done || tr.roles != 1 {
			t.Errorf("%s", tr.raw)
		}
		t.Logf("%s", tr.raw)
		t.Logf("%v", resp.Header)
		t.Logf("%+v", w.session(resp))
		t.Logf("%s", w.log)
	})
}
