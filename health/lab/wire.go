// SPDX-License-Identifier: Apache-2.0
// Copyright The Segue Authors

package lab

import (
	"bytes"
	"context"
	"io"
	"net"
	"net/http"
	"syscall"
	"time"

	"github.com/tidwall/gjson"

	"github.com/seguekv/segue/health/scrape"
)

// Wire carries requests to an engine without a network, in virtual time: a http.RoundTripper that never waits, but adds
// up how long the answers would have taken. It belongs to one goroutine at a time.
type Wire struct {
	engine *Engine
	now    time.Time
	budget time.Duration
	took   time.Duration
	posted int
}

// NewWire is a wire to the engine.
func NewWire(e *Engine) *Wire { return &Wire{engine: e} }

// Begin sets the time, and how much of it the requests up to the next Begin may take together. What takes longer ends as
// with a deadline.
func (w *Wire) Begin(now time.Time, budget time.Duration) {
	w.now, w.budget, w.took, w.posted = now, budget, 0, 0
}

// Took is how long the requests since Begin took together.
func (w *Wire) Took() time.Duration { return w.took }

// RoundTrip is http.RoundTripper's.
func (w *Wire) RoundTrip(req *http.Request) (*http.Response, error) {
	a := w.answer(req)
	left := time.Duration(float64(w.budget-w.took) * scrape.Share(req.Context()))
	switch {
	case a.Never || a.After > left:
		w.took += left
		return nil, context.DeadlineExceeded
	case a.Refused:
		return nil, &net.OpError{Op: "dial", Net: "tcp", Err: syscall.ECONNREFUSED}
	case a.Reset:
		w.took += a.After
		return nil, &net.OpError{Op: "read", Net: "tcp", Err: syscall.ECONNRESET}
	}
	w.took += a.After
	res := &http.Response{
		Status: http.StatusText(a.Status), StatusCode: a.Status, Proto: "HTTP/1.1", ProtoMajor: 1, ProtoMinor: 1,
		Header: http.Header{}, Body: io.NopCloser(bytes.NewReader(a.Body)), ContentLength: int64(len(a.Body)), Request: req,
	}
	for k, v := range a.Header {
		res.Header.Set(k, v)
	}
	return res, nil
}

func (w *Wire) answer(req *http.Request) Answer {
	t := w.now.Add(w.took)
	if req.Method != http.MethodPost {
		return w.engine.Get(req.URL.Path, t)
	}
	tokens := 1
	if req.Body != nil {
		body, err := io.ReadAll(io.LimitReader(req.Body, maxBody))
		_ = req.Body.Close()
		if err == nil {
			tokens = asked(body)
		}
	}
	w.posted++
	w.engine.begin(t, req.Header.Get(scrape.ProbeHeader) != "")
	a := w.engine.Complete(t, tokens)
	if p, _ := w.engine.Phase(t); a.Status == http.StatusOK && a.After <= time.Duration(tokens+1)*p.step() {
		w.engine.emit(t, tokens) // It is served at once.
	}
	return a
}

const maxBody = 1 << 20

// asked is how many tokens a request wants.
func asked(body []byte) int {
	return int(min(max(gjson.GetBytes(body, "max_tokens").Int(), 1), 1<<16))
}
