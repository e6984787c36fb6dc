// SPDX-License-Identifier: Apache-2.0
// Copyright The Segue Authors

package main

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"

	"github.com/seguekv/segue/health"
)

// sglangServer plays SGLang over HTTP: it moves, stands still or has nothing to do.
type sglangServer struct {
	*httptest.Server

	mu     sync.Mutex
	mode   string // idle, busy or hung
	tokens int
	probes int
	paths  map[string]int
	keys   map[string]int
}

func newSGLang(t *testing.T, mode string) *sglangServer {
	s := &sglangServer{mode: mode, paths: map[string]int{}, keys: map[string]int{}}
	s.Server = httptest.NewServer(s)
	t.Cleanup(s.Close)
	return s
}

func (s *sglangServer) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.paths[r.URL.Path]++
	s.keys[r.Header.Get("Authorization")]++
	switch r.URL.Path {
	case "/v1/models":
		fmt.Fprint(w, `{"object":"list","data":[{"id":"m","object":"model","owned_by":"sglang"}]}`)
	case "/server_info":
		fmt.Fprint(w, `{"chunked_prefill_size":2048}`)
	case "/metrics":
		running := 2
		switch s.mode {
		case "busy":
			s.tokens += 16
		case "idle":
			running = 0
		}
		w.Header().Set("Content-Type", "text/plain; version=0.0.4; charset=utf-8")
		fmt.Fprintf(w, `# TYPE sglang:num_running_reqs gauge
sglang:num_running_reqs{model_name="m"} %d
# TYPE sglang:num_queue_reqs gauge
sglang:num_queue_reqs{model_name="m"} 0
# TYPE sglang:realtime_tokens_total counter
sglang:realtime_tokens_total{mode="decode",model_name="m"} %d
sglang:realtime_tokens_total{mode="prefill_compute",model_name="m"} 200000
# TYPE sglang:per_stage_req_latency_seconds histogram
sglang:per_stage_req_latency_seconds_bucket{stage="prefill_forward",le="+Inf"} 50
sglang:per_stage_req_latency_seconds_sum{stage="prefill_forward"} 20
sglang:per_stage_req_latency_seconds_count{stage="prefill_forward"} 50
# TYPE sglang:startup_time_seconds gauge
sglang:startup_time_seconds{phase="tokenizer_e2e"} 31.4159265
`, running, s.tokens)
	case "/v1/completions", "/v1/chat/completions":
		s.probes++
		fmt.Fprint(w, `{"choices":[{"index":0,"text":"a","message":{"role":"assistant","content":"a"},"finish_reason":"length"}]}`)
	default:
		http.NotFound(w, r)
	}
}

func (s *sglangServer) is(mode string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.mode = mode
}

func (s *sglangServer) probed() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.probes
}

// hasty makes a hang show within a second.
func hasty(args ...string) []string {
	return append([]string{"health", "--interval", "50ms", "--hang-after", "400ms"}, args...)
}

func onceCode(t *testing.T, args ...string) (out string, code int) {
	t.Helper()
	b, err := command(hasty(args...)...).CombinedOutput()
	if e, ok := errors.AsType[*exec.ExitError](err); ok {
		return string(b), e.ExitCode()
	} else if err != nil {
		t.Fatal(err)
	}
	return string(b), 0
}

