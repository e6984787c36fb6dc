// SPDX-License-Identifier: Apache-2.0
// Copyright The Segue Authors

//go:build !cgo || !linux

package main

import (
	"io"
	"os"
)

// openLibrary fails: the library is called through cgo.
func openLibrary(string) (driver, error) { return nil, errNoCgo }

// reserveOutput is standard output: nothing else writes to it.
func reserveOutput() (io.Writer, error) { return os.Stdout, nil }
