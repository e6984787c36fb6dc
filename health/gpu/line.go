// SPDX-License-Identifier: Apache-2.0
// Copyright The Segue Authors

package gpu

import (
	"encoding/json"
	"errors"
	"fmt"
	"time"
	"unicode"
	"unicode/utf8"
)

// ErrLine is what every error of Parse and Append wraps.
var ErrLine = errors.New("bad line")

func bad(format string, args ...any) error {
	return fmt.Errorf("gpu: %w: %s", ErrLine, fmt.Sprintf(format, args...))
}

// Line is one line of the program: exactly one of the two is set.
type Line struct {
	Hello  *Hello  `json:"hello,omitempty"`
	Sample *Sample `json:"sample,omitempty"`
}

// Append checks a line and appends it to b, with the line end.
func (l Line) Append(b []byte) ([]byte, error) {
	if err := l.validate(); err != nil {
		return b, err
	}
	text, err := json.Marshal(l)
	if err != nil {
		return b, bad("%v", err)
	}
	if len(text) >= MaxLine {
		return b, bad("%d bytes, at most %d are allowed", len(text)+1, MaxLine)
	}
	return append(append(b, text...), '\n'), nil
}

// Parse reads one line, with or without its end, and checks every field.
func Parse(line []byte) (Line, error) {
	if len(line) > MaxLine {
		return Line{}, bad("%d bytes, at most %d are allowed", len(line), MaxLine)
	}
	// The devices are counted before they are read, so that a line takes no more memory than its limits allow.
	var raw struct {
		Hello  *Hello `json:"hello"`
		Sample *struct {
			Sample
			Devices []json.RawMessage `json:"devices"`
			Events  []json.RawMessage `json:"events"`
		} `json:"sample"`
	}
	if err := json.Unmarshal(line, &raw); err != nil {
		return Line{}, bad("%v", err)
	}
	out := Line{Hello: raw.Hello}
	if raw.Sample != nil {
		s := raw.Sample.Sample
		var err error
		if s.Devices, err = list[Device]("devices", raw.Sample.Devices, MaxDevices); err != nil {
			return Line{}, err
		}
		if s.Events, err = list[Event]("events", raw.Sample.Events, MaxEvents); err != nil {
			return Line{}, err
		}
		out.Sample = &s
	}
	if err := out.validate(); err != nil {
		return Line{}, err
	}
	return out, nil
}

func list[T any](name string, raw []json.RawMessage, limit int) ([]T, error) {
	if len(raw) > limit {
		return nil, bad("%d %s, at most %d are allowed", len(raw), name, limit)
	}
	var out []T
	for _, r := range raw {
		var v T
		if err := json.Unmarshal(r, &v); err != nil {
			return nil, bad("%s: %v", name, err)
		}
		out = append(out, v)
	}
	return out, nil
}

func (l Line) validate() error {
	switch {
	case (l.Hello == nil) == (l.Sample == nil):
		return bad("neither a hello nor a sample, or both")
	case l.Hello != nil:
		return l.Hello.validate()
	}
	return l.Sample.validate()
}

func (h *Hello) validate() error {
	switch {
	case h.Protocol != Protocol:
		return bad("protocol %d, want %d: the program is of another version", h.Protocol, Protocol)
	case !plain(h.Boot):
		return bad("boot id %.99q", h.Boot)
	case h.IntervalMS < 0 || h.IntervalMS > int64(time.Hour/time.Millisecond):
		return bad("interval %d ms", h.IntervalMS)
	}
	return texts("hello", append([]string{h.Version, h.Unavailable, h.Driver, h.Library}, h.Capabilities...))
}

