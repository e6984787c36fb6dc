// SPDX-License-Identifier: Apache-2.0
// Copyright The Segue Authors

package router_test

import (
	"context"
	"fmt"
	"net"
	"slices"
	"strings"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/grpc/test/bufconn"

	seguev1 "github.com/seguekv/segue/api/segue/v1"
	"github.com/seguekv/segue/health"
	"github.com/seguekv/segue/snapshot"
)

const model = "sim"

// promptDigest is what every fake agent reports for every prompt.
var promptDigest = func() []byte { d := snapshot.IDsDigest([]int32{1, 2, 3}); return d[:] }()

// agent is a scripted agent. Its functions may be set before the first request.
type agent struct {
	seguev1.UnimplementedNodeServiceServer
	id       string
	describe *seguev1.DescribeResponse
	generate func(*seguev1.GenerateRequest, *events) error
	takeover func(*seguev1.TakeoverRequest, *events) error
	pair     func(*seguev1.PairRequest) error
	cancel   func(*seguev1.CancelRequest) error
	renew    func(*seguev1.RenewRequest) error
	prepare  func(*seguev1.PrepareRequest) (int, error)
	park     func(*seguev1.ParkRequest) error
	// verdicts are what the agent says of its engine, each at once; nil: nothing.
	verdicts chan *seguev1.WatchHealthResponse
	// out, if set, comes before each Describe.
	out func(context.Context) error

	mu        sync.Mutex
	alive     bool
	server    *grpc.Server
	conns     []net.Conn
	listener  *bufconn.Listener
	generates []*seguev1.GenerateRequest
	takeovers []*seguev1.TakeoverRequest
	pairs     []*seguev1.PairRequest
	cancels   []*seguev1.CancelRequest
	releases  []*seguev1.ReleaseRequest
	renewals  []renewal
	parks     []*seguev1.ParkRequest
	// running are the streams that are open.
	running []*seguev1.RunStatus
	// ended counts streams whose context is done.
	ended int
}

func newAgent(id string) *agent {
	return &agent{
		id: id,
		describe: &seguev1.DescribeResponse{
			NodeId: id, BootId: []byte("boot-of-" + id + "-0001"), EngineBootId: []byte("engine-of-" + id + "-01"), Model: model,
			Fingerprint: []byte("fingerprint"), RowBytes: 64, ContextLength: 4096, Contexts: 4, ContextsReserved: 2,
			SnapshotBytesLimit: 1 << 30, Ready: true,
		},
		generate: func(_ *seguev1.GenerateRequest, e *events) error { return e.whole(5) },
		takeover: func(*seguev1.TakeoverRequest, *events) error {
			return refusal(seguev1.Reason_REASON_NOT_COVERED, "nothing is held here")
		},
		pair:    func(*seguev1.PairRequest) error { return nil },
		cancel:  func(*seguev1.CancelRequest) error { return nil },
		renew:   func(*seguev1.RenewRequest) error { return nil },
		prepare: func(*seguev1.PrepareRequest) (int, error) { return 1, nil },
		park:    func(*seguev1.ParkRequest) error { return nil },

		verdicts: make(chan *seguev1.WatchHealthResponse, 8),
	}
}

func (a *agent) WatchHealth(_ *seguev1.WatchHealthRequest, s grpc.ServerStreamingServer[seguev1.WatchHealthResponse]) error {
	tick := time.NewTicker(time.Second)
	defer tick.Stop()
	var last *seguev1.WatchHealthResponse
	for {
		select {
		case last = <-a.verdicts:
		case <-tick.C:
		case <-s.Context().Done():
			return s.Context().Err()
		}
		if last != nil {
			if err := s.Send(last); err != nil {
				return err
			}
		}
	}
}

// says sends what the agent holds of its engine.
func (a *agent) says(v health.Verdict, working bool, why ...string) {
	a.verdicts <- &seguev1.WatchHealthResponse{Verdict: seguev1.Verdict(v), Reasons: why, Working: working, EngineBootId: []byte("engine-of-" + a.id + "-01")}
}

// start serves; after kill it plays a restarted agent.
func (a *agent) start() {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.alive = true
	a.listener = bufconn.Listen(1 << 16)
	a.server = grpc.NewServer()
	a.conns = nil
	seguev1.RegisterNodeServiceServer(a.server, a)
	go a.server.Serve(recorder{a.listener, a}) // ends with kill
}

// recorder keeps accepted connections, so that kill can cut them.
type recorder struct {
	*bufconn.Listener
	a *agent
}

func (r recorder) Accept() (net.Conn, error) {
	conn, err := r.Listener.Accept()
	if err != nil {
		return nil, err
	}
	r.a.mu.Lock()
	defer r.a.mu.Unlock()
	r.a.conns = append(r.a.conns, conn)
	return conn, nil
}

