// SPDX-License-Identifier: Apache-2.0
// Copyright The Segue Authors

package main

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/seguekv/segue/bench/client"
	"github.com/seguekv/segue/bench/cluster"
	"github.com/seguekv/segue/router"
)

// Protection wishes under the names of the scenarios.
const (
	strict    = client.ProtectionOff
	protected = client.ProtectionSync
)

// rigConfig describes a cluster of real processes.
type rigConfig struct {
	// real asks for llama.cpp; without its parts it is sim.
	real bool
	// agent and router are further flags of every agent and of the router.
	agent, router []string
	// node are still more flags, of one agent each.
	node map[string][]string
}

// rig is two agents with a wire before each, a router, and clients, with a trace of what was done to them.
type rig struct {
	t      *testing.T
	engine string
	model  string
	ids    []string
	nodes  map[string]*program
	wires  map[string]*wire
	router *program
	admin  *cluster.Admin
	client *client.Client

	// mu guards the rest, which clients write too.
	mu      sync.Mutex
	begun   time.Time
	trace   []string
	streams []*stream
}

// slowTest skips tests that start clusters where only quick ones are wanted.
func slowTest(t *testing.T) {
	t.Helper()
	if testing.Short() {
		t.Skip("starts processes and kills them; runs without -short")
	}
}

// realEngine returns the flags of agents on llama.cpp, or false where a part is missing.
func realEngine(t *testing.T) ([]string, bool) {
	t.Helper()
	lib, model := os.Getenv("SEGUE_LLAMA_LIB"), os.Getenv("SEGUE_LLAMA_MODEL")
	bin, err := filepath.Abs("../../bin")
	if err == nil {
		_, err = os.Stat(filepath.Join(bin, "segue-llamacpp"))
	}
	if lib == "" || model == "" || err != nil {
		if os.Getenv("SEGUE_REQUIRE_MODEL") != "" {
			t.Fatalf("SEGUE_REQUIRE_MODEL is set and llama.cpp isn't complete (library %q, model %q, %v); run: make deps build", lib, model, err)
		}
		return nil, false
	}
	t.Setenv("PATH", bin+string(os.PathListSeparator)+os.Getenv("PATH"))
	// Short compute calls: also a machine with a tenth of its time left sees each of them end.
	return []string{"--engine", "llamacpp", "--model", model, "--llama-lib", lib, "--set", "agent.engine.prefill_chunk=16"}, true
}

func newRig(t *testing.T, c rigConfig) *rig {
	t.Helper()
	slowTest(t)
	r := &rig{t: t, engine: cluster.EngineSim, ids: []string{"a", "b"}, begun: time.Now(), nodes: map[string]*program{}, wires: map[string]*wire{}}
	flags := simSmall()
	if c.real {
		if args, ok := realEngine(t); ok {
			flags, r.engine = append(args, "--listen", "127.0.0.1:0", "--admin", "127.0.0.1:0"), cluster.EngineLlamaCPP
		}
		t.Logf("engine: %s", r.engine)
	}
	members := []string{"router", "--listen", "127.0.0.1:0", "--admin", "127.0.0.1:0"}
	for _, id := range r.ids {
		r.nodes[id] = start(t, slices.Concat([]string{"agent", "--id", id}, flags, c.agent, c.node[id])...)
		r.wires[id] = newWire(t, id, r.nodes[id].listen)
		members = append(members, "--agent", id+"="+r.wires[id].addr())
	}
	r.router = start(t, append(members, c.router...)...)
	r.open()
	return r
}

// open connects to the router once every agent is ready.
func (r *rig) open() {
	t := r.t
	t.Helper()
	r.admin, r.client = cluster.NewAdmin(r.router.admin), client.New("http://"+r.router.listen)
	t.Cleanup(r.client.Close)
	r.allReady()
	var err error
	if r.model, err = r.client.Model(t.Context()); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { // before the processes are ended
		if t.Failed() {
			r.keep()
		}
	})
}

// allReady waits until the router sees every agent ready.
func (r *rig) allReady() {
	r.t.Helper()
	eventually(r.t, "router sees all agents ready", func() error {
		agents, err := r.admin.Agents(r.t.Context())
		for _, a := range agents {
			if !a.Ready {
				return fmt.Errorf("%s is not ready: %s", a.ID, a.Reason)
			}
		}
		return err
	})
}

// within is the same rig for a subtest: its failures are the subtest's.
func (r *rig) within(t *testing.T) *rig {
	in := &rig{
		t: t, engine: r.engine, model: r.model, ids: r.ids, nodes: r.nodes, wires: r.wires, router: r.router,
		admin: r.admin, client: r.client, begun: r.begun,
	}
	t.Cleanup(func() {
		if t.Failed() {
			in.keep()
		}
	})
	return in
}

