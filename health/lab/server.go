// SPDX-License-Identifier: Apache-2.0
// Copyright The Segue Authors

package lab

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"sync"
	"time"

	"github.com/seguekv/segue/health/scrape"
)

// follow is how often a Server looks whether it has to open or close its port.
const follow = 2 * time.Millisecond

// Server plays an engine over HTTP on a port of loopback. While the engine is dead the port is closed, and so are its
// connections.
type Server struct {
	engine  *Engine
	now     func() time.Time
	address string

	mu    sync.Mutex
	ln    net.Listener
	http  *http.Server
	conns sync.WaitGroup
}

// Listen opens a free port. now says which moment of the script is played; nil is time.Now. Nothing is served before Run.
func Listen(e *Engine, now func() time.Time) (*Server, error) {
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	if now == nil {
		now = time.Now
	}
	return &Server{engine: e, now: now, ln: ln, address: ln.Addr().String()}, nil
}

// URL is the server's base.
func (s *Server) URL() string { return "http://" + s.address }

// Run serves until ctx ends. It waits for all its goroutines.
func (s *Server) Run(ctx context.Context) error {
	ticker := time.NewTicker(follow)
	defer ticker.Stop()
	defer s.conns.Wait()
	defer s.close()
	for {
		if err := s.turn(); err != nil {
			return err
		}
		select {
		case <-ctx.Done():
			return nil
		case <-ticker.C:
		}
	}
}

// turn opens or closes the port as the script says.
func (s *Server) turn() error {
	a, _ := s.engine.down(s.now())
	if a.Refused {
		s.close()
		return nil
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.http != nil {
		return nil
	}
	if s.ln == nil {
		ln, err := net.Listen("tcp", s.address)
		if err != nil {
			return fmt.Errorf("lab: open the port again: %w", err)
		}
		s.ln = ln
	}
	srv, ln := &http.Server{Handler: s}, s.ln
	s.http = srv
	s.conns.Go(func() { _ = srv.Serve(ln) })
	return nil
}

func (s *Server) close() {
	s.mu.Lock()
	srv, ln := s.http, s.ln
	s.http, s.ln = nil, nil
	s.mu.Unlock()
	if ln != nil {
		_ = ln.Close()
	}
	if srv != nil {
		_ = srv.Close()
	}
}

// ServeHTTP answers as the engine does at this moment.
func (s *Server) ServeHTTP(w http.ResponseWriter, req *http.Request) {
	ctx := req.Context()
	body, err := io.ReadAll(io.LimitReader(req.Body, maxBody))
	if err != nil {
		return
	}
	if req.Method == http.MethodPost {
		s.complete(ctx, w, req, body)
		return
	}
	s.write(ctx, w, s.engine.Get(req.URL.Path, s.now()))
}

// write waits as long as the answer takes, and writes it.
func (s *Server) write(ctx context.Context, w http.ResponseWriter, a Answer) {
	if a.Never {
		<-ctx.Done()
		panic(http.ErrAbortHandler)
	}
	if !wait(ctx, a.After) || a.Refused || a.Reset {
		reset(w)
	}
	for k, v := range a.Header {
		w.Header().Set(k, v)
	}
	w.WriteHeader(a.Status)
	_, _ = w.Write(a.Body)
}

// reset ends the connection with a TCP reset, and doesn't return.
func reset(w http.ResponseWriter) {
	if conn, _, err := http.NewResponseController(w).Hijack(); err == nil {
		if tcp, ok := conn.(*net.TCPConn); ok {
			_ = tcp.SetLinger(0)
		}
		_ = conn.Close()
	}
	panic(http.ErrAbortHandler)
}

func wait(ctx context.Context, d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return false
	case <-timer.C:
		return true
	}
}

// complete serves a request for tokens: it waits for its place by the script, and gets one token each step while the
// engine decodes or has nothing else to do.
func (s *Server) complete(ctx context.Context, w http.ResponseWriter, req *http.Request, body []byte) {
	at := s.now()
	s.engine.begin(at, req.Header.Get(scrape.ProbeHeader) != "")
	defer s.engine.end()
	tokens := asked(body)
	p, _ := s.engine.Phase(at)
	a := s.engine.Complete(at, tokens)
	if a.Status != http.StatusOK || !streams(body) {
		if a.Status == http.StatusOK && a.After <= time.Duration(tokens+1)*p.step() {
			s.engine.emit(at, tokens)
		}
		s.write(ctx, w, a)
		return
	}
	if !wait(ctx, a.After-time.Duration(tokens)*p.step()) {
		reset(w)
	}
	w.Header().Set("Content-Type", "text/event-stream")
	err := s.stream(ctx, w, tokens)
	if errors.Is(err, errLost) {
		reset(w)
	}
	if err != nil {
		panic(http.ErrAbortHandler)
	}
}

// errLost: the engine was restarted or died in the middle of a stream.
var errLost = errors.New("lab: the engine is another one")

func (s *Server) stream(ctx context.Context, w http.ResponseWriter, tokens int) error {
	out := http.NewResponseController(w)
	began := s.engine.at(s.now()).began
	for i := 0; i < tokens; {
		p, _ := s.engine.Phase(s.now())
		if !wait(ctx, p.step()) {
			return ctx.Err()
		}
		now := s.now()
		m := s.engine.at(now)
		switch {
		case !m.began.Equal(began), m.State == Cut, m.State == Dead:
			return errLost
		case m.State != Idle && !m.decodes():
			continue
		}
		finish := "null"
		if i++; i == tokens {
			finish = `"length"`
		}
		s.engine.emit(now, 1)
		if _, err := fmt.Fprintf(w, "data: {\"object\":\"chat.completion.chunk\",\"choices\":[{\"index\":0,\"delta\":{\"content\":\" a\"},\"finish_reason\":%s}]}\n\n", finish); err != nil {
			return err
		}
		if err := out.Flush(); err != nil {
			return err
		}
	}
	_, err := io.WriteString(w, "data: [DONE]\n\n")
	return err
}
