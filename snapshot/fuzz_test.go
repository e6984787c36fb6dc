// SPDX-License-Identifier: Apache-2.0
// Copyright The Segue Authors

package snapshot_test

import (
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"testing"

	"github.com/seguekv/segue/snapshot"
)

// fuzzBudget bounds the rows of a fuzzed store.
const fuzzBudget = 1 << 20

// FuzzReader feeds arbitrary frames to a store. Nothing panics, memory is bounded by the budget and by what
// arrives, and what is held afterwards verifies.
func FuzzReader(f *testing.F) {
	files, err := filepath.Glob(filepath.Join("testdata", "golden", "v1", "*.bin"))
	if err != nil || len(files) == 0 {
		f.Fatal("no golden files", err)
	}
	slices.Sort(files)
	for _, name := range files {
		b, err := os.ReadFile(name)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(b)
	}
	f.Add(join(records(chain(f, head(baseOf(1, 5), 18, 9), 4), 7)))
	f.Add(join(records(chain(f, head(baseOf(1, 5), 1, 1), 1), 1)))
	f.Fuzz(func(t *testing.T, frame []byte) {
		heads := make(map[snapshot.SessionID]*snapshot.Head)
		b := snapshot.NewBudget(fuzzBudget)
		s := snapshot.NewStore(b, func(h *snapshot.Head) error {
			heads[h.Session] = h
			return nil
		})
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		receive(s, frame)
		runtime.ReadMemStats(&after)
		// A layer of 10 bytes becomes 48 in a slice that doubles, a row that comes alone takes a block of 16.
		if got, limit := after.TotalAlloc-before.TotalAlloc, uint64(4<<20+64*len(frame)); got > limit {
			t.Fatalf("a frame of %d bytes allocates %d, limit %d", len(frame), got, limit)
		}
		for _, o := range s.Offers() {
			h := heads[o.Session]
			held, err := s.Takeover(o.Session, o.Epoch+1, snapshot.Need{OutputDigest: snapshot.IDsDigest(nil), Request: h.Request})
			if covered := o.Committed > 0 && o.Epoch+1 > 0; covered != (err == nil) {
				t.Fatalf("takeover of %+v: %v", o, err)
			}
			if err != nil {
				s.Release(o.Session, o.Epoch)
				continue
			}
			if err := held.State.Validate(); err != nil {
				t.Fatal(err)
			}
			held.Memory.Release()
		}
		if used, _ := b.Used(); used != 0 {
			t.Fatalf("%d bytes stay in use", used)
		}
	})
}