// note adds a line to the trace.
func (r *rig) note(format string, args ...any) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.trace = append(r.trace, fmt.Sprintf("%8.1f ms  %s", float64(time.Since(r.begun).Microseconds())/1000, fmt.Sprintf(format, args...)))
}

// other is the node beside id.
func (r *rig) other(id string) string {
	for _, o := range r.ids {
		if o != id {
			return o
		}
	}
	return ""
}

// What a signal goes to.
const (
	partNode   = "node"
	partEngine = "engine"
	partAgent  = "agent"
)

// signal sends sig to a part of a node. It returns the part's process id, a node's being its agent's.
func (r *rig) signal(id, part string, sig syscall.Signal) int {
	r.t.Helper()
	p := r.nodes[id]
	pid := p.cmd.Process.Pid
	switch part {
	case partNode:
		r.note("%v to node %s", sig, id)
		p.kill(r.t, sig)
		return pid
	case partEngine:
		pid = r.enginePID(id)
	}
	r.signalPID(id, part, pid, sig)
	return pid
}

// signalPID sends sig to a process whose id was read before: a stopped agent can't be asked for its engine's.
func (r *rig) signalPID(id, part string, pid int, sig syscall.Signal) {
	r.t.Helper()
	r.note("%v to %s of node %s, process %d", sig, part, id, pid)
	if err := syscall.Kill(pid, sig); err != nil {
		r.t.Fatalf("%v to %s of %s: %v", sig, part, id, err)
	}
}

func (r *rig) enginePID(id string) int {
	r.t.Helper()
	n, err := cluster.NewAdmin(r.nodes[id].admin).Node(r.t.Context())
	if err != nil || n.EnginePID <= 0 {
		r.t.Fatalf("engine of %s: process %d, %v", id, n.EnginePID, err)
	}
	return n.EnginePID
}

// gone waits until a process has ended.
func (r *rig) gone(pid int) {
	r.t.Helper()
	eventually(r.t, fmt.Sprintf("process %d ends", pid), func() error {
		stat, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/stat")
		if err != nil || strings.Contains(string(stat), ") Z ") || strings.Contains(string(stat), ") X ") {
			return nil
		}
		return errors.New("it lives")
	})
}

// listed is a session in an agent's listing.
type listed struct {
	Session   string
	Epoch     uint64
	Role      string
	State     string
	Protected bool
	Prompt    int `json:"prompt_tokens"`
	Captured  int
	Sent      int
	Committed int
}

// primaries are the sessions that an agent works on or has worked on lately.
func (r *rig) primaries(id string) (map[string]listed, error) {
	var all []listed
	if err := r.nodes[id].get("/v1/sessions", &all); err != nil {
		return nil, err
	}
	out := map[string]listed{}
	for _, s := range all {
		if s.Role == "primary" {
			out[s.Session] = s
		}
	}
	return out, nil
}

// ended waits until a node's run of the session is over, and fails the test if that is because it was complete.
func (r *rig) ended(t *testing.T, what, node, session string) {
	t.Helper()
	eventually(t, what, func() error {
		all, err := r.primaries(node)
		if err != nil {
			return err
		}
		switch l := all[session]; l.State {
		case "", "failed":
			return nil
		case "finished":
			t.Fatalf("%s: it went on to its end: %+v", what, l)
			return nil
		default:
			return fmt.Errorf("%+v", l)
		}
	})
}

// records are the router's sessions by their seed, the newest of each.
func (r *rig) records() (map[uint64]router.SessionInfo, error) {
	var list []router.SessionInfo // newest first
	if err := r.router.get("/v1/sessions", &list); err != nil {
		return nil, err
	}
	out := map[uint64]router.SessionInfo{}
	for _, i := range list {
		if _, ok := out[i.Seed]; !ok {
			out[i.Seed] = i
		}
	}
	return out, nil
}

// idle waits until the agents have no run and hold nothing: what was cancelled has really ended.
func (r *rig) idle(ids ...string) {
	r.t.Helper()
	for _, id := range ids {
		eventually(r.t, "node "+id+" is idle", func() error {
			c, err := cluster.NewAdmin(r.nodes[id].admin).Counters(r.t.Context())
			if err != nil {
				return err
			}
			for _, name := range []string{"segue_agent_contexts_used", "segue_engine_running", "segue_agent_held_sessions"} {
				if v, ok := c[name]; !ok || v != 0 {
					return fmt.Errorf("%s is %v (present: %t)", name, v, ok)
				}
			}
			return nil
		})
	}
}

// prefilled is how many prompt tokens a node's present engine process has computed.
func (r *rig) prefilled(id string) float64 {
	r.t.Helper()
	c, err := cluster.NewAdmin(r.nodes[id].admin).Counters(r.t.Context())
	v, ok := c[cluster.MetricPrefillTokens]
	if err != nil || !ok {
		r.t.Fatalf("counter of %s: %v", id, err)
	}
	return v
}
