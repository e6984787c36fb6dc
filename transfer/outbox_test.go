// SPDX-License-Identifier: Apache-2.0
// Copyright The Segue Authors

package transfer

import (
	"bytes"
	"errors"
	"log/slog"
	"testing"
	"testing/synctest"
	"time"

	seguev1 "github.com/seguekv/segue/api/segue/v1"
	"github.com/seguekv/segue/snapshot"
)

const testRow = 10

func testOutbox(t *testing.T, boundaries int) *Outbox {
	t.Helper()
	c, err := snapshot.NewChain(snapshot.Head{
		BaseID:   snapshot.BaseID{Session: snapshot.SessionID{1}, Epoch: 1},
		Geometry: snapshot.Geometry{Layers: []snapshot.LayerRows{{KBytes: testRow / 2, VBytes: testRow / 2}}},
		Prompt:   []int32{1, 2, 3, 4}, MaxOutput: 100,
	})
	if err != nil {
		t.Fatal(err)
	}
	o := NewOutbox(c, 1000)
	if err := o.AppendRows(0, make([]byte, 4*testRow)); err != nil {
		t.Fatal(err)
	}
	extend(t, o, boundaries)
	return o
}

// extend captures boundaries up to n.
func extend(t *testing.T, o *Outbox, n int) {
	t.Helper()
	for i := o.Status().Captured + 1; i <= n; i++ {
		var row []byte
		if i > 1 {
			row = make([]byte, testRow)
		}
		if err := o.AppendBoundary(i, int32(i), snapshot.Sampler{Draws: uint64(i)}, row); err != nil {
			t.Fatal(err)
		}
	}
}

func testSender() *Sender { return NewSender(Self{}, nil, slog.New(slog.DiscardHandler)) }

func ackOf(o *Outbox, rows, committed int) *seguev1.Ack {
	b := o.Base()
	return &seguev1.Ack{Session: b.Session[:], Epoch: uint64(b.Epoch), Base: b.Base, Rows: uint32(rows), Committed: uint32(committed)}
}

// The watermarks of an outbox belong to the sender that it is attached to. What a former holder's stream does
// late, an ack most of all, doesn't move them.
func TestOutbox_OnlyItsHolderMovesIt(t *testing.T) {
	o, b, c := testOutbox(t, 3), testSender(), testSender()
	o.attached(b)
	o.welcome(b, nil)
	o.take(b, nil, 1<<20, false)
	late := ackOf(o, 6, 3)
	o.attached(c) // the session moved
	o.welcome(c, nil)
	o.take(c, nil, 1<<20, false)
	before := o.Status()
	check := func(what string) {
		t.Helper()
		if got := o.Status(); got != before {
			t.Errorf("%s of the former holder: %+v, was %+v", what, got, before)
		}
	}
	if err := o.ack(b, late); err != nil {
		t.Fatal(err)
	}
	check("ack")
	o.rejected(b, &seguev1.Reject{Session: late.GetSession(), Epoch: late.GetEpoch(), Base: late.GetBase()})
	check("reject")
	o.welcome(b, nil)
	check("welcome")
	o.disconnected(b)
	check("disconnect")
	o.detached(b)
	check("detach")
	if p, n := o.take(b, nil, 1<<20, false); len(p) != 0 || n != 0 {
		t.Error("the former holder gets records")
	}
	if err := o.ack(c, ackOf(o, 6, 3)); err != nil || o.Status().Committed != 3 {
		t.Fatalf("the holder's ack: %v, %+v", err, o.Status())
	}
}

// An ack that was under way when the session was detached doesn't count after it came back: it is about
// another base.
func TestOutbox_ComingBackMakesANewBase(t *testing.T) {
	o, b, c := testOutbox(t, 3), testSender(), testSender()
	for i, s := range []*Sender{b, c, b, b, c} {
		o.attached(s)
		if want := []uint32{0, 0, 1, 2, 2}[i]; o.Base().Base != want {
			t.Fatalf("attachment %d has base %d, want %d", i, o.Base().Base, want)
		}
		o.welcome(s, nil)
		if st := o.Status(); st.Committed != 0 || st.Sent != 0 || st.Captured != 3 {
			t.Fatalf("attachment %d: %+v", i, st)
		}
	}
	old := ackOf(o, 6, 3)
	old.Base = 0
	if err := o.ack(c, old); err != nil || o.Status().Committed != 0 {
		t.Fatalf("an old ack: %v, %+v", err, o.Status())
	}
}

