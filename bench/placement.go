// SPDX-License-Identifier: Apache-2.0
// Copyright The Segue Authors

package bench

import (
	"context"
	"fmt"

	"github.com/seguekv/segue/bench/client"
	"github.com/seguekv/segue/bench/cluster"
)

// placementTries bounds how often a request is repeated to make one land on a certain node.
const placementTries = 4

// placer makes requests land on a certain node. From outside that takes a guess: a router with idle nodes gives a
// request to the one that was used less recently, so a short request on another node comes before the one that counts.
// A restarted node counts as unused, whatever it did in its earlier life.
type placer struct {
	client  *client.Client
	cluster *cluster.Cluster
	model   string
	// last is the node that served the last request, empty where that is not known.
	last string
}

// steer returns when the next request should land on the given node.
func (p *placer) steer(ctx context.Context, node string) error {
	if len(p.cluster.Nodes()) == 1 {
		return nil
	}
	for try := 0; p.last == node || p.last == ""; try++ {
		if try == placementTries {
			return fmt.Errorf("%d short requests in a row were all placed on node %s", try, p.last)
		}
		_, record, err := undisturbed(ctx, p.client, p.cluster.Router(), client.Call{
			Body: client.Body{Model: p.model, Messages: messages("Hello."), MaxTokens: 1}, Protection: client.ProtectionOff,
		})
		if err != nil {
			return fmt.Errorf("steer to node %s: %w", node, err)
		}
		p.last = record.Attempts[0].Node
	}
	return nil
}
