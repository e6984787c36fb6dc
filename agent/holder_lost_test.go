// SPDX-License-Identifier: Apache-2.0
// Copyright The Segue Authors

package agent_test

import (
	"testing"
	"time"

	"github.com/seguekv/segue/agent"
	seguev1 "github.com/seguekv/segue/api/segue/v1"
	"github.com/seguekv/segue/engines/sim"
)

// slowSim takes more than a second for a prompt, in pieces.
func slowSim() sim.Config {
	c := tinySim()
	c.PrefillToken, c.Chunk = 60*time.Millisecond, 4
	return c
}

// slowPrefill runs f when the holder has ended while the base of a session was in progress.
func slowPrefill(t *testing.T, f func(t *testing.T, n *memNet, a, b *testNode, recv stream, id []byte)) {
	t.Helper()
	bubble(t, func(t *testing.T, n *memNet) {
		a := n.start(t, "a", "127.0.0.1:1001", slowSim(), nil)
		b := n.start(t, "b", "127.0.0.1:1002", slowSim(), nil)
		id := newID(t)
		recv := generate(t, t.Context(), a, &seguev1.GenerateRequest{Session: id, Epoch: 1, Request: request(100), Protection: modeSync, Holder: b.peer})
		time.Sleep(400 * time.Millisecond) // virtual
		if p, h := a.view(t, id, "primary"), b.view(t, id, "holder"); p.GetState() != "prefill" || h == nil || h.GetCommitted() != 0 {
			t.Fatalf("no base in progress when the holder ends: %v, %v", p, h)
		}
		b.stop()
		f(t, n, a, b, recv, id)
	})
}

// A holder to which there is no connection counts as lost after commit_timeout also while its base is in progress: the
// first token doesn't wait for base_timeout. When it is there again, so is the protection.
func TestGenerate_HolderDiesDuringTheBase(t *testing.T) {
	slowPrefill(t, func(t *testing.T, n *memNet, a, b *testNode, recv stream, id []byte) {
		died := time.Now()
		var x transcript
		x.read(recv, tokens(1))
		if d := time.Since(died); d > 1500*time.Millisecond {
			t.Errorf("the first token came %v after the holder's death, want the rest of the prefill", d)
		}
		if len(x.protections) != 1 || x.protections[0].GetProtected() || x.protections[0].GetCause() != "holder_lost" || x.protections[0].GetDetail() != "no connection" {
			t.Fatalf("announced %v, want unprotected by holder_lost", x.protections)
		}
		n.start(t, "b", "127.0.0.1:1002", slowSim(), nil)
		x.read(recv, nil)
		if x.err != nil || x.finish == nil || len(x.protections) != 2 || !x.protected() {
			t.Errorf("err %v, announced %v, want protected in the end", x.err, x.protections)
		}
	})
}

// A holder that is back within commit_timeout is not lost.
func TestGenerate_HolderReturnsDuringTheBase(t *testing.T) {
	slowPrefill(t, func(t *testing.T, n *memNet, a, b *testNode, recv stream, id []byte) {
		time.Sleep(100 * time.Millisecond) // virtual
		b = n.start(t, "b", "127.0.0.1:1002", slowSim(), nil)
		time.Sleep(agent.DefaultConfig().CommitTimeout) // virtual
		if a.view(t, id, "primary").GetState() != "prefill" || b.view(t, id, "holder") == nil {
			t.Fatalf("the base isn't in progress again: %v, %v", a.view(t, id, "primary"), b.view(t, id, "holder"))
		}
		var x transcript
		x.read(recv, nil)
		if x.err != nil || x.finish == nil || len(x.protections) != 1 || !x.protected() {
			t.Errorf("err %v, announced %v, want protected from the start", x.err, x.protections)
		}
	})
}
