// SPDX-License-Identifier: Apache-2.0
// Copyright The Segue Authors

package openai_test

import (
	"encoding/json"
	"strconv"
	"strings"
	"testing"

	"github.com/tidwall/gjson"
	"pgregory.net/rapid"

	"github.com/seguekv/segue/engines/openai"
)

// drawObject makes an object of the given members in any order, some twice, with white space anywhere.
func drawObject(t *rapid.T, label string, member func(key string) string, keys ...string) string {
	space := rapid.SampledFrom([]string{"", "", "", " ", "\n", "\t "})
	picked := rapid.SliceOfN(rapid.SampledFrom(keys), 0, 6).Draw(t, label)
	var b strings.Builder
	b.WriteString("{" + space.Draw(t, "space"))
	for i, key := range picked {
		if i > 0 {
			b.WriteString("," + space.Draw(t, "space"))
		}
		b.WriteString(strconv.Quote(key) + space.Draw(t, "space") + ":" + space.Draw(t, "space") + member(key) + space.Draw(t, "space"))
	}
	b.WriteString("}")
	return b.String()
}

func drawChunk(t *rapid.T) string {
	any := rapid.SampledFrom([]string{"null", `"x"`, `""`, "1", "[]", "{}", `{"id":[1,{"error":null}]}`, `"}],"`, `"\""`})
	of := func(values ...string) string { return rapid.SampledFrom(values).Draw(t, "value") }
	function := func() string {
		return drawObject(t, "function", func(k string) string {
			if k == "other" {
				return any.Draw(t, "any")
			}
			return of("null", `""`, `"f"`, `"{\"a\":"`)
		}, "name", "arguments", "other")
	}
	call := func() string {
		return drawObject(t, "call", func(k string) string {
			switch k {
			case "index":
				return of("0", "1", "null")
			case "id":
				return of("null", `""`, `"x"`, `"y"`)
			case "function":
				return function()
			}
			return any.Draw(t, "any")
		}, "index", "id", "function", "other")
	}
	delta := func() string {
		return drawObject(t, "delta", func(k string) string {
			switch k {
			case "role":
				return of("null", `"assistant"`, `""`)
			case "tool_calls":
				return of("null", "[]", "["+call()+"]", "["+call()+","+call()+"]")
			case "function_call":
				return of("null", function())
			}
			return any.Draw(t, "any")
		}, "role", "content", "tool_calls", "function_call", "other")
	}
	choice := func() string {
		return drawObject(t, "choice", func(k string) string {
			switch k {
			case "index":
				return of("0", "1")
			case "delta":
				return of("null", delta())
			case "finish_reason":
				return "null"
			}
			return any.Draw(t, "any")
		}, "index", "delta", "finish_reason", "text", "other")
	}
	return drawObject(t, "top", func(k string) string {
		if k == "choices" {
			return of("null", "[]", "["+choice()+"]", "["+choice()+","+choice()+"]")
		}
		if k == "error" {
			return "null"
		}
		return any.Draw(t, "any")
	}, "id", "created", "model", "system_fingerprint", "usage", "error", "choices", "other")
}

// TestRewriter_Property: whatever the shape, the result is one line of JSON with our envelope once, other members stay, no choice
// gets a second role, and no call a second id.
func TestRewriter_Property(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		e := envelope()
		e.IncludeUsage = rapid.Bool().Draw(rt, "usage")
		if rapid.Bool().Draw(rt, "no fingerprint") {
			e.Fingerprint = ""
		}
		w := openai.NewRewriter(e)
		roles, ids := map[int64]int{}, map[string]int{}
		for range rapid.IntRange(1, 4).Draw(rt, "chunks") {
			in := drawChunk(rt)
			out, err := w.Append(nil, []byte(in))
			if err != nil {
				if !json.Valid([]byte(in)) {
					rt.Fatalf("the test makes no JSON: %s", in)
				}
				continue // A shape that is refused, such as a list of calls twice.
			}
			if !json.Valid(out) || strings.ContainsAny(string(out), "\r\n") {
				rt.Fatalf("%s became %s", in, out)
			}
			g := gjson.ParseBytes(out)
			if g.Get("id").String() != e.ID || g.Get("model").String() != e.Model || g.Get("created").Int() != 7 || g.Get("error").Exists() ||
				g.Get("system_fingerprint").String() != e.Fingerprint || g.Get("system_fingerprint").Exists() != (e.Fingerprint != "") {
				rt.Fatalf("%s became %s", in, out)
			}
			compareMembers(t, []byte(in), out)
			countOnce(rt, g, roles, ids)
		}
		for index, n := range roles {
			if n > 1 {
				rt.Fatalf("%d roles for choice %d", n, index)
			}
		}
		for id, n := range ids {
			if n > 1 || !strings.HasPrefix(id, "call_") {
				rt.Fatalf("id %q comes %d times", id, n)
			}
		}
	})
}

// countOnce counts every role and every call's id, also those of members that stand twice.
func countOnce(t *rapid.T, chunk gjson.Result, roles map[int64]int, ids map[string]int) {
	each := func(object gjson.Result, key string, f func(gjson.Result)) {
		if object.IsObject() {
			object.ForEach(func(k, v gjson.Result) bool {
				if k.String() == key {
					f(v)
				}
				return true
			})
		}
	}
	each(chunk, "choices", func(list gjson.Result) {
		for at, choice := range list.Array() {
			index := int64(at)
			each(choice, "index", func(v gjson.Result) { index = v.Int() })
			each(choice, "delta", func(delta gjson.Result) {
				each(delta, "role", func(v gjson.Result) {
					if v.String() != "assistant" {
						t.Fatalf("role %s", v.Raw)
					}
					roles[index]++
				})
				each(delta, "tool_calls", func(calls gjson.Result) {
					for _, c := range calls.Array() {
						each(c, "id", func(v gjson.Result) { ids[v.String()]++ })
					}
				})
			})
		}
	})
}
