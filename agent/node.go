// SPDX-License-Identifier: Apache-2.0
// Copyright The Segue Authors

package agent

import (
	"context"
	"fmt"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"

	seguev1 "github.com/seguekv/segue/api/segue/v1"
	"github.com/seguekv/segue/engines"
	"github.com/seguekv/segue/fence"
	"github.com/seguekv/segue/snapshot"
	"github.com/seguekv/segue/transfer"
)

// node is the gRPC service. Each handler validates, calls the agent and maps errors.
type node struct {
	seguev1.UnimplementedNodeServiceServer
	a *Agent
}

func (n *node) Describe(ctx context.Context, _ *seguev1.DescribeRequest) (*seguev1.DescribeResponse, error) {
	a := n.a
	used, limit := a.budget.Used()
	r := &seguev1.DescribeResponse{
		NodeId: a.cfg.ID, BootId: a.self.Boot[:],
		ContextsReserved: uint32(a.cfg.ReservedForTakeover), ContextsUsed: uint32(a.slots.inUse()),
		SnapshotBytesLimit: uint64(limit), SnapshotBytesUsed: uint64(used),
		ContextsPrepared: uint32(a.prepared.count()), SessionsParked: uint32(a.store.ParkedSessions()),
	}
	d, err := a.described(ctx)
	if err != nil {
		r.NotReadyReason = err.Error()
		return r, nil
	}
	r.Ready = true
	if err := a.unwell(d); err != nil {
		r.Ready, r.NotReadyReason = false, err.Error()
	}
	r.EngineBootId, r.Model = d.Boot[:], d.Model
	r.Fingerprint, r.RowBytes = d.Fingerprint.Encode(), uint64(d.Geometry.RowBytes())
	r.ContextLength, r.Contexts = uint32(d.ContextLength), uint32(d.Contexts)
	return r, nil
}

func (n *node) Generate(r *seguev1.GenerateRequest, st grpc.ServerStreamingServer[seguev1.GenerateResponse]) error {
	id, e, l, err := n.opening(r)
	if err != nil {
		return statusError(err)
	}
	s, err := n.a.attempt(st.Context(), id, e, func() (*session, error) {
		o, err := n.a.orderOf(r.GetRequest(), r.GetProtection(), r.GetHolder(), r.GetRequireProtection(), r.GetWindow(), r.GetCommitTimeoutMs())
		if err != nil {
			return nil, err
		}
		return n.a.generate(st.Context(), id, e, o)
	})
	if err != nil {
		return statusError(err)
	}
	s.take(l)
	send := func(ev *seguev1.Event) error { return st.Send(&seguev1.GenerateResponse{Event: ev}) }
	return n.a.serve(st.Context(), s, int(r.GetFromIndex()), send)
}

func (n *node) Takeover(r *seguev1.TakeoverRequest, st grpc.ServerStreamingServer[seguev1.TakeoverResponse]) error {
	id, e, l, err := n.opening(r)
	if err != nil {
		return statusError(err)
	}
	s, err := n.a.attempt(st.Context(), id, e, func() (*session, error) {
		o, err := n.a.orderOf(r.GetRequest(), r.GetProtection(), r.GetHolder(), r.GetRequireProtection(), r.GetWindow(), r.GetCommitTimeoutMs())
		if err != nil {
			return nil, err
		}
		need, err := needOf(r, o.request)
		if err != nil {
			return nil, err
		}
		s, err := n.a.takeover(st.Context(), id, e, o, need, r.GetTextEnd())
		n.a.metrics.takeover(err)
		if err != nil {
			n.a.log.Warn("takeover refused", "session", id.String(), "epoch", uint64(e), "delivered", need.Delivered, "err", err)
		}
		return s, err
	})
	if err != nil {
		return statusError(err)
	}
	s.take(l)
	send := func(ev *seguev1.Event) error { return st.Send(&seguev1.TakeoverResponse{Event: ev}) }
	return n.a.serve(st.Context(), s, int(r.GetDelivered()), send)
}

// needOf reads what a takeover must cover.
func needOf(r *seguev1.TakeoverRequest, request engines.Request) (snapshot.Need, error) {
	need := snapshot.Need{Delivered: int(r.GetDelivered()), Request: engines.RequestDigest(request)}
	if p := r.GetPromptDigest(); len(p) > 0 {
		d, err := digest("prompt_digest", p)
		if err != nil {
			return need, err
		}
		need.PromptDigest = &d
	}
	if r.CleanBoundary != nil {
		n := int(r.GetCleanBoundary())
		need.Clean = &n
	}
	var err error
	need.OutputDigest, err = digest("output_digest", r.GetOutputDigest())
	return need, err
}

func (n *node) Pair(_ context.Context, r *seguev1.PairRequest) (*seguev1.PairResponse, error) {
	id, e, err := key(r.GetSession(), r.GetEpoch())
	if err != nil {
		return nil, statusError(err)
	}
	if err := n.a.checkHolder(r.GetHolder()); err != nil {
		return nil, statusError(err)
	}
	s := n.a.find(id, e)
	if s == nil {
		return nil, statusError(snapshot.ErrUnknownSession)
	}
	to, err := n.a.sender(r.GetHolder())
	if err != nil {
		return nil, transfer.StatusOf(codes.Unavailable, seguev1.Reason_REASON_HOLDER_LOST, err.Error())
	}
	if err := s.attach(to, r.GetHolder()); err != nil {
		return nil, statusError(err)
	}
	return &seguev1.PairResponse{}, nil
}

