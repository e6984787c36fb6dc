// SPDX-License-Identifier: Apache-2.0
// Copyright The Segue Authors

package snapshot_test

import (
	"errors"
	"testing"

	"pgregory.net/rapid"

	"github.com/seguekv/segue/fence"
	"github.com/seguekv/segue/snapshot"
)

// storeModel is what a store must hold, kept by the plainest means.
type storeModel struct {
	highest, canceled map[byte]fence.Epoch
	held              map[byte]*heldModel
	newest            map[byte]snapshot.BaseID
	taken             []*snapshot.Held
	reserved          int64
	// gone has the calls that each parked chain's store made when it left, and whether it has left.
	gone map[*int]func() bool
}

type heldModel struct {
	chain *snapshot.Chain // the primary's, complete
	sent  int             // records applied
	bytes int64
	// parked: the store has the chain itself.
	parked bool
}

// committed is the boundary that the records sent so far complete.
func (h *heldModel) committed() int {
	n := 0
	for _, r := range records(h.chain, 5)[:h.sent] {
		if r.kind == snapshot.KindBoundary {
			n = u32(r.bytes, 36)
		}
	}
	return n
}

func (m *storeModel) drop(n byte) {
	if h := m.held[n]; h != nil {
		m.reserved -= h.bytes
		delete(m.held, n)
	}
}

func (m *storeModel) admits(n byte, e fence.Epoch) bool {
	return e > m.canceled[n] && e >= m.highest[n]
}

