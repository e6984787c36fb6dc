// SPDX-License-Identifier: Apache-2.0
// Copyright The Segue Authors

package bench_test

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/seguekv/segue/bench"
)

// echo is a server that answers what it is told.
func echo(t *testing.T) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	go func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			go func() {
				defer conn.Close()
				_, _ = io.Copy(conn, conn)
			}()
		}
	}()
	return l.Addr().String()
}

func laid(t *testing.T) *bench.Cable {
	t.Helper()
	c, err := bench.Lay(echo(t))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.Close)
	return c
}

func dialled(t *testing.T, c *bench.Cable) net.Conn {
	t.Helper()
	conn, err := c.Dial()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	return conn
}

// said sends a word and reads it back within limit.
func said(conn net.Conn, limit time.Duration) error {
	_ = conn.SetDeadline(time.Now().Add(limit))
	if _, err := io.WriteString(conn, "word"); err != nil {
		return err
	}
	_, err := io.ReadFull(conn, make([]byte, 4))
	return err
}

const patience = 10 * time.Second

func TestCable_ResetEndsConnectionsAndRefusesNewOnes(t *testing.T) {
	c := laid(t)
	conn := dialled(t, c)
	if err := said(conn, patience); err != nil {
		t.Fatal(err)
	}
	c.Reset()
	if err := said(conn, patience); !errors.Is(err, syscall.ECONNRESET) && !errors.Is(err, syscall.EPIPE) {
		t.Errorf("an old connection: %v", err)
	}
	// It may be reset before the call that makes it has returned.
	if fresh, err := c.Dial(); err == nil {
		t.Cleanup(func() { fresh.Close() })
		if err := said(fresh, patience); err == nil || errors.Is(err, os.ErrDeadlineExceeded) {
			t.Errorf("a new connection: %v", err)
		}
	}
	c.Mend()
	if err := said(dialled(t, c), patience); err != nil {
		t.Errorf("a mended cable: %v", err)
	}
}

func TestCable_SilenceTellsNobody(t *testing.T) {
	const short = 200 * time.Millisecond
	c := laid(t)
	conn := dialled(t, c)
	if err := said(conn, patience); err != nil {
		t.Fatal(err)
	}
	c.Silence()
	for name, conn := range map[string]net.Conn{"old": conn, "new": dialled(t, c)} {
		if err := said(conn, short); !errors.Is(err, os.ErrDeadlineExceeded) {
			t.Errorf("the %s connection: %v", name, err)
		}
	}
	c.Mend()
	if err := said(conn, patience); err == nil || errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("a connection that has lost bytes goes on: %v", err)
	}
	if err := said(dialled(t, c), patience); err != nil {
		t.Errorf("a mended cable: %v", err)
	}
}

func TestCable_CloseWaitsForWhatIsOpen(t *testing.T) {
	for _, silent := range []bool{false, true} {
		c, err := bench.Lay(echo(t))
		if err != nil {
			t.Fatal(err)
		}
		conn := dialled(t, c)
		if err := said(conn, patience); err != nil {
			t.Fatal(err)
		}
		if silent {
			c.Silence()
			_, _ = io.WriteString(conn, "lost")
		}
		c.Close()
		if err := said(conn, patience); err == nil || errors.Is(err, os.ErrDeadlineExceeded) {
			t.Errorf("silent %t: %v", silent, err)
		}
		if conn, err := c.Dial(); err == nil {
			conn.Close()
			t.Error("a closed cable takes connections")
		}
	}
}

func TestRouterView_AwaitsTheVerdict(t *testing.T) {
	var looks atomic.Int64
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		if req.URL.Path != "/v1/agents" {
			http.NotFound(w, req)
			return
		}
		a := map[string]any{"id": "a", "ready": true, "health": map[string]any{"verdict": "busy"}}
		if looks.Add(1) > 3 {
			a["health"] = map[string]any{"verdict": "hung", "reasons": []string{"no_progress"}}
		}
		_ = json.NewEncoder(w).Encode([]any{map[string]any{"id": "new"}, a})
	}))
	defer server.Close()
	if err := bench.AwaitVerdict(t.Context(), server.URL, "a", "hung", patience); err != nil || looks.Load() != 4 {
		t.Errorf("%v after %d looks", err, looks.Load())
	}
	err := bench.AwaitVerdict(t.Context(), server.URL, "a", "dead", 20*time.Millisecond)
	if !errors.Is(err, bench.ErrNoVerdict) || !strings.Contains(err.Error(), "engine hung [no_progress]") {
		t.Errorf("%v", err)
	}
	if err := bench.AwaitVerdict(t.Context(), server.URL, "b", "hung", patience); err == nil || errors.Is(err, bench.ErrNoVerdict) {
		t.Errorf("an agent that isn't there: %v", err)
	}
	// A router that tells nothing of an engine holds it for unknown.
	if err := bench.AwaitVerdict(t.Context(), server.URL, "new", "unknown", patience); err != nil {
		t.Errorf("%v", err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := bench.AwaitVerdict(ctx, server.URL, "a", "dead", patience); !errors.Is(err, context.Canceled) {
		t.Errorf("%v", err)
	}
}
