// SPDX-License-Identifier: Apache-2.0
// Copyright The Segue Authors

package lab

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/http/httputil"
	"net/url"
	"sync"

	"github.com/tidwall/gjson"
)

func streams(body []byte) bool { return gjson.GetBytes(body, "stream").Bool() }

// Balancer passes each request to the server that has the fewest of them open, in turn among equals.
type Balancer struct {
	proxies []*httputil.ReverseProxy

	mu   sync.Mutex
	open []int
	next int
}

// NewBalancer balances over servers at these addresses.
func NewBalancer(bases ...string) (*Balancer, error) {
	if len(bases) == 0 {
		return nil, errors.New("lab: a balancer of no server")
	}
	b := &Balancer{open: make([]int, len(bases))}
	for _, base := range bases {
		u, err := url.Parse(base)
		if err != nil {
			return nil, fmt.Errorf("lab: %w", err)
		}
		p := httputil.NewSingleHostReverseProxy(u)
		p.FlushInterval = -1
		p.ErrorHandler = func(w http.ResponseWriter, _ *http.Request, _ error) { w.WriteHeader(http.StatusBadGateway) }
		b.proxies = append(b.proxies, p)
	}
	return b, nil
}

// ServeHTTP is http.Handler's.
func (b *Balancer) ServeHTTP(w http.ResponseWriter, req *http.Request) {
	i := b.take()
	defer b.give(i)
	b.proxies[i].ServeHTTP(w, req)
}

func (b *Balancer) take() int {
	b.mu.Lock()
	defer b.mu.Unlock()
	best := -1
	for k := range b.open {
		i := (b.next + k) % len(b.open)
		if best < 0 || b.open[i] < b.open[best] {
			best = i
		}
	}
	b.next = best + 1
	b.open[best]++
	return best
}

func (b *Balancer) give(i int) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.open[i]--
}

// Stall is a server that accepts connections, reads each request and writes Part of an answer, and then nothing more.
// The connections stay open.
type Stall struct {
	Listener net.Listener
	Part     []byte
}

// Run serves until ctx ends, and waits for all its goroutines.
func (s Stall) Run(ctx context.Context) error {
	var conns sync.WaitGroup
	defer conns.Wait()
	stop := context.AfterFunc(ctx, func() { _ = s.Listener.Close() })
	defer stop()
	for {
		conn, err := s.Listener.Accept()
		if err != nil {
			if ctx.Err() != nil {
				return nil
			}
			return err
		}
		conns.Go(func() { s.serve(ctx, conn) })
	}
}

func (s Stall) serve(ctx context.Context, conn net.Conn) {
	stop := context.AfterFunc(ctx, func() { _ = conn.Close() })
	defer stop()
	defer conn.Close()
	in := bufio.NewReader(conn)
	for {
		req, err := http.ReadRequest(in)
		if err != nil {
			return
		}
		_ = req.Body.Close()
		if _, err := conn.Write(s.Part); err != nil {
			return
		}
	}
}