// Whatever the order of records, takeovers, cancels and releases: the store follows the model, no record of a
// fenced epoch changes it, and every byte is given back exactly once.
func TestStore_Property(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		limit := int64(rapid.IntRange(1, 12).Draw(rt, "blocks")) * snapshot.BlockRows * rowBytes
		s, budget := newStore(limit)
		m := storeModel{
			highest: make(map[byte]fence.Epoch), canceled: make(map[byte]fence.Epoch),
			held: make(map[byte]*heldModel), newest: make(map[byte]snapshot.BaseID), gone: make(map[*int]func() bool),
		}
		sessions := rapid.ByteRange(1, 3)
		epochs := rapid.Custom(func(rt *rapid.T) fence.Epoch { return fence.Epoch(rapid.IntRange(1, 6).Draw(rt, "e")) })
		rt.Repeat(map[string]func(*rapid.T){
			"begin": func(rt *rapid.T) {
				n, e := sessions.Draw(rt, "session"), epochs.Draw(rt, "epoch")
				h := head(snapshot.BaseID{Session: session(n), Epoch: e, Base: uint32(rapid.IntRange(0, 2).Draw(rt, "base"))},
					rapid.IntRange(1, 20).Draw(rt, "prompt"), rapid.IntRange(1, 30).Draw(rt, "max"))
				errs := receive(s, snapshot.AppendBaseRecord(nil, &h))
				if !m.admits(n, e) || m.newest[n].Epoch == e && h.Base < m.newest[n].Base {
					if len(errs) != 1 {
						rt.Fatalf("fenced base: %v", errs)
					}
					if m.admits(n, e) {
						m.highest[n] = e
					}
					return
				}
				m.highest[n], m.newest[n] = e, h.BaseID
				m.drop(n)
				if fits := m.reserved+h.Bytes() <= limit; fits != (len(errs) == 0) || !fits && !errors.Is(errs[0], snapshot.ErrStoreFull) {
					rt.Fatalf("base of %d bytes with %d of %d in use: %v", h.Bytes(), m.reserved, limit, errs)
				}
				if len(errs) == 0 {
					m.held[n] = &heldModel{chain: chain(rt, h, rapid.IntRange(0, h.MaxOutput).Draw(rt, "n")), sent: 1, bytes: h.Bytes()}
					m.reserved += h.Bytes()
				}
			},
			"records": func(rt *rapid.T) {
				n := sessions.Draw(rt, "session")
				h := m.held[n]
				if h == nil {
					return
				}
				list := records(h.chain, 5)
				count := rapid.IntRange(0, len(list)-h.sent).Draw(rt, "count")
				errs := receive(s, join(list[h.sent:h.sent+count]))
				if alive := m.admits(n, h.chain.Head().Epoch); count > 0 && alive != (len(errs) == 0) {
					rt.Fatalf("%d records: %v", count, errs)
				}
				if len(errs) == 0 {
					h.sent += count
				}
			},
			"damaged": func(rt *rapid.T) {
				n := sessions.Draw(rt, "session")
				h := m.held[n]
				if h == nil || h.sent == len(records(h.chain, 5)) || !m.admits(n, h.chain.Head().Epoch) {
					return
				}
				b := records(h.chain, 5)[h.sent].bytes
				at := rapid.IntRange(48, len(b)-1).Draw(rt, "byte")
				b[at] ^= 1 << rapid.IntRange(0, 7).Draw(rt, "bit")
				if errs := receive(s, b); len(errs) != 1 || !errors.Is(errs[0], snapshot.ErrDigest) {
					rt.Fatalf("damage at %d: %v", at, errs)
				}
				m.drop(n)
			},
			"takeover": func(rt *rapid.T) {
				n, e := sessions.Draw(rt, "session"), epochs.Draw(rt, "epoch")
				d := rapid.IntRange(0, 10).Draw(rt, "d")
				h := m.held[n]
				covered := h != nil && h.committed() >= max(d, 1)
				raises := e > m.canceled[n] && e > m.highest[n]
				need := needOf(&snapshot.Head{Prompt: []int32{1}}, d)
				if h != nil {
					need = needOf(h.chain.Head(), d)
				}
				held, err := s.Takeover(session(n), e, need)
				if (covered && raises) != (err == nil) {
					rt.Fatalf("takeover at %d, epoch %d (highest %d, cancelled %d): %v", d, e, m.highest[n], m.canceled[n], err)
				}
				if raises && (m.highest[n] > 0 || m.canceled[n] > 0) { // the session is known
					m.highest[n] = e
				}
				if err == nil {
					checkState(rt, held.State, h.chain.Head(), h.committed())
					m.taken = append(m.taken, held)
					delete(m.held, n)
				}
			},
			"cancel": func(rt *rapid.T) {
				n, e := sessions.Draw(rt, "session"), epochs.Draw(rt, "epoch")
				s.Cancel(session(n), e)
				m.canceled[n] = max(m.canceled[n], e)
				if h := m.held[n]; h != nil && h.chain.Head().Epoch <= e {
					m.drop(n)
				}
			},
			"park": func(rt *rapid.T) {
				n, e := sessions.Draw(rt, "session"), epochs.Draw(rt, "epoch")
				h := head(snapshot.BaseID{Session: session(n), Epoch: e, Base: uint32(rapid.IntRange(0, 2).Draw(rt, "base"))},
					rapid.IntRange(1, 20).Draw(rt, "prompt"), rapid.IntRange(1, 30).Draw(rt, "max"))
				r, err := budget.Reserve(h.Bytes())
				if err != nil {
					return
				}
				c := chain(rt, h, rapid.IntRange(0, h.MaxOutput).Draw(rt, "n"))
				gone := new(int)
				err = s.Park(c, r, func() { *gone++ })
				if takes := c.Committed() > 0 && m.admits(n, e); takes != (err == nil) {
					rt.Fatalf("park at %d, epoch %d (highest %d, cancelled %d): %v", c.Committed(), e, m.highest[n], m.canceled[n], err)
				}
				if err != nil {
					r.Release()
					return
				}
				m.highest[n], m.canceled[n], m.newest[n] = e, e, h.BaseID
				m.drop(n)
				m.held[n] = &heldModel{chain: c, sent: len(records(c, 5)), bytes: h.Bytes(), parked: true}
				m.reserved += h.Bytes()
				m.gone[gone] = func() bool { x := m.held[n]; return x == nil || x.chain != c }
			},
			"fence": func(rt *rapid.T) {
				n, e := sessions.Draw(rt, "session"), epochs.Draw(rt, "epoch")
				if err := s.Fence(session(n), e); m.admits(n, e) != (err == nil) {
					rt.Fatalf("fence %d: %v", e, err)
				}
				if m.admits(n, e) {
					m.canceled[n] = e
				}
			},
			"admit": func(rt *rapid.T) {
				n, e := sessions.Draw(rt, "session"), epochs.Draw(rt, "epoch")
				if err := s.Admit(session(n), e); m.admits(n, e) != (err == nil) {
					rt.Fatalf("admit %d: %v", e, err)
				}
				if m.admits(n, e) {
					m.highest[n] = e
					if h := m.held[n]; h != nil && h.chain.Head().Epoch < e {
						m.drop(n)
					}
				}
			},
			"release": func(rt *rapid.T) {
				n, e := sessions.Draw(rt, "session"), epochs.Draw(rt, "epoch")
				h := m.held[n]
				want := h != nil && h.chain.Head().Epoch <= e
				if got := s.Release(session(n), e); got != want {
					rt.Fatalf("release: %v, want %v", got, want)
				}
				if want {
					m.drop(n)
				}
			},
			"give back": func(rt *rapid.T) {
				if len(m.taken) == 0 {
					return
				}
				x := m.taken[0]
				m.taken = m.taken[1:]
				h := x.Chain.Head()
				x.Memory.Release()
				x.Memory.Release()
				m.reserved -= h.Bytes()
			},
			"": func(rt *rapid.T) {
				if used, _ := budget.Used(); used != m.reserved || used < 0 || used > limit {
					rt.Fatalf("%d bytes in use, want %d of %d", used, m.reserved, limit)
				}
				for calls, left := range m.gone {
					if want := map[bool]int{true: 1}[left()]; *calls != want {
						rt.Fatalf("gone was called %d times, want %d", *calls, want)
					}
				}
				for n := byte(1); n <= 3; n++ {
					h := m.held[n]
					at, ok := s.Parked(session(n), m.canceled[n])
					if want := h != nil && h.parked && h.chain.Head().Epoch == m.canceled[n] && m.highest[n] <= m.canceled[n]; ok != want || ok && at != h.committed() {
						rt.Fatalf("parked: %v at %d, want %v", ok, at, want)
					}
				}
				offers := s.Offers()
				if len(offers) != len(m.held) {
					rt.Fatalf("%d bases held, want %d", len(offers), len(m.held))
				}
				for _, o := range offers {
					h := m.held[o.Session[0]]
					if o.BaseID != h.chain.Head().BaseID || o.Parked != h.parked || o.Committed != h.committed() || o.Chain != h.chain.DigestAt(o.Rows) {
						rt.Fatalf("held %+v, want boundary %d of %+v", o, h.committed(), h.chain.Head().BaseID)
					}
				}
			},
		})
		for n := byte(1); n <= 3; n++ {
			s.Release(session(n), 100)
		}
		for _, x := range m.taken {
			x.Memory.Release()
		}
		if used, _ := budget.Used(); used != 0 {
			rt.Fatalf("%d bytes stay in use", used)
		}
	})
}
