// SPDX-License-Identifier: Apache-2.0
// Copyright The Segue Authors

package snapshot_test

import (
	"errors"
	"testing"

	"github.com/seguekv/segue/fence"
	"github.com/seguekv/segue/snapshot"
)

// parked is a store that keeps a run of epoch 3 at boundary n, and the count of calls of gone.
func parked(t *testing.T, n int) (*snapshot.Store, *snapshot.Budget, snapshot.Head, *int) {
	t.Helper()
	s, b := newStore(1 << 20)
	h := head(baseOf(1, 3), 12, 20)
	m, err := b.Reserve(h.Bytes())
	if err != nil {
		t.Fatal(err)
	}
	gone := new(int)
	if err := s.Park(chain(t, h, n), m, func() { *gone++ }); err != nil {
		t.Fatal(err)
	}
	return s, b, h, gone
}

func TestStore_ParkedIsTakenOver(t *testing.T) {
	s, b, h, gone := parked(t, 5)
	if n, ok := s.Parked(h.Session, 3); !ok || n != 5 || s.ParkedSessions() != 1 {
		t.Fatalf("parked at %d, %v; %d sessions", n, ok, s.ParkedSessions())
	}
	if o, ok := offer(s, h.Session); !ok || !o.Parked || o.Committed != 5 {
		t.Errorf("offer %+v", o)
	}
	if list := s.OffersTo([16]byte{}); len(list) != 0 {
		t.Errorf("a primary is offered %v", list)
	}
	if _, err := s.Takeover(h.Session, 3, needOf(&h, 2)); !errors.Is(err, fence.ErrCanceled) {
		t.Errorf("takeover with the parked epoch: %v", err)
	}
	var none *snapshot.NotCoveredError
	if _, err := s.Takeover(h.Session, 4, needOf(&h, 6)); !errors.As(err, &none) {
		t.Errorf("takeover at 6: %v", err)
	}
	if _, ok := s.Parked(h.Session, 3); ok {
		t.Error("epoch 3 counts as parked though epoch 4 is known")
	}
	held, err := s.Takeover(h.Session, 5, needOf(&h, 4))
	if err != nil {
		t.Fatal(err)
	}
	checkState(t, held.State, &h, 5)
	if *gone != 1 || s.ParkedSessions() != 0 {
		t.Errorf("gone was called %d times, %d sessions", *gone, s.ParkedSessions())
	}
	held.Memory.Release()
	if used, _ := b.Used(); used != 0 {
		t.Errorf("%d bytes in use", used)
	}
}

// G4: no record of the parked epoch or a lower one changes what is kept.
func TestStore_ParkedTakesNoRecord(t *testing.T) {
	s, _, h, gone := parked(t, 5)
	for _, e := range []fence.Epoch{1, 2, 3} {
		x := head(baseOf(1, e), 12, 20)
		x.Base = 7
		for _, err := range receive(s, join(records(chain(t, x, 9), 5))) {
			if !errors.Is(err, fence.ErrCanceled) {
				t.Errorf("epoch %d: %v", e, err)
			}
		}
		if err := s.Admit(h.Session, e); !errors.Is(err, fence.ErrCanceled) {
			t.Errorf("admit %d: %v", e, err)
		}
	}
	more := records(chain(t, h, 9), 5)
	if errs := receive(s, join(more[len(more)-4:])); len(errs) != 4 {
		t.Errorf("%d records of its own base are refused, want 4", len(errs))
	}
	if n, ok := s.Parked(h.Session, 3); !ok || n != 5 || *gone != 0 {
		t.Fatalf("parked at %d, %v, gone %d", n, ok, *gone)
	}
	x := head(baseOf(1, 4), 12, 20)
	mustReceive(t, s, records(chain(t, x, 2), 5)...)
	if o, _ := offer(s, h.Session); o.Parked || o.Epoch != 4 || *gone != 1 {
		t.Errorf("a base of epoch 4 left %+v, gone %d", o, *gone)
	}
}

func TestStore_ParkRefuses(t *testing.T) {
	s, b := newStore(1 << 20)
	h := head(baseOf(1, 3), 12, 20)
	m, err := b.Reserve(h.Bytes())
	if err != nil {
		t.Fatal(err)
	}
	try := func(want func(error) bool) {
		t.Helper()
		if err := s.Park(chain(t, h, 2), m, func() { t.Error("gone was called for what is not kept") }); !want(err) {
			t.Errorf("park: %v", err)
		}
		if _, ok := offer(s, h.Session); ok {
			t.Error("something is kept")
		}
	}
	var none *snapshot.NotCoveredError
	if err := s.Park(chain(t, h, 0), m, nil); !errors.As(err, &none) {
		t.Errorf("a base in progress: %v", err)
	}
	if err := s.Admit(h.Session, 4); err != nil {
		t.Fatal(err)
	}
	try(is(fence.ErrStaleEpoch))
	s.Cancel(h.Session, 4)
	try(is(fence.ErrCanceled))
	if used, _ := b.Used(); used != h.Bytes() {
		t.Errorf("a refusal released the caller's memory: %d in use", used)
	}
}

