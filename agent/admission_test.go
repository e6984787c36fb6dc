// SPDX-License-Identifier: Apache-2.0
// Copyright The Segue Authors

package agent_test

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/seguekv/segue/agent"
	seguev1 "github.com/seguekv/segue/api/segue/v1"
)

func TestAdmission_ReservedContextsAreForTakeovers(t *testing.T) {
	pair(t, func(c *agent.Config) { c.ReservedForTakeover = 2 }, func(t *testing.T, n *memNet, a, b *testNode) {
		r := request(200)
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		open := func(on, holder *testNode) ([]byte, *transcript) {
			id := newID(t)
			var x transcript
			x.read(generate(t, ctx, on, &seguev1.GenerateRequest{Session: id, Epoch: 1, Request: r, Protection: modeSync, Holder: holder.peer}), tokens(3))
			if x.err != nil {
				t.Fatal(x.err)
			}
			return id, &x
		}
		open(b, a)
		open(b, a)
		_, err := generate(t, ctx, b, &seguev1.GenerateRequest{Session: newID(t), Epoch: 1, Request: r, Protection: modeOff})()
		wantReason(t, err, seguev1.Reason_REASON_NO_CAPACITY)
		id1, x1 := open(a, b)
		id2, x2 := open(a, b)
		for i, s := range []*transcript{x1, x2} {
			if e, err := takeover(t, ctx, b, s.order([][]byte{id1, id2}[i], 2, r, modeOff))(); err != nil || e.GetSeam() == nil {
				t.Fatalf("takeover into the reserve: %v %v", e, err)
			}
		}
		// The holder refuses before it raises the epoch: it goes on holding, and takes over when there is room.
		cancelRun(t, a, id1, 1)
		cancelRun(t, a, id2, 1)
		time.Sleep(100 * time.Millisecond) // virtual
		id3, x3 := open(a, b)
		_, err = takeover(t, ctx, b, x3.order(id3, 2, r, modeOff))()
		wantReason(t, err, seguev1.Reason_REASON_NO_CAPACITY)
		cancelRun(t, b, id1, 2)
		time.Sleep(100 * time.Millisecond) // virtual
		if e, err := takeover(t, ctx, b, x3.order(id3, 2, r, modeOff))(); err != nil || e.GetSeam() == nil {
			t.Fatalf("takeover after a context became free: %v %v", e, err)
		}
	})
}

func TestAdmission_Slots(t *testing.T) {
	var s agent.Slots
	var release []func()
	for range 3 {
		f, ok := s.Acquire(3)
		if !ok {
			t.Fatalf("refused with %d in use", s.InUse())
		}
		release = append(release, f)
	}
	for _, limit := range []int{3, 2, 0, -1} {
		if _, ok := s.Acquire(limit); ok {
			t.Errorf("a fourth slot of %d", limit)
		}
	}
	if f, ok := s.Acquire(4); !ok {
		t.Error("refused a reserved slot")
	} else {
		f()
	}
	release[0]()
	release[0]()
	if s.InUse() != 2 {
		t.Errorf("%d in use after one was given back twice", s.InUse())
	}
}

func TestConfig_Validate(t *testing.T) {
	if err := agent.DefaultConfig().Validate(); err != nil {
		t.Fatal(err)
	}
	bad := agent.Config{ID: strings.Repeat("x", 65), Listen: "0.0.0.0:1", Admin: "nowhere", ReservedForTakeover: -1}
	err := bad.Validate()
	for _, key := range []string{
		"agent.id", "agent.listen", "agent.admin", "agent.snapshot_memory", "agent.engine.reserved_for_takeover", "window", "commit_timeout",
		"base_timeout", "orphan_grace", "hold_timeout", "step_limit",
	} {
		if err == nil || !strings.Contains(err.Error(), key+": ") {
			t.Errorf("no word about %s in:\n%v", key, err)
		}
	}
	open := agent.DefaultConfig()
	for addr, ok := range map[string]bool{"127.0.0.1:0": true, "[::1]:0": true, "localhost:1": true, "10.0.0.1:1": false, ":1": false, "": false} {
		open.Listen, open.InsecurePlaintext = addr, false
		if err := open.Validate(); (err == nil) != ok {
			t.Errorf("listen %q: %v", addr, err)
		}
		open.InsecurePlaintext = true
		if err := open.Validate(); (err == nil) != (addr != "") {
			t.Errorf("listen %q with plaintext allowed: %v", addr, err)
		}
	}
	if _, err := agent.New(bad, agent.Deps{}); err == nil {
		t.Error("New accepts what Validate refuses")
	}
}
