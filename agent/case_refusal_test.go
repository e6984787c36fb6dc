// SPDX-License-Identifier: Apache-2.0
// Copyright The Segue Authors

package agent_test

import (
	"context"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	seguev1 "github.com/seguekv/segue/api/segue/v1"
	"github.com/seguekv/segue/engines"
	"github.com/seguekv/segue/transfer"
)

// Tests named TestCase_<number> show that a failure which another product was reported for doesn't happen here.

// disguise is an engine that says something else of itself.
type disguise struct {
	engines.Engine
	change func(*engines.Description)
}

func (d disguise) Describe(ctx context.Context) (*engines.Description, error) {
	x, err := d.Engine.Describe(ctx)
	if err != nil {
		return nil, err
	}
	c := *x
	c.Geometry.Layers = slices.Clone(c.Geometry.Layers)
	d.change(&c)
	return &c, nil
}

// disguise makes h's engine describe itself as changed, until the returned function is called.
func (h *simHost) disguise(change func(*engines.Description)) (undo func()) {
	h.mu.Lock()
	defer h.mu.Unlock()
	e := h.engine
	h.engine = disguise{e, change}
	return func() {
		h.mu.Lock()
		defer h.mu.Unlock()
		h.engine = e
	}
}

func otherTemplate(d *engines.Description) { d.Fingerprint.ChatTemplate[3]++ }

// A holder that refuses a base before it takes anything: the primary hears it and goes on, or ends, within a second,
// and a second after its end it has nothing in use.
func TestCase_A2_ReceiverRefusesBeforeAdmission(t *testing.T) {
	for _, require := range []bool{false, true} {
		for _, leaves := range []bool{false, true} {
			pair(t, nil, func(t *testing.T, n *memNet, a, b *testNode) {
				b.host.disguise(otherTemplate)
				r, id := request(40), newID(t)
				ref := reference(t, a, r)
				began := time.Now()
				recv := generate(t, t.Context(), a, &seguev1.GenerateRequest{Session: id, Epoch: 1, Request: r, Protection: modeSync, Holder: b.peer, RequireProtection: require})
				var x transcript
				x.read(recv, protection(1))
				if d := time.Since(began); d > time.Second {
					t.Errorf("the refusal was heard after %v", d)
				}
				if p := x.protections[0]; p.GetProtected() || p.GetCause() != "fingerprint_mismatch" || !strings.Contains(p.GetDetail(), "chat_template") {
					t.Errorf("announced %v, want the field that differs", p)
				}
				if got := b.describe(t).GetSnapshotBytesUsed(); got != 0 {
					t.Errorf("the holder has %d bytes of what it refused", got)
				}
				switch {
				case require:
					x.read(recv, nil)
					wantReason(t, x.err, seguev1.Reason_REASON_UNPROTECTED)
				case leaves:
					if a.describe(t).GetSnapshotBytesUsed() == 0 {
						t.Error("nothing was in use: nothing is shown")
					}
					cancelRun(t, a, id, 1)
				default:
					x.read(recv, nil)
					x.equal(t, ref)
				}
				time.Sleep(time.Second) // virtual
				a.empty(t)
				b.empty(t)
			})
		}
	}
}

