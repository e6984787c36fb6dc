// SPDX-License-Identifier: Apache-2.0
// Copyright The Segue Authors

package main

import "github.com/spf13/pflag"

// overrideFlag is a flag that stands for a configuration key.
type overrideFlag struct{ flag, key, help string }

// newOverrides defines the flags and returns a function that lists the ones given as key=value.
func newOverrides(fs *pflag.FlagSet, list []overrideFlag) func() []string {
	for _, f := range list {
		fs.String(f.flag, "", f.help)
	}
	return func() []string {
		var out []string
		for _, f := range list {
			if fl := fs.Lookup(f.flag); fl.Changed {
				out = append(out, f.key+"="+quote(fl.Value.String()))
			}
		}
		return out
	}
}
