// SPDX-License-Identifier: Apache-2.0
// Copyright The Segue Authors

package main

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"

	"github.com/seguekv/segue/router/journal"
)

// seen is what one client got of its stream.
type seen struct {
	id     string
	deltas int
	done   bool
}

// follow reads a stream to its end, which may be the death of the router; at hears of each delta.
func follow(t *testing.T, router *program, id string, tokens int, at func()) seen {
	body := fmt.Sprintf(`{"model":"sim","stream":true,"max_tokens":%d,"ignore_eos":true,"seed":7,"messages":[{"role":"user","content":"%s"}]}`, tokens, id)
	req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, "http://"+router.listen+"/v1/chat/completions", strings.NewReader(body))
	if err != nil {
		t.Error(err)
		return seen{id: id}
	}
	req.Header.Set("X-Request-Id", id)
	s := seen{id: id}
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		return s // the router was dead already
	}
	defer res.Body.Close()
	lines := bufio.NewReader(res.Body)
	for {
		line, err := lines.ReadString('\n')
		if err != nil {
			return s
		}
		switch {
		case strings.Contains(line, `"content":"`) && !strings.Contains(line, `"role"`):
			s.deltas++
			at()
		case strings.HasPrefix(line, "data: [DONE]"):
			s.done = true
		}
	}
}

// After kill -9 of the router at any point, the next one tells the truth about every request, and the journal opens
// as it is.
func TestProcess_RouterKilledAgainAndAgain(t *testing.T) {
	slowTest(t)
	t.Parallel()
	const rounds, clients, tokens = 50, 3, 150
	file := filepath.Join(t.TempDir(), "journal.db")
	args := []string{"router", "--listen", "127.0.0.1:0", "--admin", "127.0.0.1:0", "--journal", file}
	for _, id := range []string{"a", "b"} {
		a := start(t, append([]string{"agent", "--id", id, "--contexts", "8"}, simSmall()...)...)
		args = append(args, "--agent", id+"="+a.listen)
	}
	random := rand.New(rand.NewPCG(1, 2))
	var before []seen
	whole, broken := 0, 0
	for round := range rounds {
		router := start(t, args...)
		eventually(t, "the router is ready", func() error { return router.get("/readyz", new(any)) })
		for _, s := range before {
			truth(t, router, s)
		}
		if t.Failed() {
			t.Fatalf("in round %d", round)
		}
		// The kill comes when all clients together have seen so many deltas.
		due := 1 + random.IntN(clients*tokens)
		var mu sync.Mutex
		var wg sync.WaitGroup
		before = make([]seen, clients)
		for i := range clients {
			wg.Go(func() {
				before[i] = follow(t, router, fmt.Sprintf("req-%d-%d", round, i), tokens, func() {
					mu.Lock()
					defer mu.Unlock()
					if due--; due == 0 {
						router.kill(t, syscall.SIGKILL)
					}
				})
			})
		}
		wg.Wait()
		if due > 0 {
			router.kill(t, syscall.SIGKILL)
		}
		for _, s := range before {
			if s.done {
				whole++
			} else if s.deltas > 0 {
				broken++
			}
		}
	}
	router := start(t, args...)
	eventually(t, "the router is ready", func() error { return router.get("/readyz", new(any)) })
	for _, s := range before {
		truth(t, router, s)
	}
	t.Logf("%d kills: %d streams whole, %d broken", rounds, whole, broken)
	if broken < rounds/2 {
		t.Errorf("only %d streams were broken: the kills came too late", broken)
	}
}

// truth compares what the journal says with what a client saw.
func truth(t *testing.T, router *program, s seen) {
	t.Helper()
	res, err := http.Get("http://" + router.listen + "/v1/requests/" + s.id)
	if err != nil {
		t.Errorf("%s: %v", s.id, err)
		return
	}
	defer res.Body.Close()
	b, err := io.ReadAll(res.Body)
	if err != nil {
		t.Errorf("%s: %v", s.id, err)
		return
	}
	if res.StatusCode == http.StatusNotFound && s.deltas == 0 && !s.done {
		return // it died before anything was recorded, and nothing was delivered
	}
	var r journal.Request
	if err := json.Unmarshal(b, &r); err != nil || res.StatusCode != http.StatusOK {
		t.Errorf("%s: status %d, %v: %s", s.id, res.StatusCode, err, b)
		return
	}
	switch {
	case r.Phase != journal.PhaseDone && r.Phase != journal.PhaseFailed,
		r.Delivered < s.deltas,
		s.deltas > 0 && !r.FirstDeltaSent,
		r.Phase == journal.PhaseDone && !s.done && s.deltas == 0,
		r.Phase == journal.PhaseFailed && !strings.Contains(string(r.Error), journal.CauseRouterCrash) && !s.done:
		t.Errorf("the client saw %+v, the journal says %s", s, b)
	}
}
