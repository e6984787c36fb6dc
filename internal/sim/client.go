// SPDX-License-Identifier: Apache-2.0
// Copyright The Segue Authors

package sim

import (
	"bytes"
	"context"
	"net"
	"net/http"
	"strconv"
	"time"
)

// Client is a client's machine.
type Client struct {
	Host  string
	world *World
	http  *http.Client
}

// NewClient adds a client's host to the world. Close it before the world.
func (w *World) NewClient(host string) *Client {
	w.AddHost(host)
	c := &Client{Host: host, world: w}
	c.http = &http.Client{Transport: &http.Transport{
		DialContext:        func(ctx context.Context, _, addr string) (net.Conn, error) { return w.Net.Dial(ctx, host, addr) },
		DisableCompression: true, DisableKeepAlives: true,
	}}
	return c
}

// Close gives up the client's connections.
func (c *Client) Close() { c.http.CloseIdleConnections() }

// Manner is how a client reads.
type Manner struct {
	// Pace is a pause after each event that brought something.
	Pace time.Duration
	// LeaveAfter makes the client leave after so many tokens; 0: it stays. Before the first answer it leaves by its
	// context.
	LeaveAfter int
	// RequestID is sent as X-Request-Id.
	RequestID string
	// Key is sent as Idempotency-Key. Repeat says that it was sent before.
	Key    string
	Repeat bool
	// SDKRetry is how often the client's library has repeated the request, as it tells.
	SDKRetry int
	// Seen is called when the answer has brought so many ids in all; nil for nobody.
	Seen func(ids int)
}

// Ask sends the request and reads the answer to its end. What kept it from being answered is in Answer.Broken.
func (c *Client) Ask(ctx context.Context, r Request, m Manner) *Answer {
	w := c.world
	w.probes.ask(r.Label)
	a := &Answer{Begun: time.Since(w.Trace.begun), Keyed: m.Key != "", Repeat: m.Repeat}
	defer func() { a.Ended = time.Since(w.Trace.begun) }()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, "http://"+RouterAddr+r.path(), bytes.NewReader(r.Body()))
	if err != nil {
		a.Broken = err
		return a
	}
	req.Header.Set("Content-Type", "application/json")
	if r.Protection != "" {
		req.Header.Set("X-Segue-Protection", r.Protection)
	}
	if m.RequestID != "" {
		req.Header.Set("X-Request-Id", m.RequestID)
	}
	if m.Key != "" {
		req.Header.Set("Idempotency-Key", m.Key)
	}
	if m.SDKRetry > 0 {
		req.Header.Set("X-Stainless-Retry-Count", strconv.Itoa(m.SDKRetry))
	}
	seen := func() {
		if m.Seen != nil && len(a.IDs) > 0 {
			m.Seen(len(a.IDs))
		}
	}
	since := w.Gates.tick()
	resp, err := c.http.Do(req)
	if err != nil {
		a.Broken, a.Left = err, ctx.Err() != nil
		return a
	}
	defer resp.Body.Close()
	a.Session, a.Status = resp.Header.Get("X-Segue-Session"), resp.StatusCode
	a.Replayed = resp.Header.Get("Idempotent-Replayed") != ""
	if a.Status != http.StatusOK || !r.Stream {
		a.readWhole(resp.Body, r.Chat)
		if a.Status == http.StatusOK && a.Broken == nil {
			w.Gates.read(a.Session, Read{Since: since, IDs: a.IDs})
			seen()
		}
	} else {
		a.stream(resp.Body, r.Chat, func() { since = w.Gates.tick() }, func(first int, ids []int32) bool {
			if len(ids) > 0 {
				w.Gates.read(a.Session, Read{Since: since, First: first, IDs: ids})
				w.at(Moment{Point: PointRead, Label: r.Label, Index: len(a.IDs) - 1})
				seen()
			}
			if m.LeaveAfter > 0 && len(a.IDs) >= m.LeaveAfter {
				a.Left = true
				return false
			}
			if m.Pace > 0 && len(ids) > 0 {
				time.Sleep(m.Pace) // virtual
			}
			return true
		})
	}
	a.Left = a.Left || ctx.Err() != nil
	if a.Whole() && a.Session != "" {
		w.Gates.read(a.Session, Read{Since: since, End: true, Total: len(a.IDs)})
	}
	return a
}
