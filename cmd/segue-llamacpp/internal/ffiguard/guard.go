// SPDX-License-Identifier: Apache-2.0
// Copyright The Segue Authors

package ffiguard

import (
	"syscall"

	"github.com/seguekv/segue/engines/llamacpp/libffi"
)

// Path is where libffi is.
var Path = require()

// exitMissing is the program's exit code for a missing part.
const exitMissing = 2

func require() string {
	p := libffi.Find()
	if p == "" {
		_, _ = syscall.Write(2, []byte("segue-llamacpp: libffi: "+libffi.Name+" not found; "+libffi.Hint+"\n"))
		syscall.Exit(exitMissing)
	}
	return p
}
