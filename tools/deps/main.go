// SPDX-License-Identifier: Apache-2.0
// Copyright The Segue Authors

// Command deps puts the pinned parts that Segue does not build itself into a cache folder: the llama.cpp
// libraries and a small model, and on request the buf tool.
//
// A part is one folder of the cache (see internal/partstore) with the pin in its marker. The downloads go through the
// ordinary clients of their registries (npm, pip), so the user's own settings for mirrors and proxies apply.
//
// The program starts one goroutine per download, which prints progress and ends with the download.
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

	"github.com/seguekv/segue/internal/partstore"
)

func main() {
	// A second signal ends the process at once.
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP)
	context.AfterFunc(ctx, stop)
	os.Exit(run(ctx, os.Args[1:], os.Stdout, os.Stderr))
}

const usage = `usage: deps [-env] [-only KEY[,KEY]]

Fetches pinned, checksummed parts into ${SEGUE_CACHE:-${XDG_CACHE_HOME:-~/.cache}/segue}.
Parts: llama (llama.cpp libraries), model (SmolLM2-135M), server (llama-server for tests), buf (protobuf lint and
generation). A part whose variable is set (SEGUE_LLAMA_LIB, SEGUE_LLAMA_MODEL, SEGUE_LLAMA_SERVER, BUF) is the user's own and not fetched.

`

// run is the program. It returns the exit code: 0 ok, 1 failure, 2 usage, 130 interrupted.
func run(ctx context.Context, args []string, stdout, stderr io.Writer) int {
	fs := flag.NewFlagSet("deps", flag.ContinueOnError)
	fs.SetOutput(stderr)
	fs.Usage = func() { fmt.Fprint(stderr, usage); fs.PrintDefaults() }
	env := fs.Bool("env", false, "fetch nothing, print the parts' paths as shell assignments")
	only := fs.String("only", "llama,model", "comma-separated `keys` of the parts")
	if err := fs.Parse(args); err != nil {
		if errors.Is(err, flag.ErrHelp) {
			return 0
		}
		return 2
	}
	parts, err := choose(pins(), strings.Split(*only, ","))
	if err == nil && fs.NArg() > 0 {
		err = fmt.Errorf("unexpected argument %q", fs.Arg(0))
	}
	if err != nil {
		fmt.Fprintf(stderr, "deps: %v\n", err)
		return 2
	}
	cache, err := partstore.Dir(os.Getenv)
	if err != nil {
		fmt.Fprintf(stderr, "deps: %v\n", err)
		return 1
	}
	paths := make(map[string]string)
	var fetched []part
	for _, p := range parts {
		paths[p.key] = p.path(cache)
		if own := os.Getenv(p.env); own != "" {
			paths[p.key] = own
		} else {
			fetched = append(fetched, p)
		}
	}
	if *env {
		for _, p := range parts {
			fmt.Fprintf(stdout, "%s=%s\n", p.env, shellQuote(paths[p.key]))
		}
		return 0
	}
	if err := newFetcher(cache, stderr).ensure(ctx, fetched); err != nil {
		if ctx.Err() != nil {
			fmt.Fprintln(stderr, "deps: interrupted; finished parts stay, the unfinished one is removed")
			return 130
		}
		fmt.Fprintf(stderr, "deps: %v\n", err)
		return 1
	}
	for _, p := range parts {
		fmt.Fprintf(stdout, "%-10s %s\n", p.flag, paths[p.key])
	}
	return 0
}

// choose returns the parts with the given keys, in the order of all.
func choose(all []part, keys []string) ([]part, error) {
	want := make(map[string]bool)
	for _, k := range keys {
		want[strings.TrimSpace(k)] = true
	}
	var out []part
	for _, p := range all {
		if want[p.key] {
			out = append(out, p)
			delete(want, p.key)
		}
	}
	for k := range want {
		return nil, fmt.Errorf("no part is called %q; parts are llama, model, server, buf", k)
	}
	return out, nil
}

// shellQuote makes s one word of a POSIX shell.
func shellQuote(s string) string { return "'" + strings.ReplaceAll(s, "'", `'\''`) + "'" }
