// SPDX-License-Identifier: Apache-2.0
// Copyright The Segue Authors

package agent_test

import (
	"context"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	seguev1 "github.com/seguekv/segue/api/segue/v1"
	"github.com/seguekv/segue/health"
	"github.com/seguekv/segue/health/gpu"
	"github.com/seguekv/segue/transfer"
)

// wantTainted checks how a run has ended, and returns the clean boundary.
func wantTainted(t *testing.T, err error) (clean int, found bool) {
	t.Helper()
	wantReason(t, err, seguev1.Reason_REASON_TAINTED)
	r, _ := transfer.RefusalOf(err)
	return int(r.GetCleanBoundary()), r.CleanBoundary != nil
}

// continuation takes a run over on its holder, of which so many tokens have been handed on.
func continuation(t *testing.T, on *testNode, x transcript, delivered int, id []byte, epoch uint64, r *seguev1.Request, clean int) *transcript {
	t.Helper()
	x.tokens, x.err = slices.Clone(x.tokens[:delivered]), nil
	o := x.order(id, epoch, r, modeOff)
	o.CleanBoundary = new(uint32(clean))
	return x.read(takeover(t, t.Context(), on, o), nil)
}

// captured is the newest boundary of a run.
func (b *testNode) captured(t *testing.T, id []byte) int {
	t.Helper()
	return int(b.view(t, id, "primary").GetCaptured())
}

// When the device has lost data every run ends at once, with the last boundary that is surely sound; nothing leaves any
// more. Its holder goes on from there, and from nothing above it.
func TestDevices_LostDataTaintsWhatWasCaptured(t *testing.T) {
	for name, mode := range map[string]seguev1.ProtectionMode{"sync": modeSync, "async": modeAsync, "off": modeOff} {
		// lag is how much later than it began a reading is known.
		for _, lag := range []time.Duration{0, 30 * time.Millisecond} {
			t.Run(name+" "+lag.String(), func(t *testing.T) {
				carded(t, func(t *testing.T, gpus *cards, a, b, _ *testNode) {
					r := request(400)
					ref, w := reference(t, b, r), a.watch(t)
					gpus.sample(0, nil)
					id, run := begin(t, a, r, mode, b)
					otherID, other := begin(t, a, r, mode, b)
					want := 0
					for range 4 {
						run.got(t, len(run.now().tokens)+10)
						pass(lag)
						if lag > 0 {
							want = max(want, a.captured(t, id)-int(lag/tinySim().Step)-10)
						} else {
							want = a.captured(t, id)
						}
						gpus.sample(lag, nil)
					}
					atClean := a.captured(t, id)
					run.got(t, len(run.now().tokens)+15)
					pass(0)
					before := run.now()
					gpus.sample(lag, spoilt)
					seen := time.Now()
					pass(time.Second)
					x := run.now()
					if len(x.tokens) != len(before.tokens) || x.finish != nil {
						t.Errorf("%d tokens left after it was seen", len(x.tokens)-len(before.tokens))
					}
					clean, found := wantTainted(t, x.err)
					if mode == modeOff {
						if found {
							t.Errorf("clean boundary %d of a run of which nothing is captured", clean)
						}
						return
					}
					if lag == 0 && clean != want || lag > 0 && (clean > atClean-int(lag/tinySim().Step) || clean < want) {
						t.Errorf("clean boundary %d, want %d (captured when the last clean reading came: %d)", clean, want, atClean)
					}
					if y := other.now(); y.finish != nil {
						t.Error("another run went on")
					} else if c, ok := wantTainted(t, y.err); !ok || c == 0 {
						t.Errorf("clean boundary %d of another run", c)
					}
					if got := w.since(seen)[0]; got.verdict() != health.Dead || !slices.Contains(got.GetReasons(), "gpu_ecc_uncorrected") {
						t.Errorf("reported %v", got)
					}
					if f := a.host.facts(t); f.Running != 0 {
						t.Errorf("%d runs go on", f.Running)
					}
					refuses(t, a, "gpu_ecc_uncorrected")

					// A caller that comes back gets nothing either.
					var late transcript
					late.read(generate(t, t.Context(), a, &seguev1.GenerateRequest{Session: otherID, Epoch: 1, Request: r, Protection: mode, FromIndex: 0}), nil)
					if len(late.tokens) > 0 || late.err == nil {
						t.Errorf("%d tokens for a caller that came back, %v", len(late.tokens), late.err)
					}

					above := continuation(t, b, x, clean+1, id, 2, r, clean)
					wantReason(t, above.err, seguev1.Reason_REASON_NOT_COVERED)
					y := continuation(t, b, x, clean, id, 3, r, clean)
					y.equal(t, ref)
					if got := int(y.seam.GetBoundary()); got != clean {
						t.Errorf("went on from boundary %d, the last sound one is %d", got, clean)
					}
					fewer, _ := wantTainted(t, other.now().err)
					z := continuation(t, b, other.now(), fewer/2, otherID, 2, r, fewer)
					if z.equal(t, ref); int(z.seam.GetBoundary()) > fewer {
						t.Errorf("went on from boundary %d, the last sound one is %d", z.seam.GetBoundary(), fewer)
					}
				})
			})
		}
	}
}

