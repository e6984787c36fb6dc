// SPDX-License-Identifier: Apache-2.0
// Copyright The Segue Authors

// Command conformance drives real clients against the router, whose upstreams end their answers in every way that real
// servers were seen to end them, and checks what each client's user gets.
//
//	clients ─► segue router ─► two scripted upstreams (package upstream)
//
// The libraries and proxies are installed at the versions of their lock files (package parts). Package matrix has the
// cases, the expectations and the verdict. The last line is CONFORMANCE PASS or CONFORMANCE FAIL with the counts; a
// failed case is printed with what differs.
//
// Goroutines: one reader per driver process, and one per case that runs; all end before run returns.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"regexp"
	"runtime"
	"strings"
	"syscall"
	"time"

	"github.com/seguekv/segue/conformance/matrix"
	"github.com/seguekv/segue/conformance/parts"
)

func main() {
	// A second signal ends the process at once.
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP)
	context.AfterFunc(ctx, stop)
	os.Exit(run(ctx, os.Args[1:], os.Stdout, os.Stderr))
}

const usage = `usage: conformance [-segue FILE] [-client NAME[,NAME]] [-case REGEXP] [-parallel N] [-matrix=false] [-proxies=false]

Runs the router between real clients and scripted upstreams. Run it in the repository.

`

// options are the command line.
type options struct {
	segue    string
	source   string
	clients  []matrix.Client
	only     *regexp.Regexp
	parallel int
	matrix   bool
	proxies  bool
	verbose  bool
}

func parse(args []string, stderr io.Writer) (options, error) {
	var o options
	fs := flag.NewFlagSet("conformance", flag.ContinueOnError)
	fs.SetOutput(stderr)
	fs.Usage = func() { fmt.Fprint(stderr, usage); fs.PrintDefaults() }
	fs.StringVar(&o.segue, "segue", "", "the program under test; empty: build it from this repository")
	fs.StringVar(&o.source, "source", "conformance", "folder of the clients' sources and lock files")
	names := fs.String("client", "", "comma-separated clients; empty: all")
	only := fs.String("case", "", "run the cases that match; their names are those of failures")
	fs.IntVar(&o.parallel, "parallel", 2+runtime.NumCPU(), "cases at once per client")
	fs.BoolVar(&o.matrix, "matrix", true, "run the clients")
	fs.BoolVar(&o.proxies, "proxies", true, "run nginx and haproxy in front of the router")
	fs.BoolVar(&o.verbose, "v", false, "print what every client reported")
	if err := fs.Parse(args); err != nil {
		return o, err
	}
	if fs.NArg() > 0 {
		return o, fmt.Errorf("unexpected argument %q", fs.Arg(0))
	}
	var err error
	if o.only, err = regexp.Compile(*only); err != nil {
		return o, fmt.Errorf("-case: %w", err)
	}
	if o.parallel < 1 || o.parallel > 32 {
		return o, fmt.Errorf("-parallel is %d, want 1 to 32", o.parallel)
	}
	if o.source, err = filepath.Abs(o.source); err != nil {
		return o, err
	}
	o.clients, err = choose(*names)
	return o, err
}

// choose returns the clients with the given names.
func choose(names string) ([]matrix.Client, error) {
	if names == "" {
		return matrix.Clients(), nil
	}
	var out []matrix.Client
	for name := range strings.SplitSeq(names, ",") {
		known := len(out)
		for _, c := range matrix.Clients() {
			if c.Name == strings.TrimSpace(name) {
				out = append(out, c)
			}
		}
		if len(out) == known {
			return nil, fmt.Errorf("-client: no client is called %q", name)
		}
	}
	return out, nil
}

// run is the program. It returns the exit code: 0 ok, 1 failure, 2 usage, 130 interrupted.
func run(ctx context.Context, args []string, stdout, stderr io.Writer) int {
	o, err := parse(args, stderr)
	if errors.Is(err, flag.ErrHelp) {
		return 0
	}
	if err != nil {
		fmt.Fprintf(stderr, "conformance: %v\n", err)
		return 2
	}
	passed, err := conform(ctx, o, stdout, stderr)
	switch {
	case ctx.Err() != nil:
		fmt.Fprintln(stderr, "conformance: interrupted")
		return 130
	case err != nil:
		fmt.Fprintf(stderr, "conformance: %v\n", err)
		return 1
	case !passed:
		return 1
	}
	return 0
}

// conform runs what was chosen and reports whether all of it passed.
func conform(ctx context.Context, o options, stdout, stderr io.Writer) (passed bool, err error) {
	begin := time.Now()
	dir, err := parts.CacheDir(os.Getenv)
	if err != nil {
		return false, err
	}
	cache := parts.Cache{Dir: dir, Log: stderr}
	work, err := os.MkdirTemp("", "segue-conformance-")
	if err != nil {
		return false, fmt.Errorf("make work folder: %w", err)
	}
	defer func() {
		if rerr := os.RemoveAll(work); err == nil && rerr != nil {
			err = rerr
		}
	}()
	if o.segue == "" {
		o.segue = filepath.Join(work, "segue")
		if err := build(ctx, filepath.Join(o.source, "..", "cmd", "segue"), o.segue); err != nil {
			return false, err
		}
	} else if o.segue, err = exec.LookPath(o.segue); err != nil {
		return false, fmt.Errorf("-segue: %w", err)
	}
	t := tally{passed: true}
	if o.matrix {
		if err := t.clients(ctx, o, cache, work, stdout, stderr); err != nil {
			return false, err
		}
	}
	if o.proxies {
		if err := t.proxies(ctx, o, cache, work, stdout); err != nil {
			return false, err
		}
	}
	fmt.Fprintf(stdout, "%.0f s\n%s\n", time.Since(begin).Seconds(), t)
	return t.passed, nil
}

// tally counts what ran.
type tally struct {
	passed                              bool
	clientCount, cells, failed, skipped int
}

// String is the last line.
func (t tally) String() string {
	if t.passed {
		return fmt.Sprintf("CONFORMANCE PASS clients=%d cells=%d skipped=%d", t.clientCount, t.cells, t.skipped)
	}
	return fmt.Sprintf("CONFORMANCE FAIL clients=%d cells=%d failed=%d skipped=%d", t.clientCount, t.cells, t.failed, t.skipped)
}
