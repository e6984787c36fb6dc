// SPDX-License-Identifier: Apache-2.0
// Copyright The Segue Authors

package transfer

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	seguev1 "github.com/seguekv/segue/api/segue/v1"
	"github.com/seguekv/segue/fence"
	"github.com/seguekv/segue/snapshot"
)

// Receiver is the holder's end of replication: it applies records to a store and acknowledges what is
// complete and verified.
type Receiver struct {
	seguev1.UnimplementedReplicationServiceServer

	self   Self
	store  *snapshot.Store
	log    *slog.Logger
	stop   <-chan struct{}
	onRows func(bytes int)

	mu sync.Mutex
	// primaries holds those with a stream, by boot id.
	primaries map[[16]byte]*primary
	// inHand counts frames that were read and are not applied yet; moved is when one last came or was applied.
	inHand int
	moved  time.Time
}

const (
	// settleQuiet is how long no frame may come until nothing that has reached this process is left to read.
	settleQuiet = 2 * time.Millisecond
	// settleLimit bounds the wait where frames never cease to come.
	settleLimit = 20 * time.Millisecond
	settlePoll  = 250 * time.Microsecond
)

// Settle returns when enough reports true, when what has been received is applied as far as that can be known
// from outside the transport, or when ctx ends.
func (r *Receiver) Settle(ctx context.Context, enough func() bool) {
	tick := time.NewTicker(settlePoll)
	defer tick.Stop()
	began := time.Now()
	for !enough() && time.Since(began) < settleLimit && r.unsettled(began) {
		select {
		case <-tick.C:
		case <-ctx.Done():
			return
		}
	}
}

func (r *Receiver) unsettled(began time.Time) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	since := r.moved
	if since.Before(began) {
		since = began
	}
	return len(r.primaries) > 0 && (r.inHand > 0 || time.Since(since) < settleQuiet)
}

// took notes that a frame was read (1) or done with (-1).
func (r *Receiver) took(n int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.inHand += n
	r.moved = time.Now()
}

// primary is one process life of a primary. Streams of it follow each other, but the handler of a broken one
// may still have a frame when the next one begins.
//
// INVARIANT: once a stream has its Welcome, no frame of an earlier stream changes the store.
type primary struct {
	boot    [16]byte
	streams int // guarded by Receiver.mu

	mu     sync.Mutex
	newest int // number of the newest stream
}

// NewReceiver returns a receiver into store. onRows is told the payload bytes of each frame; it must not
// block. Streams end when stop is closed.
func NewReceiver(self Self, store *snapshot.Store, stop <-chan struct{}, onRows func(bytes int), log *slog.Logger) *Receiver {
	return &Receiver{self: self, store: store, stop: stop, onRows: onRows, log: log, primaries: make(map[[16]byte]*primary)}
}

// Replicate serves one primary.
func (r *Receiver) Replicate(st grpc.BidiStreamingServer[seguev1.ReplicateRequest, seguev1.ReplicateResponse]) error {
	done := make(chan struct{})
	defer close(done)
	frames := r.receive(st, done)
	hello, err := r.next(frames)
	if errors.Is(err, io.EOF) {
		return status.Error(codes.InvalidArgument, "transfer: the stream ends before its hello")
	}
	if err != nil {
		return err
	}
	r.took(-1)
	h := hello.Hello
	if h == nil || len(h.GetBootId()) != 16 || len(h.GetNodeId()) > 256 {
		hello.Free()
		return status.Error(codes.InvalidArgument, "transfer: first frame isn't a valid hello")
	}
	if v := h.GetVersion(); v != ProtocolVersion {
		return status.Errorf(codes.FailedPrecondition, "transfer: peer speaks version %d, this agent %d: run the same release on both", v, ProtocolVersion)
	}
	boot := [16]byte(h.GetBootId())
	p := r.enter(boot)
	defer r.leave(boot)
	p.mu.Lock()
	p.newest++
	number, w := p.newest, r.welcome(boot)
	p.mu.Unlock()
	broken := st.Send(w)
	for {
		f, err := r.next(frames)
		if err != nil {
			if errors.Is(err, io.EOF) || errors.Is(st.Context().Err(), context.Canceled) {
				return nil
			}
			return err
		}
		answers, err := r.frame(p, number, f)
		r.took(-1)
		if err != nil {
			r.log.Error("replication frame refused", "peer", h.GetNodeId(), "err", err)
			return err
		}
		// What came before the stream broke counts, though nobody hears of it: a takeover may need it.
		for i := 0; i < len(answers) && broken == nil; i++ {
			broken = st.Send(answers[i])
		}
	}
}

// received is a frame, or why there are no more.
type received struct {
	frame *Frame
	err   error
}

// receive reads the stream's frames, one ahead of their use. Its goroutine belongs to the stream: it closes the
// channel and ends after the first error, or when done is closed, after which gRPC ends the stream.
func (r *Receiver) receive(st grpc.ServerStream, done <-chan struct{}) <-chan received {
	out := make(chan received)
	go func() {
		defer close(out)
		for {
			f := new(Frame)
			err := st.RecvMsg(f)
			if err == nil {
				r.took(1)
			}
			select {
			case out <- received{f, err}:
			case <-done:
				f.Free()
				if err == nil {
					r.took(-1)
				}
				return
			}
			if err != nil {
				return
			}
		}
	}()
	return out
}