func (n *node) Cancel(_ context.Context, r *seguev1.CancelRequest) (*seguev1.CancelResponse, error) {
	id, e, err := key(r.GetSession(), r.GetEpoch())
	if err != nil {
		return nil, statusError(err)
	}
	// Remembered first: an attempt that begins meanwhile is either found here or finds out by itself.
	n.a.store.Cancel(id, e)
	n.a.prepared.drop(id, e)
	return &seguev1.CancelResponse{WasRunning: n.a.end(id, e, errCanceled) != nil}, nil
}

func (n *node) Prepare(ctx context.Context, r *seguev1.PrepareRequest) (*seguev1.PrepareResponse, error) {
	id, e, err := key(r.GetSession(), r.GetEpoch())
	if err != nil {
		return nil, statusError(err)
	}
	out, err := n.a.prepare(ctx, id, e, holdOf(r.GetHoldMs()))
	n.a.metrics.prepare(err)
	if err != nil {
		return nil, statusError(err)
	}
	return out, nil
}

func (n *node) Park(ctx context.Context, r *seguev1.ParkRequest) (*seguev1.ParkResponse, error) {
	id, e, err := key(r.GetSession(), r.GetEpoch())
	if err != nil {
		return nil, statusError(err)
	}
	boundary, err := n.a.park(ctx, id, e)
	n.a.metrics.park(err)
	if err != nil {
		n.a.log.Warn("park refused", "session", id.String(), "epoch", uint64(e), "err", err)
		return nil, statusError(err)
	}
	return &seguev1.ParkResponse{Boundary: uint32(boundary)}, nil
}

func (n *node) Renew(_ context.Context, r *seguev1.RenewRequest) (*seguev1.RenewResponse, error) {
	out, err := n.a.renewals(r)
	if err != nil {
		return nil, statusError(err)
	}
	return out, nil
}

func (n *node) Release(_ context.Context, r *seguev1.ReleaseRequest) (*seguev1.ReleaseResponse, error) {
	id, e, err := key(r.GetSession(), r.GetEpoch())
	if err != nil {
		return nil, statusError(err)
	}
	n.a.prepared.drop(id, e)
	return &seguev1.ReleaseResponse{WasHeld: n.a.store.Release(id, e)}, nil
}

func (n *node) Sessions(context.Context, *seguev1.SessionsRequest) (*seguev1.SessionsResponse, error) {
	return &seguev1.SessionsResponse{Sessions: n.a.list()}, nil
}

// starter is what the calls that start a run have in common.
type starter interface {
	GetSession() []byte
	GetEpoch() uint64
	GetLease() *seguev1.Lease
}

// opening reads a starter. The clock is read here, before anything that may wait.
func (n *node) opening(r starter) (snapshot.SessionID, fence.Epoch, *loan, error) {
	id, e, err := key(r.GetSession(), r.GetEpoch())
	if err != nil {
		return id, e, nil, err
	}
	l, err := n.a.loanOf(r.GetLease(), n.a.clock.Elapsed())
	return id, e, l, err
}

// key reads the two fields that every call on a session has.
func key(session []byte, epoch uint64) (snapshot.SessionID, fence.Epoch, error) {
	if len(session) != 16 {
		return snapshot.SessionID{}, 0, invalid("session", "want 16 bytes, got %d", len(session))
	}
	if epoch == 0 {
		return snapshot.SessionID{}, 0, invalid("epoch", "want at least 1")
	}
	return snapshot.SessionID(session), fence.Epoch(epoch), nil
}

func digest(field string, b []byte) (snapshot.Digest, error) {
	if len(b) != 16 {
		return snapshot.Digest{}, invalid(field, "want 16 bytes, got %d", len(b))
	}
	return snapshot.Digest(b), nil
}

func invalid(field, format string, args ...any) error {
	return &engines.RequestError{Field: field, Reason: fmt.Sprintf(format, args...)}
}

// checkHolder judges a peer that a session is to be replicated to.
func (a *Agent) checkHolder(p *seguev1.Peer) error {
	if p.GetId() == "" || len(p.GetId()) > 64 {
		return invalid("holder", "id has 0 or more than 64 characters")
	}
	if p.GetId() == a.cfg.ID {
		return invalid("holder", "is the primary itself")
	}
	if err := a.cfg.checkAddr(p.GetAddr()); err != nil {
		return invalid("holder", "%v", err)
	}
	return nil
}

// orderOf validates what a caller asks for and fills in the agent's defaults.
func (a *Agent) orderOf(r *seguev1.Request, mode seguev1.ProtectionMode, holder *seguev1.Peer, require bool, window, commitMillis uint32) (order, error) {
	req, err := engines.RequestFromProto(r)
	if err != nil {
		return order{}, err
	}
	o := order{request: req, mode: mode, holder: holder, require: require, rules: rules{
		sync:   mode == seguev1.ProtectionMode_PROTECTION_MODE_SYNC,
		window: a.cfg.Window, commitTimeout: a.cfg.CommitTimeout, baseTimeout: a.cfg.BaseTimeout,
	}}
	if holder != nil {
		if err := a.checkHolder(holder); err != nil {
			return order{}, err
		}
	}
	switch mode {
	case seguev1.ProtectionMode_PROTECTION_MODE_OFF:
		o.holder, o.require = nil, false
	case seguev1.ProtectionMode_PROTECTION_MODE_ASYNC, seguev1.ProtectionMode_PROTECTION_MODE_SYNC:
		if require && holder == nil {
			return order{}, &UnprotectedError{Cause: causeNoHolder}
		}
	default:
		return order{}, invalid("protection", "unknown mode %d", mode)
	}
	if window > 0 {
		o.rules.window = int(min(window, 4096))
	}
	if commitMillis > 0 {
		o.rules.commitTimeout = time.Duration(commitMillis) * time.Millisecond
	}
	return o, nil
}
