// SPDX-License-Identifier: Apache-2.0
// Copyright The Segue Authors

package agent_test

import (
	"math"
	"slices"
	"strings"
	"testing"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"pgregory.net/rapid"

	seguev1 "github.com/seguekv/segue/api/segue/v1"
)

func TestNode_MalformedRequests(t *testing.T) {
	const invalid = seguev1.Reason_REASON_INVALID_REQUEST
	pair(t, nil, func(t *testing.T, n *memNet, a, b *testNode) {
		for name, c := range map[string]struct {
			change func(*seguev1.GenerateRequest)
			want   seguev1.Reason
			word   string
		}{
			"no session":             {func(g *seguev1.GenerateRequest) { g.Session = nil }, invalid, "session"},
			"short session":          {func(g *seguev1.GenerateRequest) { g.Session = g.Session[:15] }, invalid, "15"},
			"long session":           {func(g *seguev1.GenerateRequest) { g.Session = make([]byte, 1<<20) }, invalid, "session"},
			"no epoch":               {func(g *seguev1.GenerateRequest) { g.Epoch = 0 }, invalid, "epoch"},
			"no request":             {func(g *seguev1.GenerateRequest) { g.Request = nil }, invalid, "request"},
			"no protection":          {func(g *seguev1.GenerateRequest) { g.Protection = 0 }, invalid, "protection"},
			"unknown protection":     {func(g *seguev1.GenerateRequest) { g.Protection = -7 }, invalid, "-7"},
			"holder without name":    {func(g *seguev1.GenerateRequest) { g.Holder.Id = "" }, invalid, "holder"},
			"holder with long name":  {func(g *seguev1.GenerateRequest) { g.Holder.Id = strings.Repeat("x", 65) }, invalid, "holder"},
			"holder without address": {func(g *seguev1.GenerateRequest) { g.Holder.Addr = "" }, invalid, "HOST:PORT"},
			"holder far away":        {func(g *seguev1.GenerateRequest) { g.Holder.Addr = "192.0.2.1:1" }, invalid, "--insecure-plaintext"},
			"holder itself":          {func(g *seguev1.GenerateRequest) { g.Holder.Id = "a" }, invalid, "itself"},
			"other model":            {func(g *seguev1.GenerateRequest) { g.Request.Model = "gpt" }, invalid, "gpt"},
			"no model":               {func(g *seguev1.GenerateRequest) { g.Request.Model = "" }, invalid, "model"},
			"no prompt":              {func(g *seguev1.GenerateRequest) { g.Request.Prompt = nil }, invalid, "prompt"},
			"empty chat":             {func(g *seguev1.GenerateRequest) { g.Request.Prompt = &seguev1.Request_Chat{} }, invalid, "prompt"},
			"nil message": {func(g *seguev1.GenerateRequest) {
				g.Request.Prompt = &seguev1.Request_Chat{Chat: &seguev1.Chat{Messages: []*seguev1.ChatMessage{{}}}}
			}, invalid, "role"},
			"negative id":     {func(g *seguev1.GenerateRequest) { g.Request.Prompt = ids(1, -1) }, invalid, "-1"},
			"id out of range": {func(g *seguev1.GenerateRequest) { g.Request.Prompt = ids(math.MaxInt32) }, invalid, "2147483647"},
			"long prompt":     {func(g *seguev1.GenerateRequest) { g.Request.Prompt = ids(make([]int32, 512)...) }, seguev1.Reason_REASON_PROMPT_TOO_LONG, "512"},
			"huge output":     {func(g *seguev1.GenerateRequest) { g.Request.MaxTokens = math.MaxUint32 }, invalid, "max_tokens"},
			"min above max":   {func(g *seguev1.GenerateRequest) { g.Request.MinTokens = 99 }, invalid, "min_tokens"},
			"NaN temperature": {func(g *seguev1.GenerateRequest) { g.Request.Sampling.Temperature = math.NaN() }, invalid, "temperature"},
			"infinite bias":   {func(g *seguev1.GenerateRequest) { g.Request.Sampling.LogitBias = map[int32]float64{1: math.Inf(1)} }, invalid, "logit_bias"},
			"no sampling":     {func(g *seguev1.GenerateRequest) { g.Request.Sampling = nil }, invalid, ""},
			"empty stop":      {func(g *seguev1.GenerateRequest) { g.Request.Stop = []string{""} }, invalid, "stop"},
			"many stops":      {func(g *seguev1.GenerateRequest) { g.Request.Stop = make([]string, 1000) }, invalid, "stop"},
		} {
			g := &seguev1.GenerateRequest{Session: newID(t), Epoch: 1, Request: request(5), Protection: modeSync, Holder: proto.CloneOf(b.peer)}
			c.change(g)
			var x, y transcript
			x.read(generate(t, t.Context(), a, g), nil)
			y.read(takeover(t, t.Context(), a, &seguev1.TakeoverRequest{
				Session: other(g.Session), Epoch: g.Epoch, Request: g.Request, Protection: g.Protection, Holder: g.Holder, OutputDigest: make([]byte, 16),
			}), nil)
			if name == "no sampling" {
				continue // greedy, or refused: the engine's to say
			}
			wantReason(t, x.err, c.want)
			if s := status.Convert(x.err); s.Code() != codes.InvalidArgument || !strings.Contains(s.Message(), c.word) {
				t.Errorf("%s: %v, want a word about %q", name, x.err, c.word)
			}
			switch name {
			case "id out of range", "long prompt": // only a run from the prompt reads it
				wantReason(t, y.err, seguev1.Reason_REASON_UNKNOWN_SESSION)
			default:
				wantReason(t, y.err, c.want)
			}
		}
		id := newID(t)
		for name, o := range map[string]*seguev1.TakeoverRequest{
			"no output digest":    {},
			"long output digest":  {OutputDigest: make([]byte, 17)},
			"short prompt digest": {OutputDigest: make([]byte, 16), PromptDigest: make([]byte, 1)},
		} {
			o.Session, o.Epoch, o.Request, o.Protection = id, 1, request(5), modeOff
			_, err := takeover(t, t.Context(), a, o)()
			if status.Code(err) != codes.InvalidArgument || !strings.Contains(err.Error(), "digest") {
				t.Errorf("%s: %v", name, err)
			}
		}
		for name, call := range map[string]func() error{
			"cancel nobody": func() error { _, err := a.client.Cancel(t.Context(), &seguev1.CancelRequest{}); return err },
			"release nobody": func() error {
				_, err := a.client.Release(t.Context(), &seguev1.ReleaseRequest{Session: id})
				return err
			},
			"prepare nobody": func() error { _, err := a.client.Prepare(t.Context(), &seguev1.PrepareRequest{Epoch: 1}); return err },
			"prepare nothing": func() error {
				_, err := a.client.Prepare(t.Context(), &seguev1.PrepareRequest{Session: id})
				return err
			},
			"park nobody":  func() error { _, err := a.client.Park(t.Context(), &seguev1.ParkRequest{Epoch: 1}); return err },
			"park nothing": func() error { _, err := a.client.Park(t.Context(), &seguev1.ParkRequest{Session: id}); return err },
			"pair nobody":  func() error { _, err := a.client.Pair(t.Context(), &seguev1.PairRequest{Holder: b.peer}); return err },
			"pair nothing": func() error {
				_, err := a.client.Pair(t.Context(), &seguev1.PairRequest{Session: id, Epoch: 1})
				return err
			},
		} {
			if err := call(); status.Code(err) != codes.InvalidArgument {
				t.Errorf("%s: %v", name, err)
			}
		}
	})
}

