// SPDX-License-Identifier: Apache-2.0
// Copyright The Segue Authors

//go:build !cgo || !linux

package main

import (
	"os"
	"os/exec"
	"strings"
	"testing"

	"github.com/seguekv/segue/health"
	"github.com/seguekv/segue/health/gpu"
	"github.com/seguekv/segue/health/gpu/supervisor"
)

// unguarded is of a build with cgo only.
func unguarded(string) int { return exitFailed }

func TestProcess_BuiltWithoutCgo(t *testing.T) {
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), programMode+"=real")
	out, err := cmd.CombinedOutput()
	if err != nil || strings.Count(string(out), "\n") != 1 || !strings.Contains(string(out), `"unavailable":"built without cgo`) {
		t.Errorf("got %v, %s", err, out)
	}
	_, results, _ := supervise(t, supervisor.Config{Env: []string{programMode + "=real"}}, gpu.Config{})
	r := result(t, results, "word of it", func(r gpu.Result) bool { return strings.Contains(r.Unavailable, "built without cgo") })
	if r.Verdict != health.Unknown {
		t.Errorf("got %v", r.Verdict)
	}
}
