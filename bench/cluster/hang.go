// SPDX-License-Identifier: Apache-2.0
// Copyright The Segue Authors

package cluster

import (
	"context"
	"fmt"
	"syscall"
)

// Thaw lets a stopped engine host go on, and returns when nothing runs on its node any more, with the number of runs
// that ended since: those that were hung. A second call finds nothing to do.
func (c *Cluster) Thaw(ctx context.Context, s *Shot) (ended int, err error) {
	n, err := c.node(s.Node)
	if err != nil {
		return 0, err
	}
	before, err := n.admin.Counters(ctx)
	if err != nil {
		return 0, err
	}
	if err := syscall.Kill(s.enginePID, syscall.SIGCONT); err != nil {
		return 0, fmt.Errorf("let the engine of node %s go on: %w", s.Node, err)
	}
	var after Counters
	err = c.poll(ctx, fmt.Sprintf("late runs on node %s to end", n.id), func(ctx context.Context) error {
		if !n.proc.running() {
			return permanent(n.proc.exitError())
		}
		if after, err = n.admin.Counters(ctx); err != nil {
			return err
		}
		if after[metricRunning] != 0 || after[metricContextsUsed] != 0 {
			return fmt.Errorf("%v runs on the engine, %v contexts in use", after[metricRunning], after[metricContextsUsed])
		}
		return n.admin.Ready(ctx)
	})
	if err != nil {
		return 0, err
	}
	// A counter whose label was never used isn't on the page.
	return int(after[metricRuns] - before[metricRuns]), nil
}
