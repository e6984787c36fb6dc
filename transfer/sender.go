// SPDX-License-Identifier: Apache-2.0
// Copyright The Segue Authors

package transfer

import (
	"context"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"time"

	"google.golang.org/grpc"

	seguev1 "github.com/seguekv/segue/api/segue/v1"
	"github.com/seguekv/segue/snapshot"
)

// ProtocolVersion is the replication protocol's version, exchanged in Hello and Welcome. It rises with
// snapshot.FormatVersion too, so that peers that can't read each other's records say so at once.
const ProtocolVersion = 1

// frameBytes is the size a frame is filled to: large enough to amortise a gRPC message, small enough that a
// delta waits behind little: the frame in the transport, the one that waits for it, and the write buffer.
const frameBytes = 1 << 20

const (
	backoffMin = 20 * time.Millisecond
	backoffMax = time.Second
)

// Self identifies an agent to its peers.
type Self struct {
	NodeID string
	Boot   [16]byte
}

// Sender replicates any number of sessions to one peer over one stream.
type Sender struct {
	self   Self
	client seguev1.ReplicationServiceClient
	log    *slog.Logger

	wake chan struct{}

	mu       sync.Mutex
	sessions map[snapshot.SessionID]*Outbox
	// order is the round-robin order in which sessions fill frames.
	order []snapshot.SessionID
	live  bool
	sent  int64
}

// NewSender returns a sender to the peer behind conn, which must use Codec (see DialOptions).
func NewSender(self Self, conn grpc.ClientConnInterface, log *slog.Logger) *Sender {
	return &Sender{
		self: self, client: seguev1.NewReplicationServiceClient(conn), log: log,
		wake: make(chan struct{}, 1), sessions: make(map[snapshot.SessionID]*Outbox),
	}
}

// Attach begins to replicate o from the start of its base, or from what the peer already has of it. A base that
// was attached here before becomes a new one.
func (s *Sender) Attach(o *Outbox) {
	id := o.Base().Session
	s.mu.Lock()
	if _, ok := s.sessions[id]; !ok {
		s.order = append(s.order, id)
	}
	s.sessions[id] = o
	o.attached(s)
	if s.live {
		o.welcome(s, nil)
	}
	s.mu.Unlock()
	s.notify()
}

// Detach stops replicating o. What the peer holds stays there until it is released.
func (s *Sender) Detach(o *Outbox) {
	id := o.Base().Session
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.sessions[id] == o {
		delete(s.sessions, id)
		s.order = slices.DeleteFunc(s.order, func(x snapshot.SessionID) bool { return x == id })
	}
	o.detached(s)
}

// idle reports that nothing is attached.
func (s *Sender) idle() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.sessions) == 0
}

// SentBytes is the number of bytes handed to the transport.
func (s *Sender) SentBytes() int64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.sent
}

func (s *Sender) notify() {
	select {
	case s.wake <- struct{}{}:
	default:
	}
}

// Run keeps a stream to the peer while sessions are attached, and opens it again with back-off when it
// breaks. It returns when ctx ends.
func (s *Sender) Run(ctx context.Context) error {
	backoff := backoffMin
	for {
		if err := s.waitForSession(ctx); err != nil {
			return err
		}
		began := time.Now()
		err := s.stream(ctx)
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		if time.Since(began) > 2*backoffMax {
			backoff = backoffMin
		}
		s.log.Warn("replication stream broke", "err", err, "retry_in", backoff)
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-time.After(backoff):
		}
		backoff = min(2*backoff, backoffMax)
	}
}

func (s *Sender) waitForSession(ctx context.Context) error {
	for {
		s.mu.Lock()
		n := len(s.sessions)
		s.mu.Unlock()
		if n > 0 {
			return nil
		}
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-s.wake:
		}
	}
}

