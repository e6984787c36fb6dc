// SPDX-License-Identifier: Apache-2.0
// Copyright The Segue Authors

package main

import (
	"errors"
	"fmt"
	"net/http"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/seguekv/segue/bench/client"
	"github.com/seguekv/segue/router"
)

// 5: kill after a tool call: the action is not executed twice. The tool runner is examples/toolrunner as a process, killed
// after the tool has done the call and before it has stored the result.

func TestR10_5_strict(t *testing.T) {
	t.Run("servers", killAfterServersCall)
	t.Run("text before the call", killAfterTextAndCall)
	t.Run("agents", func(t *testing.T) { killAfterCallInText(t, strict, partNode) })
}

func TestR10_5_protected(t *testing.T) {
	for _, part := range []string{partEngine, partNode} {
		t.Run(part, func(t *testing.T) { killAfterCallInText(t, protected, part) })
	}
}

// toolLab is a router before two servers that call a tool.
type toolLab struct {
	t       *testing.T
	servers map[string]*toolServer
	router  *program
	args    []string
}

func newToolLab(t *testing.T) *toolLab {
	t.Helper()
	slowTest(t)
	server := build(t, "./testdata/toolserver")
	l := &toolLab{t: t, servers: map[string]*toolServer{}}
	l.args = []string{
		"router", "--listen", "127.0.0.1:0", "--admin", "127.0.0.1:0", "--journal", filepath.Join(t.TempDir(), "journal.db"),
		"--set", "router.journal.replay=true",
	}
	for _, id := range []string{"u", "v"} {
		l.servers[id] = startToolServer(t, server)
		l.args = append(l.args, "--upstream", id+"="+l.servers[id].url)
	}
	l.router = start(t, l.args...)
	eventually(t, "both servers are ready", func() error {
		var nodes []struct {
			ID    string
			Ready bool
		}
		if err := l.router.get("/v1/agents", &nodes); err != nil {
			return err
		}
		for _, n := range nodes {
			if !n.Ready {
				return fmt.Errorf("%s isn't", n.ID)
			}
		}
		return nil
	})
	return l
}

// kill ends a server.
func (l *toolLab) kill(id string) {
	l.t.Helper()
	if err := l.servers[id].proc.Process.Kill(); err != nil {
		l.t.Fatal(err)
	}
}

// asked is how many runs there were.
func (l *toolLab) asked() int {
	n := 0
	for _, s := range l.servers {
		n += s.asked
	}
	return n
}

// restart kills the router and starts the next one on its journal.
func (l *toolLab) restart() {
	l.t.Helper()
	l.router.kill(l.t, syscall.SIGKILL)
	<-l.router.done
	l.router = start(l.t, l.args...)
}

// A server dies after its call: nothing of it is forwarded, the other server's answer has the one call. The runner dies after
// the call is done, then the other server, then the router; the request, repeated with its key, and the runner, started
// again, come to the same action.
func killAfterServersCall(t *testing.T) {
	l := newToolLab(t)
	answered := askForTool(t, l.router)
	victim := await(t, l.servers, "called")
	other := map[string]string{"u": "v", "v": "u"}[victim]
	select {
	case a := <-answered:
		t.Fatalf("an answer before its end: %+v", a)
	default:
	}
	l.servers[other].play(t, "whole")
	l.kill(victim)
	await(t, l.servers, "answered")
	first := <-answered
	call, arguments, err := first.call()
	if err != nil {
		t.Fatal(err)
	}
	session := first.header.Get("X-Segue-Session")
	var info router.SessionInfo
	if err := l.router.get("/v1/sessions/"+session, &info); err != nil || len(info.Attempts) != 2 || info.Attempts[0].Node != victim || info.Attempts[0].Cause == "" || info.Attempts[1].Node != other {
		t.Errorf("the kill had no effect: %+v, %v", info.Attempts, err)
	}
	run := toolRun{t: t, program: build(t, "../../examples/toolrunner"), till: newTill(t), session: session, call: call, arguments: arguments}
	run.killedAfterTheCall(l.router)
	l.kill(other)
	l.restart()
	again := <-askForTool(t, l.router)
	if id, args, err := again.call(); err != nil || id != call || args != arguments || again.header.Get("X-Segue-Session") != session || again.header.Get("Idempotent-Replayed") != "true" {
		t.Errorf("the repeated request gets call %q with %q in session %q, first it was %q with %q in %q; %v", id, args, again.header.Get("X-Segue-Session"), call, arguments, session, err)
	}
	if n := l.asked(); n != 2 {
		t.Errorf("%d runs, want 2", n)
	}
	run.again(l.router)
}