// cut breaks the agent's connections; new ones are possible at once.
func (a *agent) cut() {
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, c := range a.conns {
		c.Close()
	}
	a.conns = nil
}

// kill is a SIGKILL: connections break without a word.
func (a *agent) kill() {
	a.mu.Lock()
	if !a.alive {
		a.mu.Unlock()
		return
	}
	a.alive = false
	server := a.server
	for _, c := range a.conns {
		c.Close()
	}
	a.listener.Close()
	a.mu.Unlock()
	server.Stop()
}

func (a *agent) dial(ctx context.Context) (net.Conn, error) {
	a.mu.Lock()
	listener, alive := a.listener, a.alive
	a.mu.Unlock()
	if !alive {
		return nil, fmt.Errorf("connection refused")
	}
	return listener.DialContext(ctx)
}

func (a *agent) Describe(ctx context.Context, _ *seguev1.DescribeRequest) (*seguev1.DescribeResponse, error) {
	a.mu.Lock()
	out := a.out
	a.mu.Unlock()
	if out != nil {
		if err := out(ctx); err != nil {
			return nil, err
		}
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.describe, nil
}

// setDescribe changes what the agent says about itself.
func (a *agent) setDescribe(change func(*seguev1.DescribeResponse)) {
	a.mu.Lock()
	defer a.mu.Unlock()
	d := &seguev1.DescribeResponse{
		NodeId: a.describe.NodeId, BootId: a.describe.BootId, EngineBootId: a.describe.EngineBootId, Model: a.describe.Model,
		Fingerprint: a.describe.Fingerprint, Contexts: a.describe.Contexts, ContextsReserved: a.describe.ContextsReserved,
		ContextsUsed: a.describe.ContextsUsed, SnapshotBytesLimit: a.describe.SnapshotBytesLimit, Ready: a.describe.Ready,
	}
	change(d)
	a.describe = d
}

func (a *agent) Generate(r *seguev1.GenerateRequest, s grpc.ServerStreamingServer[seguev1.GenerateResponse]) error {
	a.mu.Lock()
	a.generates = append(a.generates, r)
	f := a.generate
	a.mu.Unlock()
	defer a.streamEnded(a.streamBegins(r))
	return f(r, &events{ctx: s.Context(), send: func(e *seguev1.Event) error { return s.Send(&seguev1.GenerateResponse{Event: e}) }})
}

func (a *agent) Takeover(r *seguev1.TakeoverRequest, s grpc.ServerStreamingServer[seguev1.TakeoverResponse]) error {
	a.mu.Lock()
	a.takeovers = append(a.takeovers, r)
	f := a.takeover
	a.mu.Unlock()
	defer a.streamEnded(a.streamBegins(r))
	return f(r, &events{ctx: s.Context(), send: func(e *seguev1.Event) error { return s.Send(&seguev1.TakeoverResponse{Event: e}) }})
}

func (a *agent) streamBegins(r interface {
	GetSession() []byte
	GetEpoch() uint64
},
) *seguev1.RunStatus {
	a.mu.Lock()
	defer a.mu.Unlock()
	run := &seguev1.RunStatus{Session: r.GetSession(), Epoch: r.GetEpoch(), Phase: "decode", Prefilled: 3, Captured: 1}
	a.running = append(a.running, run)
	return run
}

func (a *agent) streamEnded(run *seguev1.RunStatus) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.ended++
	a.running = slices.DeleteFunc(a.running, func(r *seguev1.RunStatus) bool { return r == run })
}

func (a *agent) Pair(_ context.Context, r *seguev1.PairRequest) (*seguev1.PairResponse, error) {
	a.mu.Lock()
	a.pairs = append(a.pairs, r)
	f := a.pair
	a.mu.Unlock()
	return &seguev1.PairResponse{}, f(r)
}

func (a *agent) Prepare(_ context.Context, r *seguev1.PrepareRequest) (*seguev1.PrepareResponse, error) {
	a.mu.Lock()
	f := a.prepare
	a.mu.Unlock()
	c, err := f(r)
	return &seguev1.PrepareResponse{Boundary: uint32(c), StateEpoch: r.GetEpoch(), HoldMs: r.GetHoldMs()}, err
}

func (a *agent) Park(_ context.Context, r *seguev1.ParkRequest) (*seguev1.ParkResponse, error) {
	a.mu.Lock()
	a.parks = append(a.parks, r)
	f := a.park
	a.mu.Unlock()
	return &seguev1.ParkResponse{}, f(r)
}

func (a *agent) Cancel(_ context.Context, r *seguev1.CancelRequest) (*seguev1.CancelResponse, error) {
	a.mu.Lock()
	a.cancels = append(a.cancels, r)
	f := a.cancel
	a.mu.Unlock()
	return &seguev1.CancelResponse{}, f(r)
}

func (a *agent) Release(_ context.Context, r *seguev1.ReleaseRequest) (*seguev1.ReleaseResponse, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.releases = append(a.releases, r)
	return &seguev1.ReleaseResponse{}, nil
}

