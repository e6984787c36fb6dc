// SPDX-License-Identifier: Apache-2.0
// Copyright The Segue Authors

package agent_test

import (
	"context"
	"testing"

	seguev1 "github.com/seguekv/segue/api/segue/v1"
	"github.com/seguekv/segue/engines"
)

// An engine that failed its canary never becomes current: nothing is continued or begun on it, and what the node holds
// stays held, to be continued once an engine has passed.
func TestCase_D9_NothingResumesOnAnEngineThatFailedItsCanary(t *testing.T) {
	pair(t, nil, func(t *testing.T, n *memNet, a, b *testNode) {
		r, id := request(40), newID(t)
		ref := reference(t, b, r)
		ctx, cancel := context.WithCancel(t.Context())
		var x transcript
		x.read(generate(t, ctx, a, &seguev1.GenerateRequest{Session: id, Epoch: 1, Request: r, Protection: modeSync, Holder: b.peer}), tokens(12))
		healthy := b.host.failCanary()
		a.host.kill(nil)
		cancel()
		before := b.host.facts(t)
		for epoch := uint64(2); epoch < 5; epoch++ {
			var y transcript
			y.read(takeover(t, t.Context(), b, x.order(id, epoch, r, modeOff)), nil)
			wantReason(t, y.err, seguev1.Reason_REASON_NOT_READY)
			var z transcript
			z.read(generate(t, t.Context(), b, &seguev1.GenerateRequest{Session: newID(t), Epoch: 1, Request: r, Protection: modeOff}), nil)
			wantReason(t, z.err, seguev1.Reason_REASON_NOT_READY)
		}
		if d := b.describe(t); d.GetReady() {
			t.Error("the node says it is ready")
		}
		if after := b.host.facts(t); after != before {
			t.Errorf("the engine was used: %+v, before %+v", after, before)
		}
		healthy()
		x.read(takeover(t, t.Context(), b, x.order(id, 5, r, modeOff)), nil)
		x.equal(t, ref)
	})
}

// unproven is an engine that isn't ready because its canary hasn't passed.
type unproven struct{ engines.Engine }

func (unproven) Describe(context.Context) (*engines.Description, error) {
	return nil, engines.ErrNotReady
}

// failCanary plays a host whose engine ends at its start, until the returned function is called.
func (h *simHost) failCanary() (pass func()) {
	h.mu.Lock()
	defer h.mu.Unlock()
	proven := h.engine
	h.engine = unproven{proven}
	return func() {
		h.mu.Lock()
		defer h.mu.Unlock()
		h.engine = proven
	}
}
