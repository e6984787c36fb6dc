// SPDX-License-Identifier: Apache-2.0
// Copyright The Segue Authors

package main

import (
	"bufio"
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
)

// asProgram makes the test binary behave as segue, so that tests start it as agent, router and sim host.
const asProgram = "SEGUE_TEST_AS_PROGRAM"

func TestMain(m *testing.M) {
	if os.Getenv(asProgram) != "" {
		os.Exit(run(os.Args[1:], os.Stdout, os.Stderr))
	}
	os.Exit(m.Run())
}

// program is a running segue.
type program struct {
	cmd           *exec.Cmd
	listen, admin string
	stderr        *syncBuffer
	done          chan struct{}
}

type syncBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (s *syncBuffer) Write(p []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.b.Write(p)
}

func (s *syncBuffer) String() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.b.String()
}

func command(args ...string) *exec.Cmd {
	c := exec.Command(os.Args[0], args...)
	c.Env = append(os.Environ(), asProgram+"=1")
	c.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
	return c
}

// start runs segue in a process group of its own and waits until it has printed its addresses.
func start(t *testing.T, args ...string) *program {
	t.Helper()
	p := &program{cmd: command(args...), stderr: new(syncBuffer), done: make(chan struct{})}
	p.cmd.Stderr = p.stderr
	out, err := p.cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := p.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	lines := bufio.NewScanner(out)
	if lines.Scan() {
		for f := range strings.FieldsSeq(lines.Text()) {
			if v, ok := strings.CutPrefix(f, "listen="); ok {
				p.listen = v
			}
			if v, ok := strings.CutPrefix(f, "admin="); ok {
				p.admin = v
			}
		}
	}
	go func() { // ends with the process
		_, _ = io.Copy(io.Discard, out)
		_ = p.cmd.Wait()
		close(p.done)
	}()
	t.Cleanup(func() {
		_ = syscall.Kill(-p.cmd.Process.Pid, syscall.SIGKILL)
		<-p.done
		if t.Failed() {
			t.Logf("%s %s:\n%s", args[0], p.listen, p.stderr)
		}
	})
	if p.listen == "" {
		<-p.done
		t.Fatalf("segue %s printed no address:\n%s", strings.Join(args, " "), p.stderr)
	}
	return p
}

// kill sends sig to the whole process group: agent and engine host.
func (p *program) kill(t *testing.T, sig syscall.Signal) {
	t.Helper()
	if err := syscall.Kill(-p.cmd.Process.Pid, sig); err != nil {
		t.Fatal(err)
	}
}

func (p *program) get(path string, v any) error {
	res, err := http.Get("http://" + p.admin + path)
	if err != nil {
		return err
	}
	defer res.Body.Close()
	b, err := io.ReadAll(res.Body)
	if err != nil {
		return err
	}
	if res.StatusCode != http.StatusOK {
		return fmt.Errorf("%s: %s", res.Status, b)
	}
	if v == nil {
		return nil
	}
	return json.Unmarshal(b, v)
}

// eventually polls f until it succeeds.
func eventually(t *testing.T, what string, f func() error) {
	t.Helper()
	deadline := time.Now().Add(20 * time.Second)
	for {
		err := f()
		if err == nil {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("%s: %v", what, err)
		}
		time.Sleep(10 * time.Millisecond) // a poll of another process, not a synchronisation
	}
}

// lab is two agents on sim engines and a router.
type lab struct {
	nodes  map[string]*program
	router *program
}

// simSmall are the keys of a small, quick model.
func simSmall() []string {
	return []string{
		"--engine", "sim", "--listen", "127.0.0.1:0", "--admin", "127.0.0.1:0",
		"--set", "agent.engine.sim.kv_bytes_per_token=4096", "--set", "agent.engine.sim.layers=4",
		"--set", "agent.engine.sim.step=5ms", "--set", "agent.engine.sim.prefill_token=2ms", "--set", "agent.engine.sim.context_length=2048",
	}
}

