// SPDX-License-Identifier: Apache-2.0
// Copyright The Segue Authors

package fence_test

import (
	"errors"
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/seguekv/segue/fence"
)

func TestGate_RejectsStaleEpoch(t *testing.T) {
	g := fence.NewGate(1)
	must(t, g.Append(1, 0, 7, 1))
	must(t, g.Raise(1, 2))
	for name, err := range map[string]error{
		"next index":     g.Append(1, 1, 8, 2),
		"accepted entry": g.Append(1, 0, 7, 1),
		"finish":         g.Finish(1, 1, "stop", fence.Usage{}),
		"raise":          g.Raise(1, 3),
	} {
		if !errors.Is(err, fence.ErrStaleEpoch) {
			t.Errorf("%s under the old epoch: got %v, want ErrStaleEpoch", name, err)
		}
	}
	must(t, g.Append(2, 1, 9, 2))
	if got, want := g.Tokens(), []int32{7, 9}; !cmp.Equal(got, want) {
		t.Errorf("tokens %v, want %v", got, want)
	}
}

func TestGate_RejectsFutureEpoch(t *testing.T) {
	g := fence.NewGate(1)
	if err := g.Append(2, 0, 7, 1); !errors.Is(err, fence.ErrFutureEpoch) {
		t.Errorf("got %v, want ErrFutureEpoch", err)
	}
}

func TestGate_RejectsGap(t *testing.T) {
	g := fence.NewGate(1)
	must(t, g.Append(1, 0, 7, 1))
	for _, index := range []int{-1, 2, 100} {
		err := g.Append(1, index, 7, 1)
		ie, ok := errors.AsType[*fence.IndexError](err)
		if !ok || ie.Got != index || ie.Want != 1 {
			t.Errorf("index %d: got %v, want IndexError{%d, 1}", index, err, index)
		}
	}
}

func TestGate_SameEntryAgainIsSuccess(t *testing.T) {
	g := fence.NewGate(1)
	must(t, g.Append(1, 0, 7, 1))
	must(t, g.Append(1, 0, 7, 1))
	must(t, g.Raise(1, 2))
	must(t, g.Append(2, 0, 7, 1))
	if g.Len() != 1 || g.EpochOf(0) != 1 {
		t.Errorf("len %d epoch %d, want one entry of epoch 1", g.Len(), g.EpochOf(0))
	}
	for _, err := range []error{g.Append(2, 0, 8, 1), g.Append(2, 0, 7, 2), g.Append(2, 1, 3, 0)} {
		if !errors.Is(err, fence.ErrConflict) {
			t.Errorf("got %v, want ErrConflict", err)
		}
	}
}

func TestGate_FinishClosesForGood(t *testing.T) {
	g := fence.NewGate(1)
	must(t, g.Append(1, 0, 7, 1))
	if err := g.Finish(1, 2, "stop", fence.Usage{}); err == nil {
		t.Error("finish with a missing token was accepted")
	}
	must(t, g.Finish(1, 1, "stop", fence.Usage{PromptTokens: 3, OutputTokens: 1}))
	must(t, g.Finish(1, 1, "stop", fence.Usage{PromptTokens: 3, OutputTokens: 1}))
	for name, err := range map[string]error{
		"append":       g.Append(1, 1, 8, 2),
		"raise":        g.Raise(1, 2),
		"restart":      g.Restart(2),
		"other finish": g.Finish(1, 1, "length", fence.Usage{}),
	} {
		if !errors.Is(err, fence.ErrClosed) {
			t.Errorf("%s after finish: got %v, want ErrClosed", name, err)
		}
	}
	if f, ok := g.Final(); !ok || f.Reason != "stop" || f.Tokens != 1 {
		t.Errorf("final %+v %v", f, ok)
	}
}

func TestGate_RestartOnlyBeforeContent(t *testing.T) {
	g := fence.NewGate(1)
	must(t, g.Append(1, 0, 7, 0))
	must(t, g.Restart(2))
	if g.Len() != 0 || g.TextEnd() != 0 || g.Epoch() != 2 {
		t.Errorf("after restart: len %d, text end %d, epoch %d", g.Len(), g.TextEnd(), g.Epoch())
	}
	must(t, g.Append(2, 0, 9, 4))
	g.MarkContent()
	if err := g.Restart(3); !errors.Is(err, fence.ErrCommitted) {
		t.Errorf("got %v, want ErrCommitted", err)
	}
	if g.Len() != 1 || g.Epoch() != 2 {
		t.Errorf("a refused restart changed the gate: len %d, epoch %d", g.Len(), g.Epoch())
	}
}

