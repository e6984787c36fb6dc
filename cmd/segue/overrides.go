// SPDX-License-Identifier: Apache-2.0
// Copyright The Segue Authors

package main

import (
	"strconv"

	"github.com/spf13/pflag"
)

// overrideFlag is a flag that stands for a configuration key. text: its value is a string, whatever it looks
// like.
type overrideFlag struct {
	flag, key, help string
	text            bool
}

// newOverrides defines the flags and returns a function that lists the ones given as key=value.
func newOverrides(fs *pflag.FlagSet, list []overrideFlag) func() []string {
	for _, f := range list {
		fs.String(f.flag, "", f.help)
	}
	return func() []string {
		var out []string
		for _, f := range list {
			if fl := fs.Lookup(f.flag); fl.Changed {
				value := fl.Value.String()
				if f.text {
					value = strconv.Quote(value) // a Go string literal is a YAML scalar
				}
				out = append(out, f.key+"="+value)
			}
		}
		return out
	}
}
