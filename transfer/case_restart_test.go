// SPDX-License-Identifier: Apache-2.0
// Copyright The Segue Authors

package transfer_test

import (
	"errors"
	"testing"

	seguev1 "github.com/seguekv/segue/api/segue/v1"
	"github.com/seguekv/segue/fence"
	"github.com/seguekv/segue/snapshot"
	"github.com/seguekv/segue/transfer"
)

// A holder that dies between any two records, or inside one, and starts again has a new boot id, offers nothing and
// covers nothing, until the primary has sent its base anew.
func TestCase_B8_RestartAtEveryStepCoversNothing(t *testing.T) {
	r := newRun(t, newHead(baseOf(1, 1), 20, 24, 100), window).capture(5)
	records := r.encode()
	helloFrame := &transfer.Frame{Hello: hello()}
	serve := func(store *snapshot.Store, boot byte, frames ...any) []*seguev1.ReplicateResponse {
		t.Helper()
		rc := transfer.NewReceiver(transfer.Self{NodeID: "b", Boot: [16]byte{boot}}, store, nil, func(int) {}, quiet())
		st := &direct{ctx: t.Context(), in: append([]any{helloFrame}, frames...)}
		_ = rc.Replicate(st) // what is half there ends the stream
		return st.out
	}
	held := 0
	for step := range records {
		for _, part := range []int{0, 1, len(records[step]) / 2, len(records[step]) - 1} {
			var frames []any
			for _, x := range records[:step] {
				frames = append(frames, &transfer.Frame{Records: [][]byte{x}})
			}
			frames = append(frames, &transfer.Frame{Records: [][]byte{records[step][:part]}})
			before := newStore()
			serve(before, 1, frames...)
			if before.Covers(r.head.Session, 1) {
				held++
			}
			// The process is gone, and its memory with it.
			after := newStore()
			out := serve(after, 2)
			w := out[0].GetWelcome()
			if len(w.GetOffers()) != 0 || w.GetBootId()[0] != 2 {
				t.Fatalf("step %d, %d bytes: the new process welcomes with %v", step, part, w)
			}
			if _, err := after.Takeover(r.head.Session, 2, r.need(1)); !errors.Is(err, snapshot.ErrUnknownSession) {
				t.Fatalf("step %d, %d bytes: takeover gives %v", step, part, err)
			}
			// The rest alone, as a primary would send it that believes the old acks: it covers nothing.
			var rest []any
			for _, x := range records[step:] {
				rest = append(rest, &transfer.Frame{Records: [][]byte{x}})
			}
			if step > 0 {
				for _, m := range serve(after, 2, rest...) {
					if a := m.GetAck(); a != nil {
						t.Fatalf("step %d: rows without their base are acknowledged: %v", step, a)
					}
				}
				if after.Covers(r.head.Session, 0) {
					t.Fatalf("step %d: rows without their base cover something", step)
				}
			}
			// The base anew.
			serve(after, 2, &transfer.Frame{Records: records})
			if !after.Covers(r.head.Session, 5) {
				t.Fatalf("step %d, %d bytes: the new base covers nothing", step, part)
			}
			r.checkTakeover(after, 5)
			if _, err := after.Takeover(r.head.Session, fence.Epoch(9), r.need(5)); err == nil {
				t.Fatal("taken twice")
			}
		}
	}
	if held == 0 || held == 4*len(records) {
		t.Errorf("the holder covered something before %d of %d deaths: the steps miss a case", held, 4*len(records))
	}
}
