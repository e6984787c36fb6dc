// SPDX-License-Identifier: Apache-2.0
// Copyright The Segue Authors

package snapshot_test

import (
	"bytes"
	"errors"
	"io"
	"slices"
	"testing"
	"testing/iotest"
	"time"

	"github.com/seguekv/segue/fence"
	"github.com/seguekv/segue/snapshot"
)

// applyFrom applies one record that comes from rd.
func applyFrom(s *snapshot.Store, rd io.Reader) error {
	r := snapshot.NewReader(rd)
	if _, err := r.Next(); err != nil {
		return err
	}
	_, _, err := s.Apply(r)
	return err
}

// The store's write fails at each chunk, at its first byte, inside it and at its last: what is there then isn't listed,
// no takeover gets it, now or when later chunks have come, and a new base is served as if nothing had been.
func TestCase_A6_FailedWriteIsNeverListed(t *testing.T) {
	const boundaries = 12
	h := head(baseOf(1, 3), 40, boundaries)
	list := records(chain(t, h, boundaries), 7)
	failure := errors.New("no space")
	const header = 48
	for i, r := range list {
		if r.kind == snapshot.KindBase {
			continue
		}
		for _, cut := range []int{header, header + 1, (header + len(r.bytes)) / 2, len(r.bytes) - 1} {
			s, b := newStore(1 << 20)
			mustReceive(t, s, list[:i]...)
			if err := applyFrom(s, io.MultiReader(bytes.NewReader(r.bytes[:cut]), iotest.ErrReader(failure))); !errors.Is(err, failure) {
				t.Fatalf("record %d at %d: the write didn't fail: %v", i, cut, err)
			}
			if l := s.Offers(); len(l) != 0 {
				t.Fatalf("record %d at %d: listed: %+v", i, cut, l)
			}
			if used, _ := b.Used(); used != 0 {
				t.Fatalf("record %d at %d: %d bytes stay reserved", i, cut, used)
			}
			if errs := receive(s, join(list[i:])); len(errs) != len(list)-i {
				t.Fatalf("record %d at %d: %d of %d later chunks were refused: %v", i, cut, len(errs), len(list)-i, errs)
			}
			for d := range boundaries + 1 {
				held, err := s.Takeover(h.Session, fence.Epoch(4+d), needOf(&h, d))
				if held != nil || err == nil {
					t.Fatalf("record %d at %d: a takeover at %d got it", i, cut, d)
				}
			}
			next := h
			next.Epoch = 4 + boundaries
			mustReceive(t, s, records(chain(t, next, boundaries), 7)...)
			held, err := s.Takeover(h.Session, next.Epoch+1, needOf(&next, boundaries))
			if err != nil {
				t.Fatal(err)
			}
			checkState(t, held.State, &next, boundaries)
			held.Memory.Release()
		}
	}
}

// Every call succeeds as far as the primary hears, and one chunk of the snapshot isn't there: no takeover at what the
// primary believes committed is served.
func TestCase_A17_OneChunkShortIsRefused(t *testing.T) {
	const boundaries = 12
	h := head(baseOf(1, 3), 40, boundaries)
	list := records(chain(t, h, boundaries), 7)
	for i, r := range list {
		s, _ := newStore(1 << 20)
		receive(s, join(append(slices.Clone(list[:i]), list[i+1:]...)))
		held, err := s.Takeover(h.Session, 4, needOf(&h, boundaries))
		if held != nil || err == nil {
			t.Fatalf("without record %d of kind %d all is covered", i, r.kind)
		}
		// Nor a chunk that is there in another's place.
		if i+1 < len(list) && list[i+1].kind == r.kind {
			s, _ := newStore(1 << 20)
			receive(s, join(slices.Concat(list[:i], []record{list[i+1]}, list[i+1:])))
			if held, err := s.Takeover(h.Session, 4, needOf(&h, boundaries)); held != nil || err == nil {
				t.Fatalf("with record %d twice, without %d, all is covered", i+1, i)
			}
		}
	}
	// Nor when the rows are lost in memory: a block that reads as zeros.
	var views [][]byte
	for block := range 3 {
		s, _ := newStore(1 << 20)
		mustReceive(t, s, list...)
		held, err := s.Takeover(h.Session, 4, needOf(&h, boundaries))
		if err != nil {
			t.Fatal(err)
		}
		c := held.Chain
		views = c.Views(views[:0], block*snapshot.BlockRows, snapshot.BlockRows)
		clear(views[0])
		if _, err := c.State(); !errors.Is(err, snapshot.ErrDigest) {
			t.Errorf("block %d reads as zeros: %v", block, err)
		}
		if _, err := c.Rebase(snapshot.BaseID{Session: h.Session, Epoch: 4}); !errors.Is(err, snapshot.ErrDigest) {
			t.Errorf("block %d reads as zeros, and becomes a base: %v", block, err)
		}
		held.Memory.Release()
	}
}

