// SPDX-License-Identifier: Apache-2.0
// Copyright The Segue Authors

package snapshot_test

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/seguekv/segue/internal/invariant"
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
		// A layer of 10 bytes becomes 48 in a slice that doubles, a row that comes alone takes a block of 16.
		if over := invariant.WithinBytes(3<<20+64*len(frame), func() { receive(s, frame) }); over != nil {
			t.Fatalf("a frame of %d bytes: %v", len(frame), over)
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

// FuzzParseSessionID reads ids as they come in paths and headers: what is accepted is what String writes, but for
// the case of its letters.
func FuzzParseSessionID(f *testing.F) {
	f.Add(session(7).String())
	f.Add(strings.ToUpper(session(0xfe).String()))
	f.Add(session(7).String()[1:])
	f.Add("0x" + session(7).String()[2:])
	f.Add(strings.Repeat("é", 16))
	f.Fuzz(func(t *testing.T, s string) {
		id, err := snapshot.ParseSessionID(s)
		if err != nil {
			if id != (snapshot.SessionID{}) && len(s) != 32 {
				t.Fatalf("%q: an id comes with %v", s, err)
			}
			return
		}
		if got := id.String(); got != strings.ToLower(s) {
			t.Fatalf("%q is read as %s", s, got)
		}
	})
}
