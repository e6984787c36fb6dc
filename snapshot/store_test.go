// SPDX-License-Identifier: Apache-2.0
// Copyright The Segue Authors

package snapshot_test

import (
	"errors"
	"math"
	"slices"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/seguekv/segue/fence"
	"github.com/seguekv/segue/snapshot"
)

// G3: a takeover at d needs a complete boundary >= max(d, 1) with the caller's ids.
func TestStore_TakeoverCoverage(t *testing.T) {
	var none *snapshot.NotCoveredError
	wrong := snapshot.Digest{0xbd}
	for name, x := range map[string]struct {
		committed int
		need      func(h *snapshot.Head) snapshot.Need
		want      func(err error) bool
	}{
		"d is committed":         {5, func(h *snapshot.Head) snapshot.Need { return needOf(h, 5) }, isNil},
		"d is below committed":   {5, func(h *snapshot.Head) snapshot.Need { return needOf(h, 2) }, isNil},
		"d = 0 at boundary 1":    {1, func(h *snapshot.Head) snapshot.Need { return needOf(h, 0) }, isNil},
		"d = 0 at boundary 5":    {5, func(h *snapshot.Head) snapshot.Need { return needOf(h, 0) }, isNil},
		"d = committed + 1":      {5, func(h *snapshot.Head) snapshot.Need { return needOf(h, 6) }, uncovered(5, 6)},
		"d = 2 at boundary 1":    {1, func(h *snapshot.Head) snapshot.Need { return needOf(h, 2) }, uncovered(1, 2)},
		"d = 0 in the base":      {0, func(h *snapshot.Head) snapshot.Need { return needOf(h, 0) }, uncovered(0, 1)},
		"d = 1 in the base":      {0, func(h *snapshot.Head) snapshot.Need { return needOf(h, 1) }, uncovered(0, 1)},
		"d is the largest":       {5, func(h *snapshot.Head) snapshot.Need { n := needOf(h, 5); n.Delivered = math.MaxInt; return n }, uncovered(5, math.MaxInt)},
		"d is negative":          {5, func(h *snapshot.Head) snapshot.Need { n := needOf(h, 0); n.Delivered = -1; return n }, func(err error) bool { return errors.As(err, &none) }},
		"another prompt":         {5, func(h *snapshot.Head) snapshot.Need { n := needOf(h, 5); n.PromptDigest = &wrong; return n }, is(snapshot.ErrPrompt)},
		"another prompt, d = 0":  {5, func(h *snapshot.Head) snapshot.Need { n := needOf(h, 0); n.PromptDigest = &wrong; return n }, is(snapshot.ErrPrompt)},
		"unknown prompt":         {5, func(h *snapshot.Head) snapshot.Need { n := needOf(h, 5); n.PromptDigest = nil; return n }, is(snapshot.ErrPrompt)},
		"unknown prompt, d = 0":  {5, func(h *snapshot.Head) snapshot.Need { n := needOf(h, 0); n.PromptDigest = nil; return n }, isNil},
		"another output":         {5, func(h *snapshot.Head) snapshot.Need { n := needOf(h, 5); n.OutputDigest = wrong; return n }, is(snapshot.ErrOutput)},
		"output of another d":    {5, func(h *snapshot.Head) snapshot.Need { n := needOf(h, 5); n.Delivered = 4; return n }, is(snapshot.ErrOutput)},
		"no output digest, d= 0": {5, func(h *snapshot.Head) snapshot.Need { n := needOf(h, 0); n.OutputDigest = snapshot.Digest{}; return n }, is(snapshot.ErrOutput)},
		"another request":        {5, func(h *snapshot.Head) snapshot.Need { n := needOf(h, 5); n.Request = wrong; return n }, is(snapshot.ErrPrompt)},
		"another request, d = 0": {5, func(h *snapshot.Head) snapshot.Need { n := needOf(h, 0); n.Request = wrong; return n }, is(snapshot.ErrPrompt)},
	} {
		t.Run(name, func(t *testing.T) {
			h := head(baseOf(1, 3), 12, 20)
			s, b := newStore(1 << 20)
			mustReceive(t, s, records(chain(t, h, x.committed), 5)...)
			held, err := s.Takeover(h.Session, 4, x.need(&h))
			if !x.want(err) {
				t.Fatalf("got %v", err)
			}
			if err == nil {
				checkState(t, held.State, &h, x.committed)
				if _, ok := offer(s, h.Session); ok {
					t.Error("the chain is still in the store")
				}
				held.Memory.Release()
			} else {
				if held != nil {
					t.Error("refused, and something is handed out")
				}
				if o, ok := offer(s, h.Session); !ok || o.Committed != x.committed {
					t.Error("a refused takeover lost what is held")
				}
				if x.committed > 0 { // the epoch stays raised; a right caller with a higher one is served
					if _, err := s.Takeover(h.Session, 4, needOf(&h, 1)); !errors.Is(err, fence.ErrStaleEpoch) {
						t.Errorf("epoch 4 again: %v", err)
					}
					held, err := s.Takeover(h.Session, 5, needOf(&h, x.committed))
					if err != nil {
						t.Fatal(err)
					}
					checkState(t, held.State, &h, x.committed)
					held.Memory.Release()
				}
				s.Release(h.Session, 9)
			}
			if used, _ := b.Used(); used != 0 {
				t.Errorf("%d bytes stay reserved", used)
			}
		})
	}
}