func startLab(t *testing.T, a, b []string, router ...string) *lab {
	t.Helper()
	l := &lab{nodes: map[string]*program{
		"a": start(t, append(append([]string{"agent", "--id", "a"}, simSmall()...), a...)...),
		"b": start(t, append(append([]string{"agent", "--id", "b"}, simSmall()...), b...)...),
	}}
	l.router = start(t, append([]string{
		"router", "--listen", "127.0.0.1:0", "--admin", "127.0.0.1:0",
		"--agent", "a=" + l.nodes["a"].listen, "--agent", "b=" + l.nodes["b"].listen,
	}, router...)...)
	eventually(t, "router sees both nodes ready", func() error {
		var agents []struct {
			ID    string
			Ready bool
		}
		if err := l.router.get("/v1/agents", &agents); err != nil {
			return err
		}
		for _, a := range agents {
			if !a.Ready {
				return fmt.Errorf("%s is not ready", a.ID)
			}
		}
		return nil
	})
	return l
}

// answer is what a client received.
type answer struct {
	session string
	granted string
	ids     []int32
	text    string
	finish  string
	done    int
	err     map[string]any
}

func (l *lab) post(t *testing.T, protection, prompt string, max int) *http.Response {
	t.Helper()
	body, err := json.Marshal(map[string]any{
		"model": "sim", "prompt": prompt, "stream": true, "seed": 11, "temperature": 0.8, "max_tokens": max, "return_token_ids": true,
	})
	if err != nil {
		t.Fatal(err)
	}
	req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, "http://"+l.router.listen+"/v1/completions", bytes.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("X-Segue-Protection", protection)
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	return res
}

// generate streams one completion; at is called after each chunk with what has come so far.
func (l *lab) generate(t *testing.T, protection, prompt string, max int, at func(*answer)) *answer {
	t.Helper()
	res := l.post(t, protection, prompt, max)
	defer res.Body.Close()
	x := &answer{session: res.Header.Get("X-Segue-Session"), granted: res.Header.Get("X-Segue-Protection")}
	if res.StatusCode != http.StatusOK {
		b, _ := io.ReadAll(res.Body)
		var e struct {
			Error map[string]any `json:"error"`
		}
		if err := json.Unmarshal(b, &e); err != nil {
			t.Fatalf("%s: %s", res.Status, b)
		}
		x.err = e.Error
		return x
	}
	lines := bufio.NewScanner(res.Body)
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		data, ok := strings.CutPrefix(lines.Text(), "data: ")
		if !ok {
			continue
		}
		if data == "[DONE]" {
			x.done++
			continue
		}
		var c struct {
			Choices []struct {
				Text   string  `json:"text"`
				IDs    []int32 `json:"token_ids"`
				Finish *string `json:"finish_reason"`
			} `json:"choices"`
			Error map[string]any `json:"error"`
		}
		if err := json.Unmarshal([]byte(data), &c); err != nil {
			t.Fatalf("%v: %s", err, data)
		}
		if c.Error != nil {
			x.err = c.Error
			continue
		}
		for _, ch := range c.Choices {
			x.text += ch.Text
			x.ids = append(x.ids, ch.IDs...)
			if ch.Finish != nil {
				x.finish = *ch.Finish
			}
		}
		if at != nil {
			at(x)
		}
	}
	return x
}

// primary is the node that works on a session now.
func (l *lab) primary(t *testing.T, session string) *program {
	t.Helper()
	var s struct{ Primary string }
	if err := l.router.get("/v1/sessions/"+session, &s); err != nil {
		t.Fatal(err)
	}
	return l.nodes[s.Primary]
}

// killAt returns a hook that sends sig to the primary's process group once n ids have come.
func (l *lab) killAt(t *testing.T, n int, sig syscall.Signal) func(*answer) {
	killed := false
	return func(x *answer) {
		if killed || len(x.ids) < n {
			return
		}
		killed = true
		l.primary(t, x.session).kill(t, sig)
	}
}

const prompt = "It was a bright cold day in April, and the clocks were striking thirteen."

func sameAnswer(t *testing.T, got, want *answer) {
	t.Helper()
	if fmt.Sprint(got.ids) != fmt.Sprint(want.ids) || got.text != want.text || got.finish != want.finish || got.done != 1 || got.err != nil {
		t.Errorf("got %d ids, finish %q, %d [DONE], error %v\n%v\nwant %d ids, finish %q\n%v",
			len(got.ids), got.finish, got.done, got.err, got.ids, len(want.ids), want.finish, want.ids)
	}
}

