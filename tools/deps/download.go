// SPDX-License-Identifier: Apache-2.0
// Copyright The Segue Authors

package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"time"
)

// progressEvery is the longest silence during a download.
const progressEvery = time.Second

// clientGrace is how long an ended client may keep its output open.
const clientGrace = 5 * time.Second

// download runs the part's registry client in work and returns the file it wrote. The client's own cache
// and temporary files are below work too: they vanish with it, and their size is the progress.
func (f *fetcher) download(ctx context.Context, p part, work string) (string, error) {
	out := filepath.Join(work, "download")
	for _, d := range []string{out, filepath.Join(work, "tmp")} {
		if err := os.Mkdir(d, 0o755); err != nil {
			return "", err
		}
	}
	cmd, err := command(ctx, p, work, out)
	if err != nil {
		return "", err
	}
	var output tail
	cmd.Dir, cmd.Stdout, cmd.Stderr = work, &output, &output
	cmd.Env = append(os.Environ(), "TMPDIR="+filepath.Join(work, "tmp"))
	// A group of its own, so that nothing of the client outlives an interrupted run.
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }
	cmd.WaitDelay = clientGrace

	if err := f.watch(p, work, cmd.Run); err != nil {
		if ctx.Err() != nil {
			return "", context.Cause(ctx)
		}
		return "", fmt.Errorf("%s: %w; its last lines:\n%s", p.client, err, output.String())
	}
	files, err := filepath.Glob(filepath.Join(out, "*"))
	if err != nil {
		return "", err
	}
	if len(files) != 1 {
		return "", fmt.Errorf("%s wrote %d files, want 1; its last lines:\n%s", p.client, len(files), output.String())
	}
	return files[0], nil
}

// command is the client's call. Nothing is installed, no script of the package runs.
func command(ctx context.Context, p part, work, out string) (*exec.Cmd, error) {
	switch p.client {
	case clientNPM:
		return exec.CommandContext(ctx, "npm", "pack", p.spec, "--pack-destination", out,
			"--ignore-scripts", "--loglevel", "error", "--no-update-notifier", "--cache", filepath.Join(work, "npm-cache")), nil
	case clientPip:
		list := filepath.Join(work, "requirements.txt")
		line := fmt.Sprintf("%s --hash=%s:%s\n", p.spec, p.pin.algorithm, p.pin.value)
		if err := os.WriteFile(list, []byte(line), 0o644); err != nil {
			return nil, err
		}
		return exec.CommandContext(ctx, "python3", "-m", "pip", "download", "--no-deps", "--require-hashes",
			"--only-binary", ":all:", "--no-cache-dir", "--disable-pip-version-check", "--progress-bar", "off",
			"--dest", out, "--requirement", list), nil
	}
	return nil, fmt.Errorf("no such client: %q", p.client)
}

// watch runs fn and meanwhile prints how much has arrived below work.
func (f *fetcher) watch(p part, work string, fn func() error) error {
	done := make(chan struct{})
	var wg sync.WaitGroup
	wg.Go(func() {
		begin, t := time.Now(), time.NewTicker(progressEvery)
		defer t.Stop()
		for {
			select {
			case <-done:
				return
			case <-t.C:
				n := min(sizeBelow(work), p.size)
				fmt.Fprintf(f.log, "deps: %s: %s of %s, %s\n", p.what, megabytes(n), megabytes(p.size), seconds(time.Since(begin)))
			}
		}
	})
	err := fn()
	close(done)
	wg.Wait()
	return err
}

// sizeBelow sums the sizes of the files below dir; files that vanish meanwhile count nothing.
func sizeBelow(dir string) int64 {
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

// tail keeps the end of what a client prints. One goroutine writes at a time (exec joins the two outputs).
type tail struct{ b []byte }

const tailBytes = 4 << 10

func (t *tail) Write(p []byte) (int, error) {
	t.b = append(t.b, p...)
	if len(t.b) > 2*tailBytes {
		t.b = append(t.b[:0], t.b[len(t.b)-tailBytes:]...)
	}
	return len(p), nil
}

func (t *tail) String() string {
	s := strings.TrimSpace(string(t.b[max(0, len(t.b)-tailBytes):]))
	if s == "" {
		s = "(nothing)"
	}
	return "    " + strings.ReplaceAll(s, "\n", "\n    ")
}
