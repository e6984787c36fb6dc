// SPDX-License-Identifier: Apache-2.0
// Copyright The Segue Authors

package sim_test

import (
	"runtime"
	"strings"
)

// stacks are the goroutines of bubbles.
func stacks() string {
	buf := make([]byte, 4<<20)
	var out []string
	for g := range strings.SplitSeq(string(buf[:runtime.Stack(buf, true)]), "\n\n") {
		if head, _, _ := strings.Cut(g, "\n"); strings.Contains(head, "synctest") {
			out = append(out, g)
		}
	}
	return strings.Join(out, "\n\n")
}
