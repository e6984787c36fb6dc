// SPDX-License-Identifier: Apache-2.0
// Copyright The Segue Authors

package agent_test

import (
	"context"
	"testing"

	seguev1 "github.com/seguekv/segue/api/segue/v1"
)

// A continuation's protection begins anew, unprotected, at the first token that the caller doesn't have: what the lost
// primary's holder had committed protects nothing any more.
func TestTakeover_ProtectionBeginsAtTheSeam(t *testing.T) {
	for _, mode := range []seguev1.ProtectionMode{modeAsync, modeSync} {
		bubble(t, func(t *testing.T, n *memNet) {
			a := n.start(t, "a", "127.0.0.1:1001", tinySim(), nil)
			b := n.start(t, "b", "127.0.0.1:1002", tinySim(), nil)
			c := n.start(t, "c", "127.0.0.1:1003", tinySim(), nil)
			const delivered = 20
			id, r := newID(t), request(60)
			ctx, cancel := context.WithCancel(t.Context())
			var x transcript
			x.read(generate(t, ctx, a, &seguev1.GenerateRequest{Session: id, Epoch: 1, Request: r, Protection: mode, Holder: b.peer}), tokens(delivered))
			if !x.protected() {
				t.Fatalf("mode %v: the first run isn't protected: %v", mode, x.protections)
			}
			cancel()
			a.stop()
			o := x.order(id, 2, r, mode)
			o.Holder = c.peer
			x.protections = nil
			x.read(takeover(t, t.Context(), b, o), nil)
			if x.err != nil {
				t.Fatalf("mode %v: %v", mode, x.err)
			}
			if len(x.protections) != 2 || x.protections[0].GetProtected() || !x.protections[1].GetProtected() {
				t.Errorf("mode %v: protections %v, want unprotected and then protected", mode, x.protections)
			}
			for _, p := range x.protections {
				if p.GetFromIndex() < delivered {
					t.Errorf("mode %v: %v, but %d tokens had left", mode, p, delivered)
				}
			}
		})
	}
}