// A primary of 100,000 sessions is given up: others' appends don't wait for it.
func TestCase_F6_GivingUpManyDelaysNobody(t *testing.T) {
	const count, rounds = 100_000, 5
	s, b := newStore(1 << 40)
	g := geometry()
	made := 0
	fill := func(n int) {
		for range n {
			made++
			h := snapshot.Head{
				BaseID:   snapshot.BaseID{Session: snapshot.SessionID{1, byte(made), byte(made >> 8), byte(made >> 16)}, Epoch: 1},
				Geometry: g, Fingerprint: []byte("f"), Prompt: []int32{1}, MaxOutput: 4,
			}
			if err := s.Begin(h, [16]byte{}); err != nil {
				t.Fatal(err)
			}
		}
	}
	fill(count)
	live := head(baseOf(9, 1), 4, snapshot.MaxTokens-4)
	c := chain(t, live, 1)
	mustReceive(t, s, records(c, 4)...)
	// Appends without a pause beside what an agent's sweep does: it looks at all that is held, and gives up a part. How
	// long each takes depends on the machine, whether one waits for all of the list doesn't.
	var shares []float64
	given := 0
	for range rounds {
		done := make(chan time.Duration, 1)
		go func() { // ends with the round
			began := time.Now()
			offers := s.Offers()
			listing := time.Since(began)
			for i := 0; i < count/rounds && i < len(offers); i++ {
				if o := offers[i]; o.Session != live.Session && s.Release(o.Session, o.Epoch) {
					given++
				}
			}
			done <- listing
		}()
		var took []time.Duration
		for listing := time.Duration(0); listing == 0; {
			n := c.Committed() + 1
			grow(t, c, n)
			row := record{snapshot.KindRows, bytes.Join(snapshot.AppendRowsRecord(nil, c, len(live.Prompt)+n-2, 1), nil)}
			last := record{snapshot.KindBoundary, snapshot.AppendBoundaryRecord(nil, live.BaseID, c.BoundaryAt(n))}
			began := time.Now()
			mustReceive(t, s, row, last)
			took = append(took, time.Since(began))
			select {
			case listing = <-done:
				slices.Sort(took)
				longest := took[len(took)-1]
				shares = append(shares, float64(longest)/float64(listing))
				t.Logf("%d appends: p50 %v, p99 %v, longest %v; all was listed in %v", len(took), took[len(took)/2], took[len(took)*99/100], longest, listing)
			default:
			}
		}
		fill(count / rounds)
	}
	if given < count-rounds {
		t.Fatalf("%d of %d sessions were given up", given, count)
	}
	if slices.Sort(shares); shares[rounds/2] > 0.5 {
		t.Errorf("an append waits for %.2f of the time in which all is listed", shares[rounds/2])
	}
	for _, o := range s.Offers() {
		s.Release(o.Session, o.Epoch)
	}
	if used, _ := b.Used(); used != 0 {
		t.Errorf("%d bytes stay reserved", used)
	}
}
