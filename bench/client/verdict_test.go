// SPDX-License-Identifier: Apache-2.0
// Copyright The Segue Authors

package client_test

import (
	"net/http"
	"strings"
	"testing"

	"github.com/seguekv/segue/bench/client"
)

func TestJudge(t *testing.T) {
	const code = client.CodeInterrupted
	reference := stream(t, good())
	prefix := role() + content(0, "Hé", 7, 8)
	for name, c := range map[string]struct {
		body string
		want client.Outcome
	}{
		"equal":                      {good(), client.Identical},
		"equal, other chunks":        {role() + content(0, "H", 7) + content(1, "é🙂", 8, 9) + finish() + usage + done, client.Identical},
		"other id":                   {strings.ReplaceAll(good(), "c1", "c9"), client.Identical},
		"other token":                {strings.Replace(good(), "[9]", "[10]", 1), client.Wrong},
		"other text":                 {strings.Replace(good(), "🙂", "🙁", 1), client.Wrong},
		"other finish":               {strings.Replace(good(), `"length"`, `"stop"`, 1), client.Wrong},
		"other usage":                {strings.Replace(good(), `5,"completion_tokens":3,"total_tokens":8`, `6,"completion_tokens":3,"total_tokens":9`, 1), client.Wrong},
		"shorter":                    {prefix + finish() + usage + done, client.Wrong},
		"longer":                     {prefix + content(2, "🙂", 9) + content(3, "!", 10) + finish() + usage + done, client.Wrong},
		"silent end":                 {prefix, client.Wrong},
		"second role":                {role() + good(), client.Wrong},
		"repeated token":             {prefix + content(1, "", 8) + content(2, "🙂", 9) + finish() + usage + done, client.Wrong},
		"honest end":                 {prefix + interrupted(code, 2, true), client.Refused},
		"honest end after usage":     {prefix + usage + interrupted(code, 2, true), client.Refused},
		"honest end before text":     {interrupted(code, 0, false), client.Refused},
		"honest end after role":      {role() + interrupted(code, 0, false), client.Refused},
		"wrong count":                {prefix + interrupted(code, 3, true), client.Wrong},
		"count missing":              {prefix + `data: {"error":{"code":"` + code + `","partial_output":true}}` + "\n\n", client.Wrong},
		"wrong partial":              {prefix + interrupted(code, 2, false), client.Wrong},
		"error, then done":           {prefix + interrupted(code, 2, true) + done, client.Wrong},
		"error after other text":     {role() + content(0, "X", 7) + interrupted(code, 1, true), client.Wrong},
		"error after other token":    {role() + content(0, "H", 1) + interrupted(code, 1, true), client.Wrong},
		"another error":              {prefix + interrupted("server_error", 2, true), client.Errored},
		"another error, wrong token": {role() + content(0, "H", 1) + interrupted("server_error", 1, true), client.Wrong},
	} {
		t.Run(name, func(t *testing.T) {
			v := client.Judge(stream(t, c.body), reference)
			if v.Outcome != c.want {
				t.Errorf("got %s %q, want %s", v.Outcome, v.Reasons, c.want)
			}
			if (len(v.Reasons) == 0) != (v.Outcome == client.Identical) {
				t.Errorf("outcome %s with reasons %q", v.Outcome, v.Reasons)
			}
		})
	}
}

func TestJudge_RefusedByStatus(t *testing.T) {
	reference := stream(t, good())
	got := streamFrom(t, func(w http.ResponseWriter, _ *http.Request) {
		w.WriteHeader(http.StatusServiceUnavailable)
		_, _ = w.Write([]byte(`{"error":{"code":"no_agent","message":"none"}}`))
	})
	if v := client.Judge(got, reference); v.Outcome != client.Errored {
		t.Errorf("got %s %q", v.Outcome, v.Reasons)
	}
}
