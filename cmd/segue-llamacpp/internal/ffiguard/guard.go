// SPDX-License-Identifier: Apache-2.0
// Copyright The Segue Authors

package ffiguard

import (
	"syscall"

	"github.com/seguekv/segue/engines/llamacpp/libffi"
)

var _ = require()

// exitMissing is the program's exit code for a missing part.
const exitMissing = 2

func require() struct{} {
	if libffi.Find() == "" {
		_, _ = syscall.Write(2, []byte("segue-llamacpp: libffi: "+libffi.Name+" not found; "+libffi.Hint+"\n"))
		syscall.Exit(exitMissing)
	}
	return struct{}{}
}
