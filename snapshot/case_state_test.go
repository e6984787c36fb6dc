// SPDX-License-Identifier: Apache-2.0
// Copyright The Segue Authors

package snapshot_test

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"testing"

	"github.com/seguekv/segue/internal/invariant"
	"github.com/seguekv/segue/snapshot"
)

// Truncated, flipped and oversize records never become a state that an engine could be given: the holder refuses, or has
// a true earlier boundary, and allocates no more than what came.
func TestCase_B5_DamagedRecordsNeverBecomeAState(t *testing.T) {
	h := head(baseOf(1, 5), 18, 9)
	whole := join(records(chain(t, h, 4), 7))
	damages := map[string][]byte{"whole": whole}
	for n := range whole {
		damages[fmt.Sprintf("cut to %d", n)] = whole[:n]
		b := bytes.Clone(whole)
		b[n] ^= 1 << (n % 8)
		damages[fmt.Sprintf("bit of byte %d", n)] = b
		for _, size := range []uint32{0, 1, snapshot.MaxRecordBytes, snapshot.MaxRecordBytes + 1, 1<<31 - 1, 1<<32 - 1} {
			if n+4 > len(whole) || n%3 != 0 {
				continue
			}
			b := bytes.Clone(whole)
			binary.LittleEndian.PutUint32(b[n:], size)
			damages[fmt.Sprintf("%d at byte %d", size, n)] = b
		}
	}
	taken, refused := 0, 0
	for name, frame := range damages {
		s, budget := newStore(1 << 20)
		if over := invariant.WithinBytes(3<<20+64*len(frame), func() { receive(s, frame) }); over != nil {
			t.Fatalf("%s: %v", name, over)
		}
		o, held := offer(s, h.Session)
		// A takeover of all that is held, and one of a boundary more.
		if held && o.Committed > 0 {
			if _, err := s.Takeover(h.Session, 6, needOf(&h, o.Committed+1)); err == nil {
				t.Fatalf("%s: boundary %d is given where %d is held", name, o.Committed+1, o.Committed)
			}
			x, err := s.Takeover(h.Session, 7, needOf(&h, o.Committed))
			if err != nil {
				t.Fatalf("%s: %v", name, err)
			}
			checkState(t, x.State, &h, o.Committed)
			x.Memory.Release()
			taken++
		} else {
			if _, err := s.Takeover(h.Session, 7, needOf(&h, 0)); err == nil {
				t.Fatalf("%s: a state is given where nothing is covered", name)
			}
			refused++
			s.Release(h.Session, 5)
		}
		// What came under another, damaged name is nobody's.
		for _, o := range s.Offers() {
			s.Release(o.Session, o.Epoch)
		}
		if used, _ := budget.Used(); used != 0 {
			t.Fatalf("%s: %d bytes stay in use", name, used)
		}
	}
	if taken < 100 || refused < 100 {
		t.Errorf("%d taken, %d refused: the damages miss one side", taken, refused)
	}
}
