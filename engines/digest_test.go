// SPDX-License-Identifier: Apache-2.0
// Copyright The Segue Authors

package engines_test

import (
	"math"
	"reflect"
	"testing"

	"github.com/seguekv/segue/engines"
	"github.com/seguekv/segue/engines/sampling"
	"github.com/seguekv/segue/snapshot"
)

// full has no field at its zero value.
func full() engines.Request {
	return engines.Request{
		Model:  "m",
		Prompt: engines.Prompt{Messages: []engines.Message{{Role: "user", Content: "hi"}}, Text: "text", IDs: []int32{1, 2}},
		Sampling: sampling.Params{
			Temperature: 0.8, TopK: 40, TopP: 0.95, MinP: 0.05, RepetitionPenalty: 1.1,
			PresencePenalty: 0.5, FrequencyPenalty: 0.25, LogitBias: map[int32]float64{3: 1.5, 1: -2}, Seed: 42,
		},
		MaxTokens: 64, MinTokens: 2, Stop: []string{"END", "###"}, IgnoreEOS: true,
	}
}

// The digest is pinned: another value means another encoding, which needs another encoding number.
func TestRequestDigest_Pinned(t *testing.T) {
	for _, c := range []struct {
		name string
		r    engines.Request
		want string
	}{
		{"empty", engines.Request{}, "4e021374a95ccc194e59bd34d23af08d"},
		{"full", full(), "651e1edc0f45eaa3cbe220e7181ad4d8"},
	} {
		if got := engines.RequestDigest(c.r).String(); got != c.want {
			t.Errorf("%s: digest %s, want %s", c.name, got, c.want)
		}
	}
}

// eachField calls f with full() in one field changed, for every field that reflection finds.
func eachField(t *testing.T, f func(name string, r engines.Request)) {
	t.Helper()
	var walk func(name string, path []int, ty reflect.Type)
	walk = func(name string, path []int, ty reflect.Type) {
		if ty.Kind() == reflect.Struct {
			for i := range ty.NumField() {
				walk(name+"."+ty.Field(i).Name, append(append([]int{}, path...), i), ty.Field(i).Type)
			}
			return
		}
		r := full()
		v := reflect.ValueOf(&r).Elem().FieldByIndex(path)
		switch v.Kind() {
		case reflect.String:
			v.SetString(v.String() + "+")
		case reflect.Int:
			v.SetInt(v.Int() + 1)
		case reflect.Uint64:
			v.SetUint(v.Uint() + 1)
		case reflect.Float64:
			v.SetFloat(math.Nextafter(v.Float(), 10))
		case reflect.Bool:
			v.SetBool(!v.Bool())
		case reflect.Slice:
			v.Set(v.Slice(0, v.Len()-1))
		case reflect.Map:
			v.SetMapIndex(v.MapKeys()[0], reflect.Value{})
		default:
			t.Fatalf("%s has kind %v: teach the tests, the digest and the wire form about it", name, v.Kind())
		}
		f(name, r)
	}
	walk("Request", nil, reflect.TypeFor[engines.Request]())
}

// Every field, found by reflection, changes the digest; no two changes give the same one.
func TestRequestDigest_CoversEveryField(t *testing.T) {
	seen := map[snapshot.Digest]string{engines.RequestDigest(full()): "nothing"}
	check := func(name string, r engines.Request) {
		d := engines.RequestDigest(r)
		if other, ok := seen[d]; ok {
			t.Errorf("changing %s gives the digest of changing %s", name, other)
		}
		seen[d] = name
	}
	eachField(t, check)

	r := full()
	r.Stop = []string{"###", "END"}
	check("order of Stop", r)
	r = full()
	r.Stop = []string{"EN", "D###"}
	check("split of Stop", r)
	r = full()
	r.Prompt.Messages[0] = engines.Message{Role: "userh", Content: "i"}
	check("split of a message", r)
	r = full()
	r.Prompt.IDs = []int32{2, 1}
	check("order of IDs", r)
	r = full()
	r.Sampling.LogitBias = map[int32]float64{1: 1.5, 3: -2}
	check("values of LogitBias", r)
}
