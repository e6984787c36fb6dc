// SPDX-License-Identifier: Apache-2.0
// Copyright The Segue Authors

package main

import (
	"context"
	_ "embed"
	"errors"
	"fmt"
	"os/exec"
	"slices"
	"strings"
)

// preflightScript is a shell script because make runs it too, on machines without Go.
//
//go:embed preflight.sh
var preflightScript string

// preflight reports everything the machine lacks in one error. Clients and disk space are needed only if
// something is to be fetched.
func (f *fetcher) preflight(ctx context.Context, parts, missing []part) error {
	checks := []string{"go"}
	for _, p := range parts {
		checks = append(checks, p.checks...)
	}
	for _, p := range missing {
		checks = append(checks, string(p.client), "disk")
	}
	slices.Sort(checks)
	args := append([]string{"-c", preflightScript, "preflight.sh", f.store.Dir}, slices.Compact(checks)...)
	out, err := exec.CommandContext(ctx, "sh", args...).CombinedOutput()
	if err == nil {
		return nil
	}
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	if _, ok := errors.AsType[*exec.ExitError](err); ok && len(out) > 0 {
		return errors.New(strings.TrimSpace(string(out)))
	}
	return fmt.Errorf("check machine: %w: %s", err, out)
}
