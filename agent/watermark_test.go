// SPDX-License-Identifier: Apache-2.0
// Copyright The Segue Authors

package agent_test

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	seguev1 "github.com/seguekv/segue/api/segue/v1"
)

// A new holder may have all that a continuation was restored with before the engine has emitted it again.
func TestWatermarks_RestoredTokensAreCaptured(t *testing.T) {
	bubble(t, func(t *testing.T, n *memNet) {
		a := n.start(t, "a", "127.0.0.1:1001", tinySim(), nil)
		b := n.start(t, "b", "127.0.0.1:1002", tinySim(), nil)
		c := n.start(t, "c", "127.0.0.1:1003", tinySim(), nil)
		id, r := newID(t), request(40)
		ctx, cancel := context.WithCancel(t.Context())
		var x transcript
		x.read(generate(t, ctx, a, &seguev1.GenerateRequest{Session: id, Epoch: 1, Request: r, Protection: modeSync, Holder: b.peer}), tokens(20))
		a.host.kill(nil)
		cancel()
		letGo := b.host.hold("run")
		o := x.order(id, 2, r, modeSync)
		o.Holder = c.peer
		rest := takeover(t, t.Context(), b, o)
		time.Sleep(100 * time.Millisecond) // virtual: the base reaches c
		synctest.Wait()
		v := b.view(t, id, "primary")
		if v.GetCommitted() < 20 || v.GetCaptured() < v.GetSent() || v.GetSent() < v.GetCommitted() {
			t.Errorf("captured %d, sent %d, committed %d", v.GetCaptured(), v.GetSent(), v.GetCommitted())
		}
		letGo()
		x.read(rest, nil)
		if x.err != nil {
			t.Error(x.err)
		}
	})
}
