// SPDX-License-Identifier: Apache-2.0
// Copyright The Segue Authors

package main_test

import (
	"bytes"
	"context"
	"encoding/json"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/seguekv/segue/router"
	"github.com/seguekv/segue/router/fleet"
	"github.com/seguekv/segue/router/journal"
)

// till is a tool: it counts what it did, and says for an action whether it is done.
type till struct {
	mu       sync.Mutex
	executed map[string]int
	// called hears of each call, after it was done; its answer waits for goOn.
	called chan string
	goOn   chan struct{}
}

func (k *till) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	action := r.URL.Query().Get("action")
	k.mu.Lock()
	if r.URL.Path == "/do" {
		k.executed[action]++
	}
	done := k.executed[action] > 0
	k.mu.Unlock()
	if r.URL.Path == "/do" {
		k.called <- action
		select {
		case <-k.goOn:
		case <-r.Context().Done():
		}
	}
	if !done {
		w.WriteHeader(http.StatusNotFound)
		return
	}
	_, _ = io.WriteString(w, `{"receipt":1}`)
}

func (k *till) count(action string) int {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.executed[action]
}

// serve runs a router for its ledger until stop; nobody runs on its agent.
func serve(t *testing.T, storage journal.Storage) (address string, stop func()) {
	t.Helper()
	cfg := router.DefaultConfig()
	cfg.Listen, cfg.Admin, cfg.Drain = "127.0.0.1:0", "127.0.0.1:0", 0
	cfg.Agents = []fleet.Member{{ID: "a", Addr: "127.0.0.1:1"}}
	addresses := make(chan string, 1)
	r, err := router.New(cfg, router.Deps{JournalStorage: storage, Listening: func(client, _ net.Addr) { addresses <- client.String() }})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	ran := make(chan error, 1)
	go func() { ran <- r.Run(ctx) }() // ends with stop
	stop = sync.OnceFunc(func() {
		cancel()
		<-ran
	})
	t.Cleanup(stop)
	return "http://" + <-addresses, stop
}

// A runner is killed after the call, the router restarts, and the runner is started again, twice: the call was done once
// and its result is there.
func TestToolRunner_KilledAfterTheCall(t *testing.T) {
	for name, command := range map[string]func(*testing.T) []string{
		"Go": func(t *testing.T) []string {
			program := filepath.Join(t.TempDir(), "toolrunner")
			if out, err := exec.Command("go", "build", "-o", program, ".").CombinedOutput(); err != nil {
				t.Fatalf("build: %v\n%s", err, out)
			}
			return []string{program}
		},
		"Python": func(t *testing.T) []string {
			python, err := exec.LookPath("python3")
			if err != nil {
				t.Skip("SKIPPED: python3 is not installed, so examples/toolrunner.py is not tested")
			}
			return []string{python, filepath.Join("..", "toolrunner.py")}
		},
	} {
		t.Run(name, func(t *testing.T) {
			run := command(t)
			k := &till{executed: map[string]int{}, called: make(chan string, 8), goOn: make(chan struct{})}
			tool := httptest.NewServer(k)
			t.Cleanup(tool.Close)
			storage := journal.NewMemory()
			at, stop := serve(t, storage)
			const action = "0123:call_7"
			start := func(at string) (*exec.Cmd, *bytes.Buffer) {
				c := exec.Command(run[0], append(run[1:len(run):len(run)], "--router", at, "--tool", tool.URL,
					"--request", "0123", "--call", "call_7", "--arguments", `{"eur": 5}`)...)
				var out bytes.Buffer
				c.Stdout, c.Stderr = &out, &out
				if err := c.Start(); err != nil {
					t.Fatal(err)
				}
				t.Cleanup(func() { _ = c.Process.Kill(); _ = c.Wait() })
				return c, &out
			}
			first, out := start(at)
			select {
			case <-k.called:
			case <-time.After(2 * time.Minute):
				t.Fatalf("the tool was not called: %s", out)
			}
			if err := first.Process.Kill(); err != nil {
				t.Fatal(err)
			}
			if err := first.Wait(); err == nil {
				t.Fatalf("the runner ended well: %s", out)
			}
			close(k.goOn)
			storage = storage.Crash()
			stop()
			at, _ = serve(t, storage)
			for n := range 2 {
				again, out := start(at)
				if err := again.Wait(); err != nil {
					t.Fatalf("run %d: %v: %s", n+2, err, out)
				}
				var result struct{ Receipt int }
				if err := json.Unmarshal([]byte(strings.TrimSpace(out.String())), &result); err != nil || result.Receipt != 1 {
					t.Errorf("run %d prints %q", n+2, out)
				}
			}
			if n := k.count(action); n != 1 {
				t.Errorf("the call was done %d times", n)
			}
		})
	}
}
