// SPDX-License-Identifier: Apache-2.0
// Copyright The Segue Authors

package fleet_test

import (
	"errors"
	"testing"

	"github.com/seguekv/segue/router/fleet"
)

// No more wait than the queue has places for, however urgent; whoever leaves makes room.
func TestFleet_QueueIsBounded(t *testing.T) {
	const depth = 3
	f := fleet.New(fleet.Config{QueueDepth: depth})
	var waiting []*fleet.Ticket
	for range depth {
		ticket, err := f.Enqueue(fleet.Want{Model: "m"})
		if err != nil {
			t.Fatal(err)
		}
		waiting = append(waiting, ticket)
	}
	for _, urgent := range []bool{false, true} {
		if _, err := f.Enqueue(fleet.Want{Model: "m", Urgent: urgent}); !errors.Is(err, fleet.ErrQueueFull) {
			t.Errorf("urgent %v: got %v, want ErrQueueFull", urgent, err)
		}
	}
	waiting[1].Close()
	if _, err := f.Enqueue(fleet.Want{Model: "m"}); err != nil {
		t.Errorf("after one has left: %v", err)
	}
}
