// SPDX-License-Identifier: Apache-2.0
// Copyright The Segue Authors

package agent_test

import (
	"context"
	"net"
	"testing"
	"time"

	"google.golang.org/grpc"

	"github.com/seguekv/segue/internal/faultnet"
	"github.com/seguekv/segue/transfer"
)

// memNet is a network whose hosts are the agents, by id, and the router, whose links are always good.
type memNet struct {
	*faultnet.Net
	started []*testNode
	// links are what agents send to others by, frozen the agents for which these are cut.
	links  map[string]faultnet.Link
	frozen map[string]bool
}

func newMemNet() *memNet {
	return &memNet{Net: faultnet.New(1), links: map[string]faultnet.Link{}, frozen: map[string]bool{}}
}

func (n *memNet) listen(t *testing.T, id, addr string) net.Listener {
	t.Helper()
	l, err := n.Listen(id, addr)
	if err != nil {
		t.Fatal(err)
	}
	return l
}

func (n *memNet) options(from string) []grpc.DialOption {
	return append(transfer.DialOptions(), grpc.WithContextDialer(func(ctx context.Context, addr string) (net.Conn, error) { return n.Dial(ctx, from, addr) }))
}

// dialed is how often agent from has tried to connect to agent to.
func (n *memNet) dialed(from, to string) int { return n.Stats(from, to).Dials }

// delay makes bytes that agent from sends to other agents take d.
func (n *memNet) delay(from string, d time.Duration) {
	n.links[from] = faultnet.Link{Latency: d}
	n.shape(from)
}

// throttle makes what agent from sends to another share a link of that many bytes a second.
func (n *memNet) throttle(from string, rate int) {
	n.links[from] = faultnet.Link{BytesPerSecond: rate}
	n.shape(from)
}

// freeze stops everything between agent from and other agents, without closing anything.
func (n *memNet) freeze(from string) {
	n.frozen[from] = true
	n.shape(from)
}

// thaw ends every freeze.
func (n *memNet) thaw() {
	for from := range n.frozen {
		delete(n.frozen, from)
		n.shape(from)
	}
}

func (n *memNet) shape(from string) {
	l := n.links[from]
	l.Cut = n.frozen[from]
	n.Shape(from, "", l)
	n.Shape("", from, faultnet.Link{Cut: l.Cut})
	n.Shape(from, "router", faultnet.Link{})
	n.Shape("router", from, faultnet.Link{})
}