// stream runs one stream from hello to its end.
func (s *Sender) stream(ctx context.Context) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	st, err := s.client.Replicate(ctx, grpc.ForceCodecV2(Codec{}))
	if err != nil {
		return fmt.Errorf("open stream: %w", err)
	}
	hello := &Frame{Hello: &seguev1.ReplicateHello{Version: ProtocolVersion, NodeId: s.self.NodeID, BootId: s.self.Boot[:]}}
	if err := st.SendMsg(hello); err != nil {
		return fmt.Errorf("send hello: %w", err)
	}
	first, err := st.Recv()
	if err != nil {
		return fmt.Errorf("receive welcome: %w", err)
	}
	w := first.GetWelcome()
	if w == nil || len(w.GetBootId()) != 16 {
		return fmt.Errorf("%w: first answer isn't a welcome", ErrProtocol)
	}
	if w.GetVersion() != ProtocolVersion {
		return fmt.Errorf("%w: peer speaks version %d, this agent %d", ErrProtocol, w.GetVersion(), ProtocolVersion)
	}
	s.welcome(w)
	defer s.disconnect()

	var acks sync.WaitGroup
	acks.Go(func() { cancel(s.receive(st)) })
	defer acks.Wait()
	defer cancel(nil)
	return s.send(ctx, st)
}

func (s *Sender) welcome(w *seguev1.ReplicateWelcome) {
	offers := make(map[snapshot.SessionID]*seguev1.ResumeOffer, len(w.GetOffers()))
	for _, o := range w.GetOffers() {
		if len(o.GetSession()) == 16 {
			offers[snapshot.SessionID(o.GetSession())] = o
		}
	}
	s.mu.Lock()
	s.live = true
	for id, o := range s.sessions {
		o.welcome(s, offers[id])
	}
	s.mu.Unlock()
	s.notify()
}

func (s *Sender) disconnect() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.live = false
	for _, o := range s.sessions {
		o.disconnected(s)
	}
}

// send fills frames, deltas of all sessions first, then bases, until the stream ends.
func (s *Sender) send(ctx context.Context, st grpc.ClientStream) error {
	for {
		f, size := s.fill()
		if size == 0 {
			select {
			case <-ctx.Done():
				return context.Cause(ctx)
			case <-s.wake:
			}
			continue
		}
		if err := st.SendMsg(f); err != nil {
			<-ctx.Done() // the receiver knows the status
			return context.Cause(ctx)
		}
		s.mu.Lock()
		s.sent += int64(size)
		s.mu.Unlock()
	}
}

func (s *Sender) fill() (*Frame, int) {
	s.mu.Lock()
	turn := make([]*Outbox, len(s.order))
	for i, id := range s.order {
		turn[i] = s.sessions[id]
	}
	if n := len(s.order); n > 1 {
		s.order = append(s.order[1:n:n], s.order[0])
	}
	s.mu.Unlock()
	f, total := new(Frame), 0
	for _, deltasOnly := range []bool{true, false} {
		for _, o := range turn {
			if total >= frameBytes {
				return f, total
			}
			var n int
			f.Records, n = o.take(s, f.Records, frameBytes-total, deltasOnly)
			total += n
		}
		if total > 0 {
			return f, total
		}
	}
	return f, total
}

// receive handles acks until the stream ends, and returns why.
func (s *Sender) receive(st grpc.ServerStreamingClient[seguev1.ReplicateResponse]) error {
	for {
		m, err := st.Recv()
		if err != nil {
			return fmt.Errorf("receive: %w", err)
		}
		switch x := m.GetFrame().(type) {
		case *seguev1.ReplicateResponse_Ack:
			if o := s.outbox(x.Ack.GetSession()); o != nil {
				if err := o.ack(s, x.Ack); err != nil {
					return err
				}
			}
		case *seguev1.ReplicateResponse_Reject:
			if o := s.outbox(x.Reject.GetSession()); o != nil {
				o.rejected(s, x.Reject)
			}
		default:
			return fmt.Errorf("%w: answer of kind %T", ErrProtocol, x)
		}
	}
}

func (s *Sender) outbox(id []byte) *Outbox {
	if len(id) != 16 {
		return nil
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.sessions[snapshot.SessionID(id)]
}
