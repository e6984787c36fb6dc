// SPDX-License-Identifier: Apache-2.0
// Copyright The Segue Authors

package bench

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"slices"
	"sync"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	seguev1 "github.com/seguekv/segue/api/segue/v1"
)

// routerAgent is an agent without an engine: a token is one message with a short text.
type routerAgent struct {
	seguev1.UnimplementedNodeServiceServer
	currentScript
	contexts int
	addr     string
	server   *grpc.Server
	conn     *grpc.ClientConn // for direct calls
	served   chan struct{}

	mu      sync.Mutex
	number  uint64 // of the last Renew
	running []*seguev1.RunStatus
}

const agentID = "a"

func newRouterAgent(streams int) (*routerAgent, error) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, fmt.Errorf("listen: %w", err)
	}
	const spare = 8 // contexts of streams whose end the router has yet to take in
	u := &routerAgent{contexts: streams + spare, addr: listener.Addr().String(), server: grpc.NewServer(), served: make(chan struct{})}
	seguev1.RegisterNodeServiceServer(u.server, u)
	if u.conn, err = grpc.NewClient("passthrough:///"+u.addr, grpc.WithTransportCredentials(insecure.NewCredentials())); err != nil {
		return nil, errors.Join(fmt.Errorf("dial own agent: %w", err), listener.Close())
	}
	go func() { // ends with close
		defer close(u.served)
		_ = u.server.Serve(listener)
	}()
	return u, nil
}

func (u *routerAgent) flags() []string { return []string{"--agent", agentID + "=" + u.addr} }

func (u *routerAgent) close() {
	_ = u.conn.Close()
	u.server.Stop()
	<-u.served
}

func (u *routerAgent) direct(ctx context.Context, received func()) (int, error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	stream, err := seguev1.NewNodeServiceClient(u.conn).Generate(ctx, &seguev1.GenerateRequest{
		Session: make([]byte, 16), Epoch: 1, Protection: seguev1.ProtectionMode_PROTECTION_MODE_OFF,
		Request: &seguev1.Request{Model: routerModel, Prompt: &seguev1.Request_Text{Text: "words"}},
	})
	if err != nil {
		return 0, fmt.Errorf("call agent: %w", err)
	}
	n, finished := 0, false
	for {
		m, err := stream.Recv()
		switch {
		case errors.Is(err, io.EOF) && finished:
			return n, nil
		case err != nil:
			return n, fmt.Errorf("stream of the agent: %w", err)
		}
		switch m.GetEvent().GetEvent().(type) {
		case *seguev1.Event_Token:
			received()
			n++
		case *seguev1.Event_Finish:
			finished = true
		}
	}
}

// id16 is a fixed id of a process life.
func id16(s string) []byte { return fmt.Appendf(nil, "%-16s", s)[:16] }

// Describe reports an idle, ready node of ample size.
func (u *routerAgent) Describe(context.Context, *seguev1.DescribeRequest) (*seguev1.DescribeResponse, error) {
	u.mu.Lock()
	defer u.mu.Unlock()
	return &seguev1.DescribeResponse{
		NodeId: agentID, BootId: id16("boot"), EngineBootId: id16("engine"), Model: routerModel, Fingerprint: []byte("bench"),
		RowBytes: 64, ContextLength: 1 << 20, Contexts: uint32(u.contexts), ContextsUsed: uint32(len(u.running)), SnapshotBytesLimit: 1 << 30, Ready: true,
	}, nil
}

// Renew asks for the leases of all streams that are open.
func (u *routerAgent) Renew(context.Context, *seguev1.RenewRequest) (*seguev1.RenewResponse, error) {
	u.mu.Lock()
	defer u.mu.Unlock()
	u.number++
	return &seguev1.RenewResponse{BootId: id16("boot"), Number: u.number, Runs: slices.Clone(u.running)}, nil
}

// Cancel has nothing left to end: a run ends with its stream.
func (u *routerAgent) Cancel(context.Context, *seguev1.CancelRequest) (*seguev1.CancelResponse, error) {
	return &seguev1.CancelResponse{}, nil
}

// Release has nothing to drop.
func (u *routerAgent) Release(context.Context, *seguev1.ReleaseRequest) (*seguev1.ReleaseResponse, error) {
	return &seguev1.ReleaseResponse{}, nil
}

// Pair accepts any holder; with protection off nobody asks.
func (u *routerAgent) Pair(context.Context, *seguev1.PairRequest) (*seguev1.PairResponse, error) {
	return &seguev1.PairResponse{}, nil
}

// Generate plays the script.
func (u *routerAgent) Generate(r *seguev1.GenerateRequest, stream grpc.ServerStreamingServer[seguev1.GenerateResponse]) error {
	defer u.open(r)()
	script, err := u.current()
	if err != nil {
		return err
	}
	const promptTokens = 16
	if err := stream.Send(&seguev1.GenerateResponse{Event: &seguev1.Event{Event: &seguev1.Event_Prompt{Prompt: &seguev1.Prompt{
		Tokens: promptTokens, Digest: make([]byte, 32),
	}}}}); err != nil {
		return err
	}
	token := &seguev1.Token{Id: 1, Text: []byte(script.text)}
	message := &seguev1.GenerateResponse{Event: &seguev1.Event{Event: &seguev1.Event_Token{Token: token}}}
	n, err := script.run(stream.Context(), func(i int) error {
		token.Index, token.TextEnd = uint32(i), uint64((i+1)*len(script.text))
		token.RawEnd = token.TextEnd
		return stream.Send(message) // encoded before it returns
	})
	if err != nil {
		return err
	}
	return stream.Send(&seguev1.GenerateResponse{Event: &seguev1.Event{Event: &seguev1.Event_Finish{Finish: &seguev1.Finish{
		Tokens: uint32(n), Reason: "length", PromptTokens: promptTokens,
	}}}})
}

// open lists the run until the returned function is called.
func (u *routerAgent) open(r *seguev1.GenerateRequest) func() {
	run := &seguev1.RunStatus{Session: r.GetSession(), Epoch: r.GetEpoch(), Phase: "decode", Prefilled: 1, Captured: 1}
	u.mu.Lock()
	defer u.mu.Unlock()
	u.running = append(u.running, run)
	return func() {
		u.mu.Lock()
		defer u.mu.Unlock()
		u.running = slices.DeleteFunc(u.running, func(x *seguev1.RunStatus) bool { return x == run })
	}
}
