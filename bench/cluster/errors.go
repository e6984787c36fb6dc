// SPDX-License-Identifier: Apache-2.0
// Copyright The Segue Authors

package cluster

import (
	"fmt"
	"os"
	"strings"
)

// ExitError reports a child that ended without being asked to.
type ExitError struct {
	Process string
	// State is the exit status or signal, as the operating system tells it.
	State string
	// LastLog is the last line of the child's log, which usually says why.
	LastLog string
	// Log is the path of that log.
	Log string
}

func (e *ExitError) Error() string {
	if e.LastLog == "" {
		return fmt.Sprintf("%s ended (%s) without a word; its log is %s", e.Process, e.State, e.Log)
	}
	return fmt.Sprintf("%s ended (%s): %s (log: %s)", e.Process, e.State, e.LastLog, e.Log)
}

// lastLine returns the last line of a log that is not blank, cut to a readable length.
func lastLine(path string) string {
	const tail, longest = 8 << 10, 400
	f, err := os.Open(path)
	if err != nil {
		return ""
	}
	defer f.Close()
	if info, err := f.Stat(); err == nil && info.Size() > tail {
		_, _ = f.Seek(-tail, 2)
	}
	buf := make([]byte, tail)
	n, _ := f.Read(buf)
	lines := strings.Split(strings.TrimSpace(string(buf[:n])), "\n")
	last := strings.TrimSpace(lines[len(lines)-1])
	if len(last) > longest {
		last = last[:longest] + "…"
	}
	return last
}
