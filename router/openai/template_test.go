// SPDX-License-Identifier: Apache-2.0
// Copyright The Segue Authors

package openai_test

import (
	"testing"

	"github.com/seguekv/segue/router/openai"
)

// A template writes what the encoder would have written, byte for byte.
func FuzzTemplate(f *testing.F) {
	for _, s := range []string{"", "plain", "\"\\/\b\f\n\r\t\x00\x1f\x7f", "<>&", "Grüße 🙂\u2028\u2029\ufffd", "\u2063segue\u2063", "\xff cut \xe2\x80"} {
		f.Add(s, true, true)
		f.Add(s, false, false)
	}
	f.Fuzz(func(t *testing.T, text string, chat, usage bool) {
		e := &openai.Envelope{Kind: openai.Completion, ID: `id"<`, Model: "m\u2063segue\u2063/\n", Created: 5, Fingerprint: "fp", IncludeUsage: usage}
		if chat {
			e.Kind = openai.Chat
		}
		if got, want := string(e.Template().Append(nil, []byte(text))), string(e.Content(text, openai.Tokens{})); got != want {
			t.Errorf("%q, want %q", got, want)
		}
	})
}

func TestTemplate_AllocatesNothing(t *testing.T) {
	tmpl := (&openai.Envelope{ID: "chatcmpl-1", Model: "m"}).Template()
	buf, text := make([]byte, 0, 4096), []byte("a \"quoted\" word\n")
	if n := testing.AllocsPerRun(100, func() { buf = tmpl.Append(buf[:0], text) }); n != 0 {
		t.Errorf("%v allocations", n)
	}
}
