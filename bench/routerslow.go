// SPDX-License-Identifier: Apache-2.0
// Copyright The Segue Authors

package bench

import (
	"context"
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"strings"
	"time"

	"golang.org/x/sync/errgroup"
)

const (
	// routerStall is the client_stall of the router that meets slow clients.
	routerStall = 2 * time.Second
	// routerSlowText is long, so that what the kernel holds for a connection is full at once.
	routerSlowText = 4 << 10
	// routerSlowReceive is a small receive buffer, in bytes.
	routerSlowReceive = 4 << 10
)

// RouterSlow is what clients that read nothing cost the router's process, while their upstream sends as fast as it
// may.
type RouterSlow struct {
	Clients int `json:"clients"`
	// StallS is the router's client_stall, Seconds the time from the first request until every session had ended.
	StallS  float64 `json:"client_stall_s"`
	Seconds float64 `json:"seconds"`
	// Cut are sessions that ended because their client didn't read.
	Cut int `json:"cut"`
	// EmittedMiB is text that the upstream could write before it was held back; connections' buffers have most of it.
	EmittedMiB float64 `json:"emitted_mib"`
	// Resident memory before the first client, and the most it was until all were cut.
	RSSBeforeMiB     float64 `json:"rss_mib_before"`
	RSSPeakMiB       float64 `json:"rss_mib_peak"`
	GoroutinesBefore int     `json:"goroutines_before"`
	GoroutinesAfter  int     `json:"goroutines_after"`
}

// slow opens SlowClients streams that nobody reads and waits until the router has ended all of them.
func (b *routerBench) slow(ctx context.Context, cost *RouterCost) error {
	n := b.cfg.SlowClients
	script := newRouterScript(0, 0, n)
	script.at, script.text = nil, strings.Repeat("x", routerSlowText)
	b.source.play(script)
	defer script.finish()
	out := &RouterSlow{Clients: n, StallS: routerStall.Seconds()}
	var err error
	if out.GoroutinesBefore, err = b.goroutines(ctx); err != nil {
		return err
	}
	if out.RSSBeforeMiB, _, err = b.router.memory(); err != nil {
		return err
	}
	begun := time.Now()
	var group errgroup.Group
	leave, gone := context.WithCancel(ctx)
	for range n {
		group.Go(func() error { return unread(leave, b.router.listen) })
	}
	for err == nil {
		var over bool
		if out.Cut, over, err = b.cut(ctx, n); over || err != nil {
			break
		}
		if time.Since(begun) > routerBeginLimit {
			err = fmt.Errorf("of %d clients that read nothing, %d were cut within %v", n, out.Cut, routerBeginLimit)
			break
		}
		err = rest(ctx, 100*time.Millisecond)
	}
	out.Seconds = round(time.Since(begun).Seconds(), 3)
	gone()
	if waitErr := group.Wait(); err == nil {
		err = waitErr
	}
	if err != nil {
		return err
	}
	if _, out.RSSPeakMiB, err = b.router.memory(); err != nil {
		return err
	}
	if out.GoroutinesAfter, err = b.calm(ctx, out.GoroutinesBefore); err != nil {
		return err
	}
	out.RSSBeforeMiB, out.RSSPeakMiB = round(out.RSSBeforeMiB, 2), round(out.RSSPeakMiB, 2)
	out.EmittedMiB = round(float64(script.emitted.Load()*routerSlowText)/(1<<20), 1)
	cost.Slow = out
	b.cfg.Logf("%s: %d clients that read nothing: %d cut, all ended within %.1f s (client_stall %v); %.1f MiB before, at most %.1f; the upstream could write %.1f MiB; goroutines %d, then %d",
		b.kind, n, out.Cut, out.Seconds, routerStall, out.RSSBeforeMiB, out.RSSPeakMiB, out.EmittedMiB, out.GoroutinesBefore, out.GoroutinesAfter)
	return nil
}

// unread sends a request and reads nothing until ctx ends.
func unread(ctx context.Context, addr string) error {
	var dialer net.Dialer
	conn, err := dialer.DialContext(ctx, "tcp", addr)
	if err != nil {
		return err // names method and address already
	}
	defer conn.Close()
	if tcp, ok := conn.(*net.TCPConn); ok {
		if err := tcp.SetReadBuffer(routerSlowReceive); err != nil {
			return fmt.Errorf("make the receive buffer small: %w", err)
		}
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, "http://"+addr+"/v1/chat/completions", strings.NewReader(routerRequest()))
	if err != nil {
		return fmt.Errorf("make request: %w", err)
	}
	req.Header.Set("Content-Type", "application/json")
	if err := req.Write(conn); err != nil {
		return fmt.Errorf("send request: %w", err)
	}
	<-ctx.Done()
	return nil
}

// cut counts the sessions that ended for their clients' silence. over: all of them have ended.
func (b *routerBench) cut(ctx context.Context, sessions int) (n int, over bool, err error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+b.router.adminAddr+"/v1/sessions", nil)
	if err != nil {
		return 0, false, fmt.Errorf("make request: %w", err)
	}
	req.Close = true
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return 0, false, fmt.Errorf("list the router's sessions: %w", err)
	}
	defer resp.Body.Close()
	var list []struct {
		Phase     string    `json:"phase"`
		StartedAt time.Time `json:"started_at"`
		EndedAt   string    `json:"ended_at"` // empty while it lives
		Attempts  []struct {
			Cause string `json:"cause"`
		} `json:"attempts"`
	}
	if err := json.NewDecoder(http.MaxBytesReader(nil, resp.Body, 16<<20)).Decode(&list); err != nil {
		return 0, false, fmt.Errorf("read the router's sessions: %w", err)
	}
	ended := 0
	for _, s := range list {
		if s.EndedAt == "" {
			continue
		}
		ended++
		end, err := time.Parse(time.RFC3339Nano, s.EndedAt)
		if err != nil {
			return 0, false, fmt.Errorf("read the router's sessions: %w", err)
		}
		// The clients are all there, so who is taken for gone was cut; a write that waits for a client may take client_stall, less
		// the age of its deadline.
		const youngest = routerStall - 500*time.Millisecond
		if i := len(s.Attempts) - 1; i >= 0 && s.Attempts[i].Cause == "client_gone" && end.Sub(s.StartedAt) >= youngest {
			n++
		}
	}
	return n, ended >= sessions, nil
}