// TestGate_Property drives the gate with any mixture of calls from several attempts and compares it with
// the rules stated directly.
func TestGate_Property(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		g := fence.NewGate(1)
		cur, closed, content := fence.Epoch(1), false, false
		var want []int32
		end := 0
		for range rapid.IntRange(1, 60).Draw(t, "steps") {
			e := fence.Epoch(rapid.Uint64Range(1, uint64(cur)+1).Draw(t, "epoch"))
			switch rapid.IntRange(0, 9).Draw(t, "op") {
			case 0:
				to := fence.Epoch(rapid.Uint64Range(1, uint64(cur)+2).Draw(t, "to"))
				err := g.Raise(e, to)
				ok := !closed && e == cur && to > cur
				if (err == nil) != ok {
					t.Fatalf("Raise(%d,%d) at %d: %v", e, to, cur, err)
				}
				if ok {
					cur = to
				}
			case 1:
				err := g.Restart(cur + 1)
				ok := !closed && !content
				if (err == nil) != ok {
					t.Fatalf("Restart: %v", err)
				}
				if ok {
					cur++
					want, end = nil, 0
				}
			case 2:
				g.MarkContent()
				content = true
			case 3:
				n := rapid.IntRange(0, len(want)+1).Draw(t, "n")
				err := g.Finish(e, n, "stop", fence.Usage{})
				ok := e == cur && n == len(want)
				if closed {
					f, _ := g.Final()
					ok = e == cur && f.Tokens == n
				}
				if (err == nil) != ok {
					t.Fatalf("Finish(%d,%d): %v", e, n, err)
				}
				closed = closed || ok
			default:
				index := rapid.IntRange(0, len(want)+1).Draw(t, "index")
				tok := int32(index * 3)
				te := end
				if index < len(want) {
					te = index + 1
				} else {
					te = index + 1
				}
				err := g.Append(e, index, tok, te)
				ok := e == cur && (index < len(want) || (index == len(want) && !closed))
				if (err == nil) != ok {
					t.Fatalf("Append(%d,%d) at %d/%d: %v", e, index, cur, len(want), err)
				}
				if ok && index == len(want) {
					want = append(want, tok)
					end = te
				}
			}
			if g.Epoch() != cur || g.Len() != len(want) || g.Closed() != closed || g.ContentWritten() != content {
				t.Fatalf("gate %d/%d/%v, want %d/%d/%v", g.Epoch(), g.Len(), g.Closed(), cur, len(want), closed)
			}
			for i := 1; i < g.Len(); i++ {
				if g.EpochOf(i) < g.EpochOf(i-1) {
					t.Fatalf("publishing epoch falls at %d", i)
				}
			}
		}
	})
}

func TestRecord_NeverGoesBack(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var r fence.Record
		var high, cancel fence.Epoch
		for range rapid.IntRange(1, 40).Draw(t, "steps") {
			e := fence.Epoch(rapid.Uint64Range(0, 6).Draw(t, "epoch"))
			switch rapid.IntRange(0, 2).Draw(t, "op") {
			case 0:
				ok := e >= high && e > cancel && e > 0
				if err := r.Admit(e); (err == nil) != ok {
					t.Fatalf("Admit(%d) with highest %d, cancelled %d: %v", e, high, cancel, err)
				}
				if ok {
					high = e
				}
			case 1:
				ok := e > high && e > cancel
				if err := r.Raise(e); (err == nil) != ok {
					t.Fatalf("Raise(%d) with highest %d, cancelled %d: %v", e, high, cancel, err)
				}
				if ok {
					high = e
				}
			case 2:
				r.Cancel(e)
				cancel = max(cancel, e)
			}
			if r.Highest() != high || r.Canceled() != cancel {
				t.Fatalf("record %d/%d, want %d/%d", r.Highest(), r.Canceled(), high, cancel)
			}
		}
	})
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
