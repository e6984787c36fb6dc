// SPDX-License-Identifier: Apache-2.0
// Copyright The Segue Authors

package lint

import (
	"debug/elf"
	"fmt"
)

// Static checks that an ELF program needs no dynamic linker and no shared library.
func Static(name string) ([]Finding, error) {
	f, err := elf.Open(name)
	if err != nil {
		return nil, fmt.Errorf("read program: %w", err)
	}
	defer f.Close()
	var out []Finding
	for _, p := range f.Progs {
		if p.Type == elf.PT_INTERP {
			out = append(out, Finding{name, "asks for a dynamic linker"})
		}
	}
	// A program without a dynamic section has no libraries; ImportedLibraries then returns none.
	libs, err := f.ImportedLibraries()
	if err != nil {
		return nil, fmt.Errorf("read program's libraries: %w", err)
	}
	for _, l := range libs {
		out = append(out, Finding{name, "needs " + l})
	}
	return out, nil
}