// Without a boundary from a clean time there is none to name: the run began later, or its prompt wasn't computed.
func TestDevices_NoCleanBoundary(t *testing.T) {
	for name, after := range map[string]func(gpus *cards, a *testNode, begin func() *follower) *follower{
		"it began after the last clean reading": func(gpus *cards, a *testNode, begin func() *follower) *follower {
			gpus.sample(0, nil)
			pass(time.Millisecond)
			return begin()
		},
		"it had no token at the last clean reading": func(gpus *cards, a *testNode, begin func() *follower) *follower {
			letGo := a.host.hold("step")
			run := begin()
			pass(100 * time.Millisecond)
			gpus.sample(0, nil)
			letGo()
			return run
		},
		"the last clean reading is too long ago": func(gpus *cards, a *testNode, begin func() *follower) *follower {
			gpus.sample(0, nil)
			run := begin()
			for range 20 { // readings that say nothing of memory
				pass(20 * time.Millisecond)
				gpus.sample(0, func(d *gpu.Device) { d.Uncorrected = nil })
			}
			return run
		},
	} {
		t.Run(name, func(t *testing.T) {
			carded(t, func(t *testing.T, gpus *cards, a, b, _ *testNode) {
				var id []byte
				run := after(gpus, a, func() *follower {
					var run *follower
					id, run = begin(t, a, request(400), modeSync, b)
					return run
				})
				run.got(t, 30)
				pass(time.Millisecond)
				gpus.sample(0, spoilt)
				pass(time.Second)
				if clean, found := wantTainted(t, run.now().err); found {
					t.Errorf("clean boundary %d", clean)
				}
				y := continuation(t, b, run.now(), 0, id, 2, request(400), 0)
				wantReason(t, y.err, seguev1.Reason_REASON_NOT_COVERED)
			})
		})
	}
}

// Readings that hang don't make forgotten what was clean before them.
func TestDevices_AReadingThatHangsForgetsNothing(t *testing.T) {
	carded(t, func(t *testing.T, gpus *cards, a, b, _ *testNode) {
		id, run := begin(t, a, request(400), modeSync, b)
		run.got(t, 30)
		want := a.captured(t, id)
		gpus.sample(0, nil)
		for i := range 40 {
			pass(10 * time.Millisecond)
			gpus.tell(gpu.Report{At: time.Now(), Sample: &gpu.Sample{At: time.Now(), MonotonicNS: 1, StalledMS: int64(10 * (i + 1))}})
		}
		gpus.sample(0, spoilt)
		pass(time.Second)
		if clean, _ := wantTainted(t, run.now().err); clean != want {
			t.Errorf("clean boundary %d, want %d", clean, want)
		}
	})
}

// What a run was restored with came from another node: it is sound, whatever this one's devices have done.
func TestDevices_AContinuationIsSoundUpToItsSeam(t *testing.T) {
	carded(t, func(t *testing.T, gpus *cards, a, b, c *testNode) {
		r := request(400)
		ref := reference(t, b, r)
		id, first := begin(t, b, r, modeSync, a)
		x := first.got(t, 40)
		b.host.die()
		pass(100 * time.Millisecond)
		x = first.now()
		x.err = nil
		o := x.order(id, 2, r, modeSync)
		o.Holder = c.peer
		second := follow(takeover(t, t.Context(), a, o))
		second.mu.Lock()
		second.x.tokens = x.tokens
		second.mu.Unlock()
		y := second.got(t, len(x.tokens)+40)
		seam := int(y.seam.GetBoundary())
		gpus.sample(0, nil)
		second.got(t, len(y.tokens)+20)
		gpus.sample(0, nil) // clean up to here
		sound := a.captured(t, id)
		if sound < seam+40 {
			t.Fatalf("captured %d, seam %d", sound, seam)
		}
		second.got(t, sound+20)
		gpus.sample(0, spoilt)
		pass(time.Second)
		y = second.now()
		if clean, _ := wantTainted(t, y.err); clean != sound {
			t.Errorf("clean boundary %d, want %d", clean, sound)
		}
		z := continuation(t, c, y, sound, id, 3, r, sound)
		z.equal(t, ref)
	})
}

