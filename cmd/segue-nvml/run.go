// SPDX-License-Identifier: Apache-2.0
// Copyright The Segue Authors

package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"strings"
	"syscall"
	"time"
)

// Exit codes.
const (
	exitOK     = 0
	exitFailed = 1
	exitUsage  = 2
)

const (
	minInterval = 100 * time.Millisecond
	maxInterval = time.Minute
)

const usage = `segue-nvml prints what NVIDIA's driver says of the machine's GPUs: a hello, then one line of JSON for each reading.
An agent runs it. It needs libnvidia-ml.so.1, which comes with the driver, and a build with cgo.

Usage: segue-nvml [flags]

Examples:

  segue-nvml --once                              one reading, for people
  segue-nvml --once | jq .sample.devices[].uuid  the names that an engine's devices are configured by
  segue-nvml --interval 500ms                    two readings a second until it is interrupted

Flags:
`

// run parses flags and prints until a signal or the closed output ends it. It returns the exit code.
func run(args []string, stdout, stderr io.Writer, open func(library string) (driver, error)) int {
	flags := flag.NewFlagSet("segue-nvml", flag.ContinueOnError)
	flags.SetOutput(io.Discard)
	interval := flags.Duration("interval", time.Second, "pause between two readings, 100ms to 1m")
	once := flags.Bool("once", false, "print one reading and end")
	timeout := flags.Duration("timeout", 30*time.Second, "how long the reading of --once may take")
	library := flags.String("library", "", "`file` of the management library; default: libnvidia-ml.so.1, wherever the system has it")
	if err := flags.Parse(args); errors.Is(err, flag.ErrHelp) {
		fmt.Fprint(stdout, usage)
		flags.SetOutput(stdout)
		flags.PrintDefaults()
		return exitOK
	} else if err != nil {
		return fail(stderr, exitUsage, fmt.Errorf("%w; run: segue-nvml --help", err))
	}
	switch {
	case flags.NArg() > 0:
		return fail(stderr, exitUsage, fmt.Errorf("unexpected argument %q; run: segue-nvml --help", flags.Arg(0)))
	case *interval < minInterval || *interval > maxInterval:
		return fail(stderr, exitUsage, fmt.Errorf("--interval is %v, want %v to %v", *interval, minInterval, maxInterval))
	case *timeout <= 0:
		return fail(stderr, exitUsage, fmt.Errorf("--timeout is %v, want a positive duration", *timeout))
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	d, err := open(*library)
	if err != nil {
		d = noDriver{err}
	}
	s := &server{out: stdout, d: d, interval: *interval, boot: bootID()}
	done := make(chan error, 1)
	go func() { // may hang in a call for ever: the process ends without it
		if *once {
			done <- s.once(*timeout)
			return
		}
		done <- s.serve(ctx)
	}()
	select {
	case <-ctx.Done():
		return exitOK
	case err := <-done:
		if err != nil {
			return fail(stderr, exitFailed, err)
		}
		return exitOK
	}
}

// fail writes err as one line: whoever runs this program shows the last line of it.
func fail(stderr io.Writer, code int, err error) int {
	fmt.Fprintln(stderr, "segue-nvml: "+strings.ReplaceAll(err.Error(), "\n", "; "))
	return code
}

// noDriver is one that can't be had.
type noDriver struct{ err error }

func (n noDriver) Init() error                { return n.err }
func (noDriver) Versions() (string, string)   { return "", "" }
func (noDriver) Capabilities() []string       { return nil }
func (n noDriver) Count() (int, error)        { return 0, n.err }
func (n noDriver) Device(int) (device, error) { return nil, n.err }
func (n noDriver) Events([]device) (events, map[string]error, error) {
	return nil, nil, n.err
}
