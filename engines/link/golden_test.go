// SPDX-License-Identifier: Apache-2.0
// Copyright The Segue Authors

package link_test

import (
	"bytes"
	"encoding/binary"
	"flag"
	"os"
	"path/filepath"
	"testing"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/testing/protocmp"

	enginev1 "github.com/seguekv/segue/api/segue/engine/v1"
	seguev1 "github.com/seguekv/segue/api/segue/v1"
	"github.com/seguekv/segue/engines/link"
)

var writeGolden = flag.Bool("write-golden", false, "write golden files that don't exist; an existing one is never changed")

// goldenFrame is one frame of version 1 with distinct values in all fields.
type goldenFrame struct {
	kind    byte
	message proto.Message // nil for a state frame
	rows    []byte
	empty   func() proto.Message
}

func goldenFrames() map[string]goldenFrame {
	rows := []byte{0xa0, 0xa1, 0xa2, 0xa3, 0xa4, 0xa5, 0xa6, 0xa7}
	request := &seguev1.Request{
		Model:  "m",
		Prompt: &seguev1.Request_Chat{Chat: &seguev1.Chat{Messages: []*seguev1.ChatMessage{{Role: "user", Content: "hé"}}}},
		Sampling: &seguev1.Sampling{
			Temperature: 0.5, TopK: 40, TopP: 0.9, MinP: 0.05, RepetitionPenalty: 1.1, PresencePenalty: 0.25,
			FrequencyPenalty: -0.25, LogitBias: map[int32]float64{7: -100, 3: 1.5}, Seed: 1 << 63,
		},
		MaxTokens: 300, MinTokens: 2, Stop: []string{"\n\n", "END"}, IgnoreEos: true,
	}
	return map[string]goldenFrame{
		"hello_agent": {kHello, &enginev1.Hello{Version: 1}, nil, func() proto.Message { return &enginev1.Hello{} }},
		"hello_host": {kHello, &enginev1.Hello{
			Version: 1, BootId: []byte("0123456789abcdef"),
			Description: &enginev1.Description{
				Kind: "fake", Model: "m", Fingerprint: []byte{1, 2, 3},
				Layers:        []*enginev1.LayerRows{{KBytes: 2, VBytes: 2, KType: "f16", VType: "q8_0"}, {KBytes: 0, VBytes: 4, KType: "", VType: "f32"}},
				ContextLength: 4096, Contexts: 4, Vocabulary: 49152,
			},
		}, nil, func() proto.Message { return &enginev1.Hello{} }},
		"run_fresh": {kRun, &enginev1.Run{Run: 1, Request: request, Capture: true, Credit: 4}, nil, func() proto.Message { return &enginev1.Run{} }},
		"run_from": {kRun, &enginev1.Run{
			Run: 300, Credit: 4,
			Request: &seguev1.Request{Model: "m", Prompt: &seguev1.Request_Ids{Ids: &seguev1.TokenIds{Ids: []int32{1, 300}}}},
			From:    &enginev1.From{PromptIds: []int32{1, 300}, OutputIds: []int32{5}, Rows: 2, Sampler: &enginev1.Sampler{Seed: 9, Draws: 1}},
		}, nil, func() proto.Message { return &enginev1.Run{} }},
		"state":     {kState, nil, rows, nil},
		"credit":    {kCredit, &enginev1.Credit{Run: 300, Events: 2}, nil, func() proto.Message { return &enginev1.Credit{} }},
		"cancel":    {kCancel, &enginev1.Cancel{Run: 300}, nil, func() proto.Message { return &enginev1.Cancel{} }},
		"prompt":    {kPrompt, &enginev1.Prompt{Run: 1, Ids: []int32{0, 1, 300, 49151}}, nil, func() proto.Message { return &enginev1.Prompt{} }},
		"prefilled": {kPrefilled, &enginev1.Prefilled{Run: 1, First: 64, Count: 1}, rows, func() proto.Message { return &enginev1.Prefilled{} }},
		"token": {kToken, &enginev1.Token{
			Run: 1, Index: 130, Id: 49151, Text: []byte("hé"), TextEnd: 500, RawEnd: 503,
			Sampler: &enginev1.Sampler{Seed: 1 << 63, Draws: 131}, Restored: true, Finish: "stop",
		}, rows, func() proto.Message { return &enginev1.Token{} }},
		"token_without_row": {kToken, &enginev1.Token{Run: 1}, nil, func() proto.Message { return &enginev1.Token{} }},
		"end":               {kEnd, &enginev1.End{Run: 1, Reason: seguev1.Reason_REASON_INVALID_REQUEST, Detail: "top_p\nis 3"}, nil, func() proto.Message { return &enginev1.End{} }},
		"facts": {kFacts, &enginev1.Facts{
			PrefillTokens: 1, DecodeSteps: 1 << 40, ReplayedDecodeSteps: 3, RestoredRows: 4, RestoredBytes: 5, CapturedRows: 6, Running: 7, BusyMs: 8,
		}, nil, func() proto.Message { return &enginev1.Facts{} }},
	}
}

// The bytes on the link are those of the golden files, which other implementations share.
func TestFrames_MatchGoldenBytes(t *testing.T) {
	seen := map[byte]bool{}
	for name, g := range goldenFrames() {
		seen[g.kind] = true
		t.Run(name, func(t *testing.T) {
			var got []byte
			var err error
			if g.message == nil {
				got, err = link.EncodeState(300, 5, g.rows[:3], g.rows[3:])
			} else {
				got, err = link.EncodeFrame(g.kind, g.message, g.rows)
			}
			if err != nil {
				t.Fatal(err)
			}
			file := filepath.Join("testdata", "golden", "v1", name+".bin")
			want, err := os.ReadFile(file)
			if os.IsNotExist(err) && *writeGolden {
				want, err = got, os.WriteFile(file, got, 0o644)
			}
			if err != nil {
				t.Fatal(err)
			}
			if !bytes.Equal(got, want) {
				t.Errorf("encoded\n%x\nwant\n%x", got, want)
			}
			if want[4] != g.kind || int(binary.LittleEndian.Uint32(want)) != len(want)-5 {
				t.Errorf("header %x", want[:5])
			}
			body := want[5:]
			switch g.kind {
			case kState:
				if binary.LittleEndian.Uint32(body) != 300 || binary.LittleEndian.Uint32(body[4:]) != 5 || !bytes.Equal(body[8:], g.rows) {
					t.Errorf("state payload %x", body)
				}
				return
			case kPrefilled, kToken:
				n := 4 + binary.LittleEndian.Uint32(body)
				if !bytes.Equal(body[n:], g.rows) {
					t.Errorf("rows %x, want %x", body[n:], g.rows)
				}
				body = body[4:n]
			}
			m := g.empty()
			if err := proto.Unmarshal(body, m); err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(g.message, m, protocmp.Transform()); diff != "" {
				t.Errorf("message (-want +got):\n%s", diff)
			}
		})
	}
	if len(seen) != link.Kinds-1 {
		t.Errorf("golden frames of %d kinds, want %d", len(seen), link.Kinds-1)
	}
}
