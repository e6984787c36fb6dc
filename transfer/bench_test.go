// SPDX-License-Identifier: Apache-2.0
// Copyright The Segue Authors

package transfer_test

import (
	"context"
	"net"
	"slices"
	"testing"
	"time"

	"google.golang.org/grpc"

	seguev1 "github.com/seguekv/segue/api/segue/v1"
	"github.com/seguekv/segue/snapshot"
	"github.com/seguekv/segue/transfer"
)

// pair is a primary's sender and a holder's store, connected by TCP over loopback.
type pair struct {
	sender *transfer.Sender
	store  *snapshot.Store
}

func newPair(b *testing.B) *pair {
	b.Helper()
	store := snapshot.NewStore(snapshot.NewBudget(4<<30), acceptAll)
	server := grpc.NewServer(transfer.ServerOptions()...)
	seguev1.RegisterReplicationServiceServer(server, transfer.NewReceiver(transfer.Self{NodeID: "b"}, store, nil, func(int) {}, quiet()))
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		b.Fatal(err)
	}
	served := make(chan error, 1)
	go func() { served <- server.Serve(l) }() // ends with the cleanup below
	conn, err := grpc.NewClient(l.Addr().String(), transfer.DialOptions()...)
	if err != nil {
		b.Fatal(err)
	}
	s := transfer.NewSender(transfer.Self{NodeID: "a", Boot: [16]byte{1}}, conn, quiet())
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- s.Run(ctx) }() // ends with the cleanup below
	b.Cleanup(func() {
		cancel()
		<-done
		_ = conn.Close()
		server.Stop()
		<-served
	})
	return &pair{sender: s, store: store}
}

// start attaches a fresh session with a prompt of that many rows, all captured, without a boundary.
func (p *pair) start(b *testing.B, n, rows, maxOutput, row int) *run {
	h := newHead(baseOf(byte(n), 1), rows, maxOutput, row)
	h.Session[1], h.Session[2] = byte(n>>8), byte(n>>16)
	r := newRun(b, h, 16<<20)
	if err := r.outbox.AppendRows(0, make([]byte, rows*row)); err != nil {
		b.Fatal(err)
	}
	return r
}

func (p *pair) end(r *run) {
	p.sender.Detach(r.outbox)
	p.store.Release(r.head.Session, r.head.Epoch)
}

// token captures boundary n with a row of zeros, which costs no time to make.
func (r *run) token(b *testing.B, row []byte) {
	r.n++
	if r.n == 1 {
		row = nil
	}
	if err := r.outbox.AppendBoundary(r.n, 1, snapshot.Sampler{Seed: 9, Draws: uint64(r.n)}, row); err != nil {
		b.Fatal(err)
	}
}

// commit waits until boundary n is committed.
func (r *run) commit(b *testing.B, n int) {
	for {
		changed := r.outbox.Changed()
		s := r.outbox.Status()
		if s.Committed >= n {
			return
		}
		if s.Rejected {
			b.Fatalf("rejected: %s", s.Detail)
		}
		<-changed
	}
}

// BenchmarkReplicate_Base sends bases of 64 MiB, 512 rows of 128 KiB, and waits until each is committed:
// verified and landed in the holder's store.
func BenchmarkReplicate_Base(b *testing.B) {
	const rows, row = 512, 128 << 10
	p := newPair(b)
	b.SetBytes(rows * row)
	b.ReportAllocs()
	i := 0
	for b.Loop() {
		b.StopTimer()
		r := p.start(b, i, rows, 1, row)
		r.token(b, nil)
		i++
		b.StartTimer()
		p.sender.Attach(r.outbox)
		r.commit(b, 1)
		b.StopTimer()
		p.end(r)
		b.StartTimer()
	}
}

// BenchmarkReplicate_Delta is the time from the capture of one token with its row of 128 KiB to its commit.
func BenchmarkReplicate_Delta(b *testing.B) {
	const row, deltas = 128 << 10, 256
	p := newPair(b)
	zeros := make([]byte, row)
	b.SetBytes(row)
	b.ReportAllocs()
	var took []time.Duration
	var r *run
	for i := 0; b.Loop(); i++ {
		if r == nil || r.n == deltas {
			b.StopTimer()
			if r != nil {
				p.end(r)
			}
			r = p.start(b, i, 1, deltas, row)
			r.token(b, nil)
			p.sender.Attach(r.outbox)
			r.commit(b, 1)
			b.StartTimer()
		}
		began := time.Now()
		r.token(b, zeros)
		r.commit(b, r.n)
		took = append(took, time.Since(began))
	}
	slices.Sort(took)
	b.ReportMetric(float64(took[len(took)/2].Nanoseconds())/1e3, "p50-µs")
	b.ReportMetric(float64(took[len(took)*99/100].Nanoseconds())/1e3, "p99-µs")
}
