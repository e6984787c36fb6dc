// SPDX-License-Identifier: Apache-2.0
// Copyright The Segue Authors

package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/seguekv/segue/health/scrape"
	"github.com/seguekv/segue/router"
)

const (
	// vllmStart is how long a server may take until it serves, on two busy cores.
	vllmStart = 5 * time.Minute
	// vllmMemory is what a server takes, in bytes.
	vllmMemory = 3.6e9
)

// vllmServer is a real `vllm serve` in a process group of its own: the server for HTTP, the engine and its worker.
type vllmServer struct {
	t    *testing.T
	url  string
	cmd  *exec.Cmd
	log  *syncBuffer
	done chan struct{}
}

// needVLLM returns the program that starts a server, and skips where there is none or no room for so many.
func needVLLM(t *testing.T, servers int) string {
	t.Helper()
	slowTest(t)
	skip := t.Skipf
	if os.Getenv("SEGUE_REQUIRE_VLLM") != "" {
		skip = t.Fatalf
	}
	path := os.Getenv("SEGUE_VLLM")
	if path == "" {
		skip("SKIPPED: no real vLLM (SEGUE_VLLM is empty); run: make test-vllm")
	}
	b, err := os.ReadFile("/proc/meminfo")
	if err != nil {
		t.Fatal(err)
	}
	_, rest, _ := strings.Cut(string(b), "MemAvailable:")
	kilobytes, err := strconv.ParseFloat(strings.Fields(rest)[0], 64)
	if err != nil {
		t.Fatal(err)
	}
	if free, need := kilobytes*1024, float64(servers)*vllmMemory; free < need {
		skip("SKIPPED: %d vLLM servers take %.1f GB of memory, %.1f GB are free", servers, need/1e9, free/1e9)
	}
	return path
}

// startVLLM starts servers with the same flags at once, and waits until all serve.
func startVLLM(t *testing.T, servers int, flags ...string) []*vllmServer {
	t.Helper()
	path := needVLLM(t, servers)
	out := make([]*vllmServer, servers)
	for i := range out {
		out[i] = launchVLLM(t, path, flags...)
	}
	for _, s := range out {
		s.serves()
	}
	return out
}

func launchVLLM(t *testing.T, path string, flags ...string) *vllmServer {
	t.Helper()
	// Its folder has a short name: there are sockets in it.
	dir, err := os.MkdirTemp("", "segue-vllm-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	port := quietPort(t)
	s := &vllmServer{t: t, url: "http://127.0.0.1:" + port, log: &syncBuffer{}, done: make(chan struct{})}
	s.cmd = exec.Command(path, append([]string{"--port", port, "--disable-uvicorn-access-log"}, flags...)...)
	s.cmd.Dir = dir
	s.cmd.Env = append(os.Environ(), "TMPDIR="+dir, "HOME="+dir, "XDG_CACHE_HOME="+dir, "XDG_CONFIG_HOME="+dir, "VLLM_CACHE_ROOT="+dir, "HF_HOME="+dir)
	s.cmd.Stdout, s.cmd.Stderr = s.log, s.log
	s.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
	// Its children hold the log open.
	s.cmd.WaitDelay = time.Second
	if err := s.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	go func() { // ends with the process
		_ = s.cmd.Wait()
		close(s.done)
	}()
	t.Cleanup(func() {
		s.kill(syscall.SIGKILL)
		<-s.done
		s.tidied()
		if t.Failed() {
			text := s.log.String()
			t.Logf("vLLM at %s:\n%s", s.url, text[max(0, len(text)-4000):])
		}
	})
	return s
}

// quietPort is one that nobody listens at, and that no outgoing connection is given before a server, which is told its port, binds it.
func quietPort(t *testing.T) string {
	t.Helper()
	for range 100 {
		port := strconv.Itoa(20000 + rand.IntN(12000))
		if l, err := net.Listen("tcp", "127.0.0.1:"+port); err == nil {
			l.Close()
			return port
		}
	}
	t.Fatal("no free port")
	return ""
}

func (s *vllmServer) serves() {
	s.t.Helper()
	within(s.t, vllmStart, "vLLM serves", func() error {
		select {
		case <-s.done:
			s.t.Fatalf("vLLM ended: %v", s.cmd.ProcessState)
		default:
		}
		_, err := s.get("/health")
		return err
	})
}

// within is eventually with a deadline of its own.
func within(t *testing.T, d time.Duration, what string, f func() error) {
	t.Helper()
	begin := time.Now()
	for {
		err := f()
		if err == nil {
			return
		}
		if time.Since(begin) > d {
			t.Fatalf("%s: not within %v: %v", what, d, err)
		}
		time.Sleep(20 * time.Millisecond) // a poll of another process, not a synchronisation
	}
}

// tracker is in the title of the process that removes what the others have in /dev/shm when they have ended.
const tracker = "multiprocessing.resource_tracker"

// kill sends sig to all processes that serve, of which some may be gone.
func (s *vllmServer) kill(sig syscall.Signal) {
	s.t.Helper()
	for pid, title := range s.processes() {
		if !strings.Contains(title, tracker) {
			_ = syscall.Kill(pid, sig)
		}
	}
}

// tidied waits until nothing is left of the group. What was started while others were killed is killed too.
func (s *vllmServer) tidied() {
	deadline := time.Now().Add(10 * time.Second)
	for len(s.processes()) > 0 {
		if s.kill(syscall.SIGKILL); time.Now().After(deadline) {
			_ = syscall.Kill(-s.cmd.Process.Pid, syscall.SIGKILL)
			s.t.Errorf("left of vLLM: %v", s.processes())
			return
		}
		time.Sleep(20 * time.Millisecond) // a poll of other processes
	}
}

// processes are those of the group, by their titles.
func (s *vllmServer) processes() map[int]string {
	s.t.Helper()
	all, err := filepath.Glob("/proc/[0-9]*/cmdline")
	if err != nil {
		s.t.Fatal(err)
	}
	out := map[int]string{}
	for _, name := range all {
		b, err := os.ReadFile(name)
		pid, _ := strconv.Atoi(filepath.Base(filepath.Dir(name)))
		if group, gerr := syscall.Getpgid(pid); err == nil && gerr == nil && group == s.cmd.Process.Pid && len(b) > 0 {
			out[pid] = string(bytes.TrimRight(b, "\x00"))
		}
	}
	return out
}

// process is the process of that title.
func (s *vllmServer) process(title string) int {
	s.t.Helper()
	all := s.processes()
	for pid, is := range all {
		if is == title {
			return pid
		}
	}
	s.t.Fatalf("no process %q of vLLM, there are %v", title, all)
	return 0
}

// stat is a process's state, and how long it has computed.
func (s *vllmServer) stat(pid int) (state string, computed time.Duration) {
	s.t.Helper()
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		s.t.Fatal(err)
	}
	_, rest, _ := strings.Cut(string(b), ") ")
	fields := strings.Fields(rest)
	ticks, err := strconv.Atoi(fields[11]) // utime, in hundredths of a second
	if err != nil {
		s.t.Fatal(err)
	}
	return fields[0], time.Duration(ticks) * 10 * time.Millisecond
}

