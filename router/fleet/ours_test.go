// SPDX-License-Identifier: Apache-2.0
// Copyright The Segue Authors

package fleet_test

import (
	"sync"
	"testing"

	"github.com/seguekv/segue/health"
)

// Claims count as what this router has on a node, from their first output on as answered.
func TestNode_Ours(t *testing.T) {
	bubble(t, "s:m", nil, func(t *testing.T, w *world) {
		n := w.Node("s")
		check := func(what string, inFlight, prefilling int, delivered uint64) {
			t.Helper()
			if got := n.Ours(); got != (health.Ours{InFlight: inFlight, Prefilling: prefilling, Delivered: delivered}) {
				t.Errorf("%s: %+v", what, got)
			}
		}
		check("nothing", 0, 0, 0)
		a, b, c := w.claim(server(nil)), w.claim(server(nil)), w.Occupy(n)
		check("begun", 3, 3, 0)
		a.Progress(0)
		check("output without a token", 3, 2, 0)
		a.Progress(5)
		a.Progress(5)
		b.Progress(-3)
		check("tokens", 3, 1, 10)
		a.Release()
		check("one is over", 2, 1, 10)
		a.Release()
		a.Progress(2)
		check("what comes late counts as delivered", 2, 1, 12)
		c.Release()
		check("over before its first output", 1, 0, 12)
		c.Progress(1)
		check("output after the end", 1, 0, 13)
		b.Release()
		check("all over", 0, 0, 13)
	})
}

func TestNode_OursUnderConcurrency(t *testing.T) {
	const claims, pieces = 64, 50
	bubble(t, "s:m", nil, func(t *testing.T, w *world) {
		n := w.Node("s")
		stop, watching := make(chan struct{}), make(chan struct{})
		go func() { // ends with stop
			defer close(watching)
			last := uint64(0)
			for {
				select {
				case <-stop:
					return
				default:
				}
				o := n.Ours()
				if o.Prefilling < 0 || o.Prefilling > o.InFlight || o.InFlight > claims || o.Delivered < last {
					t.Errorf("%+v, %d delivered before", o, last)
					return
				}
				last = o.Delivered
			}
		}()
		var work sync.WaitGroup
		for i := range claims {
			work.Go(func() {
				c := w.Occupy(n)
				var pieceWork sync.WaitGroup
				for range 2 {
					pieceWork.Go(func() {
						for range pieces {
							c.Progress(1)
						}
					})
				}
				if i%2 == 0 {
					pieceWork.Wait()
				}
				c.Release()
				pieceWork.Wait()
			})
		}
		work.Wait()
		close(stop)
		<-watching
		if got := n.Ours(); got != (health.Ours{Delivered: claims * 2 * pieces}) {
			t.Errorf("in the end: %+v", got)
		}
	})
}
