// SPDX-License-Identifier: Apache-2.0
// Copyright The Segue Authors

package sim

import (
	"context"
	"fmt"
	"net"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	seguev1 "github.com/seguekv/segue/api/segue/v1"
	"github.com/seguekv/segue/engines"
	"github.com/seguekv/segue/snapshot"
)

// callerHost is where repeated calls come from.
const callerHost = "caller"

// caller makes calls that the router has made already.
type caller struct {
	w *World

	mu    sync.Mutex
	conns map[string]*grpc.ClientConn
}

func newCaller(w *World) *caller {
	w.AddHost(callerHost)
	return &caller{w: w, conns: map[string]*grpc.ClientConn{}}
}

func (c *caller) to(n *Node) (seguev1.NodeServiceClient, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	conn := c.conns[n.ID]
	if conn == nil {
		var err error
		conn, err = grpc.NewClient("passthrough:///"+n.Addr, grpc.WithTransportCredentials(insecure.NewCredentials()),
			grpc.WithContextDialer(func(ctx context.Context, addr string) (net.Conn, error) { return c.w.Net.Dial(ctx, callerHost, addr) }))
		if err != nil {
			return nil, err
		}
		c.conns[n.ID] = conn
	}
	return seguev1.NewNodeServiceClient(conn), nil
}

func (c *caller) close() {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, conn := range c.conns {
		_ = conn.Close()
	}
}

// repeat makes a call about the scene's session again. It hits when the agent has answered, whatever it says.
func (p *player) repeat(f Fault, sc scene, s *Struck) (bool, string) {
	label := sessionLabel(sc.session)
	ref := p.refs[label]
	if ref == nil {
		return false, "no session"
	}
	n := sc.primary
	p.touches(s, n.ID)
	plan := p.session(label)
	request, err := plan.Request.Engine()
	if err != nil {
		return false, err.Error()
	}
	client, err := p.calls.to(n)
	if err != nil {
		return false, err.Error()
	}
	// As the router knows it now; it may go on meanwhile.
	id, err := snapshot.ParseSessionID(sc.session.Session)
	if err != nil {
		return false, err.Error()
	}
	d, epoch := p.w.Gates.len(sc.session.Session), uint64(p.w.Gates.epoch(sc.session.Session))
	late := time.Duration(f.Amount * float64(200*time.Millisecond))
	if f.Pick%3 == 0 {
		late = 0
	}
	p.sleep(late)
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	switch f.Kind {
	case RepeatCancel:
		// Of the epoch before, which the router has fenced for certain.
		if epoch < 2 {
			return false, "nothing was cancelled"
		}
		r, err := client.Cancel(ctx, &seguev1.CancelRequest{Session: id[:], Epoch: epoch - 1})
		return err == nil, fmt.Sprintf("%v %v", r.GetWasRunning(), err)
	case RepeatGenerate:
		st, err := client.Generate(ctx, &seguev1.GenerateRequest{Session: id[:], Epoch: epoch, Request: engines.RequestToProto(request), Protection: seguev1.ProtectionMode_PROTECTION_MODE_OFF})
		if err != nil {
			return false, err.Error()
		}
		ev, err := st.Recv()
		return true, fmt.Sprintf("%T %v", ev.GetEvent().GetEvent(), err)
	}
	if f.Kind == StaleTakeover {
		epoch-- // the router has raised it
	}
	if epoch == 0 || d > len(ref.IDs) {
		return false, "no takeover"
	}
	prompt, output := snapshot.IDsDigest(ref.PromptIDs), snapshot.IDsDigest(ref.IDs[:d])
	end := 0
	if d > 0 {
		end = ref.TextEnd[d-1]
	}
	st, err := client.Takeover(ctx, &seguev1.TakeoverRequest{
		Session: id[:], Epoch: epoch, Delivered: uint32(d), PromptDigest: prompt[:], OutputDigest: output[:], TextEnd: uint64(end),
		Request: engines.RequestToProto(request), Protection: seguev1.ProtectionMode_PROTECTION_MODE_OFF,
	})
	if err != nil {
		return false, err.Error()
	}
	ev, err := st.Recv()
	return true, fmt.Sprintf("%T %v", ev.GetEvent().GetEvent(), err)
}

func (p *player) session(label uint64) SessionPlan {
	for _, s := range p.plan.Sessions {
		if s.Request.Label == label {
			return s
		}
	}
	return SessionPlan{}
}