// calls is a copy of what was asked of the agent.
type calls struct {
	generates []*seguev1.GenerateRequest
	takeovers []*seguev1.TakeoverRequest
	pairs     []*seguev1.PairRequest
	cancels   []*seguev1.CancelRequest
	releases  []*seguev1.ReleaseRequest
	ended     int
}

func (a *agent) calls() calls {
	a.mu.Lock()
	defer a.mu.Unlock()
	return calls{slices.Clone(a.generates), slices.Clone(a.takeovers), slices.Clone(a.pairs), slices.Clone(a.cancels), slices.Clone(a.releases), a.ended}
}

// events writes a stream. Token i has id 100+i and, unless told otherwise, the text "w<i> ".
type events struct {
	ctx     context.Context
	send    func(*seguev1.Event) error
	next    int
	textEnd int
}

func word(i int) string { return fmt.Sprintf("w%d ", i) }

// words is the text of tokens from … to-1.
func words(from, to int) string {
	var s strings.Builder
	for i := from; i < to; i++ {
		s.WriteString(word(i))
	}
	return s.String()
}

func tokenIDs(n int) []int32 {
	ids := make([]int32, n)
	for i := range ids {
		ids[i] = int32(100 + i)
	}
	return ids
}

func (e *events) prompt() error {
	return e.send(&seguev1.Event{Event: &seguev1.Event_Prompt{Prompt: &seguev1.Prompt{Tokens: 3, Digest: promptDigest}}})
}

func (e *events) protection(holder string, cause string) error {
	return e.send(&seguev1.Event{Event: &seguev1.Event_Protection{Protection: &seguev1.Protection{
		Protected: holder != "" && cause == "", Holder: holder, FromIndex: uint32(e.next), Cause: cause,
	}}})
}

func (e *events) progress(captured, sent, committed int) error {
	return e.send(&seguev1.Event{Event: &seguev1.Event_Progress{Progress: &seguev1.Progress{
		Captured: uint32(captured), Sent: uint32(sent), Committed: uint32(committed),
	}}})
}

func (e *events) seam(boundary int) error {
	return e.send(&seguev1.Event{Event: &seguev1.Event_Seam{Seam: &seguev1.Seam{
		Boundary: uint32(boundary), PromptTokens: 3, RestoredRows: uint32(3 + boundary - 1), RestoredBytes: uint64(64 * (3 + boundary - 1)),
	}}})
}

// text sends the next token with text of its own; held bytes are produced but not released.
func (e *events) text(text string, held int) error {
	e.textEnd += len(text)
	i := e.next
	e.next++
	return e.send(&seguev1.Event{Event: &seguev1.Event_Token{Token: &seguev1.Token{
		Index: uint32(i), Id: int32(100 + i), Text: []byte(text), TextEnd: uint64(e.textEnd), RawEnd: uint64(e.textEnd + held),
	}}})
}

// tokens sends the tokens up to index n-1.
func (e *events) tokens(n int) error {
	for e.next < n {
		if err := e.text(word(e.next), 0); err != nil {
			return err
		}
	}
	return nil
}

func (e *events) finish(reason string) error {
	return e.send(&seguev1.Event{Event: &seguev1.Event_Finish{Finish: &seguev1.Finish{Tokens: uint32(e.next), Reason: reason, PromptTokens: 3}}})
}

// whole is a run of n tokens.
func (e *events) whole(n int) error {
	if err := e.prompt(); err != nil {
		return err
	}
	if err := e.tokens(n); err != nil {
		return err
	}
	return e.finish("length")
}

// begin is the start of a protected run of n tokens.
func (e *events) begin(holder string, n int) error {
	if err := e.prompt(); err != nil {
		return err
	}
	if holder != "" {
		if err := e.protection(holder, ""); err != nil {
			return err
		}
	}
	return e.tokens(n)
}

// hang waits for the end of the stream.
func (e *events) hang() error {
	<-e.ctx.Done()
	return e.ctx.Err()
}

// resume plays a takeover at r.Delivered from a record of c boundaries, up to n tokens in all.
func (e *events) resume(r *seguev1.TakeoverRequest, c, n int) error {
	e.next, e.textEnd = int(r.GetDelivered()), int(r.GetTextEnd())
	if err := e.seam(c); err != nil {
		return err
	}
	if err := e.protection("", "no_holder"); err != nil {
		return err
	}
	if err := e.tokens(n); err != nil {
		return err
	}
	return e.finish("length")
}

func refusal(reason seguev1.Reason, detail string) error {
	return refusing(&seguev1.Refusal{Reason: reason, Detail: detail})
}

func refusing(r *seguev1.Refusal) error {
	s, err := status.New(codes.FailedPrecondition, r.GetDetail()).WithDetails(r)
	if err != nil {
		return err
	}
	return s.Err()
}
