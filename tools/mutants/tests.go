// SPDX-License-Identifier: Apache-2.0
// Copyright The Segue Authors

package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"slices"
	"strings"
	"syscall"
	"time"
)

const (
	// testLimit is how long the tests of one mutant may take once they are compiled.
	testLimit = 90 * time.Second
	// keptOutput bounds what is kept of one run's output.
	keptOutput = 32 << 10
)

// outcome is what a run of tests came to.
type outcome struct {
	passed, failed, skipped []string // names of top-level tests
	// broken: it didn't compile. late: it didn't end in time. crashed: it ended without saying which test failed.
	broken, late, crashed bool
	output                string
}

// event is one line of `go test -json` (see `go doc test2json`).
type event struct {
	Action      string
	Test        string
	Output      string
	FailedBuild string
}

// test runs the named tests of a package, with an overlay unless that is empty.
func test(ctx context.Context, root, overlay, pkg string, names []string) (outcome, error) {
	args := []string{"test", "-json", "-short", "-vet=off", "-ldflags=-s -w", "-timeout", testLimit.String(), "-run", pattern(names)}
	if overlay != "" {
		args = append(args, "-overlay", overlay)
	}
	cmd := exec.CommandContext(ctx, "go", append(args, pkg)...)
	cmd.Dir = root
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0") // the same for all, whoever calls: results are cached
	// The go command and the tests that it runs end together: in a group of their own, which is told as one.
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGINT) }
	cmd.WaitDelay = 10 * time.Second
	out, err := cmd.CombinedOutput()
	if ctx.Err() != nil {
		return outcome{}, context.Cause(ctx)
	}
	exit, ended := errors.AsType[*exec.ExitError](err)
	if err != nil && !ended {
		return outcome{}, fmt.Errorf("go test %s: %w", pkg, err)
	}
	o := read(out)
	if ended && !exit.Success() && !o.broken && !o.late && len(o.failed) == 0 {
		o.crashed = true
	}
	return o, nil
}

// pattern matches exactly the names.
func pattern(names []string) string {
	each := make([]string, len(names))
	for i, n := range names {
		each[i] = "^" + n + "$"
	}
	return strings.Join(each, "|")
}

// read takes in the output of `go test -json`. Lines that aren't events count as output.
func read(out []byte) outcome {
	var o outcome
	var text strings.Builder
	lines := bufio.NewScanner(bytes.NewReader(out))
	lines.Buffer(nil, len(out)+1)
	for lines.Scan() {
		var e event
		if json.Unmarshal(lines.Bytes(), &e) != nil || e.Action == "" {
			e = event{Action: "output", Output: lines.Text() + "\n"}
		}
		top := e.Test != "" && !strings.Contains(e.Test, "/")
		switch e.Action {
		case "output", "build-output":
			if strings.Contains(e.Output, "panic: test timed out") {
				o.late = true
			}
			if text.Len() < keptOutput {
				text.WriteString(e.Output)
			}
		case "build-fail":
			o.broken = true
		case "pass":
			if top {
				o.passed = append(o.passed, e.Test)
			}
		case "skip":
			if top {
				o.skipped = append(o.skipped, e.Test)
			}
		case "fail":
			o.broken = o.broken || e.FailedBuild != ""
			if top {
				o.failed = append(o.failed, e.Test)
			}
		}
	}
	o.output = text.String()
	return o
}

// sound reports whether every named test ran and passed.
func (o outcome) sound(names []string) error {
	switch {
	case o.broken:
		return errors.New("doesn't compile")
	case o.late:
		return fmt.Errorf("takes more than %v", testLimit)
	case len(o.failed) > 0:
		return fmt.Errorf("fails: %s", strings.Join(o.failed, ", "))
	case o.crashed:
		return errors.New("go test fails without naming a test")
	}
	for _, n := range names {
		if slices.Contains(o.skipped, n) {
			return fmt.Errorf("skipped: %s, which can't notice anything", n)
		}
		if !slices.Contains(o.passed, n) {
			return fmt.Errorf("stale: there is no test %s", n)
		}
	}
	return nil
}
