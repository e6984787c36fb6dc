// SPDX-License-Identifier: Apache-2.0
// Copyright The Segue Authors

package scrape_test

import (
	"bufio"
	"context"
	"io"
	"net/http"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/seguekv/segue/health"
	"github.com/seguekv/segue/health/scrape"
)

// realServer starts a llama-server with these settings.
func realServer(t *testing.T, settings ...string) (*exec.Cmd, string) {
	t.Helper()
	path, file := os.Getenv("SEGUE_LLAMA_SERVER"), os.Getenv("SEGUE_LLAMA_MODEL")
	python, err := exec.LookPath("python3")
	if path == "" || file == "" || err != nil {
		t.Skip("SKIPPED: no llama-server; set SEGUE_LLAMA_SERVER and SEGUE_LLAMA_MODEL to what `go run ./tools/deps -only model,server` fetches")
	}
	cmd := exec.CommandContext(t.Context(), python, append([]string{"testdata/llamaserver.py", file}, settings...)...)
	cmd.Env = append(os.Environ(), "PYTHONPATH="+path)
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	})
	line, err := bufio.NewReader(out).ReadString('\n')
	url, ok := strings.CutPrefix(strings.TrimSpace(line), "listening ")
	if err != nil || !ok {
		t.Fatalf("llama-server said %q, %v", line, err)
	}
	return cmd, url
}

// until reads until the reading is as wanted.
func until(t *testing.T, from *scrape.Target, what string, wanted func(health.Reading) bool) health.Reading {
	t.Helper()
	late := time.Now().Add(time.Minute)
	for {
		r := read(t, from)
		if wanted(r) {
			return r
		}
		if time.Now().After(late) {
			t.Fatalf("never %s; last %+v", what, r)
		}
		<-time.After(20 * time.Millisecond)
	}
}

// stream begins a long answer and returns how to end it.
func stream(t *testing.T, url string) context.CancelFunc {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	t.Cleanup(cancel)
	body := `{"model":"small","stream":true,"temperature":0,"max_tokens":1500,"ignore_eos":true,"messages":[{"role":"user","content":"Tell a long story."}]}`
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, url+"/v1/chat/completions", strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		http.DefaultClient.CloseIdleConnections()
		_ = res.Body.Close()
	})
	if _, err := io.ReadFull(res.Body, make([]byte, 1)); err != nil {
		t.Fatal(err)
	}
	return cancel
}

// TestLlamaServer_RealOne: idle, probed, busy, stopped in the middle, gone on, killed; with its metrics and with slots only.
func TestLlamaServer_RealOne(t *testing.T) {
	for name, settings := range map[string][]string{
		"metrics": {"endpoint_metrics=true"},
		"slots":   {"endpoint_metrics=false", "endpoint_slots=true"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			proc, url := realServer(t, settings...)
			auto := target(t, scrape.Config{URL: url})
			idle := until(t, auto, "idle", func(r health.Reading) bool { return r.Outcome == health.Answered && !r.Loading })
			if auto.Kind() != scrape.LlamaCPP || idle.InFlight != 0 || idle.Incarnation == "" && name == "metrics" {
				t.Fatalf("%v: %+v", auto.Kind(), idle)
			}
			if got := auto.Probe(t.Context()); got != health.ProbePassed {
				t.Fatalf("probe: %v", got)
			}
			until(t, auto, "idle after the probe", func(r health.Reading) bool { return r.InFlight == 0 })
			end := stream(t, url)
			busy := until(t, auto, "busy", func(r health.Reading) bool { return r.InFlight == 1 })
			until(t, auto, "moving", func(r health.Reading) bool {
				return r.InFlight == 1 && r.Counters[len(r.Counters)-1] != busy.Counters[len(busy.Counters)-1] || r.Counters[0] != busy.Counters[0]
			})
			if err := proc.Process.Signal(syscall.SIGSTOP); err != nil {
				t.Fatal(err)
			}
			// Threads may stop a little later than the signal is sent.
			stopped := func() health.Reading {
				ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
				defer cancel()
				return auto.Read(ctx)
			}
			r := stopped()
			for late := time.Now().Add(time.Minute); r.Outcome != health.TimedOut && time.Now().Before(late); r = stopped() {
			}
			if r.Outcome != health.TimedOut {
				t.Fatalf("stopped: %+v", r)
			}
			if err := proc.Process.Signal(syscall.SIGCONT); err != nil {
				t.Fatal(err)
			}
			if r := until(t, auto, "back", func(r health.Reading) bool { return r.Outcome == health.Answered }); r.Incarnation != idle.Incarnation {
				t.Errorf("another life: %+v", r)
			}
			end()
			until(t, auto, "idle again", func(r health.Reading) bool { return r.Outcome == health.Answered && r.InFlight == 0 })
			if err := proc.Process.Kill(); err != nil {
				t.Fatal(err)
			}
			until(t, auto, "gone", func(r health.Reading) bool { return r.Outcome == health.Refused })
		})
	}
}

// TestLlamaServer_RealOneSleepsOn is case E8: it is read a hundred times and doesn't wake.
func TestLlamaServer_RealOneSleepsOn(t *testing.T) {
	t.Parallel()
	_, url := realServer(t, "endpoint_metrics=true", "endpoint_slots=true", "sleep_idle_seconds=1")
	asleep := func() bool {
		res, err := http.Get(url + "/props")
		if err != nil {
			t.Fatal(err)
		}
		defer res.Body.Close()
		defer http.DefaultClient.CloseIdleConnections()
		b, err := io.ReadAll(res.Body)
		if err != nil {
			t.Fatal(err)
		}
		return strings.Contains(string(b), `"is_sleeping":true`)
	}
	for late := time.Now().Add(time.Minute); !asleep(); time.Sleep(50 * time.Millisecond) {
		if time.Now().After(late) {
			t.Fatal("it never sleeps")
		}
	}
	auto := target(t, scrape.Config{URL: url})
	for range 100 {
		if r := read(t, auto); !r.Sleeping || r.Outcome != health.Answered {
			t.Fatalf("%+v", r)
		}
	}
	if !asleep() {
		t.Error("it was woken")
	}
}
