// SPDX-License-Identifier: Apache-2.0
// Copyright The Segue Authors

package cluster

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// Cluster is a running installation. Its methods are for the goroutine that runs Run's body, except URL and Router.
type Cluster struct {
	cfg    Config
	nodes  []*node
	router *process
	addr   announcement
	admin  *Admin
}

// Run starts the nodes and the router, waits until all of them are ready, calls body, and ends everything it started,
// whatever happened, before it returns. It makes the calling process a subreaper, so that orphaned engine hosts are
// waited for too. It returns body's error, or why the set-up failed.
func Run(ctx context.Context, cfg Config, body func(context.Context, *Cluster) error) error {
	if err := cfg.Validate(); err != nil {
		return err
	}
	if err := unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0); err != nil {
		cfg.Logf("cannot become a subreaper (%v): killed engine hosts may stay as zombies until this program ends", err)
	}
	c := &Cluster{cfg: cfg}
	defer c.stop()
	if err := c.start(ctx); err != nil {
		return fmt.Errorf("start cluster: %w", err)
	}
	return body(ctx, c)
}

func (c *Cluster) start(ctx context.Context) error {
	for _, id := range c.cfg.Nodes {
		n := &node{id: id, config: filepath.Join(c.cfg.Dir, "node-"+id+".yaml")}
		if err := os.WriteFile(n.config, []byte(c.cfg.Engine.agentYAML()), 0o600); err != nil {
			return fmt.Errorf("write configuration of node %s: %w", id, err)
		}
		c.nodes = append(c.nodes, n)
		begun := time.Now()
		if err := c.startNode(ctx, n); err != nil {
			return err
		}
		c.note("node "+id+" ready", begun, n.addr.listen)
	}
	begun := time.Now()
	if err := c.startRouter(ctx); err != nil {
		return err
	}
	if err := c.awaitMembership(ctx); err != nil {
		return err
	}
	c.note("router ready", begun, c.URL())
	return nil
}

func (c *Cluster) note(name string, begun time.Time, where string) {
	c.cfg.OnStep(Step{Name: name, Took: time.Since(begun), Where: where})
}

func (c *Cluster) startRouter(ctx context.Context) error {
	args := []string{c.cfg.Binary, "router", "--listen", "127.0.0.1:0", "--admin", "127.0.0.1:0"}
	for _, n := range c.nodes {
		args = append(args, "--agent", n.id+"="+n.addr.listen)
	}
	var err error
	if c.router, err = spawn("router", c.logPath("router"), args); err != nil {
		return err
	}
	if c.addr, err = c.open(ctx, c.router, announcement{}); err != nil {
		return err
	}
	c.admin = NewAdmin(c.addr.admin)
	return nil
}

// awaitMembership waits until the router sees every node's present life as ready, and would give it sessions.
func (c *Cluster) awaitMembership(ctx context.Context) error {
	return c.poll(ctx, "the router to see all nodes", func(ctx context.Context) error {
		if !c.router.running() {
			return permanent(c.router.exitError())
		}
		seen, err := c.admin.Agents(ctx)
		if err != nil {
			return err
		}
		byID := make(map[string]AgentView, len(seen))
		for _, a := range seen {
			byID[a.ID] = a
		}
		for _, n := range c.nodes {
			if !n.proc.running() {
				return permanent(n.proc.exitError())
			}
			info, err := n.admin.Node(ctx)
			if err != nil {
				return err
			}
			switch view := byID[n.id]; {
			case !view.Ready:
				return fmt.Errorf("node %s is not ready: %s", n.id, view.Reason)
			case view.BootID != info.BootID || view.EngineBootID != info.EngineBootID:
				return fmt.Errorf("the router still sees an earlier life of node %s", n.id)
			case view.ExcludedFor > 0:
				return fmt.Errorf("the router gives node %s nothing for %.1f s more, because of what failed there", n.id, view.ExcludedFor)
			}
		}
		return c.admin.Ready(ctx)
	})
}

// stop ends everything, the router first so that it does not report dying agents.
func (c *Cluster) stop() {
	if c.router != nil {
		c.router.stop()
	}
	var all sync.WaitGroup
	for _, n := range c.nodes {
		if n.proc != nil {
			all.Go(n.proc.stop)
		}
	}
	all.Wait()
}

func (c *Cluster) node(id string) (*node, error) {
	for _, n := range c.nodes {
		if n.id == id {
			return n, nil
		}
	}
	return nil, fmt.Errorf("no node %q in this cluster", id)
}

func (c *Cluster) logPath(name string) string { return filepath.Join(c.cfg.Dir, name+".log") }

// URL is the base address of the router's client API.
func (c *Cluster) URL() string { return "http://" + c.addr.listen }

// AdminURL is the base address of the router's admin listener.
func (c *Cluster) AdminURL() string { return "http://" + c.addr.admin }

// Process is a node's process group.
type Process struct {
	Node  string
	Group int
}

// Processes are the process groups of the nodes in their present lives.
func (c *Cluster) Processes() []Process {
	list := make([]Process, 0, len(c.nodes))
	for _, n := range c.nodes {
		list = append(list, Process{Node: n.id, Group: n.proc.pid})
	}
	return list
}

// Router is the router's admin listener.
func (c *Cluster) Router() *Admin { return c.admin }

// Dir is the directory of configurations and logs.
func (c *Cluster) Dir() string { return c.cfg.Dir }

// Nodes are the ids of the nodes in their order of start.
func (c *Cluster) Nodes() []string { return c.cfg.Nodes }

// Counters reads the metrics of a node's agent.
func (c *Cluster) Counters(ctx context.Context, id string) (Counters, error) {
	n, err := c.node(id)
	if err != nil {
		return nil, err
	}
	return n.admin.Counters(ctx)
}

// CPU is the processor time that all processes of the cluster have used in their present lives.
func (c *Cluster) CPU() (time.Duration, error) {
	groups := make([]int, 0, len(c.nodes)+1)
	for _, n := range c.nodes {
		groups = append(groups, n.proc.pid)
	}
	return groupCPU("/proc", append(groups, c.router.pid))
}

// permanentError ends a poll at once.
type permanentError struct{ error }

func (e permanentError) Unwrap() error { return e.error }

func permanent(err error) error { return permanentError{err} }

// poll calls try until it succeeds, fails for good, or ReadyTimeout has passed; it reports what it waits for once a second.
func (c *Cluster) poll(ctx context.Context, what string, try func(context.Context) error) error {
	const every = 20 * time.Millisecond
	ctx, cancel := context.WithTimeoutCause(ctx, c.cfg.ReadyTimeout, fmt.Errorf("not within %v", c.cfg.ReadyTimeout))
	defer cancel()
	begun := time.Now()
	said := begun
	tick := time.NewTicker(every)
	defer tick.Stop()
	last := errors.New("none")
	for {
		err := try(ctx)
		if err == nil {
			return nil
		}
		if ctx.Err() == nil {
			last = err // a call that the deadline cut short says nothing new
		}
		if p, ok := errors.AsType[permanentError](err); ok {
			return p.error
		}
		if time.Since(said) >= time.Second {
			said = time.Now()
			c.cfg.Logf("%6.2f s  waiting for %s: %v", time.Since(begun).Seconds(), what, last)
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return fmt.Errorf("wait for %s: %w (last answer: %v)", what, context.Cause(ctx), last)
		}
	}
}
