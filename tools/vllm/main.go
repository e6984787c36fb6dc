// SPDX-License-Identifier: Apache-2.0
// Copyright The Segue Authors

// Command vllm makes the environment of the tests with real vLLM: vLLM for CPUs with everything it needs, in a Python
// environment of its own, and the test model in the format that it reads. It is one part of the cache (see
// internal/partstore), never a part of the product: who has vLLM needs none of it.
//
// The registry has vLLM for CPUs, but torch only as built for CUDA. So torch's own file is installed alone, and libraries that
// say "no device" stand in for NVIDIA's, which it is linked against; lock.py makes the list of packages
// anew. The recipe's scripts are in the folder recipe.
//
// The program starts one goroutine per call of a registry's client, which prints progress and ends with the call.
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

const usage = `usage: vllm [-env] [-gguf FILE]

Makes the environment of the tests with real vLLM in ${SEGUE_CACHE:-${XDG_CACHE_HOME:-~/.cache}/segue}. A machine without
room for it is said to have none, and that is no failure unless SEGUE_REQUIRE_VLLM is set. With SEGUE_VLLM set, a program
that takes flags of "vllm serve", nothing is made.

`

// variable names the program that starts a server.
const variable = "SEGUE_VLLM"

// run is the program. It returns the exit code: 0 ok, 1 failure, 2 usage, 130 interrupted.
func run(ctx context.Context, args []string, stdout, stderr io.Writer) int {
	fs := flag.NewFlagSet("vllm", flag.ContinueOnError)
	fs.SetOutput(stderr)
	fs.Usage = func() { fmt.Fprint(stderr, usage); fs.PrintDefaults() }
	env := fs.Bool("env", false, "make nothing, print the path as a shell assignment: an empty one if there is no complete environment")
	gguf := fs.String("gguf", "", "`file` of the test model, as tools/deps fetches it")
	if err := fs.Parse(args); err != nil {
		if errors.Is(err, flag.ErrHelp) {
			return 0
		}
		return 2
	}
	if fs.NArg() > 0 {
		fmt.Fprintf(stderr, "vllm: unexpected argument %q\n", fs.Arg(0))
		return 2
	}
	path := os.Getenv(variable)
	if path == "" {
		var err error
		path, err = own(ctx, *env, *gguf, stderr)
		switch {
		case err == nil:
		case ctx.Err() != nil:
			fmt.Fprintln(stderr, "vllm: interrupted; nothing is left of what was unfinished")
			return 130
		case errors.Is(err, errNoRoom) && os.Getenv("SEGUE_REQUIRE_VLLM") == "":
			fmt.Fprintf(stderr, "vllm: SKIPPED: %v\n", err)
		default:
			fmt.Fprintf(stderr, "vllm: %v\n", err)
			return 1
		}
	}
	if *env {
		fmt.Fprintf(stdout, "%s=%s\n", variable, shellQuote(path))
	} else if path != "" {
		fmt.Fprintf(stdout, "%s %s\n", variable, path)
	}
	return 0
}

// own is the program in the cache. If only looking, it is empty without a complete environment.
func own(ctx context.Context, look bool, gguf string, log io.Writer) (string, error) {
	cache, err := partstore.Dir(os.Getenv)
	if err != nil {
		return "", err
	}
	e := environment{
		store: partstore.Store{Dir: cache, Program: "vllm", LockName: ".vllm.lock", Log: log},
		files: recipe, gguf: gguf, pinned: modelSHA256,
	}
	if err := e.findPython(ctx); err != nil {
		if look {
			return "", nil
		}
		return "", err
	}
	if look && !e.complete() {
		return "", nil
	}
	if look {
		return e.program(), nil
	}
	return e.program(), e.ensure(ctx)
}

// shellQuote makes s one word of a POSIX shell.
func shellQuote(s string) string { return "'" + strings.ReplaceAll(s, "'", `'\''`) + "'" }
