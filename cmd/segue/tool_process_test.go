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
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"
)

// build compiles a program of this module.
func build(t *testing.T, dir string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), filepath.Base(dir))
	if out, err := exec.Command("go", "build", "-o", path, dir).CombinedOutput(); err != nil {
		t.Fatalf("build %s: %v\n%s", dir, err, out)
	}
	return path
}

// till is a tool that counts what it did, and says for an action whether it is done.
type till struct {
	*httptest.Server
	mu       sync.Mutex
	executed map[string]int
	// called hears of each call, after it was done; the first call's answer never comes.
	called chan string
}

func newTill(t *testing.T) *till {
	k := &till{executed: map[string]int{}, called: make(chan string, 64)}
	k.Server = httptest.NewServer(k)
	t.Cleanup(k.Close)
	return k
}

func (k *till) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	action := r.URL.Query().Get("action")
	k.mu.Lock()
	first := false
	if r.URL.Path == "/do" {
		first = len(k.executed) == 0
		k.executed[action]++
	}
	done := k.executed[action] > 0
	k.mu.Unlock()
	if r.URL.Path == "/do" {
		_, _ = io.Copy(io.Discard, r.Body) // the server notices who leaves only then
		k.called <- action
	}
	switch {
	case first:
		<-r.Context().Done()
	case !done:
		w.WriteHeader(http.StatusNotFound)
	default:
		_, _ = io.WriteString(w, `{"receipt":1}`)
	}
}

// times is how often an action was done, and how many actions there are.
func (k *till) times(action string) (n, actions int) {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.executed[action], len(k.executed)
}

// toolRun is the example tool runner, for one call of one answer.
type toolRun struct {
	t                        *testing.T
	program                  string
	till                     *till
	session, call, arguments string
}

func (r toolRun) command(router *program) *exec.Cmd {
	return exec.Command(r.program, "-router", "http://"+router.listen, "-tool", r.till.URL, "-request", r.session, "-call", r.call, "-arguments", r.arguments)
}

// killedAfterTheCall runs it until the tool has done the call, and kills it before it hears of that.
func (r toolRun) killedAfterTheCall(router *program) {
	r.t.Helper()
	c := r.command(router)
	said := new(syncBuffer)
	c.Stdout, c.Stderr = said, said
	if err := c.Start(); err != nil {
		r.t.Fatal(err)
	}
	defer func() { _ = c.Process.Kill() }()
	select {
	case action := <-r.till.called:
		if action != r.session+":"+r.call {
			r.t.Errorf("the tool was called for %q", action)
		}
	case <-time.After(time.Minute):
		r.t.Fatalf("the tool was not called: %s", said)
	}
	if err := c.Process.Kill(); err != nil {
		r.t.Fatal(err)
	}
	if err := c.Wait(); err == nil {
		r.t.Fatalf("the runner ended well: %s", said)
	}
}

// again runs it to its end, twice: it finds the result, and the call was done once.
func (r toolRun) again(router *program) {
	r.t.Helper()
	for range 2 {
		out, err := r.command(router).CombinedOutput()
		if err != nil || strings.TrimSpace(string(out)) != `{"receipt":1}` {
			r.t.Errorf("the runner started again: %v: %s", err, out)
		}
	}
	if n, all := r.till.times(r.session + ":" + r.call); n != 1 || all != 1 {
		r.t.Errorf("the call was done %d times, %d actions", n, all)
	}
}

// toolServer is an upstream process that calls a tool.
type toolServer struct {
	url  string
	proc *exec.Cmd
	// lines are what it says that it did.
	lines chan string
	asked int
}

func startToolServer(t *testing.T, program string) *toolServer {
	t.Helper()
	s := &toolServer{proc: exec.CommandContext(t.Context(), program), lines: make(chan string, 256)}
	out, err := s.proc.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := s.proc.Start(); err != nil {
		t.Fatal(err)
	}
	scanner := bufio.NewScanner(out)
	if !scanner.Scan() {
		t.Fatal("the server said nothing")
	}
	s.url = strings.TrimPrefix(scanner.Text(), "listening ")
	read := make(chan struct{})
	go func() { // ends with the process
		defer close(read)
		defer close(s.lines)
		for scanner.Scan() {
			s.lines <- scanner.Text()
		}
	}()
	t.Cleanup(func() {
		_ = s.proc.Process.Kill()
		<-read
		_ = s.proc.Wait()
	})
	return s
}

func (s *toolServer) play(t *testing.T, part string) {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodPut, s.url+"/play/"+part, nil)
	if err != nil {
		t.Fatal(err)
	}
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	res.Body.Close()
}

// await waits until one of the servers says the word, and returns which.
func await(t *testing.T, servers map[string]*toolServer, word string) (id string) {
	t.Helper()
	eventually(t, "a server says "+word, func() error {
		for name, s := range servers {
			for heard := true; heard; {
				select {
				case line, open := <-s.lines:
					heard = open
					if line == "asked" {
						s.asked++
					}
					if line == word {
						id = name
						return nil
					}
				default:
					heard = false
				}
			}
		}
		return errors.New("none does")
	})
	return id
}

// toolAnswer is a chat's answer, read whole.
type toolAnswer struct {
	status int
	header http.Header
	body   string
	err    error
}

// askForTool sends the request that calls for a tool, always the same, with an Idempotency-Key.
func askForTool(t *testing.T, router *program) <-chan toolAnswer {
	t.Helper()
	const body = `{"model":"tools","stream":true,"messages":[{"role":"user","content":"pay"}],` +
		`"tools":[{"type":"function","function":{"name":"pay","parameters":{"type":"object"}}}]}`
	req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, "http://"+router.listen+"/v1/chat/completions", strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Idempotency-Key", "order-1")
	answered := make(chan toolAnswer, 1)
	go func() { // ends with the answer
		res, err := http.DefaultClient.Do(req)
		if err != nil {
			answered <- toolAnswer{err: err}
			return
		}
		defer res.Body.Close()
		b, err := io.ReadAll(res.Body)
		answered <- toolAnswer{res.StatusCode, res.Header, string(b), err}
	}()
	return answered
}

// call is the one tool call of an answer: its id and its arguments.
func (a toolAnswer) call() (id, arguments string, err error) {
	var finish strings.Builder
	for line := range strings.Lines(a.body) {
		data, ok := strings.CutPrefix(line, "data: {")
		if !ok {
			continue
		}
		var c struct {
			Choices []struct {
				Delta struct {
					Calls []struct {
						Index    int
						ID       string
						Function struct{ Arguments string }
					} `json:"tool_calls"`
				}
				Finish string `json:"finish_reason"`
			}
		}
		if err := json.Unmarshal([]byte("{"+data), &c); err != nil {
			return "", "", err
		}
		for _, choice := range c.Choices {
			finish.WriteString(choice.Finish)
			for _, d := range choice.Delta.Calls {
				if d.Index > 0 {
					return "", "", errors.New("a second call")
				}
				id += d.ID
				arguments += d.Function.Arguments
			}
		}
	}
	if a.err != nil || a.status != http.StatusOK || id == "" || finish.String() != "tool_calls" || !strings.HasSuffix(a.body, "data: [DONE]\n\n") {
		return id, arguments, fmt.Errorf("no whole answer with a call: %+v", a)
	}
	return id, arguments, nil
}