func isNil(err error) bool { return err == nil }

func is(target error) func(error) bool {
	return func(err error) bool { return errors.Is(err, target) }
}

func uncovered(committed, need int) func(error) bool {
	return func(err error) bool {
		e, ok := errors.AsType[*snapshot.NotCoveredError](err)
		return ok && e.Committed == committed && e.Need == need
	}
}

// G3 by ids: a holder of other output ids or another prompt never covers.
func TestStore_TakeoverComparesEveryID(t *testing.T) {
	h := head(baseOf(1, 3), 6, 20)
	for d := 1; d <= 8; d++ {
		for i := range d {
			ids := make([]int32, d)
			for j := range ids {
				ids[j] = tokenOf(j)
			}
			ids[i]++
			s, _ := newStore(1 << 20)
			mustReceive(t, s, records(chain(t, h, 8), 5)...)
			need := needOf(&h, d)
			need.OutputDigest = snapshot.IDsDigest(ids)
			if _, err := s.Takeover(h.Session, 4, need); !errors.Is(err, snapshot.ErrOutput) {
				t.Fatalf("d = %d, id %d differs: %v", d, i, err)
			}
		}
	}
	for i := range h.Prompt {
		s, _ := newStore(1 << 20)
		mustReceive(t, s, records(chain(t, h, 8), 5)...)
		need := needOf(&h, 3)
		ids := slices.Clone(h.Prompt)
		ids[i]++
		d := snapshot.IDsDigest(ids)
		need.PromptDigest = &d
		if _, err := s.Takeover(h.Session, 4, need); !errors.Is(err, snapshot.ErrPrompt) {
			t.Fatalf("prompt id %d differs: %v", i, err)
		}
	}
}

// G4: after a takeover of epoch e+1, whether served or refused, nothing of epoch <= e changes the store.
func TestStore_TakeoverFencesLowerEpochs(t *testing.T) {
	h := head(baseOf(1, 7), 12, 20)
	c := chain(t, h, 6)
	list := records(c, 5)
	for name, x := range map[string]struct {
		need   snapshot.Need
		served bool
	}{
		"served":  {needOf(&h, 1), true},
		"refused": {needOf(&h, 19), false},
	} {
		for cut := 5; cut < len(list); cut++ {
			s, _ := newStore(1 << 20)
			mustReceive(t, s, list[:cut]...)
			_, err := s.Takeover(h.Session, 8, x.need)
			if (err == nil) != x.served {
				t.Fatalf("%s: %v", name, err)
			}
			before := s.Offers()
			if len(before) != 1 && !x.served {
				t.Fatalf("%s: held %v", name, before)
			}
			fenced := func(what string, err error) {
				t.Helper()
				if !errors.Is(err, fence.ErrStaleEpoch) {
					t.Errorf("%s: %s: %v", name, what, err)
				}
				if diff := cmp.Diff(before, s.Offers()); diff != "" {
					t.Errorf("%s: %s changes the store: %s", name, what, diff)
				}
			}
			for i, r := range list {
				errs := receive(s, r.bytes)
				if len(errs) != 1 {
					t.Fatalf("record %d: %v", i, errs)
				}
				fenced("a late record", errs[0])
			}
			for e := fence.Epoch(1); e < 8; e++ {
				late := h
				late.Epoch = e
				fenced("a base of a lower epoch", s.Begin(late, [16]byte{}))
				fenced("an attempt of a lower epoch", s.Admit(h.Session, e))
				_, err := s.Takeover(h.Session, e, needOf(&h, 1))
				fenced("a takeover of a lower epoch", err)
			}
			_, err = s.Takeover(h.Session, 8, needOf(&h, 1))
			fenced("a takeover of the same epoch", err)
		}
	}
}

