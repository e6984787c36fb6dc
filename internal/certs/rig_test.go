// SPDX-License-Identifier: Apache-2.0
// Copyright The Segue Authors

package certs_test

import (
	"context"
	"crypto/tls"
	"errors"
	"net"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/health"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/peer"

	"github.com/seguekv/segue/internal/certs"
	"github.com/seguekv/segue/internal/certs/reload"
)

// patience is how long a test waits for what has to come.
const patience = 30 * time.Second

// clock is a settable clock.
type clock struct {
	mu sync.Mutex
	t  time.Time
}

func newClock() *clock { return &clock{t: time.Now()} }

func (c *clock) now() time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.t
}

func (c *clock) advance(d time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.t = c.t.Add(d)
}

// nextLook makes the next handshake look at the files.
func (c *clock) nextLook() { c.advance(reload.Interval) }

// side is one process: its files, which may be exchanged, its clock, and what it reported.
type side struct {
	files    certs.Files
	clock    *clock
	bundle   *certs.Bundle
	reloaded chan error
	refused  chan error
}

func newSide(t *testing.T, f certs.Files, c *clock) *side {
	t.Helper()
	s := &side{files: f, clock: c, reloaded: make(chan error, 64), refused: make(chan error, 64)}
	b, err := certs.Load(f, certs.Options{
		Now: c.now, Reloaded: func(err error) { s.reloaded <- err },
		Refused: func(_ net.Addr, err error) { s.refused <- err },
	})
	if err != nil {
		t.Fatal(err)
	}
	s.bundle = b
	return s
}

// authority makes a folder with an authority of its own. All have the same name.
func authority(t *testing.T, c *clock) (certs.Dir, *certs.Authority) {
	t.Helper()
	d := certs.Dir{Path: t.TempDir(), Replace: true}
	a, _, err := d.Authority(c.now(), 1000*time.Hour)
	if err != nil {
		t.Fatal(err)
	}
	return d, a
}

func issue(t *testing.T, d certs.Dir, a *certs.Authority, c *clock, name string, sans ...string) certs.Files {
	t.Helper()
	f, err := d.Issue(a, name, append(sans, "127.0.0.1"), c.now(), 24*time.Hour)
	if err != nil {
		t.Fatal(err)
	}
	return f
}

// pair is an agent and a router of one authority.
func pair(t *testing.T) (agent, router *side) {
	t.Helper()
	c := newClock()
	d, a := authority(t, c)
	return newSide(t, issue(t, d, a, c, "agent"), c), newSide(t, issue(t, d, a, c, "router", "spiffe://example.org/router"), c)
}

// serve runs a gRPC server with the health service.
func serve(t *testing.T, creds credentials.TransportCredentials) (string, *health.Server) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	s, h := grpc.NewServer(grpc.Creds(creds)), health.NewServer()
	healthpb.RegisterHealthServer(s, h)
	done := make(chan error, 1)
	go func() { done <- s.Serve(l) }()
	t.Cleanup(func() {
		s.Stop()
		if err := <-done; err != nil {
			t.Errorf("serve: %v", err)
		}
	})
	return l.Addr().String(), h
}

func dial(t *testing.T, addr string, creds credentials.TransportCredentials) healthpb.HealthClient {
	t.Helper()
	conn, err := grpc.NewClient("passthrough:///"+addr, grpc.WithTransportCredentials(creds))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	return healthpb.NewHealthClient(conn)
}

// call makes one call on a connection of its own and returns the serial number of the server's certificate.
func call(t *testing.T, addr string, creds credentials.TransportCredentials) (string, error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	var p peer.Peer
	if _, err := dial(t, addr, creds).Check(ctx, &healthpb.HealthCheckRequest{}, grpc.Peer(&p)); err != nil {
		return "", err
	}
	info, ok := p.AuthInfo.(credentials.TLSInfo)
	if !ok {
		t.Fatalf("the connection is not TLS: %T", p.AuthInfo)
	}
	if info.State.Version != tls.VersionTLS13 {
		t.Errorf("version is %x, want TLS 1.3", info.State.Version)
	}
	return info.State.PeerCertificates[0].SerialNumber.String(), nil
}

func mustCall(t *testing.T, addr string, creds credentials.TransportCredentials) string {
	t.Helper()
	serial, err := call(t, addr, creds)
	if err != nil {
		t.Fatalf("call: %v", err)
	}
	return serial
}

func next(t *testing.T, from chan error) error {
	t.Helper()
	select {
	case err := <-from:
		return err
	case <-time.After(patience):
		t.Fatal("nothing was reported")
		return nil
	}
}

// wantError checks an error and what its text says.
func wantError(t *testing.T, err, is error, texts ...string) {
	t.Helper()
	if !errors.Is(err, is) {
		t.Errorf("got %v, want %v", err, is)
		return
	}
	for _, text := range texts {
		if !strings.Contains(err.Error(), text) {
			t.Errorf("%q doesn't say %q", err, text)
		}
	}
}

func copyFile(t *testing.T, from, to string) {
	t.Helper()
	b, err := os.ReadFile(from)
	if err != nil {
		t.Fatal(err)
	}
	write(t, to, string(b))
}

// write replaces a file by another one of the same name, so that its inode differs.
func write(t *testing.T, path, text string) {
	t.Helper()
	if err := os.WriteFile(path+".new", []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(path+".new", path); err != nil {
		t.Fatal(err)
	}
}
