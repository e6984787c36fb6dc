// SPDX-License-Identifier: Apache-2.0
// Copyright The Segue Authors

package link

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/seguekv/segue/engines"
)

// Defaults of ProcessConfig.
const (
	defaultBackoffMin   = 100 * time.Millisecond
	defaultBackoffMax   = 5 * time.Second
	defaultStartTimeout = 10 * time.Minute
)

// endGrace is how long a child may take to exit after its link is closed.
const endGrace = 2 * time.Second

// ProcessConfig says how to run an engine host. Only Command is required.
type ProcessConfig struct {
	// Command is the program and its arguments. The program calls ServeInherited.
	Command []string
	// Env is added to the agent's environment.
	Env []string
	// Stderr receives what the child writes to stdout and stderr, from one goroutine; nil drops it.
	Stderr io.Writer
	// BackoffMin is the pause before the first restart, default 100 ms. It doubles up to BackoffMax, default
	// 5 s, and falls back once a child has lived for BackoffMax.
	BackoffMin, BackoffMax time.Duration
	// StartTimeout bounds the time from start to hello, in which the host loads its model; default 10 min.
	StartTimeout time.Duration
	// Log receives starts and losses; nil drops them.
	Log *slog.Logger
}

// Process keeps an engine host running as a child process. Its methods may be called concurrently.
type Process struct {
	cfg ProcessConfig

	mu      sync.Mutex
	client  *Client
	err     error // the last failure, while client is nil
	pid     int
	changed chan struct{}
}

// NewProcess returns a process that Run starts.
func NewProcess(c ProcessConfig) *Process {
	if c.BackoffMin <= 0 {
		c.BackoffMin = defaultBackoffMin
	}
	if c.BackoffMax <= 0 {
		c.BackoffMax = defaultBackoffMax
	}
	c.BackoffMax = max(c.BackoffMax, c.BackoffMin)
	if c.StartTimeout <= 0 {
		c.StartTimeout = defaultStartTimeout
	}
	if c.Stderr == nil {
		c.Stderr = io.Discard
	}
	if c.Log == nil {
		c.Log = slog.New(slog.DiscardHandler)
	}
	return &Process{cfg: c, err: errors.New("not started"), changed: make(chan struct{})}
}

// Current returns the client of the living host. While there is none the error wraps engines.ErrNotReady
// and says why the last one failed.
func (p *Process) Current() (*Client, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.client != nil {
		return p.client, nil
	}
	return nil, fmt.Errorf("%w: %v", engines.ErrNotReady, p.err)
}

// PID is the child's process id, 0 while there is none.
func (p *Process) PID() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.pid
}

// Changed returns a channel that is closed at the next change of Current. Take it before calling Current.
func (p *Process) Changed() <-chan struct{} {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.changed
}

// set publishes a client, or the reason why there is none.
func (p *Process) set(c *Client, err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.client, p.err = c, err
	close(p.changed)
	p.changed = make(chan struct{})
}

func (p *Process) setPID(pid int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.pid = pid
}

// Run keeps a host running until ctx ends, then ends the child and returns nil. It fails only when the
// configuration can't work. It may be called once.
func (p *Process) Run(ctx context.Context) error {
	if len(p.cfg.Command) == 0 || p.cfg.Command[0] == "" {
		return errors.New("engine host: command is empty, name the host program")
	}
	pause := p.cfg.BackoffMin
	var boot [16]byte
	for {
		p.set(nil, errors.New("starting"))
		began := time.Now()
		err := p.live(ctx, &boot)
		if ctx.Err() != nil {
			p.set(nil, context.Cause(ctx))
			return nil
		}
		p.set(nil, err)
		if time.Since(began) >= p.cfg.BackoffMax {
			pause = p.cfg.BackoffMin
		}
		p.cfg.Log.Warn("engine host lost", "err", err, "restart_in", pause)
		// A quarter of jitter keeps the hosts of one machine from loading their models in step.
		t := time.NewTimer(pause + rand.N(pause/4+1))
		select {
		case <-ctx.Done():
		case <-t.C:
		}
		t.Stop()
		if ctx.Err() != nil {
			p.set(nil, context.Cause(ctx))
			return nil
		}
		pause = min(2*pause, p.cfg.BackoffMax)
	}
}

// live is one life of the child: start, hello, serve, end. boot is the boot id of the life before and
// after. It returns why the life ended.
func (p *Process) live(ctx context.Context, boot *[16]byte) error {
	c, err := startChild(p.cfg)
	if err != nil {
		return err
	}
	p.setPID(c.pid())
	err = p.attend(ctx, c, boot)
	p.set(nil, err)
	err = c.end(err)
	p.setPID(0)
	return err
}

// attend connects to the child and reads its frames until the link is gone.
func (p *Process) attend(ctx context.Context, c *child, boot *[16]byte) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	stop := c.onExit(func() { cancel(errExited) })
	defer stop()
	late := fmt.Errorf("no hello within %v", p.cfg.StartTimeout)
	sctx, scancel := context.WithTimeoutCause(ctx, p.cfg.StartTimeout, late)
	client, err := Connect(sctx, c.conn)
	scancel()
	if err != nil {
		return err
	}
	if client.d.Boot == *boot {
		client.Close()
		return fmt.Errorf("%w: the host reports the boot id of its previous life, it must be random", ErrProtocol)
	}
	*boot = client.d.Boot
	p.set(client, nil)
	p.cfg.Log.Info("engine host ready", "engine", client.d.Kind, "pid", c.pid())
	return client.Serve(ctx)
}