func TestStore_CancelIsRemembered(t *testing.T) {
	h := head(baseOf(1, 3), 12, 20)
	list := records(chain(t, h, 4), 5)
	s, b := newStore(1 << 20)
	s.Cancel(h.Session, 3) // before anything was heard of the session
	for _, r := range list {
		if errs := receive(s, r.bytes); len(errs) != 1 || !errors.Is(errs[0], fence.ErrCanceled) {
			t.Fatalf("record after the cancel: %v", errs)
		}
	}
	if err := s.Admit(h.Session, 2); !errors.Is(err, fence.ErrCanceled) {
		t.Errorf("admit: %v", err)
	}
	if _, err := s.Takeover(h.Session, 3, needOf(&h, 0)); !errors.Is(err, fence.ErrCanceled) {
		t.Errorf("takeover: %v", err)
	}
	next := h
	next.Epoch = 4
	mustReceive(t, s, records(chain(t, next, 4), 5)...)
	s.Cancel(h.Session, 3) // an old cancel again: nothing of epoch 4 is lost
	if o, ok := offer(s, h.Session); !ok || o.Committed != 4 {
		t.Fatal("a cancel of a lower epoch dropped the base")
	}
	s.Cancel(h.Session, 9)
	if used, _ := b.Used(); used != 0 || len(s.Offers()) != 0 {
		t.Fatal("a cancelled base is held")
	}
	if _, err := s.Takeover(h.Session, 9, needOf(&h, 0)); !errors.Is(err, fence.ErrCanceled) {
		t.Errorf("takeover at the cancelled epoch: %v", err)
	}
	if _, err := s.Takeover(h.Session, 10, needOf(&h, 0)); !errors.Is(err, snapshot.ErrUnknownSession) {
		t.Errorf("takeover above it: %v", err)
	}
}

func TestStore_AdmitDropsLowerEpochs(t *testing.T) {
	h := head(baseOf(1, 3), 12, 20)
	list := records(chain(t, h, 4), 5)
	s, b := newStore(1 << 20)
	mustReceive(t, s, list...)
	if err := s.Admit(h.Session, 3); err != nil {
		t.Fatal(err)
	}
	if _, ok := offer(s, h.Session); !ok {
		t.Fatal("admitting the same epoch dropped the base")
	}
	if err := s.Admit(h.Session, 4); err != nil {
		t.Fatal(err)
	}
	if used, _ := b.Used(); used != 0 || len(s.Offers()) != 0 {
		t.Fatal("a fenced base is held")
	}
	if errs := receive(s, list[0].bytes); len(errs) != 1 || !errors.Is(errs[0], fence.ErrStaleEpoch) {
		t.Fatalf("late base: %v", errs)
	}
	if err := s.Admit(session(2), 0); err == nil {
		t.Fatal("epoch 0 is admitted")
	}
}

func TestStore_BaseNumbersRise(t *testing.T) {
	with := func(e fence.Epoch, base uint32) snapshot.Head {
		return head(snapshot.BaseID{Session: session(1), Epoch: e, Base: base}, 12, 20)
	}
	s, _ := newStore(1 << 20)
	two := chain(t, with(3, 2), 4)
	mustReceive(t, s, records(two, 5)...)
	one := chain(t, with(3, 1), 4)
	for i, r := range records(one, 5) {
		if errs := receive(s, r.bytes); len(errs) != 1 || !errors.Is(errs[0], snapshot.ErrUnknownBase) {
			t.Fatalf("record %d of a lower base: %v", i, errs)
		}
	}
	if o, _ := offer(s, session(1)); o.Base != 2 || o.Committed != 4 {
		t.Fatalf("held %+v", o)
	}
	s.Release(session(1), 3)
	if err := s.Begin(with(3, 1), [16]byte{}); !errors.Is(err, snapshot.ErrUnknownBase) {
		t.Fatalf("a lower base after the release: %v", err)
	}
	mustReceive(t, s, records(chain(t, with(3, 3), 1), 5)...)
	mustReceive(t, s, records(chain(t, with(4, 0), 1), 5)...) // bases count within an epoch
	if o, _ := offer(s, session(1)); o.Epoch != 4 || o.Base != 0 {
		t.Fatalf("held %+v", o)
	}
}

