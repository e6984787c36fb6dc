// SPDX-License-Identifier: Apache-2.0
// Copyright The Segue Authors

// Command segue-llamacpp is the engine host of llama.cpp: a child of an agent that loads a model, keeps a
// pool of contexts, and serves runs over the engine link on file descriptor 3. It ends when the link closes.
//
// It is the only program of Segue that loads foreign code, so that a crash of it is a crash of an engine and
// not of a node. Each context belongs to one run, and with it to one goroutine, at a time; one position is
// computed per decode call and prompts in chunks of one size, because both change the numerics.
//
// Exit codes: 0 the link closed; 1 the engine failed; 2 bad flags or a missing part, with one line on
// standard error that says what to do.
package main

import "os"

func main() { os.Exit(run(os.Args[1:], os.Stdout, os.Stderr)) }
