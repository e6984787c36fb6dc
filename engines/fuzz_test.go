// SPDX-License-Identifier: Apache-2.0
// Copyright The Segue Authors

package engines_test

import (
	"testing"

	"google.golang.org/protobuf/proto"

	seguev1 "github.com/seguekv/segue/api/segue/v1"
	"github.com/seguekv/segue/engines"
	"github.com/seguekv/segue/engines/sampling"
	"github.com/seguekv/segue/internal/invariant"
)

// FuzzRequestFromProto reads arbitrary requests: an accepted one comes through another hop with the same digest.
func FuzzRequestFromProto(f *testing.F) {
	for _, r := range []engines.Request{
		plain(),
		{Model: "m", Prompt: engines.Prompt{IDs: []int32{1, 2}}, Stop: []string{"x"}, Sampling: sampling.Params{LogitBias: map[int32]float64{5: -1}}},
		{Model: "m", Prompt: engines.Prompt{Messages: []engines.Message{{Role: "user", Content: "hi"}}}},
	} {
		b, err := proto.Marshal(engines.RequestToProto(r))
		if err != nil {
			f.Fatal(err)
		}
		f.Add(b)
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		var p seguev1.Request
		if proto.Unmarshal(b, &p) != nil {
			return
		}
		var r engines.Request
		var err error
		if over := invariant.WithinBytes(1<<20+64*len(b), func() { r, err = engines.RequestFromProto(&p) }); over != nil {
			t.Fatalf("a message of %d bytes: %v", len(b), over)
		}
		if err != nil {
			return
		}
		again, err := engines.RequestFromProto(engines.RequestToProto(r))
		if err != nil {
			t.Fatalf("refused after a round trip: %v", err)
		}
		if engines.RequestDigest(again) != engines.RequestDigest(r) {
			t.Fatal("digest differs after a round trip")
		}
	})
}
