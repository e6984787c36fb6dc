// SPDX-License-Identifier: Apache-2.0
// Copyright The Segue Authors

package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os/signal"
	"strings"
	"syscall"

	_ "github.com/seguekv/segue/cmd/segue-llamacpp/internal/ffiguard"
	"github.com/seguekv/segue/engines/link"
	"github.com/seguekv/segue/engines/llamacpp"
)

// Exit codes.
const (
	exitOK      = 0
	exitFailed  = 1
	exitMissing = 2
)

const usage = `segue-llamacpp hosts llama.cpp for a Segue agent, which starts it with the engine link on file descriptor 3.

Usage: segue-llamacpp [flags]

Example, a check by hand that the model loads and a restored state continues exactly:

  segue-llamacpp --check --model ./model.gguf --llama-lib ./llamacpp

Flags:
`

// run parses flags, builds the engine and serves it until the link closes. It returns the exit code.
func run(args []string, stdout, stderr io.Writer) int {
	c := llamacpp.DefaultConfig()
	flags := flag.NewFlagSet("segue-llamacpp", flag.ContinueOnError)
	flags.SetOutput(io.Discard)
	flags.StringVar(&c.Model, "model", c.Model, "GGUF `file`; default: the one of make deps")
	flags.StringVar(&c.Library, "llama-lib", c.Library, "`folder` with libllama.so; default: the one of make deps")
	flags.StringVar(&c.Name, "name", c.Name, "the model's `name` for clients; default: from the path of the model")
	flags.IntVar(&c.Threads, "threads", c.Threads, "compute threads of each context")
	flags.IntVar(&c.Contexts, "contexts", c.Contexts, "runs at once; each takes the memory of a full context")
	flags.IntVar(&c.ContextLength, "context-length", c.ContextLength, "tokens of prompt and output together")
	flags.IntVar(&c.PrefillChunk, "chunk", c.PrefillChunk, "prompt tokens computed at once")
	check := flags.Bool("check", false, "load the model, prove a restore, print what it is, and end")
	if err := flags.Parse(args); errors.Is(err, flag.ErrHelp) {
		fmt.Fprint(stdout, usage)
		flags.SetOutput(stdout)
		flags.PrintDefaults()
		return exitOK
	} else if err != nil {
		return fail(stderr, exitMissing, fmt.Errorf("%w; run: segue-llamacpp --help", err))
	}
	if flags.NArg() > 0 {
		return fail(stderr, exitMissing, fmt.Errorf("unexpected argument %q; run: segue-llamacpp --help", flags.Arg(0)))
	}
	if err := errors.Join(c.Validate(), llamacpp.Check(c)); err != nil {
		return fail(stderr, exitMissing, err)
	}

	// The terminal interrupts the whole process group: the agent decides when its engine ends.
	signal.Ignore(syscall.SIGINT)
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer stop()
	e, err := open(c, stderr)
	if err != nil {
		if _, ok := errors.AsType[*llamacpp.PartError](err); ok {
			return fail(stderr, exitMissing, err)
		}
		return fail(stderr, exitFailed, err)
	}
	if *check {
		describe(stdout, e)
		return exitOK
	}
	if err := link.ServeInherited(ctx, e); err != nil && ctx.Err() == nil {
		return fail(stderr, exitFailed, err)
	}
	return exitOK
}

// open loads library and model and builds the engine. Contexts and model live as long as the process.
func open(c llamacpp.Config, stderr io.Writer) (*engine, error) {
	lib, err := openLibrary(c.LibraryPath(), &libraryLog{w: stderr})
	if err != nil {
		return nil, err
	}
	m, err := loadModel(lib, c.ModelPath())
	if err != nil {
		return nil, err
	}
	return newEngine(m, c)
}

// fail writes err as one line: whoever starts this program shows the last line of it.
func fail(stderr io.Writer, code int, err error) int {
	fmt.Fprintln(stderr, "segue-llamacpp: "+strings.ReplaceAll(err.Error(), "\n", "; "))
	return code
}

func describe(w io.Writer, e *engine) {
	d := e.description
	fmt.Fprintf(w, "model=%s vocabulary=%d context_length=%d contexts=%d row_bytes=%d fingerprint=%s\n",
		d.Model, d.Vocabulary, d.ContextLength, d.Contexts, d.Geometry.RowBytes(), d.Fingerprint.Digest())
}