// The age of what is uncommitted starts with its capture, or with the attachment after it; a welcome changes
// nothing.
func TestOutbox_Ages(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		o, s := testOutbox(t, 2), testSender()
		start := time.Now()
		at := func() time.Duration {
			if x := o.Status().OldestUncommitted; !x.IsZero() {
				return x.Sub(start)
			}
			return -1
		}
		step := func(want time.Duration, what string) {
			t.Helper()
			if got := at(); got != want {
				t.Fatalf("after the %s the oldest is of %v, want %v", what, got, want)
			}
			time.Sleep(time.Second)
		}
		step(0, "capture")
		o.attached(s)
		step(1*time.Second, "attachment")
		o.welcome(s, nil)
		step(1*time.Second, "welcome")
		extend(t, o, 3)
		step(1*time.Second, "third boundary")
		o.take(s, nil, 1<<20, false)
		if err := o.ack(s, ackOf(o, 5, 2)); err != nil {
			t.Fatal(err)
		}
		step(3*time.Second, "ack of two")
		if err := o.ack(s, ackOf(o, 6, 3)); err != nil {
			t.Fatal(err)
		}
		if got := o.Status().MovedAt.Sub(start); got != 5*time.Second {
			t.Fatalf("moved at %v", got)
		}
		step(-1, "ack of all")
		extend(t, o, 4)
		step(6*time.Second, "fourth boundary")
		o.disconnected(s)
		step(6*time.Second, "disconnect")
		o.welcome(s, nil) // a new boot: nothing is committed, four boundaries are late from now on
		step(8*time.Second, "new boot")
		if n := len(o.capturedAt); n != 4 {
			t.Fatalf("%d ages, want 4", n)
		}
	})
}

// How long there has been no stream counts from the attachment or the last stream's end, also where a peer comes and goes.
func TestOutbox_DownSince(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		o, b, c := testOutbox(t, 3), testSender(), testSender()
		start := time.Now()
		step := func(what string, want time.Duration) {
			t.Helper()
			switch got := o.Status().DownSince; {
			case want < 0 && !got.IsZero():
				t.Fatalf("after %s down since %v", what, got.Sub(start))
			case want >= 0 && got.Sub(start) != want:
				t.Fatalf("after %s down since %v, want %v", what, got.Sub(start), want)
			}
			time.Sleep(time.Second) // virtual
		}
		step("nothing", -1)
		o.attached(b)
		step("the attachment", 1*time.Second)
		o.welcome(b, nil)
		step("the welcome", -1)
		o.disconnected(b)
		step("the end of the stream", 3*time.Second)
		o.welcome(b, nil)
		step("another welcome", -1)
		o.disconnected(b)
		step("another end", 5*time.Second)
		o.attached(c)
		step("another attachment", 6*time.Second)
		o.disconnected(b)
		step("an end at the former holder", 6*time.Second)
		o.detached(c)
		step("the detachment", -1)
	})
}

// Damage in the primary's memory isn't sealed as good when a base is renewed.
func TestOutbox_DamagedMemoryIsRejected(t *testing.T) {
	o, s := testOutbox(t, 3), testSender()
	o.chain.Views(nil, 2, 1)[0][3] ^= 1
	o.attached(s)
	o.attached(s)
	o.welcome(s, nil)
	if st := o.Status(); !st.Rejected || st.Reason != seguev1.Reason_REASON_DIGEST_MISMATCH || st.Detail == "" {
		t.Fatalf("%+v", st)
	}
}