// The same without a clean reading since: then the seam is all that is sound.
func TestDevices_AContinuationWithoutACleanReading(t *testing.T) {
	carded(t, func(t *testing.T, gpus *cards, a, b, c *testNode) {
		r := request(400)
		ref := reference(t, b, r)
		id, first := begin(t, b, r, modeSync, a)
		first.got(t, 40)
		b.host.die()
		gpus.sample(0, nil)
		pass(100 * time.Millisecond)
		x := first.now()
		x.err = nil
		o := x.order(id, 2, r, modeSync)
		o.Holder = c.peer
		second := follow(takeover(t, t.Context(), a, o))
		second.mu.Lock()
		second.x.tokens = slices.Clone(x.tokens)
		second.mu.Unlock()
		second.got(t, len(x.tokens)+40)
		gpus.sample(0, spoilt)
		pass(time.Second)
		y := second.now()
		seam := int(y.seam.GetBoundary())
		if clean, _ := wantTainted(t, y.err); clean != seam || seam < len(x.tokens) {
			t.Errorf("clean boundary %d, seam %d of %d", clean, seam, len(x.tokens))
		}
		above := continuation(t, c, y, seam+1, id, 3, r, seam)
		wantReason(t, above.err, seguev1.Reason_REASON_NOT_COVERED)
		z := continuation(t, c, y, seam, id, 4, r, seam)
		z.equal(t, ref)
	})
}

// Nothing leaves while what must be remembered is being written.
func TestDevices_RunsEndBeforeAnythingElse(t *testing.T) {
	carded(t, func(t *testing.T, gpus *cards, a, b, _ *testNode) {
		_, run := begin(t, a, request(400), modeAsync, b)
		gpus.sample(0, nil)
		run.got(t, 30)
		var before, after transcript
		gpus.remember = func() {
			before = run.now()
			time.Sleep(500 * time.Millisecond) // virtual; a slow disk
			after = run.now()
		}
		gpus.sample(0, spoilt)
		wantTainted(t, after.err)
		if diff := cmp.Diff(before.ids(), after.ids()); diff != "" || len(gpus.remembered) != 1 {
			t.Errorf("meanwhile (remembered %d):\n%s", len(gpus.remembered), diff)
		}
	})
}

// An engine that dies of the error before it is read takes its runs with it: what they still had to hand out stays.
func TestDevices_TheEngineDiesFirst(t *testing.T) {
	carded(t, func(t *testing.T, gpus *cards, a, b, _ *testNode) {
		r, id := request(400), newID(t)
		ref := reference(t, b, r)
		ctx, cancel := context.WithCancel(t.Context())
		o := &seguev1.GenerateRequest{Session: id, Epoch: 1, Request: r, Protection: modeAsync, Holder: b.peer}
		var x transcript
		x.read(generate(t, ctx, a, o), tokens(30))
		want := a.captured(t, id)
		gpus.sample(0, nil)
		pass(100 * time.Millisecond)
		cancel()
		pass(100 * time.Millisecond)
		if got := a.captured(t, id); got < want+20 {
			t.Fatalf("captured %d, was %d", got, want)
		}
		a.host.die()
		pass(100 * time.Millisecond)
		gpus.sample(0, spoilt)
		pass(10 * time.Millisecond)
		o.FromIndex = uint32(len(x.tokens))
		seen := len(x.tokens)
		x.read(generate(t, t.Context(), a, o), nil)
		if len(x.tokens) > seen {
			t.Errorf("%d tokens left", len(x.tokens)-seen)
		}
		if clean, _ := wantTainted(t, x.err); clean != want {
			t.Errorf("clean boundary %d, want %d", clean, want)
		}
		y := continuation(t, b, x, min(want, seen), id, 2, r, want)
		y.equal(t, ref)
	})
}

// What the device went through before the engine's process began is none of its business.
func TestDevices_ErrorsBeforeTheEngine(t *testing.T) {
	carded(t, func(t *testing.T, gpus *cards, a, b, _ *testNode) {
		r := request(300)
		ref, w := reference(t, b, r), a.watch(t)
		old := func(d *gpu.Device) { d.Uncorrected = new(uint64(7)) }
		gpus.sample(0, old)
		_, run := begin(t, a, r, modeSync, b)
		run.got(t, 30)
		gpus.sample(0, old)
		whole(t, run, ref)
		if r := w.latest(t); r.verdict() != health.Idle {
			t.Errorf("reported %v", r)
		}
	})
}
