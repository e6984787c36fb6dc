// SPDX-License-Identifier: Apache-2.0
// Copyright The Segue Authors

package cluster

import (
	"context"
	"errors"
	"fmt"
	"syscall"
	"time"

	"golang.org/x/sync/errgroup"
)

// Target is the part of a node that a shot hits.
type Target string

const (
	// TargetNode is one SIGKILL to the agent's process group: agent and engine host at the same time.
	TargetNode Target = "node"
	// TargetEngine is the engine host alone.
	TargetEngine Target = "engine"
	// TargetAgent is the agent alone; its engine host ends by itself.
	TargetAgent Target = "agent"
	// TargetHang stops the engine host where it is, with SIGSTOP; Shot.Thaw lets it go on.
	TargetHang Target = "hang"
)

// ParseTarget reads the spelling of the command line.
func ParseTarget(s string) (Target, error) {
	switch t := Target(s); t {
	case TargetNode, TargetEngine, TargetAgent, TargetHang:
		return t, nil
	}
	return "", fmt.Errorf("unknown kill target %q: use node, engine, agent or hang", s)
}

// node is one agent and what is needed to start it again. Only the goroutine of Run's body uses it.
type node struct {
	id     string
	config string // path of the configuration file
	addr   announcement
	admin  *Admin
	proc   *process
}

// Shot is an aimed kill: everything that has to be looked up is known before Fire, so Fire is one system call.
type Shot struct {
	Node   string
	Target Target

	proc       *process
	enginePID  int
	engineBoot string
}

// Fire kills, and returns the instant just before the call.
func (s *Shot) Fire() (time.Time, error) {
	at := time.Now()
	var err error
	switch s.Target {
	case TargetNode:
		err = s.proc.killGroup(syscall.SIGKILL)
	case TargetAgent:
		err = s.proc.killLeader()
	case TargetEngine:
		err = ignoreGone(syscall.Kill(s.enginePID, syscall.SIGKILL))
	case TargetHang:
		err = syscall.Kill(s.enginePID, syscall.SIGSTOP)
	}
	if err != nil {
		return at, fmt.Errorf("kill %s of node %s: %w", s.Target, s.Node, err)
	}
	return at, nil
}

// Aim prepares a shot at a ready node.
func (c *Cluster) Aim(ctx context.Context, id string, target Target) (*Shot, error) {
	n, err := c.node(id)
	if err != nil {
		return nil, err
	}
	info, err := n.admin.Node(ctx)
	if err != nil {
		return nil, fmt.Errorf("aim at node %s: %w", id, err)
	}
	if (target == TargetEngine || target == TargetHang) && info.EnginePID <= 0 {
		return nil, fmt.Errorf("aim at node %s: its agent reports no engine process", id)
	}
	return &Shot{Node: id, Target: target, proc: n.proc, enginePID: info.EnginePID, engineBoot: info.EngineBootID}, nil
}

// Recover restores what shots at different nodes took away, and returns when the whole cluster is ready again. An agent
// is started with the addresses it had, because the router's list of agents is static; a lost engine host is its agent's
// business.
func (c *Cluster) Recover(ctx context.Context, shots ...*Shot) error {
	var all errgroup.Group
	for _, s := range shots {
		all.Go(func() error { return c.restore(ctx, s) })
	}
	if err := all.Wait(); err != nil {
		return err
	}
	return c.awaitMembership(ctx)
}

// restore returns when the node that a shot hit is ready again.
func (c *Cluster) restore(ctx context.Context, s *Shot) error {
	n, err := c.node(s.Node)
	if err != nil {
		return err
	}
	switch s.Target {
	case TargetHang:
		_, err = c.Thaw(ctx, s)
	case TargetEngine:
		err = c.poll(ctx, fmt.Sprintf("node %s to restart its engine", n.id), func(ctx context.Context) error {
			if !n.proc.running() {
				return permanent(n.proc.exitError())
			}
			info, err := n.admin.Node(ctx)
			if err == nil && (info.EngineBootID == s.engineBoot || !info.Ready) {
				err = errors.New("the engine is not up")
			}
			return err
		})
	default:
		s.proc.release()
		err = c.startNode(ctx, n)
	}
	if err != nil {
		return fmt.Errorf("recover node %s: %w", n.id, err)
	}
	return nil
}

// Supervise starts agents again that ended, whoever killed them, until ctx ends; then it returns nil.
func (c *Cluster) Supervise(ctx context.Context) error {
	tick := time.NewTicker(200 * time.Millisecond)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-c.router.exited:
			return c.router.exitError()
		case <-tick.C:
		}
		for _, n := range c.nodes {
			if n.proc.running() {
				continue
			}
			c.cfg.Logf("node %s ended (%s), starting it again", n.id, n.proc.cmd.ProcessState)
			n.proc.release()
			if err := c.startNode(ctx, n); ctx.Err() != nil {
				return nil
			} else if err != nil {
				return err
			}
			c.cfg.Logf("node %s is ready again, process group %d", n.id, n.proc.pid)
		}
	}
}

// startNode starts an agent and waits until it is ready. The first start takes any ports; later ones the same again.
func (c *Cluster) startNode(ctx context.Context, n *node) error {
	const attempts = 4 // a port that was just given up may be taken for a moment by an outgoing connection
	var err error
	for range attempts {
		if err = c.tryStartNode(ctx, n); err == nil {
			return nil
		}
		if _, died := errors.AsType[*ExitError](err); !died || n.addr.listen == "" {
			return err
		}
		n.proc.release()
		pause(250 * time.Millisecond)
	}
	return err
}

func (c *Cluster) tryStartNode(ctx context.Context, n *node) error {
	listen, admin := "127.0.0.1:0", "127.0.0.1:0"
	if n.addr.listen != "" {
		listen, admin = n.addr.listen, n.addr.admin
	}
	proc, err := spawn("node "+n.id, c.logPath("node-"+n.id), []string{
		c.cfg.Binary, "agent", "--config", n.config, "--id", n.id, "--listen", listen, "--admin", admin,
	})
	if err != nil {
		return err
	}
	n.proc = proc
	if n.addr, err = c.open(ctx, proc, n.addr); err != nil {
		return err
	}
	n.admin = NewAdmin(n.addr.admin)
	return c.poll(ctx, "node "+n.id, func(ctx context.Context) error {
		if !proc.running() {
			return permanent(proc.exitError())
		}
		return n.admin.Ready(ctx)
	})
}

// open waits for the start line and checks it against the addresses asked for, if any.
func (c *Cluster) open(ctx context.Context, p *process, asked announcement) (announcement, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, c.cfg.ReadyTimeout, errors.New("timed out"))
	defer cancel()
	got, err := p.awaitAnnouncement(ctx)
	if err != nil {
		return asked, err
	}
	if asked.listen != "" && got != asked {
		return asked, fmt.Errorf("%s listens on %s and %s instead of %s and %s", p.name, got.listen, got.admin, asked.listen, asked.admin)
	}
	return got, nil
}
