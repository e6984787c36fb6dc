// SPDX-License-Identifier: Apache-2.0
// Copyright The Segue Authors

package restart_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/seguekv/segue/health/restart"
)

func TestShell_EnvironmentAndOutput(t *testing.T) {
	res := restart.Shell(`echo "$SEGUE_TARGET $SEGUE_VERDICT $SEGUE_REASONS"; printf 'err\033[1m\n' >&2`)(t.Context(), restart.Call{Target: target, Verdict: "hung", Reasons: "no_progress,no_answer"})
	if res.Err != nil || res.Output != target+" hung no_progress,no_answer err?[1m" {
		t.Errorf("got %+v", res)
	}
}

func TestShell_Failure(t *testing.T) {
	res := restart.Shell("exit 3")(t.Context(), restart.Call{})
	if res.Err == nil || res.Err.Error() != "exit status 3" {
		t.Errorf("got %+v", res)
	}
}

func TestShell_OutputIsBounded(t *testing.T) {
	res := restart.Shell(`head -c 3000000 /dev/zero | tr '\0' 'ä'; echo; seq 1 100000; echo last`)(t.Context(), restart.Call{})
	if res.Err != nil || len(res.Output) > 4096+len("…") || !strings.HasSuffix(res.Output, "99999 100000 last") {
		t.Errorf("got %d bytes, %v, ending %q", len(res.Output), res.Err, res.Output[max(0, len(res.Output)-30):])
	}
}

// gone polls until no process has that id, or the one that has is a zombie.
func gone(t *testing.T, file string) {
	t.Helper()
	b, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	pid, err := strconv.Atoi(strings.TrimSpace(string(b)))
	if err != nil {
		t.Fatal(err)
	}
	deadline := time.Now().Add(20 * time.Second)
	for {
		stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
		if err != nil || strings.Contains(string(stat), ") Z ") {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("process %d is still there: %s", pid, stat)
		}
		time.Sleep(10 * time.Millisecond) // a poll of another process
	}
}

// What the command leaves in its process group ends with it, also when it holds the output open.
func TestShell_GroupEndsWithTheCommand(t *testing.T) {
	file := filepath.Join(t.TempDir(), "pid")
	res := restart.Shell("sleep 1000 & echo $! > "+file)(t.Context(), restart.Call{})
	if res.Err != nil {
		t.Errorf("got %+v", res)
	}
	gone(t, file)
}

func TestShell_TimeoutEndsTheGroup(t *testing.T) {
	file := filepath.Join(t.TempDir(), "pid")
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	go func() { // ends when the command has begun
		for ctx.Err() == nil {
			if b, err := os.ReadFile(file); err == nil && len(b) > 0 {
				cancel()
			}
			time.Sleep(5 * time.Millisecond) // a poll of another process
		}
	}()
	res := restart.Shell("sleep 1000 & echo $! > "+file+"; wait")(ctx, restart.Call{})
	if !errors.Is(res.Err, restart.ErrTimeout) {
		t.Errorf("got %+v", res)
	}
	gone(t, file)
}

// SIGTERM may be ignored, SIGKILL can't.
func TestShell_TimeoutKillsWhatIgnoresTerm(t *testing.T) {
	if testing.Short() {
		t.Skip("takes five seconds")
	}
	file := filepath.Join(t.TempDir(), "pid")
	ctx, cancel := context.WithTimeout(t.Context(), 500*time.Millisecond)
	defer cancel()
	res := restart.Shell("trap '' TERM; echo $$ > "+file+"; while :; do sleep 0.1; done")(ctx, restart.Call{})
	if !errors.Is(res.Err, restart.ErrTimeout) || res.Took < 5*time.Second {
		t.Errorf("got %+v", res)
	}
	gone(t, file)
}

// A server that left the group stays, and isn't waited for.
func TestShell_LeavesWhatLeftTheGroup(t *testing.T) {
	file := filepath.Join(t.TempDir(), "pid")
	res := restart.Shell("setsid sleep 1000 & until [ -s "+file+" ]; do pgrep -n -P $$ sleep > "+file+"; sleep 0.05; done")(t.Context(), restart.Call{})
	if res.Err != nil || res.Took > 100*time.Second {
		t.Errorf("got %+v", res)
	}
	b, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	pid, err := strconv.Atoi(strings.TrimSpace(string(b)))
	if err != nil {
		t.Fatal(err)
	}
	if err := syscall.Kill(pid, 0); err != nil {
		t.Errorf("process %d: %v", pid, err)
	}
	_ = syscall.Kill(pid, syscall.SIGKILL)
}