// R10-3 in protected mode: a kill after the first delta, and the stream goes on token for token.
func TestProcess_KillAfterFirstDeltaContinues(t *testing.T) {
	l := startLab(t, nil, nil)
	ref := l.generate(t, "off", prompt, 60, nil)
	got := l.generate(t, "sync", prompt, 60, l.killAt(t, 20, syscall.SIGKILL))
	sameAnswer(t, got, ref)
	var s struct {
		Attempts []struct{ Kind, Cause string }
		Seams    []struct{ Index, Delivered int }
	}
	if err := l.router.get("/v1/sessions/"+got.session, &s); err != nil {
		t.Fatal(err)
	}
	if len(s.Attempts) != 2 || s.Attempts[1].Kind != "takeover" || len(s.Seams) != 1 || s.Seams[0].Index < s.Seams[0].Delivered {
		t.Errorf("session record %+v, want one takeover", s)
	}
}

// R10-3 in strict mode: the stream ends in the error, there is no second generation.
func TestProcess_StrictEndsInTheError(t *testing.T) {
	l := startLab(t, nil, nil)
	got := l.generate(t, "off", prompt, 60, l.killAt(t, 20, syscall.SIGKILL))
	if got.err["code"] != "upstream_decode_interrupted" || got.err["partial_output"] != true || got.err["retryable"] != false || got.done != 0 {
		t.Errorf("got error %v and %d [DONE], want the honest end", got.err, got.done)
	}
	if n, _ := got.err["delivered_output_tokens"].(float64); int(n) != len(got.ids) {
		t.Errorf("error counts %v delivered tokens, the client has %d", got.err["delivered_output_tokens"], len(got.ids))
	}
	var s struct{ Attempts []any }
	if err := l.router.get("/v1/sessions/"+got.session, &s); err != nil || len(s.Attempts) != 1 {
		t.Errorf("%d attempts (%v), want one", len(s.Attempts), err)
	}
}

// R10-1: a kill during prefill, before the first downstream byte, and one complete answer after a retry.
func TestProcess_KillInPrefillRetries(t *testing.T) {
	l := startLab(t, nil, nil)
	long := strings.Repeat(prompt+" ", 8)
	ref := l.generate(t, "off", long, 20, nil)
	done := make(chan struct{})
	go func() {
		defer close(done)
		eventually(t, "a session in prefill", func() error {
			var list []struct{ Session, Phase, Primary string }
			if err := l.router.get("/v1/sessions", &list); err != nil {
				return err
			}
			if len(list) == 0 || list[0].Phase != "prefill" {
				return fmt.Errorf("sessions %+v", list)
			}
			l.nodes[list[0].Primary].kill(t, syscall.SIGKILL)
			return nil
		})
	}()
	got := l.generate(t, "off", long, 20, nil)
	<-done
	sameAnswer(t, got, ref)
}

// R10-4 with a frozen process: it is fenced and continued elsewhere, and publishes nothing when it wakes.
func TestProcess_FrozenNodeIsFenced(t *testing.T) {
	l := startLab(t, nil, nil)
	ref := l.generate(t, "off", prompt, 60, nil)
	var frozen *program
	got := l.generate(t, "sync", prompt, 60, func(x *answer) {
		switch {
		case frozen == nil && len(x.ids) >= 20:
			frozen = l.primary(t, x.session)
			frozen.kill(t, syscall.SIGSTOP)
		case frozen != nil && len(x.ids) == 45:
			frozen.kill(t, syscall.SIGCONT)
		}
	})
	sameAnswer(t, got, ref)
	eventually(t, "the frozen node's run has ended", func() error {
		var sessions []struct{ Role, State string }
		if err := frozen.get("/v1/sessions", &sessions); err != nil {
			return err
		}
		for _, s := range sessions {
			if s.Role == "primary" && s.State != "failed" && s.State != "finished" {
				return fmt.Errorf("%+v", s)
			}
		}
		return nil
	})
}

// Another thread count is another fingerprint: no protection, and after a kill the strict policy, which names the field.
func TestProcess_OtherFingerprintIsRefusedByName(t *testing.T) {
	l := startLab(t, nil, []string{"--threads", "2"})
	got := l.generate(t, "sync", prompt, 60, l.killAt(t, 20, syscall.SIGKILL))
	if text := fmt.Sprint(got.err); got.err["code"] != "upstream_decode_interrupted" || !strings.Contains(text, "threads") || !strings.Contains(text, "fingerprint_mismatch") {
		t.Errorf("got error %v, want upstream_decode_interrupted naming fingerprint_mismatch and threads", got.err)
	}
	if !strings.HasPrefix(got.granted, "none; reason=fingerprint_mismatch") {
		t.Errorf("X-Segue-Protection %q, want the reason", got.granted)
	}
}

