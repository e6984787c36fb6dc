// SPDX-License-Identifier: Apache-2.0
// Copyright The Segue Authors

package agent_test

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/seguekv/segue/agent"
	seguev1 "github.com/seguekv/segue/api/segue/v1"
	"github.com/seguekv/segue/engines/sim"
)

func TestPark_Refusals(t *testing.T) {
	for name, c := range map[string]struct {
		engine sim.Config
		memory int64
		mode   seguev1.ProtectionMode
		before func(a *testNode)
		until  func(x *transcript) bool
		end    func(t *testing.T, a *testNode, id []byte, recv stream)
		want   seguev1.Reason
		stream seguev1.Reason // why the run ended; unspecified: not by Park
	}{
		"before the prompt": {mode: modeSync, before: func(a *testNode) { a.host.hold("run") }, until: func(*transcript) bool { return true }, want: seguev1.Reason_REASON_NOT_COVERED, stream: seguev1.Reason_REASON_CANCELLED},
		"in prefill": {
			engine: slowSim(), mode: modeSync, until: func(x *transcript) bool { return x.progress.GetPrefilledTokens() > 0 },
			want: seguev1.Reason_REASON_NOT_COVERED, stream: seguev1.Reason_REASON_CANCELLED,
		},
		"protection off": {mode: modeOff, until: tokens(5), want: seguev1.Reason_REASON_UNPROTECTED, stream: seguev1.Reason_REASON_CANCELLED},
		"no memory":      {memory: 1 << 20, mode: modeSync, until: tokens(5), want: seguev1.Reason_REASON_STORE_FULL, stream: seguev1.Reason_REASON_CANCELLED},
		"finish handed out": {
			mode: modeSync, until: nil, want: seguev1.Reason_REASON_UNKNOWN_SESSION,
		},
		"cancelled": {
			mode: modeSync, until: tokens(5), want: seguev1.Reason_REASON_CANCELLED, stream: seguev1.Reason_REASON_CANCELLED,
			end: func(t *testing.T, a *testNode, id []byte, _ stream) { cancelRun(t, a, id, 1) },
		},
		"given up": {
			mode: modeSync, until: tokens(5), want: seguev1.Reason_REASON_CANCELLED, stream: seguev1.Reason_REASON_CANCELLED,
			end: func(t *testing.T, a *testNode, id []byte, _ stream) {
				cancelRun(t, a, id, 1)
				time.Sleep(time.Second) // virtual
			},
		},
		"a later run": {
			mode: modeSync, until: tokens(5), want: seguev1.Reason_REASON_FENCED, stream: seguev1.Reason_REASON_FENCED,
			end: func(t *testing.T, a *testNode, id []byte, _ stream) {
				new(transcript).read(generate(t, t.Context(), a, &seguev1.GenerateRequest{Session: id, Epoch: 2, Request: request(20), Protection: modeOff}), nil)
			},
		},
	} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T, n *memNet) {
				engine := tinySim()
				if c.engine.Layers > 0 {
					engine = c.engine
				}
				memory := func(cfg *agent.Config) {}
				if c.memory > 0 {
					engine.KVBytesPerToken = 16 << 10
					memory = func(cfg *agent.Config) { cfg.SnapshotMemory = c.memory }
				}
				a := n.start(t, "a", "127.0.0.1:1001", engine, memory)
				b := n.start(t, "b", "127.0.0.1:1002", engine, nil)
				if c.before != nil {
					c.before(a)
				}
				id := newID(t)
				recv := generate(t, t.Context(), a, &seguev1.GenerateRequest{Session: id, Epoch: 1, Request: request(100), Protection: c.mode, Holder: b.peer})
				var x transcript
				x.read(recv, c.until)
				synctest.Wait()
				if c.end != nil {
					c.end(t, a, id, recv)
				}
				_, err := park(t, a, id, 1)
				wantReason(t, err, c.want)
				if c.stream != seguev1.Reason_REASON_UNSPECIFIED {
					x.read(recv, nil)
					wantReason(t, x.err, c.stream)
				}
				time.Sleep(300 * time.Millisecond) // virtual: a chunk in flight ends
				a.empty(t)
				if v := a.view(t, id, "parked"); v != nil {
					t.Errorf("parked: %v", v)
				}
				_, err = generate(t, t.Context(), a, &seguev1.GenerateRequest{Session: id, Epoch: 1, Request: request(5), Protection: modeOff})()
				if err == nil {
					t.Error("the epoch isn't remembered")
				}
			})
		})
	}
}

// A Park that overtakes the call that starts the run is remembered. On the holder it fences the epoch and drops nothing.
func TestPark_FindsNoRun(t *testing.T) {
	planned(t, modeSync, 20, 60, nil, func(t *testing.T, n *memNet, a, b *testNode, m *move) {
		early := newID(t)
		_, err := park(t, a, early, 4)
		wantReason(t, err, seguev1.Reason_REASON_UNKNOWN_SESSION)
		for epoch, want := range map[uint64]seguev1.Reason{3: seguev1.Reason_REASON_CANCELLED, 4: seguev1.Reason_REASON_CANCELLED} {
			_, err := generate(t, t.Context(), a, &seguev1.GenerateRequest{Session: early, Epoch: epoch, Request: m.r, Protection: modeOff})()
			wantReason(t, err, want)
		}
		_, err = park(t, b, m.id, 1)
		wantReason(t, err, seguev1.Reason_REASON_UNKNOWN_SESSION)
		if v := b.view(t, m.id, "holder"); v.GetCommitted() < 20 {
			t.Fatalf("the holder has %v", v)
		}
		new(transcript).read(m.recv, nil) // it ends: its holder refuses the epoch
		m.take(t, b, 2, nil)
	})
}