// The reason for which a base isn't taken answers its records and a takeover.
func TestStore_RefusedBaseTellsWhy(t *testing.T) {
	no := errors.New("another fingerprint")
	refuse := true
	b := snapshot.NewBudget(1 << 20)
	s := snapshot.NewStore(b, func(h *snapshot.Head) error {
		if refuse {
			return no
		}
		return nil
	})
	h := head(baseOf(1, 3), 12, 20)
	list := records(chain(t, h, 4), 5)
	for i, err := range receive(s, join(list)) {
		if !errors.Is(err, no) {
			t.Fatalf("record %d: %v", i, err)
		}
	}
	if _, err := s.Takeover(h.Session, 4, needOf(&h, 0)); !errors.Is(err, no) {
		t.Fatalf("takeover: %v", err)
	}
	refuse = false
	h.Epoch = 5
	mustReceive(t, s, records(chain(t, h, 4), 5)...)
	if _, err := s.Takeover(h.Session, 6, needOf(&h, 4)); err != nil {
		t.Fatal(err)
	}
}

func TestStore_FullBudget(t *testing.T) {
	h := head(baseOf(1, 3), 12, 20)
	size := h.Bytes()
	if want := int64(2 * 16 * rowBytes); size != want {
		t.Fatalf("a base of %d rows reserves %d bytes, want %d", h.MaxRows(), size, want)
	}
	s, b := newStore(2 * size)
	for n := byte(1); n <= 2; n++ {
		mustReceive(t, s, records(chain(t, head(baseOf(n, 3), 12, 20), 4), 5)...)
	}
	third := head(baseOf(3, 3), 12, 20)
	list := records(chain(t, third, 4), 5)
	for i, err := range receive(s, join(list)) {
		if !errors.Is(err, snapshot.ErrStoreFull) {
			t.Fatalf("record %d: %v", i, err)
		}
	}
	if _, err := s.Takeover(third.Session, 4, needOf(&third, 0)); !errors.Is(err, snapshot.ErrStoreFull) {
		t.Fatalf("takeover: %v", err)
	}
	for n := byte(1); n <= 2; n++ { // acked state is never evicted
		if o, ok := offer(s, session(n)); !ok || o.Committed != 4 {
			t.Fatalf("session %d lost its base", n)
		}
	}
	held, err := s.Takeover(session(1), 4, needOf(&h, 4))
	if err != nil {
		t.Fatal(err)
	}
	if used, limit := b.Used(); used != 2*size || limit != 2*size {
		t.Fatalf("%d of %d bytes in use", used, limit)
	}
	s.Cancel(session(1), 9)
	s.Release(session(1), 9)
	held.Memory.Release()
	held.Memory.Release()
	if used, _ := b.Used(); used != size {
		t.Fatalf("%d bytes in use after a double release, want %d", used, size)
	}
	third.Epoch = 5
	mustReceive(t, s, records(chain(t, third, 4), 5)...)
	if !s.Release(session(2), 3) || s.Release(session(2), 3) || s.Release(session(9), 3) {
		t.Fatal("release misreports what was held")
	}
	if s.Release(third.Session, 4) {
		t.Fatal("a release of a lower epoch dropped the base")
	}
	s.Release(third.Session, 5)
	if used, _ := b.Used(); used != 0 {
		t.Fatalf("%d bytes stay in use", used)
	}
}

