// SPDX-License-Identifier: Apache-2.0
// Copyright The Segue Authors

package openai

import (
	"context"
	"errors"
	"io"
	"mime"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"time"
)

const (
	// After [DONE] the end of the body is waited for this long, so that the connection can be used again.
	drainTime  = 50 * time.Millisecond
	drainBytes = 4 << 10
	// A larger Retry-After is cut.
	maxRetryAfter = 24 * time.Hour
)

// Answer is a server's answer with status 200. Close may be called from any goroutine and ends the others' calls; the
// other methods belong to one goroutine.
type Answer struct {
	Status int
	Header http.Header

	ctx    context.Context
	cancel context.CancelFunc
	body   io.ReadCloser
	parser *Parser
	limits Limits

	once sync.Once
	mu   sync.Mutex
	done bool // [DONE] was read; under mu
}

// Stream reports whether the server says that the answer is an event stream.
func (a *Answer) Stream() bool { return a.mediaType() == "text/event-stream" }

func (a *Answer) mediaType() string {
	t, _, err := mime.ParseMediaType(a.Header.Get("Content-Type"))
	if err != nil {
		return ""
	}
	return t
}

// Next returns the next event of a stream. At its clean end the error is io.EOF, which is a success only after
// [DONE]: Transcript.End judges it. Every other error is an *EndError.
func (a *Answer) Next() (Event, error) {
	e, err := a.parser.Next()
	if err != nil {
		if errors.Is(err, io.EOF) {
			return Event{}, io.EOF
		}
		return Event{}, a.readEnd(err)
	}
	if e.Done() {
		a.mu.Lock()
		a.done = true
		a.mu.Unlock()
	}
	return e, nil
}

// Body reads an answer that isn't a stream. The error is an *EndError.
func (a *Answer) Body() ([]byte, error) {
	body, err := a.read(a.limits.Body)
	if err != nil {
		return nil, err
	}
	a.mu.Lock()
	a.done = true
	a.mu.Unlock()
	return body, nil
}

func (a *Answer) read(limit int) ([]byte, error) {
	body, err := io.ReadAll(io.LimitReader(a.body, int64(limit)+1))
	switch {
	case err != nil:
		return nil, a.readEnd(err)
	case len(body) > limit:
		return nil, ended(CauseMalformedFrame, "the body is over %d bytes", limit)
	}
	return body, nil
}

func (a *Answer) readEnd(err error) *EndError {
	if e := contextEnd(a.ctx); e != nil {
		return e
	}
	return readEnd(err)
}

// Close ends the request: the connection is closed at once, so that the server stops to generate. Only after [DONE] or
// a whole body it waits up to 50 ms for the end of the body, and keeps the connection. More calls do nothing.
func (a *Answer) Close() {
	a.once.Do(func() {
		a.mu.Lock()
		done := a.done
		a.mu.Unlock()
		if done {
			stop := time.AfterFunc(drainTime, a.cancel)
			_, _ = io.CopyN(io.Discard, a.body, drainBytes) // What fails here is closed below.
			stop.Stop()
		}
		a.cancel()
		_ = a.body.Close()
	})
}

// refusal is the error of an answer that can't be used, nil for one that can.
func (a *Answer) refusal() *EndError {
	if a.Status == http.StatusOK {
		if coding := a.Header.Get("Content-Encoding"); coding != "" && !strings.EqualFold(coding, "identity") {
			return ended(CauseMalformedFrame, "the answer is compressed although identity was asked for")
		}
		return nil
	}
	e := ended(CauseEngineErrorEvent, "the server answered with status %d", a.Status)
	e.Status, e.Deterministic, e.RetryAfter = a.Status, deterministic(a.Status), retryAfter(a.Header)
	switch {
	case a.Status == http.StatusTooManyRequests:
		e.Cause = CauseNoCapacity
	case a.Status == http.StatusServiceUnavailable:
		e.Cause = CauseNotReady
	case e.Deterministic:
		e.Cause = CauseInvalidRequest
	}
	stop := time.AfterFunc(time.Second, a.cancel)
	object, err := io.ReadAll(io.LimitReader(a.body, int64(a.limits.ErrorBody)))
	stop.Stop()
	e.Object, e.Err = object, err
	a.done = err == nil && len(object) < a.limits.ErrorBody
	return e
}

// retryAfter reads the header in seconds or as a date.
func retryAfter(h http.Header) time.Duration {
	v := strings.TrimSpace(h.Get("Retry-After"))
	if v == "" {
		return 0
	}
	if n, err := strconv.ParseUint(v, 10, 32); err == nil {
		return min(time.Duration(n)*time.Second, maxRetryAfter)
	}
	at, err := http.ParseTime(v)
	if err != nil {
		return 0
	}
	now, err := http.ParseTime(h.Get("Date"))
	if err != nil {
		now = time.Now()
	}
	return min(max(at.Sub(now), 0), maxRetryAfter)
}
