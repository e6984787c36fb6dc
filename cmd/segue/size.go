// SPDX-License-Identifier: Apache-2.0
// Copyright The Segue Authors

package main

import (
	"fmt"
	"strconv"
	"strings"

	"go.yaml.in/yaml/v3"
)

// size is a number of bytes, written as "512MiB", "1GiB" or plain bytes.
type size int64

// units are the suffixes of sizes, longest unit first.
func units() []struct {
	suffix string
	bytes  int64
} {
	return []struct {
		suffix string
		bytes  int64
	}{{"TiB", 1 << 40}, {"GiB", 1 << 30}, {"MiB", 1 << 20}, {"KiB", 1 << 10}, {"B", 1}}
}

// UnmarshalYAML reads a size.
func (s *size) UnmarshalYAML(n *yaml.Node) error {
	text := strings.TrimSpace(n.Value)
	for _, u := range units() {
		if number, ok := strings.CutSuffix(text, u.suffix); ok {
			v, err := strconv.ParseInt(strings.TrimSpace(number), 10, 64)
			if err != nil || v < 0 || v > (1<<62)/u.bytes {
				return fmt.Errorf("line %d: %q is not a size; write for example 512MiB", n.Line, text)
			}
			*s = size(v * u.bytes)
			return nil
		}
	}
	v, err := strconv.ParseInt(text, 10, 64)
	if err != nil || v < 0 {
		return fmt.Errorf("line %d: %q is not a size; write for example 512MiB", n.Line, text)
	}
	*s = size(v)
	return nil
}

// MarshalYAML writes a size in the largest unit that divides it.
func (s size) MarshalYAML() (any, error) {
	for _, u := range units() {
		if int64(s) >= u.bytes && int64(s)%u.bytes == 0 && u.bytes > 1 {
			return strconv.FormatInt(int64(s)/u.bytes, 10) + u.suffix, nil
		}
	}
	return int64(s), nil
}