// computes waits until the worker has computed for that long.
func (s *vllmServer) computes(d time.Duration) {
	s.t.Helper()
	worker := s.process("VLLM::Worker")
	_, before := s.stat(worker)
	eventually(s.t, "the worker computes", func() error {
		if _, now := s.stat(worker); now-before < d {
			return fmt.Errorf("%v so far", now-before)
		}
		return nil
	})
}

func (s *vllmServer) get(path string) ([]byte, error) {
	ctx, cancel := context.WithTimeout(s.t.Context(), 10*time.Second)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, s.url+path, nil)
	if err != nil {
		return nil, err
	}
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		return nil, err
	}
	defer res.Body.Close()
	b, err := io.ReadAll(res.Body)
	if err == nil && res.StatusCode != http.StatusOK {
		err = errors.New(res.Status)
	}
	return b, err
}

// facts reads the server's metrics as segue does.
func (s *vllmServer) facts() scrape.Facts {
	s.t.Helper()
	page, err := s.get("/metrics")
	if err != nil {
		s.t.Fatal(err)
	}
	f, err := scrape.Metrics(scrape.VLLM, page)
	if err != nil {
		s.t.Fatal(err)
	}
	return f
}

// free waits until the server has nothing in flight.
func (s *vllmServer) free() {
	s.t.Helper()
	within(s.t, 5*time.Second, "vLLM has nothing in flight", func() error {
		if f := s.facts(); f.Engines[0].InFlight != 0 {
			return fmt.Errorf("%+v", f.Engines[0])
		}
		return nil
	})
}

// vllmPair is a router before two servers.
type vllmPair struct {
	t       *testing.T
	servers map[string]*vllmServer
	router  *program
}

func newVLLMPair(t *testing.T, flags ...string) *vllmPair {
	t.Helper()
	servers := startVLLM(t, 2, flags...)
	p := &vllmPair{t: t, servers: map[string]*vllmServer{"u1": servers[0], "u2": servers[1]}}
	p.route()
	return p
}

// route starts a router before the servers.
func (p *vllmPair) route(flags ...string) {
	p.t.Helper()
	args := append([]string{"router", "--listen", "127.0.0.1:0", "--admin", "127.0.0.1:0"}, flags...)
	for id, s := range p.servers {
		args = append(args, "--upstream", id+"="+s.url)
	}
	p.router = start(p.t, args...)
	p.ready()
}

func (p *vllmPair) ready() {
	p.t.Helper()
	eventually(p.t, "both servers are ready", func() error {
		for id, n := range p.nodes() {
			if !n.Ready {
				return fmt.Errorf("%s isn't", id)
			}
		}
		return nil
	})
}