func TestOutbox_RefusesWhatDoesNotFollow(t *testing.T) {
	o := testOutbox(t, 2)
	before := o.Status()
	if err := o.AppendRows(0, make([]byte, testRow)); err == nil {
		t.Error("a repeated row is accepted")
	}
	if err := o.AppendBoundary(3, 1, snapshot.Sampler{Draws: 3}, make([]byte, 3)); err == nil {
		t.Error("part of a row is accepted")
	}
	if err := o.AppendBoundary(3, 1, snapshot.Sampler{Draws: 3}, nil); err == nil {
		t.Error("a boundary without its row is accepted")
	}
	if got := o.Status(); got != before {
		t.Errorf("refusals changed %+v to %+v", before, got)
	}
}

// A peer whose streams break before any ack makes no progress, however often it comes back.
func TestOutbox_FlappingPeerDoesNotLookAlive(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		o, b := testOutbox(t, 3), testSender()
		o.attached(b)
		began := o.Status().MovedAt
		for range 10 {
			time.Sleep(time.Second) // virtual
			o.welcome(b, nil)
			o.take(b, nil, 1<<20, false)
			o.disconnected(b)
		}
		st := o.Status()
		if !st.MovedAt.Equal(began) {
			t.Errorf("moved %v after it was attached, without an ack", st.MovedAt.Sub(began))
		}
		if got := time.Since(st.OldestUncommitted); got < 10*time.Second {
			t.Errorf("oldest uncommitted boundary is %v old, want 10 s", got)
		}
	})
}

// A sealed outbox takes nothing more and still sends what it has; the chain it gave away is another's.
func TestOutbox_Seal(t *testing.T) {
	o, b := testOutbox(t, 0), testSender()
	b.Attach(o)
	if _, err := o.Seal(); err == nil {
		t.Fatal("a base in progress is sealed")
	}
	extend(t, o, 3) // not sealed by the refusal
	c, err := o.Seal()
	if err != nil || c.Committed() != 3 {
		t.Fatalf("boundary %d: %v", c.Committed(), err)
	}
	if err := o.AppendBoundary(4, 4, snapshot.Sampler{Draws: 4}, make([]byte, testRow)); !errors.Is(err, ErrSealed) {
		t.Errorf("boundary: %v", err)
	}
	if err := o.AppendRows(6, make([]byte, testRow)); !errors.Is(err, ErrSealed) {
		t.Errorf("rows: %v", err)
	}
	if s := o.Status(); s.Captured != 3 || s.Rows != 6 || !s.Attached {
		t.Errorf("status %+v", s)
	}
	o.welcome(b, nil)
	pieces, size := o.take(b, nil, 1<<20, false)
	if s := o.Status(); s.Sent != 3 || size == 0 {
		t.Fatalf("sent %d boundaries in %d bytes", s.Sent, size)
	}
	before := bytes.Join(pieces, nil)
	// The new owner's chain grows into the block that the pieces are views of.
	next, err := c.Rebase(snapshot.BaseID{Session: c.Head().Session, Epoch: 2})
	if err != nil {
		t.Fatal(err)
	}
	if err := next.AppendRows(6, bytes.Repeat([]byte{7}, testRow)); err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(before, bytes.Join(pieces, nil)) {
		t.Error("what is on its way changed")
	}
	if err := o.ack(b, ackOf(o, 6, 3)); err != nil || o.Status().Committed != 3 {
		t.Errorf("ack: %v, %+v", err, o.Status())
	}
}

// Rows above the newest boundary are left by an append that failed: there is no state to give away.
func TestOutbox_SealNeedsABoundary(t *testing.T) {
	o := testOutbox(t, 2)
	if err := o.AppendBoundary(3, 3, snapshot.Sampler{Draws: 99}, make([]byte, testRow)); err == nil {
		t.Fatal("a boundary with 99 draws is taken")
	}
	if s := o.Status(); s.Captured != 2 {
		t.Fatalf("status %+v", s)
	}
	if _, err := o.Seal(); err == nil {
		t.Error("sealed")
	}
}
