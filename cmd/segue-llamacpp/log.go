// SPDX-License-Identifier: Apache-2.0
// Copyright The Segue Authors

package main

import (
	"io"
	"strings"
	"sync"

	"github.com/ebitengine/purego"
	"golang.org/x/sys/unix"
)

// Levels of llama.cpp's log.
const (
	levelError    = 4
	levelContinue = 5
)

// keptErrors is how many of the last error lines explain a failed call.
const keptErrors = 4

// libraryLog takes the log of llama.cpp, which logs from the thread of whoever calls it. Errors go to the
// writer and are kept; the rest is dropped.
type libraryLog struct {
	w io.Writer

	mu      sync.Mutex
	isError bool   // level of the last text, which a continuation has too
	line    []byte // the error line so far
	last    []string
}

// callback is a ggml_log_callback. It lives as long as the process.
func (l *libraryLog) callback() uintptr {
	return purego.NewCallback(func(level int32, text *byte, _ uintptr) uintptr {
		if text != nil && level >= levelError {
			l.add(level, unix.BytePtrToString(text))
		} else if level != levelContinue {
			l.skip()
		}
		return 0
	})
}

func (l *libraryLog) skip() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.isError = false
}

func (l *libraryLog) add(level int32, text string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if level == levelContinue && !l.isError {
		return
	}
	l.isError = true
	l.line = append(l.line, text...)
	if !strings.HasSuffix(text, "\n") {
		return
	}
	line := strings.TrimSpace(string(l.line))
	l.line = l.line[:0]
	if line == "" {
		return
	}
	if len(l.last) == keptErrors {
		l.last = append(l.last[:0], l.last[1:]...)
	}
	l.last = append(l.last, line)
	_, _ = io.WriteString(l.w, "llama.cpp: "+line+"\n")
}

// reason returns the errors since the last call of reason, for an error of ours.
func (l *libraryLog) reason() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	s := strings.Join(l.last, "; ")
	l.last = nil
	if s == "" {
		return "llama.cpp gives no reason"
	}
	return s
}
