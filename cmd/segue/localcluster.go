// SPDX-License-Identifier: Apache-2.0
// Copyright The Segue Authors

package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"path/filepath"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/seguekv/segue/bench/cluster"
)

// localCluster are the flags of commands that start a cluster of their own on this machine.
type localCluster struct {
	engine       cluster.Engine
	readyTimeout time.Duration
}

// register adds the flags; engine and step are the command's own defaults.
func (l *localCluster) register(flags *pflag.FlagSet, engine string, step time.Duration, kvBytes int) {
	model, library := cluster.CachedParts()
	flags.StringVar(&l.engine.Kind, "engine", engine, "engine of the nodes: llamacpp (a real model) or sim (a deterministic pseudo-model)")
	flags.StringVar(&l.engine.Model, "model", model, "GGUF `file` for llamacpp; the default is what make deps fetches")
	flags.StringVar(&l.engine.Library, "llama-lib", library, "`directory` with libllama.so for llamacpp; the default is what make deps fetches")
	flags.IntVar(&l.engine.Threads, "threads", 0, "threads per engine (0 = the agent's default)")
	flags.DurationVar(&l.engine.Step, "step", step, "time of one decode step of sim (0 = the agent's default)")
	flags.DurationVar(&l.engine.PrefillToken, "prefill-token", 0, "prefill time per token of sim (0 = the agent's default)")
	flags.IntVar(&l.engine.KVBytesPerToken, "kv-bytes-per-token", kvBytes, "KV bytes per token of sim (0 = the agent's default)")
	flags.DurationVar(&l.readyTimeout, "ready-timeout", 60*time.Second, "how long each start or restart may take")
}

// validate reports every problem of the flags.
func (l *localCluster) validate() error {
	err := l.engine.Validate()
	if l.readyTimeout <= 0 {
		err = errors.Join(err, fmt.Errorf("--ready-timeout must be positive, not %v", l.readyTimeout))
	}
	return err
}

// run starts two nodes and a router, calls body, and ends them.
func (l *localCluster) run(cmd *cobra.Command, steps io.Writer, body func(context.Context, *cluster.Cluster) error) error {
	return withLogs(cmd, func(binary, dir string) error {
		return cluster.Run(cmd.Context(), cluster.Config{
			Binary: binary, Dir: dir, Nodes: []string{"a", "b"}, Engine: l.engine, ReadyTimeout: l.readyTimeout,
			OnStep: func(s cluster.Step) { fmt.Fprintln(steps, s) },
			Logf:   logTo(cmd.ErrOrStderr()),
		}, body)
	})
}

// withLogs calls body with this program's file and a new directory for the children's logs. They are kept, and their
// place is told, when something fails; an interruption is none of that.
func withLogs(cmd *cobra.Command, body func(binary, dir string) error) error {
	binary, err := os.Executable()
	if err != nil {
		return fmt.Errorf("find own program file: %w", err)
	}
	dir, err := os.MkdirTemp("", "segue-"+cmd.Name()+"-")
	if err != nil {
		return fmt.Errorf("make directory for logs: %w", err)
	}
	err = body(binary, dir)
	if cmd.Context().Err() != nil && err != nil {
		err = &exitError{code: exitInterrupted, err: errors.New("interrupted")}
	} else if err != nil {
		fmt.Fprintf(cmd.ErrOrStderr(), "logs of all processes are in %s\n", dir)
		return err
	}
	if rmErr := os.RemoveAll(dir); rmErr != nil {
		fmt.Fprintf(cmd.ErrOrStderr(), "cannot remove %s: %v\n", dir, rmErr)
	}
	return err
}

// logTo writes progress lines.
func logTo(w io.Writer) func(string, ...any) {
	return func(format string, args ...any) { fmt.Fprintf(w, format+"\n", args...) }
}

// writeJSON writes one object to standard output ("-") or to a file.
func writeJSON(cmd *cobra.Command, path string, value any) error {
	data, err := json.Marshal(value)
	if err != nil {
		return fmt.Errorf("encode report: %w", err)
	}
	data = append(data, '\n')
	if path == "-" {
		if _, err := cmd.OutOrStdout().Write(data); err != nil {
			return fmt.Errorf("write report: %w", err)
		}
		return nil
	}
	if err := os.WriteFile(filepath.Clean(path), data, 0o644); err != nil {
		return fmt.Errorf("write report: %w", err)
	}
	return nil
}

// drawSeed makes a seed for those who gave none. It is small enough to be typed.
func drawSeed() uint64 { return 1 + rand.Uint64N(1_000_000) }