// vllmNode is what the router says of a server.
type vllmNode struct {
	ID     string `json:"id"`
	Ready  bool   `json:"ready"`
	Health struct {
		Verdict string   `json:"verdict"`
		Reasons []string `json:"reasons"`
	} `json:"health"`
}

func (p *vllmPair) nodes() map[string]vllmNode {
	p.t.Helper()
	var list []vllmNode
	if err := p.router.get("/v1/agents", &list); err != nil {
		p.t.Fatal(err)
	}
	out := map[string]vllmNode{}
	for _, n := range list {
		out[n.ID] = n
	}
	return out
}

// session waits until the newest session other than that one has begun somewhere.
func (p *vllmPair) session(but string) router.SessionInfo {
	p.t.Helper()
	var info router.SessionInfo
	eventually(p.t, "the session runs", func() error {
		var all []router.SessionInfo
		if err := p.router.get("/v1/sessions", &all); err != nil {
			return err
		}
		if len(all) == 0 || all[0].Primary == "" || all[0].Session == but {
			return errors.New("no session has begun")
		}
		info = all[0]
		return nil
	})
	return info
}

// ask sends a greedy request to a server or router. With stream the answer's end is awaited by read only.
func ask(t *testing.T, ctx context.Context, url, prompt string, tokens int, stream bool) *http.Response {
	t.Helper()
	body := map[string]any{
		"model": "smol", "temperature": 0, "max_tokens": tokens, "ignore_eos": true,
		"messages": []map[string]string{{"role": "user", "content": prompt}},
	}
	if stream {
		body["stream"], body["stream_options"] = true, map[string]bool{"include_usage": true}
	}
	b, err := json.Marshal(body)
	if err != nil {
		t.Fatal(err)
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, url+"/v1/chat/completions", bytes.NewReader(b))
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Content-Type", "application/json")
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { res.Body.Close() })
	return res
}

type vllmUsage struct {
	Prompt     int `json:"prompt_tokens"`
	Completion int `json:"completion_tokens"`
	Total      int `json:"total_tokens"`
}

// vllmAnswer is what a stream came to.
type vllmAnswer struct {
	text, finish string
	deltas, done int
	usage        *vllmUsage
	object       *struct {
		Code      string `json:"code"`
		Cause     string `json:"cause"`
		Partial   bool   `json:"partial_output"`
		Delivered int    `json:"delivered_output_tokens"`
	}
	// after counts events that came after the error.
	after int
}

func (a vllmAnswer) String() string {
	return fmt.Sprintf("{%d deltas %q, finish %q, %d [DONE], usage %+v, error %+v, %d after it}", a.deltas, a.text, a.finish, a.done, a.usage, a.object, a.after)
}

// whole reports whether the answer is complete, with so many tokens.
func (a vllmAnswer) whole(tokens int) bool {
	return a.done == 1 && a.object == nil && a.finish == "length" && a.usage != nil && a.usage.Completion == tokens && a.usage.Total == a.usage.Prompt+tokens && a.usage.Prompt > 0
}

// readVLLM takes the whole stream; at is called after each delta with content. A stream that is cut ends as it is.
func readVLLM(t *testing.T, res *http.Response, at func(deltas int)) vllmAnswer {
	t.Helper()
	var a vllmAnswer
	if res.StatusCode != http.StatusOK {
		b, _ := io.ReadAll(res.Body)
		t.Fatalf("%s: %s", res.Status, b)
	}
	lines := bufio.NewReader(res.Body)
	for {
		line, err := lines.ReadString('\n')
		if err != nil {
			return a
		}
		data, ok := strings.CutPrefix(strings.TrimSpace(line), "data: ")
		if !ok {
			continue
		}
		if a.object != nil {
			a.after++
		}
		if data == "[DONE]" {
			a.done++
			continue
		}
		var chunk struct {
			Choices []struct {
				Delta struct {
					Content string `json:"content"`
				} `json:"delta"`
				Finish string `json:"finish_reason"`
			} `json:"choices"`
			Usage *vllmUsage      `json:"usage"`
			Error json.RawMessage `json:"error"`
		}
		if err := json.Unmarshal([]byte(data), &chunk); err != nil {
			t.Fatalf("%s: %v", data, err)
		}
		if chunk.Error != nil {
			if err := json.Unmarshal(chunk.Error, &a.object); err != nil {
				t.Fatalf("%s: %v", data, err)
			}
		}
		if chunk.Usage != nil {
			a.usage = chunk.Usage
		}
		for _, c := range chunk.Choices {
			if c.Finish != "" {
				a.finish = c.Finish
			}
			if c.Delta.Content != "" {
				a.text += c.Delta.Content
				a.deltas++
				at(a.deltas)
			}
		}
	}
}