func (s *Sample) validate() error {
	switch {
	case s.At.IsZero() || s.MonotonicNS <= 0:
		return bad("a sample without its time")
	case s.StalledMS < 0 || s.StalledMS > int64(10*365*24*time.Hour/time.Millisecond):
		return bad("stalled for %d ms", s.StalledMS)
	case (s.StalledMS > 0 || s.InitFailed != "") && (len(s.Devices) > 0 || s.Complete):
		return bad("devices in a sample that can't have any")
	case len(s.Devices) > MaxDevices:
		return bad("%d devices, at most %d are allowed", len(s.Devices), MaxDevices)
	case len(s.Events) > MaxEvents:
		return bad("%d events, at most %d are allowed", len(s.Events), MaxEvents)
	}
	if err := texts("sample", append([]string{s.InitFailed}, s.Errors...)); err != nil {
		return err
	}
	seen := make(map[string]bool)
	for _, d := range s.Devices {
		if err := d.validate(seen); err != nil {
			return err
		}
	}
	for _, e := range s.Events {
		switch {
		case e.At.IsZero() || e.MonotonicNS <= 0:
			return bad("an event without its time")
		case e.XID < 1 || e.XID >= maxXID:
			return bad("xid %d", e.XID)
		case !plain(e.UUID):
			return bad("device %.99q of an event", e.UUID)
		}
	}
	return nil
}

func (d *Device) validate(seen map[string]bool) error {
	switch {
	case d.UUID == "" || !plain(d.UUID) || seen[d.UUID]:
		return bad("device %.99q has no name of its own", d.UUID)
	case d.Index < 0 || d.Index > 1<<16:
		return bad("device %s has index %d", d.UUID, d.Index)
	case !plain(d.PCI):
		return bad("device %s has address %.99q", d.UUID, d.PCI)
	case len(d.MIG) > MaxInstances:
		return bad("device %s has %d parts, at most %d are allowed", d.UUID, len(d.MIG), MaxInstances)
	case d.Recovery != nil && !d.Recovery.known():
		return bad("device %s has recovery action %.99q", d.UUID, *d.Recovery)
	}
	seen[d.UUID] = true
	for _, i := range d.MIG {
		if i.UUID == "" || !plain(i.UUID) || seen[i.UUID] {
			return bad("part %.99q of device %s has no name of its own", i.UUID, d.UUID)
		}
		seen[i.UUID] = true
	}
	return texts("device "+d.UUID, d.Unsupported)
}

func (r Recovery) known() bool {
	switch r {
	case RecoveryNone, RecoveryReset, RecoveryReboot, RecoveryDrain, RecoveryDrainAndReset, RecoveryIMEX, RecoveryBusReset, RecoverySystemReboot, RecoveryOther:
		return true
	}
	return false
}

// texts checks a list of texts for people.
func texts(of string, list []string) error {
	if len(list) > MaxTexts {
		return bad("%s has %d texts, at most %d are allowed", of, len(list), MaxTexts)
	}
	for _, s := range list {
		if !readable(s) {
			return bad("%s has a text that is too long or can't be shown", of)
		}
	}
	return nil
}

// readable reports whether a text can be shown in one line.
func readable(s string) bool {
	if len(s) > MaxText || !utf8.ValidString(s) {
		return false
	}
	for _, r := range s {
		if !unicode.IsPrint(r) {
			return false
		}
	}
	return true
}

// plain reports whether a name is one: letters, digits and a few signs, 96 at most.
func plain(s string) bool {
	for _, c := range []byte(s) {
		letter := c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= '0' && c <= '9'
		if !letter && c != '-' && c != '.' && c != '_' && c != ':' && c != '/' {
			return false
		}
	}
	return len(s) <= 96
}

// Rebase puts the sample and its events on the caller's clock: now is what that says, monotonic what CLOCK_MONOTONIC
// says at the same moment, in nanoseconds. A sample of the future is an error.
func (s *Sample) Rebase(now time.Time, monotonic int64) error {
	if ahead := s.MonotonicNS - monotonic; ahead > int64(time.Second) {
		return bad("a sample of %v from now", time.Duration(ahead))
	}
	place := func(ns int64) time.Time { return now.Add(-time.Duration(max(monotonic-ns, 0))) }
	s.At = place(s.MonotonicNS)
	for i := range s.Events {
		s.Events[i].At = place(s.Events[i].MonotonicNS)
	}
	return nil
}