func TestBudget_Limits(t *testing.T) {
	b := snapshot.NewBudget(100)
	for _, n := range []int64{-1, 101, math.MaxInt64} {
		if _, err := b.Reserve(n); !errors.Is(err, snapshot.ErrStoreFull) {
			t.Errorf("reserve %d: %v", n, err)
		}
	}
	r, err := b.Reserve(100)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := b.Reserve(math.MaxInt64); !errors.Is(err, snapshot.ErrStoreFull) {
		t.Errorf("reserve beyond a full budget: %v", err)
	}
	if _, err := b.Reserve(0); err != nil {
		t.Errorf("reserve nothing: %v", err)
	}
	var all sync.WaitGroup
	for range 8 {
		all.Go(r.Release)
	}
	all.Wait()
	if used, _ := b.Used(); used != 0 {
		t.Errorf("%d bytes stay in use", used)
	}
}

// The memory of epochs is bounded; what holds a chain is never forgotten.
func TestStore_RecordsAreBounded(t *testing.T) {
	s, b := newStore(1 << 20)
	s.SetMaxRecords(50)
	id := func(i int) snapshot.SessionID { return snapshot.SessionID{byte(i), byte(i >> 8), 1} }
	for i := range 10 {
		if err := s.Begin(head(snapshot.BaseID{Session: id(i), Epoch: 1}, 4, 4), [16]byte{}); err != nil {
			t.Fatal(err)
		}
	}
	for i := 10; i < 1000; i++ {
		s.Cancel(id(i), 1)
		if n, order := s.Records(); n > 60 || n != order {
			t.Fatalf("after %d sessions %d are remembered, %d in order", i, n, order)
		}
	}
	if n := len(s.Offers()); n != 10 {
		t.Fatalf("%d chains are held, want 10", n)
	}
	for i := 990; i < 1000; i++ {
		if err := s.Admit(id(i), 1); !errors.Is(err, fence.ErrCanceled) {
			t.Fatalf("a recent cancel is forgotten: %v", err)
		}
	}
	for i := range 10 {
		s.Release(id(i), 1)
	}
	for i := 1000; i < 2000; i++ {
		s.Cancel(id(i), 1)
	}
	if n, _ := s.Records(); n > 50 {
		t.Fatalf("%d sessions are remembered", n)
	}
	if used, _ := b.Used(); used != 0 {
		t.Fatalf("%d bytes stay in use", used)
	}
}

// A damaged chain in memory is never handed out, and its memory is given back.
func TestStore_TakeoverFindsDamagedMemory(t *testing.T) {
	h := head(baseOf(1, 3), 12, 20)
	b := snapshot.NewBudget(1 << 20)
	var inner *snapshot.Head
	s := snapshot.NewStore(b, func(h *snapshot.Head) error {
		inner = h
		return nil
	})
	mustReceive(t, s, records(chain(t, h, 4), 5)...)
	inner.Prompt[2]++ // the store's own ids
	need := needOf(inner, 4)
	if _, err := s.Takeover(h.Session, 4, need); !errors.Is(err, snapshot.ErrDigest) {
		t.Fatalf("got %v", err)
	}
	if _, err := s.Takeover(h.Session, 5, need); !errors.Is(err, snapshot.ErrDigest) {
		t.Fatalf("again: %v", err)
	}
	if used, _ := b.Used(); used != 0 || len(s.Offers()) != 0 {
		t.Fatal("a damaged base is held")
	}
}

// Records, takeovers and releases from many goroutines: run with -race.
func TestStore_Concurrent(t *testing.T) {
	s, b := newStore(1 << 20)
	var all sync.WaitGroup
	for n := byte(1); n <= 4; n++ {
		h := head(baseOf(n, 1), 12, 20)
		list := records(chain(t, h, 6), 3)
		all.Go(func() {
			for _, r := range list {
				receive(s, r.bytes)
			}
		})
		all.Go(func() {
			for e := fence.Epoch(2); ; e++ {
				held, err := s.Takeover(session(n), e, needOf(&h, 0))
				if err == nil {
					if st := held.State; st.Validate() != nil || st.Rows() != 12+len(st.Output)-1 {
						t.Error("a takeover got half a boundary")
					}
					held.Memory.Release()
					return
				}
				if e > 100 {
					return
				}
				s.Offers()
			}
		})
	}
	all.Wait()
	for n := byte(1); n <= 4; n++ {
		s.Release(session(n), 1000)
	}
	if used, _ := b.Used(); used != 0 {
		t.Fatalf("%d bytes stay in use", used)
	}
}
