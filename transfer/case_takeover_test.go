// SPDX-License-Identifier: Apache-2.0
// Copyright The Segue Authors

package transfer_test

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	seguev1 "github.com/seguekv/segue/api/segue/v1"
	"github.com/seguekv/segue/transfer"
)

// script is a primary's stream of the run, one record in each frame.
func (r *run) script(t *testing.T) *direct {
	d := &direct{ctx: t.Context(), in: []any{&transfer.Frame{Hello: hello()}}}
	for _, x := range r.encode() {
		d.in = append(d.in, frame(x))
	}
	return d
}

// A takeover waits for frames that were read and not applied, as long as they help it, and not for ever.
func TestReceiver_SettleWaitsForWhatIsInHand(t *testing.T) {
	for _, stuck := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			store := newStore()
			r := newRun(t, newHead(baseOf(1, 1), 8, 24, 100), window).capture(3)
			gate := make(chan struct{})
			rc := transfer.NewReceiver(transfer.Self{NodeID: "b"}, store, nil, func(int) { <-gate }, quiet())
			served := make(chan error, 1)
			go func() { served <- rc.Replicate(r.script(t)) }() // ends with the script
			synctest.Wait()
			if store.Covers(session(1), 0) {
				t.Fatal("nothing is held up")
			}
			began := time.Now()
			settled := make(chan time.Duration, 1)
			go func() { // ends with its limit
				rc.Settle(t.Context(), func() bool { return store.Covers(session(1), 3) })
				settled <- time.Since(began)
			}()
			time.Sleep(10 * time.Millisecond)
			if len(settled) > 0 {
				t.Errorf("settled after %v with a frame in hand", <-settled)
			}
			if stuck {
				if took := <-settled; took > 25*time.Millisecond {
					t.Errorf("a takeover waited %v", took)
				}
			}
			close(gate)
			if err := <-served; err != nil {
				t.Fatal(err)
			}
			if !stuck {
				if took := <-settled; took > 11*time.Millisecond {
					t.Errorf("settled %v after it was covered", took-10*time.Millisecond)
				}
			}
			r.checkTakeover(store, 3)
		})
	}
}

// Without a stream, or with one that is silent, there is hardly anything to wait for; and who leaves doesn't wait.
func TestReceiver_SettleIsShort(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		rc := transfer.NewReceiver(transfer.Self{NodeID: "b"}, newStore(), nil, func(int) {}, quiet())
		settle := func(ctx context.Context, limit time.Duration) {
			t.Helper()
			began := time.Now()
			if rc.Settle(ctx, func() bool { return false }); time.Since(began) > limit {
				t.Errorf("waited %v, limit %v", time.Since(began), limit)
			}
		}
		settle(t.Context(), 0)
		silent := &waiting{direct: direct{ctx: t.Context(), in: []any{&transfer.Frame{Hello: hello()}}}, gone: make(chan struct{})}
		served := make(chan error, 1)
		go func() { served <- rc.Replicate(silent) }() // ends with gone
		synctest.Wait()
		settle(t.Context(), 3*time.Millisecond)
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		settle(ctx, 0)
		close(silent.gone)
		<-served
	})
}

// waiting is a stream that is silent after its messages until it ends.
type waiting struct {
	direct
	gone chan struct{}
	// deaf: no answer can be sent any more.
	deaf bool
}

func (w *waiting) RecvMsg(m any) error {
	if len(w.in) == 0 {
		<-w.gone
		return errors.New("connection reset")
	}
	return w.direct.RecvMsg(m)
}

func (w *waiting) Send(m *seguev1.ReplicateResponse) error {
	if w.deaf && len(w.out) > 0 {
		return errors.New("connection reset")
	}
	return w.direct.Send(m)
}

// The primary dies with frames on their way: those that came are applied, though no ack gets back.
func TestReceiver_AppliesWhatCameBeforeTheBreak(t *testing.T) {
	store := newStore()
	r := newRun(t, newHead(baseOf(1, 1), 8, 24, 100), window).capture(5)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	st := &waiting{direct: *r.script(t), gone: make(chan struct{}), deaf: true}
	st.ctx = ctx
	close(st.gone)
	_ = transfer.NewReceiver(transfer.Self{NodeID: "b"}, store, nil, func(int) {}, quiet()).Replicate(st)
	if len(st.out) != 1 {
		t.Fatalf("%d answers got through", len(st.out))
	}
	r.checkTakeover(store, 5)
}
