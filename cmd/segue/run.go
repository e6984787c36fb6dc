// SPDX-License-Identifier: Apache-2.0
// Copyright The Segue Authors

package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"syscall"

	"github.com/spf13/cobra"
)

// Exit codes of segue.
const (
	exitOK          = 0
	exitFailure     = 1
	exitUsage       = 2
	exitUnreachable = 4
	exitInterrupted = 130
)

// exitError is an error with its exit code.
type exitError struct {
	code int
	err  error
}

func (e *exitError) Error() string { return e.err.Error() }
func (e *exitError) Unwrap() error { return e.err }

// usageError marks err as the caller's mistake.
func usageError(err error) error { return &exitError{code: exitUsage, err: err} }

// run runs the command line and returns the exit code. The first SIGINT or SIGTERM asks the command to end,
// a second one ends the process at once.
func run(args []string, stdout, stderr io.Writer) int {
	ctx, cancel := context.WithCancelCause(context.Background())
	defer cancel(nil)
	signals := make(chan os.Signal, 2)
	signal.Notify(signals, syscall.SIGINT, syscall.SIGTERM)
	defer signal.Stop(signals)
	go func() { // ends with the process
		s := <-signals
		cancel(fmt.Errorf("received %v", s))
		<-signals
		os.Exit(exitInterrupted)
	}()

	root := newRootCommand()
	root.SetArgs(args)
	root.SetOut(stdout)
	root.SetErr(stderr)
	err := root.ExecuteContext(ctx)
	if err == nil {
		return exitOK
	}
	fmt.Fprintln(stderr, "segue: "+err.Error())
	return exitCode(ctx, err)
}

func exitCode(ctx context.Context, err error) int {
	if e, ok := errors.AsType[*exitError](err); ok {
		return e.code
	}
	if ctx.Err() != nil && errors.Is(err, context.Cause(ctx)) {
		return exitInterrupted
	}
	return exitFailure
}

func newRootCommand() *cobra.Command {
	root := &cobra.Command{
		Use:   "segue",
		Short: "Move live LLM generations between engines, token for token",
		Long: `Segue keeps a live LLM generation going when its engine dies: agents beside each engine take a snapshot of
every request at each token and replicate it to a standby, a router in front publishes tokens and, when the
primary fails, lets the standby continue with exactly the next token.`,
		Example: `  segue demo                                  # two nodes, a router, and a kill -9 in mid-stream
  segue agent --id a --engine llamacpp        # one node
  segue router --agent a=127.0.0.1:7070 --agent b=127.0.0.1:7080`,
		SilenceUsage: true, SilenceErrors: true,
		Args: cobra.NoArgs,
	}
	root.CompletionOptions.HiddenDefaultCmd = true
	root.SetFlagErrorFunc(func(c *cobra.Command, err error) error {
		return usageError(fmt.Errorf("%w; see: %s --help", err, c.CommandPath()))
	})
	root.AddCommand(
		newAgentCommand(), newRouterCommand(), newEngineCommand(),
		newDemoCommand(), newBenchCommand(),
		newSessionCommand(), newRequestCommand(), newDrainCommand(), newHealthCommand(), newConfigCommand(),
		newCertCommand(), newKeyCommand(), newVersionCommand(),
	)
	for _, c := range root.Commands() {
		wrapArgs(c)
	}
	return root
}

// wrapArgs makes wrong arguments usage errors.
func wrapArgs(c *cobra.Command) {
	if check := c.Args; check != nil {
		c.Args = func(c *cobra.Command, args []string) error {
			if err := check(c, args); err != nil {
				return usageError(fmt.Errorf("%w; see: %s --help", err, c.CommandPath()))
			}
			return nil
		}
	}
	for _, sub := range c.Commands() {
		wrapArgs(sub)
	}
}
