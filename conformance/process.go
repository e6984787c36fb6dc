// SPDX-License-Identifier: Apache-2.0
// Copyright The Segue Authors

package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/seguekv/segue/conformance/upstream"
)

// readyWithin is how long the router may take to list its upstreams' model.
const readyWithin = 30 * time.Second

// config is the router's. The silences are short, but far longer than a loaded machine pauses; a request's retries are bounded by
// their number alone.
const config = `router:
  listen: 127.0.0.1:0
  admin: 127.0.0.1:0
  agents: []
  upstreams:
%s  upstream_silence: {prefill: 3s, decode: 3s, whole: 3s}
  max_attempts: 2
  queue: {depth: 64, wait: %s}
  retry: {sdk_attempts: 1, max_prefill_tokens: 0, max_time: 0s, budget_share: 1, budget_burst: 1000000000}
`

// program is a running router.
type program struct {
	cmd    *exec.Cmd
	stderr *os.File
	// base is the clients' base URL, which ends in /v1.
	base string
}

// How long a request waits for an upstream that takes it.
const (
	queueWait = "5s"
	noWait    = "0s"
)

// startRouter runs the program under test before a fleet, and waits until it serves the fleet's model.
func startRouter(ctx context.Context, segue, work, name, wait string, fleet *upstream.Fleet) (*program, error) {
	var list strings.Builder
	for i, u := range fleet.URLs() {
		fmt.Fprintf(&list, "    - {id: u%d, url: %q}\n", i+1, u)
	}
	file := filepath.Join(work, name+".yaml")
	if err := os.WriteFile(file, fmt.Appendf(nil, config, list.String(), wait), 0o644); err != nil {
		return nil, err
	}
	stderr, err := os.Create(filepath.Join(work, name+".stderr"))
	if err != nil {
		return nil, err
	}
	p := &program{cmd: exec.Command(segue, "router", "--config", file), stderr: stderr}
	p.cmd.Dir, p.cmd.Stderr, p.cmd.SysProcAttr = work, stderr, &syscall.SysProcAttr{Setpgid: true}
	out, err := p.cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	if err := p.cmd.Start(); err != nil {
		return nil, fmt.Errorf("start router: %w", err)
	}
	line, err := bufio.NewReader(out).ReadString('\n')
	for f := range strings.FieldsSeq(line) {
		if v, ok := strings.CutPrefix(f, "listen="); ok {
			p.base = "http://" + v + "/v1"
		}
	}
	if p.base == "" {
		return nil, fmt.Errorf("the router printed no address (%v):\n%s", err, p.stop())
	}
	if err := p.ready(ctx); err != nil {
		return nil, fmt.Errorf("%w\n%s", err, p.stop())
	}
	return p, nil
}

// ready waits until the router serves the model.
func (p *program) ready(ctx context.Context) error {
	ctx, cancel := context.WithTimeoutCause(ctx, readyWithin, errors.New("the router doesn't list its upstreams' model"))
	defer cancel()
	for {
		if err := lists(ctx, p.base+"/models"); err == nil {
			return nil
		}
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-time.After(50 * time.Millisecond):
		}
	}
}

func lists(ctx context.Context, url string) error {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return err
	}
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		return err
	}
	defer res.Body.Close()
	var list struct {
		Data []struct {
			ID string `json:"id"`
		} `json:"data"`
	}
	if err := json.NewDecoder(io.LimitReader(res.Body, maxResult)).Decode(&list); err != nil {
		return err
	}
	for _, m := range list.Data {
		if m.ID == upstream.Model {
			return nil
		}
	}
	return fmt.Errorf("no model %s", upstream.Model)
}

// stop kills the router and returns what it logged.
func (p *program) stop() string {
	_ = syscall.Kill(-p.cmd.Process.Pid, syscall.SIGKILL)
	_ = p.cmd.Wait() // killed
	p.stderr.Close()
	b, err := os.ReadFile(p.stderr.Name())
	if err != nil {
		return err.Error()
	}
	return string(b)
}