// A holder without a free context says so at once. With none until takeover_wait is over the strict policy applies.
func TestProcess_NoCapacityForTakeoverIsHonest(t *testing.T) {
	one := []string{"--contexts", "1", "--reserved", "0"}
	l := startLab(t, one, one, "--set", "router.takeover_wait=300ms")
	busy := l.post(t, "sync", prompt, 1000)
	defer busy.Body.Close()
	got := l.generate(t, "sync", prompt, 60, l.killAt(t, 20, syscall.SIGKILL))
	if text := fmt.Sprint(got.err); got.err["code"] != "upstream_decode_interrupted" || !strings.Contains(text, "no_capacity") {
		t.Errorf("got error %v, want upstream_decode_interrupted naming no_capacity", got.err)
	}
}

func TestProcess_AgentDeathEndsItsEngine(t *testing.T) {
	a := start(t, append([]string{"agent", "--id", "a"}, simSmall()...)...)
	var n struct {
		PID   int `json:"engine_pid"`
		Ready bool
	}
	eventually(t, "engine up", func() error {
		if err := a.get("/v1/node", &n); err != nil {
			return err
		}
		if !n.Ready {
			return fmt.Errorf("%+v", n)
		}
		return nil
	})
	if err := a.cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	eventually(t, "engine host gone", func() error {
		b, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", n.PID))
		if err != nil || strings.Contains(string(b), ") Z ") {
			return nil
		}
		return fmt.Errorf("pid %d lives", n.PID)
	})
}

func TestProcess_InterruptEndsCleanly(t *testing.T) {
	a := start(t, append([]string{"agent", "--id", "a"}, simSmall()...)...)
	if err := a.cmd.Process.Signal(syscall.SIGINT); err != nil {
		t.Fatal(err)
	}
	select {
	case <-a.done:
	case <-time.After(10 * time.Second):
		t.Fatal("agent still runs 10 s after SIGINT")
	}
	if code := a.cmd.ProcessState.ExitCode(); code != exitOK {
		t.Errorf("exit code %d, want 0", code)
	}
}

func TestProcess_ErrorsSayWhatToDo(t *testing.T) {
	busy, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer busy.Close()
	dir := t.TempDir()
	for _, tc := range []struct {
		name string
		args []string
		code int
		want []string
	}{
		{"port in use", append([]string{"agent", "--id", "a"}, append(simSmall(), "--listen", busy.Addr().String())...), exitFailure, []string{"agent.listen", "address already in use", "port 0"}},
		{"router port in use", []string{"router", "--agent", "a=127.0.0.1:1", "--listen", busy.Addr().String(), "--admin", "127.0.0.1:0"}, exitFailure, []string{"router.listen", "in use"}},
		{"missing library", []string{"agent", "--engine", "llamacpp", "--llama-lib", dir, "--listen", "127.0.0.1:0", "--admin", "127.0.0.1:0"}, exitFailure, []string{"make "}},
		{"no agents", []string{"router"}, exitUsage, []string{"router.agents"}},
		{"bad agent", []string{"router", "--agent", "a"}, exitUsage, []string{"ID=ADDR"}},
		{"unknown flag", []string{"agent", "--nope"}, exitUsage, []string{"--nope", "--help"}},
		{"beyond loopback", []string{"agent", "--engine", "sim", "--listen", "0.0.0.0:0"}, exitUsage, []string{"loopback", "--insecure-plaintext"}},
		{"unreachable admin", []string{"session", "list", "--admin", "127.0.0.1:1"}, exitUnreachable, []string{"--admin"}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			c := command(tc.args...)
			out, err := c.CombinedOutput()
			if err == nil || c.ProcessState.ExitCode() != tc.code {
				t.Errorf("exit code %d (%v), want %d\n%s", c.ProcessState.ExitCode(), err, tc.code, out)
			}
			for _, w := range tc.want {
				if !strings.Contains(string(out), w) {
					t.Errorf("output lacks %q:\n%s", w, out)
				}
			}
		})
	}
}