// other is another session's id of the same length.
func other(id []byte) []byte {
	o := slices.Clone(id)
	for i := range o {
		o[i] ^= 1
	}
	return o
}

func ids(list ...int32) *seguev1.Request_Ids {
	return &seguev1.Request_Ids{Ids: &seguev1.TokenIds{Ids: list}}
}

// Whatever a caller sends, the agent answers with a status of its own making, and keeps nothing of it.
func TestNode_ArbitraryRequests(t *testing.T) {
	pair(t, nil, func(t *testing.T, n *memNet, a, b *testNode) {
		// One session is there to be hit.
		id := newID(t)
		new(transcript).read(generate(t, t.Context(), b, &seguev1.GenerateRequest{Session: id, Epoch: 1, Request: request(30), Protection: modeSync, Holder: a.peer}), tokens(10))
		// Behind a struct, since rapid asks a *testing.T for its deadline, which has none in a bubble.
		rapid.Check(struct{ *testing.T }{t}, func(rt *rapid.T) {
			session := rapid.SampledFrom([][]byte{nil, id, make([]byte, 16), id[:3]}).Draw(rt, "session")
			epoch := rapid.SampledFrom([]uint64{0, 1, 2, 3, math.MaxUint64 - 1, math.MaxUint64}).Draw(rt, "epoch")
			count := rapid.SampledFrom([]uint32{0, 1, 5, 30, 31, 1 << 31, math.MaxUint32})
			r := request(30)
			switch rapid.IntRange(0, 5).Draw(rt, "request") {
			case 0:
				r = nil
			case 1:
				r.Prompt, r.MaxTokens = ids(rapid.SliceOfN(rapid.Int32(), 0, 20).Draw(rt, "ids")...), count.Draw(rt, "max")
			case 2:
				r.Sampling = &seguev1.Sampling{Temperature: rapid.Float64().Draw(rt, "temperature"), TopP: rapid.Float64().Draw(rt, "top_p"), TopK: rapid.Int32().Draw(rt, "top_k")}
			}
			mode := seguev1.ProtectionMode(rapid.Int32Range(-1, 5).Draw(rt, "mode"))
			digest := rapid.SampledFrom([][]byte{nil, make([]byte, 16), make([]byte, 5)})
			holder := rapid.SampledFrom([]*seguev1.Peer{nil, {}, a.peer, b.peer, {Id: "x", Addr: "127.0.0.1:9"}, {Id: "y", Addr: "[::1]:x"}}).Draw(rt, "holder")
			var x transcript
			switch rapid.IntRange(0, 6).Draw(rt, "call") {
			case 0:
				x.read(generate(t, t.Context(), a, &seguev1.GenerateRequest{
					Session: session, Epoch: epoch, Request: r, Protection: mode, Holder: holder, FromIndex: count.Draw(rt, "from"),
					RequireProtection: rapid.Bool().Draw(rt, "require"), Window: count.Draw(rt, "window"), CommitTimeoutMs: count.Draw(rt, "timeout"),
				}), nil)
			case 1:
				x.read(takeover(t, t.Context(), a, &seguev1.TakeoverRequest{
					Session: session, Epoch: epoch, Request: r, Protection: mode, Holder: holder, Delivered: count.Draw(rt, "delivered"),
					PromptDigest: digest.Draw(rt, "prompt_digest"), OutputDigest: digest.Draw(rt, "output_digest"), TextEnd: uint64(count.Draw(rt, "text_end")),
					RequireProtection: rapid.Bool().Draw(rt, "require"), Window: count.Draw(rt, "window"), CommitTimeoutMs: count.Draw(rt, "timeout"),
				}), nil)
			case 2:
				_, x.err = a.client.Pair(t.Context(), &seguev1.PairRequest{Session: session, Epoch: epoch, Holder: holder})
			case 3:
				_, x.err = a.client.Cancel(t.Context(), &seguev1.CancelRequest{Session: session, Epoch: epoch})
			case 4:
				_, x.err = a.client.Release(t.Context(), &seguev1.ReleaseRequest{Session: session, Epoch: epoch})
			case 5:
				_, x.err = a.client.Prepare(t.Context(), &seguev1.PrepareRequest{Session: session, Epoch: epoch, HoldMs: count.Draw(rt, "hold")})
			case 6:
				_, x.err = a.client.Park(t.Context(), &seguev1.ParkRequest{Session: session, Epoch: epoch})
			}
			switch c := status.Code(x.err); c {
			case codes.OK, codes.InvalidArgument, codes.FailedPrecondition, codes.NotFound, codes.ResourceExhausted, codes.Canceled, codes.DataLoss:
			default:
				rt.Fatalf("%v", x.err)
			}
		})
		// What Prepare keeps under an epoch that nothing runs under is in no listing; it ends with a Cancel of that epoch.
		cancelRun(t, a, id, math.MaxUint64)
		cancelRun(t, a, make([]byte, 16), math.MaxUint64)
	})
}
