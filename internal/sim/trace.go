// SPDX-License-Identifier: Apache-2.0
// Copyright The Segue Authors

package sim

import (
	"context"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"time"
)

// traceKept is how many lines a trace keeps: the last ones.
const traceKept = 4000

// Trace is what happened in a world, a line each, with the virtual time since its start.
type Trace struct {
	begun time.Time
	// verbose traces take in logs and moments as well.
	verbose bool

	mu    sync.Mutex
	lines []string
	lost  int
}

func newTrace(verbose bool) *Trace { return &Trace{begun: time.Now(), verbose: verbose} }

// Addf adds a line.
func (t *Trace) Addf(format string, args ...any) {
	at := time.Since(t.begun)
	line := fmt.Sprintf("%12.6f  ", at.Seconds()) + fmt.Sprintf(format, args...)
	t.mu.Lock()
	defer t.mu.Unlock()
	if len(t.lines) == traceKept {
		t.lines = t.lines[1:]
		t.lost++
	}
	t.lines = append(t.lines, line)
}

// Lines are the lines so far.
func (t *Trace) Lines() []string {
	t.mu.Lock()
	defer t.mu.Unlock()
	out := append([]string{}, t.lines...)
	if t.lost > 0 {
		out = append([]string{fmt.Sprintf("(%d earlier lines are lost)", t.lost)}, out...)
	}
	return out
}

// logger is a slog logger into the trace; a quiet trace takes nothing in.
func (t *Trace) logger(who string) *slog.Logger {
	if !t.verbose {
		return slog.New(slog.DiscardHandler)
	}
	return slog.New(&traceHandler{to: t, who: who})
}

type traceHandler struct {
	to    *Trace
	who   string
	attrs string
}

func (h *traceHandler) Enabled(context.Context, slog.Level) bool { return true }

func (h *traceHandler) Handle(_ context.Context, r slog.Record) error {
	var b strings.Builder
	r.Attrs(func(a slog.Attr) bool {
		fmt.Fprintf(&b, " %s", shortAttr(a))
		return true
	})
	h.to.Addf("%-7s %-5s %s%s%s", h.who, r.Level, r.Message, h.attrs, b.String())
	return nil
}

func (h *traceHandler) WithAttrs(attrs []slog.Attr) slog.Handler {
	n := *h
	for _, a := range attrs {
		n.attrs += " " + shortAttr(a)
	}
	return &n
}

func (h *traceHandler) WithGroup(string) slog.Handler { return h }

// shortAttr shortens session ids to what tells them apart.
func shortAttr(a slog.Attr) string {
	s := a.String()
	if k, v, ok := strings.Cut(s, "="); ok && k == "session" && len(v) > 8 {
		return k + "=" + v[:8]
	}
	return s
}
