// SPDX-License-Identifier: Apache-2.0
// Copyright The Segue Authors

package openai_test

import (
	"errors"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/tidwall/gjson"

	"github.com/seguekv/segue/engines/openai"
)

func TestPrepare_Bytes(t *testing.T) {
	stream, whole := openai.Options{Stream: true}, openai.Options{}
	for _, c := range []struct {
		name, in, want string
		o              openai.Options
	}{
		{"stays but for the model", `{ "model" : "a", "messages":[ {"content":"\u00e9"} ], "x":1.0e2, "stream":true,"stream_options":{"include_usage":true}}`,
			`{ "model" : "up", "messages":[ {"content":"\u00e9"} ], "x":1.0e2, "stream":true,"stream_options":{"include_usage":true}}`, stream},
		{"added", `{"x":1}`, `{"x":1,"model":"up","stream":true,"stream_options":{"include_usage":true}}`, stream},
		{"added to nothing", ` {} `, ` {"model":"up","stream":false} `, whole},
		{"forced on", `{"model":"a","stream":false,"stream_options":{"include_usage":false,"y":[1, 2]}}`, `{"model":"up","stream":true,"stream_options":{"include_usage":true,"y":[1, 2]}}`, stream},
		{"forced off", `{"model":"a","stream":true,"stream_options":{"include_usage":true},"x":1}`, `{"model":"up","stream":false,"x":1}`, whole},
		{"options first", `{ "stream_options":{},  "x":1,"model":"a","stream":1}`, `{"x":1,"model":"up","stream":false}`, whole},
		{"options alone", `{"stream_options":null}`, `{"model":"up","stream":false}`, whole},
		{"options null", `{"model":"a","stream_options":null}`, `{"model":"up","stream_options":{"include_usage":true},"stream":true}`, stream},
		{"options twice: the last counts", `{"stream_options":{"a":1},"x":1,"stream_options":{"b":2}}`, `{"stream_options":{"b":2,"include_usage":true},"x":1,"model":"up","stream":true}`, stream},
		{"model twice", `{"model":"a","x":1,"model":"b","model":"c"}`, `{"model":"up","x":1,"stream":false}`, whole},
		{"continuous", `{"model":"a"}`, `{"model":"up","stream":true,"stream_options":{"include_usage":true,"continuous_usage_stats":true}}`, openai.Options{Stream: true, ContinuousUsage: true}},
		{"key with an escape", `{"mod\u0065l":"a"}`, `{"mod\u0065l":"up","stream":false}`, whole},
	} {
		t.Run(c.name, func(t *testing.T) {
			got, err := openai.Prepare([]byte(c.in), "up", c.o)
			if d := cmp.Diff(c.want, string(got)); d != "" || err != nil {
				t.Errorf("%v (-want +got):\n%s", err, d)
			}
			again, err := openai.Prepare(got, "up", c.o)
			if d := cmp.Diff(string(got), string(again)); d != "" || err != nil {
				t.Errorf("not stable: %v\n%s", err, d)
			}
		})
	}
	if got, err := openai.Prepare([]byte(`{}`), `a"b`, whole); err != nil || gjson.GetBytes(got, "model").String() != `a"b` {
		t.Errorf("%s, %v", got, err)
	}
}

func TestPrepare_RefusesWhatIsNoObject(t *testing.T) {
	for _, in := range []string{"", "[]", "{", `{"a":}`, `{"a":1,}`, `{}{}`, `{"model"}`, "null", `{"a":1 "b":2}`, `{"stream_options":{"a"}}`} {
		for _, o := range []openai.Options{{}, {Stream: true}} {
			if got, err := openai.Prepare([]byte(in), "m", o); !errors.Is(err, openai.ErrBadBody) || got != nil {
				t.Errorf("%q: %q, %v", in, got, err)
			}
		}
	}
}
