// SPDX-License-Identifier: Apache-2.0
// Copyright The Segue Authors

// Command mutants breaks each guarantee by one line of source, one at a time, and runs the tests that are meant to
// notice. It fails if they don't.
//
// Product code carries no switches for this: a mutant is a changed copy of one file in a temporary folder, which the
// go command compiles instead of the original (its -overlay flag). mutants.txt lists the mutants with the tests that
// must fail; the same tests must pass without the change. A mutant whose text isn't in its file exactly once, or that
// doesn't compile, is an error: the table has to follow the code.
//
// The last line is "MUTANTS killed=N survived=N", with " broken=N" after it if the table needs care. The exit code is
// 0 only if every mutant was killed.
//
// The program starts one goroutine per mutant in flight, each of which waits for one go command and ends with it.
package main

import (
	"bytes"
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
	"syscall"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP)
	context.AfterFunc(ctx, stop) // a second signal ends the process at once
	os.Exit(run(ctx, os.Args[1:], os.Stdout, os.Stderr))
}

const usage = `usage: mutants [-run REGEXP] [-list] [-v] [-jobs N] [-table FILE]

Breaks each guarantee by one line and sees that a test notices.

`

// run is the program. It returns the exit code: 0 every mutant was killed, 1 not so, 2 usage.
func run(ctx context.Context, args []string, stdout, stderr io.Writer) int {
	fs := flag.NewFlagSet("mutants", flag.ContinueOnError)
	fs.SetOutput(stderr)
	fs.Usage = func() { fmt.Fprint(stderr, usage); fs.PrintDefaults() }
	only := fs.String("run", "", "try only mutants whose id matches the `regexp`")
	list := fs.Bool("list", false, "print the table and try nothing")
	verbose := fs.Bool("v", false, "print what each mutant breaks and what the tests say")
	jobs := fs.Int("jobs", 2, "mutants in flight")
	table := fs.String("table", "", "the `file` with the mutants, by default tools/mutants/mutants.txt of the module")
	if err := fs.Parse(args); err != nil {
		if errors.Is(err, flag.ErrHelp) {
			return 0
		}
		return 2
	}
	re, err := regexp.Compile(*only)
	if err == nil && (fs.NArg() > 0 || *jobs < 1) {
		err = errors.New("want no arguments beside flags, and at least one job")
	}
	if err != nil {
		fmt.Fprintf(stderr, "mutants: %v\n", err)
		return 2
	}
	c, err := open(ctx, *table, re)
	if err != nil {
		fmt.Fprintf(stderr, "mutants: %v\n", err)
		return 1
	}
	c.out, c.jobs, c.verbose = stdout, *jobs, *verbose
	if *list {
		c.list()
		return 0
	}
	ok, err := c.run(ctx)
	if err != nil {
		fmt.Fprintf(stderr, "mutants: %v\n", err)
		return 1
	}
	if !ok {
		return 1
	}
	return 0
}

// open finds the module of the current folder and reads the entries of the table that match.
func open(ctx context.Context, table string, only *regexp.Regexp) (*campaign, error) {
	root, err := moduleRoot(ctx)
	if err != nil {
		return nil, err
	}
	if table == "" {
		table = filepath.Join(root, "tools", "mutants", "mutants.txt")
	}
	b, err := os.ReadFile(table)
	if err != nil {
		return nil, fmt.Errorf("read table: %w", err)
	}
	entries, err := parse(string(b))
	if err != nil {
		return nil, fmt.Errorf("%s: %w", filepath.Base(table), err)
	}
	c := &campaign{root: root}
	for _, e := range entries {
		switch {
		case !only.MatchString(e.ID):
		case e.Absent != "":
			c.absent = append(c.absent, e)
		default:
			c.mutants = append(c.mutants, e)
		}
	}
	if len(c.mutants) == 0 && len(c.absent) == 0 {
		return nil, fmt.Errorf("no mutant's id matches %q", only)
	}
	return c, nil
}

// moduleRoot is the folder of the go.mod that governs the current one.
func moduleRoot(ctx context.Context) (string, error) {
	cmd := exec.CommandContext(ctx, "go", "env", "GOMOD")
	out, err := cmd.Output()
	if err != nil {
		return "", fmt.Errorf("go env GOMOD: %w", err)
	}
	mod := string(bytes.TrimSpace(out))
	if mod == "" || mod == os.DevNull {
		return "", errors.New("the current folder is in no module")
	}
	return filepath.Dir(mod), nil
}