func (r *Receiver) next(frames <-chan received) (*Frame, error) {
	select {
	case x, ok := <-frames:
		if !ok {
			return nil, io.EOF
		}
		return x.frame, x.err
	case <-r.stop:
		return nil, status.Error(codes.Unavailable, "transfer: the agent stops")
	}
}

func (r *Receiver) enter(boot [16]byte) *primary {
	r.mu.Lock()
	defer r.mu.Unlock()
	p := r.primaries[boot]
	if p == nil {
		p = &primary{boot: boot}
		r.primaries[boot] = p
	}
	p.streams++
	return p
}

func (r *Receiver) leave(boot [16]byte) {
	r.mu.Lock()
	defer r.mu.Unlock()
	p := r.primaries[boot]
	if p.streams--; p.streams == 0 {
		delete(r.primaries, boot)
	}
}

// frame applies and frees f, which came on the stream of that number.
func (r *Receiver) frame(p *primary, number int, f *Frame) ([]*seguev1.ReplicateResponse, error) {
	defer f.Free()
	if f.Hello != nil {
		return nil, status.Error(codes.InvalidArgument, "transfer: second hello")
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if number != p.newest {
		return nil, status.Error(codes.Aborted, "transfer: a newer stream of this primary replaces this one")
	}
	r.onRows(f.received.Len())
	answers, err := r.apply(p.boot, f)
	if err != nil {
		return nil, status.Error(codes.DataLoss, err.Error())
	}
	return answers, nil
}

// maxOffers keeps a welcome below gRPC's default limit of a message (4 MiB; an offer takes at most 85 bytes). A session
// whose base isn't offered begins it again.
const maxOffers = 1 << 15

// welcome offers the primary what is held of its sessions; what other primaries have here is none of its business.
func (r *Receiver) welcome(boot [16]byte) *seguev1.ReplicateResponse {
	w := &seguev1.ReplicateWelcome{Version: ProtocolVersion, NodeId: r.self.NodeID, BootId: r.self.Boot[:]}
	held := r.store.OffersTo(boot)
	for _, o := range held[max(0, len(held)-maxOffers):] {
		offer := &seguev1.ResumeOffer{
			Session: o.Session[:], Epoch: uint64(o.Epoch), Base: o.Base,
			Rows: uint32(o.Rows), Boundary: uint32(o.Committed), Chain: o.Chain[:],
		}
		if o.Committed > 0 {
			offer.Seal = o.Seal[:]
		}
		w.Offers = append(w.Offers, offer)
	}
	return &seguev1.ReplicateResponse{Frame: &seguev1.ReplicateResponse_Welcome{Welcome: w}}
}

// apply applies a frame's records, sent by the primary with that boot id. A record that is refused makes a Reject for its base; only a frame that
// can't be read at all is an error. There is one ack per base and frame, after its last record.
func (r *Receiver) apply(boot [16]byte, f *Frame) ([]*seguev1.ReplicateResponse, error) {
	var out []*seguev1.ReplicateResponse
	at := make(map[snapshot.BaseID]int)
	put := func(id snapshot.BaseID, m *seguev1.ReplicateResponse) {
		if i, ok := at[id]; ok {
			out[i] = m
			return
		}
		at[id] = len(out)
		out = append(out, m)
	}
	rejected := make(map[snapshot.BaseID]bool)
	body := f.Reader()
	defer func() { _ = body.Close() }()
	rd := snapshot.NewReader(body)
	for {
		h, err := rd.Next()
		if errors.Is(err, io.EOF) && !errors.Is(err, snapshot.ErrFormat) {
			return out, nil
		}
		if err != nil {
			return nil, err
		}
		if rejected[h.BaseID] {
			if err := rd.Skip(); err != nil {
				return nil, err
			}
			continue
		}
		rows, committed, err := r.record(boot, rd, h)
		if err != nil {
			rejected[h.BaseID] = true
			put(h.BaseID, reject(h.BaseID, err))
			if err := rd.Skip(); err != nil {
				return nil, err
			}
			continue
		}
		put(h.BaseID, &seguev1.ReplicateResponse{Frame: &seguev1.ReplicateResponse_Ack{Ack: &seguev1.Ack{
			Session: h.Session[:], Epoch: uint64(h.Epoch), Base: h.Base, Rows: uint32(rows), Committed: uint32(committed),
		}}})
	}
}

// record applies one record and returns its base's progress.
func (r *Receiver) record(boot [16]byte, rd *snapshot.Reader, h snapshot.Header) (rows, committed int, err error) {
	if h.Kind != snapshot.KindBase {
		return r.store.Apply(rd)
	}
	head, err := rd.Base()
	if err != nil {
		return 0, 0, err
	}
	return 0, 0, r.store.Begin(head, boot)
}

func reject(id snapshot.BaseID, err error) *seguev1.ReplicateResponse {
	reason, detail := Refuse(err)
	if errors.Is(err, fence.ErrStaleEpoch) || errors.Is(err, fence.ErrCanceled) {
		reason = seguev1.Reason_REASON_FENCED
	}
	return &seguev1.ReplicateResponse{Frame: &seguev1.ReplicateResponse_Reject{Reject: &seguev1.Reject{
		Session: id.Session[:], Epoch: uint64(id.Epoch), Base: id.Base, Reason: reason, Detail: detail,
	}}}
}