// The program finds out what the server is, and judges it by its pages.
func TestHealth_ProgramOnce(t *testing.T) {
	s := newSGLang(t, "busy")
	key := filepath.Join(t.TempDir(), "key")
	if err := os.WriteFile(key, []byte("k3y\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		mode, want string
		code       int
		probes     int
	}{
		{"busy", "busy (progress)  kind=sglang in_flight=2", 0, 0},
		{"hung", "hung (no_progress)  kind=sglang in_flight=2", 4, 0},
		{"idle", "idle (nothing_runs, probe_passed)  kind=sglang in_flight=0", 0, 1},
	} {
		s.is(c.mode)
		out, code := onceCode(t, "--target", s.URL, "--api-key-file", key)
		if code != c.code || !strings.Contains(out, c.want) || s.probed() != c.probes {
			t.Errorf("%s: exit code %d, %d probes, want %d, %d and %q:\n%s", c.mode, code, s.probed(), c.code, c.probes, c.want, out)
		}
		if strings.Contains(out, "k3y") {
			t.Error("the key is in the output")
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.keys["Bearer k3y"] == 0 || len(s.keys) != 1 {
		t.Errorf("keys sent: %v", s.keys)
	}
	if s.paths["/health"]+s.paths["/health_generate"] > 0 {
		t.Errorf("it asked for what makes SGLang generate: %v", s.paths)
	}
	s.Close()
	if out, code := onceCode(t, "--target", s.URL); code != 4 || !strings.Contains(out, "dead (refused)") {
		t.Errorf("a closed port: %d, %s", code, out)
	}
}

// watching is a running `segue health --watch --json`.
type watching struct {
	cmd    *exec.Cmd
	stderr *syncBuffer
	done   chan error

	mu    sync.Mutex
	lines []map[string]any
}

func watchHealth(t *testing.T, args ...string) *watching {
	t.Helper()
	w := &watching{cmd: command(hasty(append(args, "--watch", "--json")...)...), stderr: new(syncBuffer), done: make(chan error, 1)}
	w.cmd.Stderr = w.stderr
	out, err := w.cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := w.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	go func() { // ends with the process
		for lines := bufio.NewScanner(out); lines.Scan(); {
			var l map[string]any
			if json.Unmarshal(lines.Bytes(), &l) == nil {
				w.mu.Lock()
				w.lines = append(w.lines, l)
				w.mu.Unlock()
			}
		}
		w.done <- w.cmd.Wait()
	}()
	t.Cleanup(func() {
		_ = syscall.Kill(-w.cmd.Process.Pid, syscall.SIGKILL)
		if t.Failed() {
			w.mu.Lock()
			defer w.mu.Unlock()
			t.Logf("process %d: %v\n%s", w.cmd.Process.Pid, w.lines, w.stderr)
		}
	})
	return w
}

// says waits for a line whose field has that value.
func (w *watching) says(t *testing.T, field, value string) {
	t.Helper()
	eventually(t, field+" "+value, func() error {
		if w.said(field, value) > 0 {
			return nil
		}
		return fmt.Errorf("process %d hasn't said so", w.cmd.Process.Pid)
	})
}

func (w *watching) said(field, value string) (n int) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, l := range w.lines {
		if l[field] == value {
			n++
		}
	}
	return n
}

// Watching prints the changes, serves metrics, and ends cleanly with an interrupt.
func TestHealth_ProgramWatch(t *testing.T) {
	s := newSGLang(t, "busy")
	w := watchHealth(t, "--target", s.URL, "--listen", "127.0.0.1:0")
	w.says(t, "verdict", "busy")
	s.is("hung")
	w.says(t, "verdict", "hung")
	at := regexp.MustCompile(`http://\S+/metrics`).FindString(w.stderr.String())
	res, err := http.Get(at)
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	b, err := io.ReadAll(res.Body)
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{
		fmt.Sprintf("segue_health_verdict{target=%q,verdict=%q} 1\n", s.URL, health.Hung.String()),
		fmt.Sprintf("segue_health_verdict{target=%q,verdict=%q} 0\n", s.URL, health.Busy.String()),
		fmt.Sprintf("segue_health_probes_total{target=%q} 0\n", s.URL),
	} {
		if !strings.Contains(string(b), want) {
			t.Errorf("%s misses %s:\n%s", at, want, b)
		}
	}
	if err := w.cmd.Process.Signal(os.Interrupt); err != nil {
		t.Fatal(err)
	}
	if err := <-w.done; err != nil {
		t.Errorf("after the interrupt: %v", err)
	}
	if s.probed() != 0 {
		t.Errorf("%d probes while it was busy", s.probed())
	}
}

// Four watchdogs of one server, under different names of it, restart it once.
func TestHealth_ProgramFourWatchdogs(t *testing.T) {
	s := newSGLang(t, "busy")
	dir := t.TempDir()
	log := filepath.Join(dir, "restarts")
	var dogs []*watching
	for i := range 4 {
		url := s.URL
		if i%2 == 1 {
			url = strings.Replace(url, "127.0.0.1", "localhost", 1) + "/v1"
		}
		dogs = append(dogs, watchHealth(t, "--target", url, "--state-dir", filepath.Join(dir, "state"), "--on-hung", `echo "$SEGUE_VERDICT $SEGUE_REASONS" >> `+log))
	}
	for _, d := range dogs {
		d.says(t, "verdict", "busy")
	}
	s.is("hung")
	owners, ended := 0, 0
	for _, d := range dogs {
		d.says(t, "verdict", "hung")
	}
	eventually(t, "one restart", func() error {
		owners, ended = 0, 0
		for _, d := range dogs {
			owners += d.said("restart", "owner")
			ended += d.said("restart", "ended")
		}
		if owners != 1 || ended != 1 {
			return fmt.Errorf("%d owners, %d restarts", owners, ended)
		}
		return nil
	})
	s.is("busy") // the restart helped; then it hangs again, within the grace time
	for _, d := range dogs {
		eventually(t, "busy again", func() error {
			if d.said("verdict", "busy") < 2 {
				return fmt.Errorf("process %d hasn't seen it", d.cmd.Process.Pid)
			}
			return nil
		})
	}
	s.is("hung")
	for _, d := range dogs {
		eventually(t, "hung again", func() error {
			if d.said("verdict", "hung") < 2 || d.said("restart", "owner") == 1 && d.said("restart", "wait") == 0 {
				return fmt.Errorf("process %d hasn't seen it, or doesn't wait", d.cmd.Process.Pid)
			}
			return nil
		})
		if d.said("restart", "owner")+d.said("restart", "other") == 0 {
			t.Errorf("process %d said neither that it owns the server nor who does", d.cmd.Process.Pid)
		}
	}
	b, err := os.ReadFile(log)
	if err != nil || string(b) != "hung no_progress\n" {
		t.Errorf("the command left %q, %v", b, err)
	}
	for _, d := range dogs {
		_ = d.cmd.Process.Signal(os.Interrupt)
		if err := <-d.done; err != nil {
			t.Errorf("after the interrupt: %v", err)
		}
	}
}

// A record that can't be read ends the program with an error that says what to do, and restarts nothing.
func TestHealth_ProgramCorruptRecord(t *testing.T) {
	s := newSGLang(t, "hung")
	dir := t.TempDir()
	port := s.URL[strings.LastIndex(s.URL, ":")+1:]
	record := filepath.Join(dir, "127.0.0.1_"+port+".json")
	if err := os.WriteFile(record, []byte("{"), 0o600); err != nil {
		t.Fatal(err)
	}
	out, code := onceCode(t, "--target", s.URL, "--state-dir", dir, "--on-hung", "touch "+dir+"/ran")
	if code != exitFailure || !strings.Contains(out, record) || !strings.Contains(out, "is removed") {
		t.Errorf("exit code %d: %s", code, out)
	}
	if _, err := os.Stat(dir + "/ran"); err == nil {
		t.Error("the command ran")
	}
}

// The end of a process that is named is known at once, whatever its port says.
func TestHealth_ProgramKnowsTheProcess(t *testing.T) {
	slowTest(t)
	s := newSGLang(t, "busy")
	server := exec.Command("sleep", "600") // stands for the server's process
	if err := server.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() { _ = server.Process.Kill(); _ = server.Wait() }()
	w := watchHealth(t, "--target", s.URL, "--kind", "sglang", "--watch", "--json", "--interval", "20s", "--pid", strconv.Itoa(server.Process.Pid), "--hang-after", "2h", "--start-budget", "3h")
	w.says(t, "verdict", "unknown")
	_ = server.Process.Kill()
	_ = server.Wait()
	w.says(t, "verdict", "dead") // long before the next read is due
	if _, code := onceCode(t, "--target", s.URL, "--pid", strconv.Itoa(server.Process.Pid)); code != exitUsage {
		t.Errorf("a process that has ended: exit code %d", code)
	}
}
