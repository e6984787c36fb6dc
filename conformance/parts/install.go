// SPDX-License-Identifier: Apache-2.0
// Copyright The Segue Authors

package parts

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"time"
)

const (
	// partialPrefix begins the names of folders in which a part is being made.
	partialPrefix = ".partial-"
	// progressEvery is the longest silence during an installation.
	progressEvery = 2 * time.Second
	// grace is how long an ended client may keep its output open.
	grace       = 5 * time.Second
	lockPoll    = 100 * time.Millisecond
	lockMention = 10 * time.Second
	tailBytes   = 4 << 10
)

// install makes the part in a folder of its own and moves it to its place when it is complete. The caller holds the lock.
func (c Cache) install(ctx context.Context, p Part, place string) (err error) {
	old, err := filepath.Glob(filepath.Join(c.Dir, partialPrefix+"conformance-"+p.Name+"-*"))
	if err != nil {
		return err
	}
	if _, err := os.Lstat(place); err == nil {
		old = append(old, place)
	}
	for _, name := range old {
		fmt.Fprintf(c.Log, "conformance: %s: discarding incomplete %s\n", p.Name, filepath.Base(name))
		if err := os.RemoveAll(name); err != nil {
			return fmt.Errorf("discard incomplete part: %w", err)
		}
	}
	work, err := os.MkdirTemp(c.Dir, partialPrefix+"conformance-"+p.Name+"-")
	if err != nil {
		return fmt.Errorf("make work folder: %w", err)
	}
	defer func() {
		if rerr := os.RemoveAll(work); err == nil && rerr != nil {
			err = rerr
		}
	}()
	out, private := filepath.Join(work, "part"), filepath.Join(work, "private")
	for _, d := range []string{out, private} {
		if err := os.Mkdir(d, 0o755); err != nil {
			return err
		}
	}
	for _, l := range p.Locks {
		b, err := os.ReadFile(filepath.Join(p.Source, l))
		if err != nil {
			return err
		}
		if err := os.WriteFile(filepath.Join(out, l), b, 0o644); err != nil {
			return err
		}
	}
	begin := time.Now()
	for _, step := range p.Steps {
		if err := c.run(ctx, p, out, private, begin, step); err != nil {
			return err
		}
	}
	if err := mark(out); err != nil {
		return fmt.Errorf("write marker: %w", err)
	}
	if err := os.Rename(out, place); err != nil {
		return fmt.Errorf("move part to its place: %w", err)
	}
	fmt.Fprintf(c.Log, "conformance: %s: installed in %.1f s, %.1f MB\n", p.Name, time.Since(begin).Seconds(), float64(size(place))/1e6)
	return nil
}

// run runs one client and prints how much has arrived meanwhile.
func (c Cache) run(ctx context.Context, p Part, dir, private string, begin time.Time, step []string) error {
	name := p.Name
	fmt.Fprintf(c.Log, "conformance: %s: %s\n", name, strings.Join(step[:min(4, len(step))], " "))
	cmd := exec.CommandContext(ctx, step[0], step[1:]...)
	var output tail
	cmd.Dir, cmd.Stdout, cmd.Stderr = dir, &output, &output
	// Temporary files and npm's cache vanish with the work folder.
	cmd.Env = append(append(os.Environ(), "TMPDIR="+private, "npm_config_cache="+filepath.Join(private, "npm")), p.Env...)
	// A group of its own, so that nothing of the client outlives an interrupted run.
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }
	cmd.WaitDelay = grace

	done := make(chan struct{})
	var wg sync.WaitGroup
	wg.Go(func() {
		t := time.NewTicker(progressEvery)
		defer t.Stop()
		for {
			select {
			case <-done:
				return
			case <-t.C:
				fmt.Fprintf(c.Log, "conformance: %s: %.1f MB, %.1f s\n", name, float64(size(filepath.Dir(dir)))/1e6, time.Since(begin).Seconds())
			}
		}
	})
	err := cmd.Run()
	close(done)
	wg.Wait()
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	if err != nil {
		return fmt.Errorf("%s: %w; its last lines:\n%s", strings.Join(step, " "), err, output.b)
	}
	return nil
}

// tail keeps the end of what a client prints. One goroutine writes at a time (exec joins the two outputs).
type tail struct{ b []byte }

func (t *tail) Write(p []byte) (int, error) {
	t.b = append(t.b, p...)
	if len(t.b) > 2*tailBytes {
		t.b = append(t.b[:0], t.b[len(t.b)-tailBytes:]...)
	}
	return len(p), nil
}

// size sums the files below dir; what vanishes meanwhile counts nothing.
func size(dir string) int64 {
	var n int64
	err := filepath.WalkDir(dir, func(_ string, e fs.DirEntry, err error) error {
		if err != nil {
			if errors.Is(err, fs.ErrNotExist) {
				return nil
			}
			return err
		}
		if info, err := e.Info(); err == nil && info.Mode().IsRegular() {
			n += info.Size()
		}
		return nil
	})
	if err != nil {
		return 0
	}
	return n
}

// lock takes the cache's lock and returns what gives it back. While another run holds it, it waits and says so.
func lock(ctx context.Context, cache string, log io.Writer) (unlock func(), err error) {
	f, err := os.OpenFile(filepath.Join(cache, ".conformance.lock"), os.O_CREATE|os.O_RDWR, 0o644)
	if err != nil {
		return nil, fmt.Errorf("lock cache: %w", err)
	}
	poll := time.NewTicker(lockPoll)
	defer poll.Stop()
	var mention time.Time
	for {
		err := syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB)
		if err == nil {
			return func() { f.Close() }, nil
		}
		if !errors.Is(err, syscall.EWOULDBLOCK) && !errors.Is(err, syscall.EINTR) {
			f.Close()
			return nil, fmt.Errorf("lock cache %s: %w", cache, err)
		}
		if now := time.Now(); now.After(mention) {
			fmt.Fprintf(log, "conformance: another run installs into %s; waiting for it\n", cache)
			mention = now.Add(lockMention)
		}
		select {
		case <-ctx.Done():
			f.Close()
			return nil, context.Cause(ctx)
		case <-poll.C:
		}
	}
}