// The engine came back as another version, or with other rows, between save and restore: what was saved isn't
// loaded, and the refusal names the difference.
func TestCase_A7_EngineChangedBetweenSaveAndRestore(t *testing.T) {
	for name, c := range map[string]struct {
		change func(*engines.Description)
		reason seguev1.Reason
		word   string
	}{
		"build":        {func(d *engines.Description) { d.Fingerprint.Build += "-next" }, seguev1.Reason_REASON_FINGERPRINT_MISMATCH, "build"},
		"block layout": {func(d *engines.Description) { d.Fingerprint.BlockLayout = "columns" }, seguev1.Reason_REASON_FINGERPRINT_MISMATCH, "block_layout"},
		"value type":   {func(d *engines.Description) { d.Fingerprint.KVTypeV = "q8_0" }, seguev1.Reason_REASON_FINGERPRINT_MISMATCH, "kv_type_v"},
		"row's type":   {func(d *engines.Description) { d.Geometry.Layers[1].KType = "q8_0" }, seguev1.Reason_REASON_GEOMETRY_MISMATCH, "rows"},
		"K and V halves": {func(d *engines.Description) {
			l := &d.Geometry.Layers[0]
			l.KBytes, l.VBytes = l.KBytes+l.VBytes, 0 // as many bytes
		}, seguev1.Reason_REASON_GEOMETRY_MISMATCH, "rows"},
	} {
		t.Run(name, func(t *testing.T) {
			pair(t, nil, func(t *testing.T, n *memNet, a, b *testNode) {
				r, id := request(80), newID(t)
				ref := reference(t, a, r)
				ctx, cancel := context.WithCancel(t.Context())
				var x transcript
				x.read(generate(t, ctx, a, &seguev1.GenerateRequest{Session: id, Epoch: 1, Request: r, Protection: modeSync, Holder: b.peer}), tokens(12))
				if !x.protected() {
					t.Fatalf("never saved: %v", x.protections)
				}
				cancel()
				cancelRun(t, a, id, 1)
				before := b.host.facts(t)
				undo := b.host.disguise(c.change)
				_, err := takeover(t, t.Context(), b, x.order(id, 2, r, modeSync))()
				wantReason(t, err, c.reason)
				if ref, _ := transfer.RefusalOf(err); !strings.Contains(ref.GetDetail(), c.word) {
					t.Errorf("detail %q doesn't name %q", ref.GetDetail(), c.word)
				}
				if f := b.host.facts(t); f != before {
					t.Errorf("the engine worked: %+v, before %+v", f, before)
				}
				undo()
				x.read(takeover(t, t.Context(), b, x.order(id, 3, r, modeSync)), nil)
				x.equal(t, ref)
			})
		})
	}
}

// Prompts that are equal up to some position, on or beside a block boundary: what is held for one never continues the
// other, whatever part of the caller's claim is wrong.
func TestCase_A9_PromptsWithACommonPrefix(t *testing.T) {
	for _, common := range []int{15, 16, 17, 32, 47} {
		pair(t, nil, func(t *testing.T, n *memNet, a, b *testNode) {
			var order [2]*seguev1.TakeoverRequest
			var seen [2]transcript
			var refs [2]*transcript
			for i := range order {
				list := make([]int32, common+9)
				for j := range list {
					list[j] = int32(100 + j)
					if j >= common {
						list[j] += int32(1000 * (i + 1))
					}
				}
				r, id := request(40), newID(t)
				r.Prompt = ids(list...)
				refs[i] = reference(t, b, r)
				ctx, cancel := context.WithCancel(t.Context())
				seen[i].read(generate(t, ctx, a, &seguev1.GenerateRequest{Session: id, Epoch: 1, Request: r, Protection: modeSync, Holder: b.peer}), tokens(6))
				cancel()
				order[i] = seen[i].order(id, 2, r, modeSync)
			}
			if slices.Equal(refs[0].ids(), refs[1].ids()) {
				t.Fatal("the two prompts have one answer: nothing is shown")
			}
			for i := range order {
				mine, other := order[i], order[1-i]
				for k, change := range []func(o *seguev1.TakeoverRequest){
					func(o *seguev1.TakeoverRequest) {
						o.Request, o.PromptDigest, o.OutputDigest, o.TextEnd = other.Request, other.PromptDigest, other.OutputDigest, other.TextEnd
					},
					func(o *seguev1.TakeoverRequest) { o.Request = other.Request },
					func(o *seguev1.TakeoverRequest) { o.PromptDigest = other.PromptDigest },
					func(o *seguev1.TakeoverRequest) { o.PromptDigest = nil },
				} {
					o := &seguev1.TakeoverRequest{
						Session: mine.Session, Epoch: uint64(2 + k), Delivered: mine.Delivered, PromptDigest: mine.PromptDigest,
						OutputDigest: mine.OutputDigest, TextEnd: mine.TextEnd, Request: mine.Request, Protection: modeSync,
					}
					change(o)
					_, err := takeover(t, t.Context(), b, o)()
					wantReason(t, err, seguev1.Reason_REASON_PROMPT_MISMATCH)
				}
			}
			for i := range order {
				order[i].Epoch = 9
				seen[i].read(takeover(t, t.Context(), b, order[i]), nil)
				seen[i].equal(t, refs[i])
			}
		})
	}
}

