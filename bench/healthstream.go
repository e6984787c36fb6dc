// SPDX-License-Identifier: Apache-2.0
// Copyright The Segue Authors

package bench

import (
	"context"
	"errors"
	"fmt"
	"sync"

	"github.com/seguekv/segue/bench/client"
	"github.com/seguekv/segue/bench/cluster"
)

// healthStream is a request that keeps an engine at work; what it is answered doesn't matter.
type healthStream struct {
	cancel context.CancelFunc
	// decoding is closed at the first chunk, ended when the answer has ended.
	decoding, ended chan struct{}

	session    string // valid once decoding is closed
	transcript *client.Transcript
	err        error
}

// stream begins a request. Its owner calls stop.
func (b *healthBench) stream(ctx context.Context, c *client.Client, body client.Body) *healthStream {
	ctx, cancel := context.WithCancel(ctx)
	s := &healthStream{cancel: cancel, decoding: make(chan struct{}), ended: make(chan struct{})}
	decodes := sync.OnceFunc(func() { close(s.decoding) })
	go func() {
		defer close(s.ended)
		s.transcript, s.err = c.Stream(ctx, client.Call{
			Body:    body,
			OnStart: func(session string) { s.session = session },
			OnChunk: func(client.Chunk) { decodes() },
		})
	}()
	return s
}

// primary waits for the first token, and asks the router which node it came from.
func (s *healthStream) primary(ctx context.Context, router *cluster.Admin) (string, error) {
	select {
	case <-s.decoding:
	case <-s.ended:
		err := s.err
		if s.transcript != nil && err == nil {
			err = errors.New(s.transcript.Failure())
		}
		return "", fmt.Errorf("the request ended before its first token: %w", err)
	case <-ctx.Done():
		return "", context.Cause(ctx)
	}
	record, err := router.Session(ctx, s.session)
	if err != nil {
		return "", fmt.Errorf("find the primary of session %s: %w", s.session, err)
	}
	return record.Primary, nil
}

// stop ends the request and returns when its goroutine has ended. It may be called again.
func (s *healthStream) stop() {
	s.cancel()
	<-s.ended
}