// Text was delivered before the call: the answer ends in the error, there is nothing to execute, and neither the server that is
// left nor a later router runs it again.
func killAfterTextAndCall(t *testing.T) {
	l := newToolLab(t)
	for _, s := range l.servers {
		s.play(t, "text")
	}
	answered := askForTool(t, l.router)
	victim := await(t, l.servers, "called")
	eventually(t, "the text is delivered", func() error {
		var all []router.SessionInfo
		if err := l.router.get("/v1/sessions", &all); err != nil {
			return err
		}
		if len(all) != 1 || !all[0].FirstDeltaSent {
			return errors.New("not yet")
		}
		return nil
	})
	l.kill(victim)
	first := <-answered
	if first.status != http.StatusOK || !strings.Contains(first.body, "I shall pay. ") || !strings.Contains(first.body, "upstream_decode_interrupted") ||
		strings.Contains(first.body, "tool_calls") || strings.Contains(first.body, "[DONE]") {
		t.Errorf("the answer is %+v", first)
	}
	for n := range 2 {
		a := <-askForTool(t, l.router)
		if a.status != http.StatusBadGateway || !strings.Contains(a.body, "upstream_decode_interrupted") || strings.Contains(a.body, "tool_calls") {
			t.Errorf("repetition %d: %+v", n, a)
		}
		if n == 0 {
			l.restart()
		}
	}
	var left map[string]*toolServer
	for id, s := range l.servers {
		if id != victim {
			left = map[string]*toolServer{id: s}
		}
	}
	// What the server that is left was asked shows: it says so before it answers this one.
	l.servers[victim] = &toolServer{asked: l.servers[victim].asked}
	for id, s := range left {
		s.play(t, "whole")
		res, err := http.Post(s.url+"/v1/chat/completions", "application/json", strings.NewReader("{}"))
		if err != nil {
			t.Fatal(err)
		}
		res.Body.Close()
		await(t, left, "answered")
		if s.asked != 1 {
			t.Errorf("%s was asked %d times", id, s.asked-1)
		}
	}
}

// An agent's engine dies after a call that the client read from the text and had done. Protected, the answer goes on as if
// nothing had happened; strict, it ends in the error and nobody generates it again. Either way the call was done once.
func killAfterCallInText(t *testing.T, mode, part string) {
	const called = 12 // tokens until the call is complete
	want := expected{client.Refused, []string{undisturbed}}
	if mode == protected {
		want = expected{client.Identical, []string{takenOver}}
	}
	slowTest(t)
	runner := build(t, "../../examples/toolrunner")
	r := newRig(t, rigConfig{agent: []string{"--set", "agent.engine.sim.step=15ms"}})
	body := r.chat("Pay for the clocks.", 105, 250)
	ref := r.reference(body)
	s := r.stream(body, mode)
	victim := r.primary(s)
	other := r.other(victim)
	before := r.prefilled(other)
	s.await(t, called)
	info := r.record(s, "the session is known", func(i router.SessionInfo) bool { return i.Session != "" })
	run := toolRun{t: t, program: runner, till: newTill(t), session: info.Session, call: "call_0", arguments: `{"eur": 5}`}
	run.killedAfterTheCall(r.router)
	if s.ended() {
		t.Fatal("the answer was over before the kill")
	}
	engine := r.enginePID(victim)
	r.signal(victim, part, syscall.SIGKILL)
	r.check(s, ref, want)
	r.gone(engine)
	if after := r.prefilled(other); mode == strict && after != before {
		t.Errorf("%s computed %v prompt tokens: the answer was generated a second time", other, after-before)
	}
	run.again(r.router)
}
