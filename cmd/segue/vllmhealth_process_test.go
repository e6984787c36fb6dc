// SPDX-License-Identifier: Apache-2.0
// Copyright The Segue Authors

package main

import (
	"context"
	"errors"
	"fmt"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"time"
)

// verdict is what one look says of the server, and how long it took.
func (s *vllmServer) verdict(flags ...string) (line string, code int, took time.Duration) {
	s.t.Helper()
	begin := time.Now()
	out, err := command(append([]string{"health", "--once", "--target", s.url}, flags...)...).Output()
	took = time.Since(begin)
	if e, ok := errors.AsType[*exec.ExitError](err); ok {
		code = e.ExitCode()
	} else if err != nil {
		s.t.Fatal(err)
	}
	return strings.TrimSpace(string(out)), code, took
}

func (s *vllmServer) found(want string, wantCode int, flags ...string) {
	s.t.Helper()
	line, code, took := s.verdict(flags...)
	s.t.Logf("exit code %d after %.1f s: %s", code, took.Seconds(), line)
	if code != wantCode || !strings.Contains(line, want) {
		s.t.Errorf("exit code %d, %q, want %d and %q", code, line, wantCode, want)
	}
}

// decode begins a long answer and returns once it comes. It ends with the returned function.
func (s *vllmServer) decode() (stop func()) {
	s.t.Helper()
	ctx, cancel := context.WithCancel(s.t.Context())
	begun, over := make(chan struct{}), make(chan struct{})
	res := ask(s.t, ctx, s.url, vllmQuestion, 1900, true)
	go func() {
		defer close(over)
		readVLLM(s.t, res, func(n int) {
			if n == 3 {
				close(begun)
			}
		})
	}()
	select {
	case <-begun:
	case <-over:
		s.t.Fatal("the answer ended at its beginning")
	}
	return func() {
		cancel()
		<-over
	}
}

// Each state of a real server is found: idle, busy, idle again, stopped in a step, gone.
func TestVLLM_Health(t *testing.T) {
	s := startVLLM(t, 1)[0]
	s.found("idle (nothing_runs, probe_passed)  kind=vllm in_flight=0", exitOK)
	stop := s.decode()
	s.found("busy (progress)  kind=vllm in_flight=1", exitOK)
	stop()
	s.free()
	s.found("idle (nothing_runs, probe_passed)", exitOK)

	stop = s.decode()
	worker := s.process("VLLM::Worker")
	if err := syscall.Kill(worker, syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	s.found("hung (no_progress)  kind=vllm in_flight=1", 4, "--timeout", "60s", "--hang-after", "2s")
	if _, err := s.get("/health"); err != nil {
		t.Errorf("/health of a stopped engine: %v", err)
	}
	if state, _ := s.stat(worker); state != "T" {
		t.Errorf("the stopped worker is in state %s", state)
	}
	if err := syscall.Kill(worker, syscall.SIGCONT); err != nil {
		t.Fatal(err)
	}
	s.found("busy (progress)", exitOK)
	stop()

	s.kill(syscall.SIGKILL)
	<-s.done
	s.found("dead (refused", 4, "--kind", "vllm")
}

// One long prompt that is computed in one step looks idle from outside for longer than an engine may be silent. A router that
// knows of its request never takes it for a hang.
func TestVLLM_LongPrefill(t *testing.T) {
	const tokens = 7900
	s := startVLLM(t, 1, "--max-model-len", "8192", "--max-num-batched-tokens", "8192")[0]
	p := &vllmPair{t: t, servers: map[string]*vllmServer{"u1": s}}
	p.route("--set", "router.upstream_silence.prefill=20m")
	prompt := strings.Repeat(" fox", tokens)
	idle := s.facts()
	begin := time.Now()
	answered := make(chan vllmAnswer, 1)
	go func() { answered <- p.ask(t.Context(), prompt, 8) }()
	p.session("")
	verdicts := map[string]int{}
	looked := false
	for {
		select {
		case got := <-answered:
			took := time.Since(begin)
			t.Logf("an answer after %.1f s; verdicts %v", took.Seconds(), verdicts)
			if !got.whole(8) || got.usage.Prompt < tokens {
				t.Errorf("got %v", got)
			}
			if info := p.session(""); len(info.Attempts) != 1 {
				t.Errorf("session %+v", info)
			}
			if took < 32*time.Second || !looked {
				t.Skipf("SKIPPED: this machine computes the prompt in %v, too soon for a silence that could be called a hang", took)
			}
			return
		case <-time.After(100 * time.Millisecond): // a poll of other processes
		}
		n := p.nodes()["u1"]
		verdicts[n.Health.Verdict]++
		if v := n.Health.Verdict; v == "hung" || v == "dead" || v == "cut_off" {
			t.Fatalf("after %v: %+v", time.Since(begin), n)
		}
		if time.Since(begin) > 5*time.Second && !looked {
			looked = true
			if f := s.facts(); fmt.Sprint(f.Engines) != fmt.Sprint(idle.Engines) {
				t.Logf("the page of a prefill is no idle one: %+v, idle was %+v", f, idle)
			}
			s.found("idle (nothing_runs)", exitOK, "--no-probe")
		}
	}
}