// The two chains of a shared state belong to two owners; a third grows from either.
func TestChain_Share(t *testing.T) {
	h := head(baseOf(1, 3), 12, 40)
	c := chain(t, h, 7)
	fillRows(t, c, c.Rows()+1) // a row above the boundary
	x := c.Share()
	if x.Rows() != 12+6 || c.Rows() != 12+7 || x.Committed() != 7 {
		t.Fatalf("%d rows are shared of %d, boundary %d", x.Rows(), c.Rows(), x.Committed())
	}
	st, err := x.State()
	if err != nil {
		t.Fatal(err)
	}
	checkState(t, st, &h, 7)
	y, err := x.Rebase(baseOf(1, 4))
	if err != nil {
		t.Fatal(err)
	}
	grow(t, y, 30)
	if st, err = x.State(); err != nil {
		t.Fatal(err)
	}
	checkState(t, st, &h, 7)
}

// Examine changes nothing and says what a takeover would find.
func TestStore_Examine(t *testing.T) {
	s, _ := newStore(1 << 20)
	h := head(baseOf(1, 3), 12, 20)
	refuse := errors.New("doesn't fit")
	if _, err := s.Examine(h.Session, 3, acceptAll); !errors.Is(err, snapshot.ErrUnknownSession) {
		t.Errorf("nothing held: %v", err)
	}
	list := records(chain(t, h, 5), 5)
	mustReceive(t, s, list[0])
	if _, err := s.Examine(h.Session, 3, acceptAll); !uncovered(0, 1)(err) {
		t.Errorf("base in progress: %v", err)
	}
	mustReceive(t, s, list[1:]...)
	for e, want := range map[fence.Epoch]func(error) bool{2: is(fence.ErrStaleEpoch), 3: isNil, 9: isNil} {
		o, err := s.Examine(h.Session, e, acceptAll)
		if !want(err) || err == nil && (o.Committed != 5 || o.Epoch != 3) {
			t.Errorf("epoch %d: %+v, %v", e, o, err)
		}
	}
	if _, err := s.Examine(h.Session, 3, func(*snapshot.Head) error { return refuse }); !errors.Is(err, refuse) {
		t.Errorf("refused head: %v", err)
	}
	held, err := s.Takeover(h.Session, 4, needOf(&h, 5)) // 9 wasn't raised
	if err != nil {
		t.Fatal(err)
	}
	held.Memory.Release()
	if _, err := s.Examine(h.Session, 4, acceptAll); !errors.Is(err, snapshot.ErrUnknownSession) {
		t.Errorf("taken: %v", err)
	}
	s.Cancel(h.Session, 4)
	if _, err := s.Examine(h.Session, 4, acceptAll); !errors.Is(err, fence.ErrCanceled) {
		t.Errorf("cancelled: %v", err)
	}
}

// Fence keeps what is held, and refuses the epoch from then on.
func TestStore_FenceKeepsWhatIsHeld(t *testing.T) {
	s, _ := newStore(1 << 20)
	h := head(baseOf(1, 3), 12, 20)
	list := records(chain(t, h, 5), 5)
	mustReceive(t, s, list[:len(list)-2]...)
	if err := s.Fence(h.Session, 3); err != nil {
		t.Fatal(err)
	}
	if errs := receive(s, join(list[len(list)-2:])); len(errs) != 2 {
		t.Errorf("records after the fence: %v", errs)
	}
	if o, ok := offer(s, h.Session); !ok || o.Committed != 4 {
		t.Errorf("held %+v", o)
	}
	if err := s.Fence(h.Session, 3); !errors.Is(err, fence.ErrCanceled) {
		t.Errorf("again: %v", err)
	}
	if err := s.Fence(h.Session, 2); !errors.Is(err, fence.ErrStaleEpoch) {
		t.Errorf("lower: %v", err)
	}
	if held, err := s.Takeover(h.Session, 4, needOf(&h, 4)); err != nil {
		t.Error(err)
	} else {
		held.Memory.Release()
	}
}