// A pair that can never work: the caller has its whole answer, or an error that says why, within a second of what the
// run itself takes.
func TestCase_A12_IncompatiblePairAnswersInTime(t *testing.T) {
	pair(t, nil, func(t *testing.T, n *memNet, a, b *testNode) {
		b.host.disguise(func(d *engines.Description) { d.Fingerprint.TensorParallel = 2 })
		r := request(60)
		began := time.Now()
		ref := reference(t, a, r)
		alone := time.Since(began)
		for _, mode := range []seguev1.ProtectionMode{modeAsync, modeSync} {
			began = time.Now()
			var x transcript
			x.read(generate(t, t.Context(), a, &seguev1.GenerateRequest{Session: newID(t), Epoch: 1, Request: r, Protection: mode, Holder: b.peer}), nil)
			x.equal(t, ref)
			if d := time.Since(began); d > alone+time.Second || x.protected() || !strings.Contains(x.protections[0].GetDetail(), "tensor_parallel") {
				t.Errorf("mode %v: %v instead of %v, announced %v", mode, d, alone, x.protections)
			}
			began = time.Now()
			x = transcript{}
			x.read(generate(t, t.Context(), a, &seguev1.GenerateRequest{Session: newID(t), Epoch: 1, Request: r, Protection: mode, Holder: b.peer, RequireProtection: true}), nil)
			wantReason(t, x.err, seguev1.Reason_REASON_UNPROTECTED)
			if ref, _ := transfer.RefusalOf(x.err); time.Since(began) > time.Second || !strings.Contains(ref.GetDetail(), "tensor_parallel") || mode == modeSync && len(x.tokens) > 0 {
				t.Errorf("mode %v: after %v and %d tokens: %v", mode, time.Since(began), len(x.tokens), x.err)
			}
		}
	})
}

// A holder that refuses to restore, and then computes the answer from the prompt: it is the run that nobody disturbed,
// and nothing of what was refused is in it.
func TestCase_A16_RefusedRestoreIsRecomputed(t *testing.T) {
	for name, refuse := range map[string]func(b *testNode, o *seguev1.TakeoverRequest) (undo func()){
		"other output":  func(_ *testNode, o *seguev1.TakeoverRequest) func() { o.OutputDigest[0]++; return func() {} },
		"not covered":   func(_ *testNode, o *seguev1.TakeoverRequest) func() { o.Delivered = 39; return func() {} },
		"other layout":  func(b *testNode, _ *seguev1.TakeoverRequest) func() { return b.host.disguise(otherTemplate) },
		"engine's word": func(_ *testNode, o *seguev1.TakeoverRequest) func() { o.TextEnd++; return func() {} },
	} {
		t.Run(name, func(t *testing.T) {
			pair(t, nil, func(t *testing.T, n *memNet, a, b *testNode) {
				r, id := request(40), newID(t)
				ref := reference(t, a, r)
				ctx, cancel := context.WithCancel(t.Context())
				var x, y transcript
				x.read(generate(t, ctx, a, &seguev1.GenerateRequest{Session: id, Epoch: 1, Request: r, Protection: modeSync, Holder: b.peer}), tokens(7))
				cancel()
				o := x.order(id, 2, r, modeSync)
				undo := refuse(b, o)
				y.read(takeover(t, t.Context(), b, o), nil)
				if _, refused := transfer.RefusalOf(y.err); !refused || len(y.tokens) > 0 {
					t.Fatalf("not refused: %v, %d tokens", y.err, len(y.tokens))
				}
				undo()
				synctest.Wait()
				before := b.host.facts(t)
				var z transcript
				z.read(generate(t, t.Context(), b, &seguev1.GenerateRequest{Session: id, Epoch: 3, Request: r, Protection: modeSync, Holder: a.peer}), nil)
				z.equal(t, ref)
				f := b.host.facts(t)
				if f.PrefillTokens-before.PrefillTokens != uint64(ref.finish.GetPromptTokens()) || f.RestoredRows != before.RestoredRows || f.DecodeSteps-before.DecodeSteps != 39 {
					t.Errorf("not computed anew: %+v, before %+v", f, before)
				}
			})
		})
	}
}
