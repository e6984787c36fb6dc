// SPDX-License-Identifier: Apache-2.0
// Copyright The Segue Authors

package engines_test

import (
	"math"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/proto"
	"pgregory.net/rapid"

	seguev1 "github.com/seguekv/segue/api/segue/v1"
	"github.com/seguekv/segue/engines"
	"github.com/seguekv/segue/engines/sampling"
)

func requestGen() *rapid.Generator[engines.Request] {
	return rapid.Custom(func(t *rapid.T) engines.Request {
		r := engines.Request{
			Model:     rapid.StringN(1, 20, engines.MaxModelBytes).Draw(t, "model"),
			MaxTokens: rapid.IntRange(0, 1000).Draw(t, "max_tokens"),
			Stop:      rapid.SliceOfN(rapid.StringN(1, 10, engines.MaxStopBytes), 0, 3).Draw(t, "stop"),
			IgnoreEOS: rapid.Bool().Draw(t, "ignore_eos"),
			Sampling: sampling.Params{
				Temperature:       rapid.Float64Range(0, 2).Draw(t, "temperature"),
				TopK:              rapid.IntRange(0, math.MaxInt32).Draw(t, "top_k"),
				TopP:              rapid.Float64Range(0, 1).Draw(t, "top_p"),
				MinP:              rapid.Float64Range(0, 1).Draw(t, "min_p"),
				RepetitionPenalty: rapid.Float64Range(0, 10).Draw(t, "repetition_penalty"),
				PresencePenalty:   rapid.Float64Range(-2, 2).Draw(t, "presence_penalty"),
				FrequencyPenalty:  rapid.Float64Range(-2, 2).Draw(t, "frequency_penalty"),
				LogitBias:         rapid.MapOfN(rapid.Int32Min(0), rapid.Float64Range(-100, 100), 0, 5).Draw(t, "logit_bias"),
				Seed:              rapid.Uint64().Draw(t, "seed"),
			},
		}
		r.MinTokens = rapid.IntRange(0, r.MaxTokens).Draw(t, "min_tokens")
		switch rapid.IntRange(0, 2).Draw(t, "prompt") {
		case 0:
			r.Prompt.Text = rapid.StringN(1, 30, -1).Draw(t, "text")
		case 1:
			r.Prompt.IDs = rapid.SliceOfN(rapid.Int32Min(0), 1, 10).Draw(t, "ids")
		default:
			r.Prompt.Messages = rapid.SliceOfN(rapid.Custom(func(t *rapid.T) engines.Message {
				return engines.Message{Role: rapid.SampledFrom([]string{"system", "user"}).Draw(t, "role"), Content: rapid.String().Draw(t, "content")}
			}), 1, 4).Draw(t, "messages")
		}
		return r
	})
}

func TestRequest_RoundTripOverTheWire(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		want := requestGen().Draw(t, "request")
		b, err := proto.Marshal(engines.RequestToProto(want))
		if err != nil {
			t.Fatal(err)
		}
		var p seguev1.Request
		if err := proto.Unmarshal(b, &p); err != nil {
			t.Fatal(err)
		}
		got, err := engines.RequestFromProto(&p)
		if err != nil {
			t.Fatal(err)
		}
		if len(want.Stop) == 0 {
			want.Stop = nil
		}
		if len(want.Sampling.LogitBias) == 0 {
			want.Sampling.LogitBias = nil
		}
		if d := cmp.Diff(want, got); d != "" {
			t.Fatalf("(-want +got)\n%s", d)
		}
		if engines.RequestDigest(got) != engines.RequestDigest(want) {
			t.Fatal("digest differs")
		}
	})
}

func TestRequestToProto_CoversEveryField(t *testing.T) {
	eachField(t, func(name string, r engines.Request) {
		want := full()
		if strings.HasPrefix(name, "Request.Prompt.") { // a message has one of them
			want.Prompt, r.Prompt = only(want.Prompt, name), only(r.Prompt, name)
		}
		if proto.Equal(engines.RequestToProto(want), engines.RequestToProto(r)) {
			t.Errorf("%s isn't in the message", name)
		}
	})
}

func only(p engines.Prompt, name string) engines.Prompt {
	switch name {
	case "Request.Prompt.Messages":
		return engines.Prompt{Messages: p.Messages}
	case "Request.Prompt.IDs":
		return engines.Prompt{IDs: p.IDs}
	default:
		return engines.Prompt{Text: p.Text}
	}
}

func TestRequestFromProto_Refuses(t *testing.T) {
	for _, c := range []struct {
		name string
		p    *seguev1.Request
		want []string
	}{
		{"nil", nil, []string{"request"}},
		{"empty", &seguev1.Request{}, []string{"model", "prompt"}},
		{"empty parts", &seguev1.Request{Model: "m", Prompt: &seguev1.Request_Chat{}}, []string{"prompt"}},
		{"empty ids", &seguev1.Request{Model: "m", Prompt: &seguev1.Request_Ids{}}, []string{"prompt"}},
		{"missing message", &seguev1.Request{Model: "m", Prompt: &seguev1.Request_Chat{Chat: &seguev1.Chat{Messages: []*seguev1.ChatMessage{nil}}}}, []string{"messages"}},
		{"large counts", &seguev1.Request{Model: "m", Prompt: &seguev1.Request_Text{Text: "x"}, MaxTokens: math.MaxUint32, MinTokens: math.MaxUint32}, []string{"max_tokens", "min_tokens"}},
		{"negative top_k", &seguev1.Request{Model: "m", Prompt: &seguev1.Request_Text{Text: "x"}, Sampling: &seguev1.Sampling{TopK: -1}}, []string{"top_k"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			_, err := engines.RequestFromProto(c.p)
			if d := cmp.Diff(c.want, fieldsOf(t, err)); d != "" {
				t.Errorf("fields (-want +got)\n%s\nerror: %v", d, err)
			}
		})
	}
}

func TestRequestFromProto_SharesNoMemory(t *testing.T) {
	p := &seguev1.Request{
		Model: "m", Prompt: &seguev1.Request_Ids{Ids: &seguev1.TokenIds{Ids: []int32{1}}}, Stop: []string{"s"},
		Sampling: &seguev1.Sampling{LogitBias: map[int32]float64{1: 1}},
	}
	r, err := engines.RequestFromProto(p)
	if err != nil {
		t.Fatal(err)
	}
	before := engines.RequestDigest(r)
	p.GetIds().Ids[0], p.Stop[0], p.Sampling.LogitBias[1] = 2, "t", 2
	if engines.RequestDigest(r) != before {
		t.Error("the request changed with the message")
	}
}
