// SPDX-License-Identifier: Apache-2.0
// Copyright The Segue Authors

package cluster_test

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/seguekv/segue/bench/cluster"
)

// config describes a cluster of fakes that behave as told.
func config(t *testing.T, how string) cluster.Config {
	t.Helper()
	t.Setenv(fakeEnv, how)
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	return cluster.Config{
		Binary: self, Dir: t.TempDir(), Nodes: []string{"a", "b"}, Engine: cluster.Engine{Kind: cluster.EngineSim},
		ReadyTimeout: 20 * time.Second, Logf: t.Logf, OnStep: func(s cluster.Step) { t.Log(s) },
	}
}

// gone reports whether a process group has no members.
func gone(group int) bool { return errors.Is(syscall.Kill(-group, 0), syscall.ESRCH) }

func TestRun_KillAndRecoverEveryTarget(t *testing.T) {
	var groups []int
	note := func(cl *cluster.Cluster) {
		for _, p := range cl.Processes() {
			groups = append(groups, p.Group)
		}
	}
	err := cluster.Run(t.Context(), config(t, "ok"), func(ctx context.Context, cl *cluster.Cluster) error {
		note(cl)
		for _, target := range []cluster.Target{cluster.TargetNode, cluster.TargetAgent, cluster.TargetEngine} {
			before, err := cl.Router().Agents(ctx)
			if err != nil {
				return err
			}
			shot, err := cl.Aim(ctx, "b", target)
			if err != nil {
				return err
			}
			begun := time.Now()
			at, err := shot.Fire()
			if err != nil {
				return err
			}
			if at.Before(begun) || at.After(time.Now()) {
				t.Errorf("%s: the kill's time is not between the moments around it", target)
			}
			if err := cl.Recover(ctx, shot); err != nil {
				return err
			}
			note(cl)
			after, err := cl.Router().Agents(ctx)
			if err != nil {
				return err
			}
			if after[0] != before[0] {
				t.Errorf("%s: node a changed from %+v to %+v", target, before[0], after[0])
			}
			if same := after[1].BootID == before[1].BootID; same != (target == cluster.TargetEngine) {
				t.Errorf("%s: agent b from %+v to %+v", target, before[1], after[1])
			}
			if after[1].EngineBootID == before[1].EngineBootID {
				t.Errorf("%s: engine of b is still the same", target)
			}
		}
		if cpu, err := cl.CPU(); err != nil || cpu < 0 {
			t.Errorf("CPU: %v, %v", cpu, err)
		}
		counters, err := cl.Counters(ctx, "a")
		if err != nil || counters[cluster.MetricDecodeSteps] != 7 {
			t.Errorf("counters %v, %v", counters, err)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	for _, g := range groups {
		if !gone(g) {
			t.Errorf("process group %d is still there", g)
		}
	}
}

func TestRun_EndsEverythingWhenInterrupted(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	var groups []int
	err := cluster.Run(ctx, config(t, "ok"), func(ctx context.Context, cl *cluster.Cluster) error {
		for _, p := range cl.Processes() {
			groups = append(groups, p.Group)
		}
		cancel()
		<-ctx.Done()
		return ctx.Err()
	})
	if !errors.Is(err, context.Canceled) {
		t.Errorf("got %v", err)
	}
	for _, g := range groups {
		if !gone(g) {
			t.Errorf("process group %d is still there", g)
		}
	}
}

func TestRun_TellsWhyANodeDied(t *testing.T) {
	cfg := config(t, "broken")
	err := cluster.Run(t.Context(), cfg, func(context.Context, *cluster.Cluster) error { return nil })
	exit, ok := errors.AsType[*cluster.ExitError](err)
	if !ok || exit.LastLog != "the model file is damaged" || exit.Log != filepath.Join(cfg.Dir, "node-a.log") {
		t.Errorf("got %v", err)
	}
}

func TestRun_TellsWhatANodeWaitsFor(t *testing.T) {
	cfg := config(t, "unready")
	cfg.ReadyTimeout = 300 * time.Millisecond
	err := cluster.Run(t.Context(), cfg, func(context.Context, *cluster.Cluster) error { return nil })
	if err == nil || !strings.Contains(err.Error(), "model is loading") || !strings.Contains(err.Error(), "node a") {
		t.Errorf("got %v", err)
	}
}

func TestRun_RefusesBadConfiguration(t *testing.T) {
	err := cluster.Run(t.Context(), cluster.Config{}, nil)
	if err == nil || !strings.Contains(err.Error(), "at least one node") || !strings.Contains(err.Error(), "unknown engine") {
		t.Errorf("got %v", err)
	}
}

func TestSupervise_StartsKilledNodesAgain(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	cfg := config(t, "ok")
	cfg.Logf = func(format string, args ...any) {
		t.Logf(format, args...)
		if strings.Contains(format, "ready again") {
			cancel()
		}
	}
	err := cluster.Run(ctx, cfg, func(ctx context.Context, cl *cluster.Cluster) error {
		if err := syscall.Kill(-cl.Processes()[0].Group, syscall.SIGKILL); err != nil {
			return err
		}
		return cl.Supervise(ctx)
	})
	if err != nil {
		t.Error(err)
	}
}

func TestParseTarget(t *testing.T) {
	for _, s := range []string{"node", "engine", "agent"} {
		if got, err := cluster.ParseTarget(s); err != nil || string(got) != s {
			t.Errorf("%s: %v, %v", s, got, err)
		}
	}
	if _, err := cluster.ParseTarget("router"); err == nil {
		t.Error("router passed")
	}
}
