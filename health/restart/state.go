// SPDX-License-Identifier: Apache-2.0
// Copyright The Segue Authors

package restart

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"time"
)

// ErrState is wrapped by errors about a state file that can't be read as one.
var ErrState = errors.New("the record of restarts is unusable")

// State is what was done so far. The zero value is nothing.
type State struct {
	// Restarts are those of the last window, the oldest first.
	Restarts []Restart
	// Stopped is when there were too many; zero otherwise.
	Stopped time.Time
	// Since is when this owner began, Bad when it last saw the server unwell, Seen whether it saw it well since it began or
	// restarted it. They aren't on disk: an owner knows what it saw itself.
	Since, Bad time.Time
	Seen       bool
}

// Restart is one run of the command.
type Restart struct {
	Began time.Time `json:"began"`
	// Ended is zero while it runs, and for ever if its watchdog died meanwhile.
	Ended time.Time `json:"ended,omitzero"`
}

// over is when it ended, at the latest. A clock that was set back while it ran makes it end before it began.
func (r Restart) over(p Policy) time.Time {
	switch {
	case r.Ended.IsZero():
		return r.Began.Add(p.Timeout)
	case r.Ended.Before(r.Began):
		return r.Began
	}
	return r.Ended
}

// Begin counts a restart that begins, and forgets those older than the window.
func (p Policy) Begin(s State, now time.Time) State {
	list := slices.Clone(s.Restarts)
	list = slices.DeleteFunc(list, func(r Restart) bool { return now.Sub(r.Began) >= p.Window })
	s.Restarts = append(list, Restart{Began: now})
	s.Since, s.Seen = now, false
	return s
}

// End notes that the last restart's command is over.
func (s State) End(now time.Time) State {
	s.Restarts = slices.Clone(s.Restarts)
	if n := len(s.Restarts); n > 0 {
		s.Restarts[n-1].Ended = now
	}
	s.Since, s.Bad = now, now
	return s
}

func (s State) last() (Restart, bool) {
	if len(s.Restarts) == 0 {
		return Restart{}, false
	}
	return s.Restarts[len(s.Restarts)-1], true
}

func (s State) recent(now time.Time, window time.Duration) int {
	n := 0
	for _, r := range s.Restarts {
		if now.Sub(r.Began) < window {
			n++
		}
	}
	return n
}

// until moves times that lie ahead to now, and reports whether there were any: the clock was set back, and what was
// done counts as done just now.
func (s State) until(now time.Time) (State, bool) {
	ahead := func(t time.Time) bool { return t.After(now) }
	if !ahead(s.Stopped) && !slices.ContainsFunc(s.Restarts, func(r Restart) bool { return ahead(r.Began) || ahead(r.Ended) }) {
		return s, false
	}
	earlier := func(t time.Time) time.Time {
		if ahead(t) {
			return now
		}
		return t
	}
	s.Restarts = slices.Clone(s.Restarts)
	for i, r := range s.Restarts {
		s.Restarts[i] = Restart{Began: earlier(r.Began), Ended: earlier(r.Ended)}
	}
	s.Stopped = earlier(s.Stopped)
	return s, true
}

// stateVersion is that of the file's format.
const stateVersion = 1

// stateFile is the file's content.
type stateFile struct {
	Version  int       `json:"version"`
	Key      string    `json:"key"`
	Restarts []Restart `json:"restarts"`
	Stopped  time.Time `json:"stopped,omitzero"`
}

// encode writes a state of the target with that key.
func encode(key string, s State) ([]byte, error) {
	b, err := json.MarshalIndent(stateFile{Version: stateVersion, Key: key, Restarts: s.Restarts, Stopped: s.Stopped}, "", "  ")
	return append(b, '\n'), err
}

// decode reads what encode wrote for that key. Errors wrap ErrState.
func decode(key string, b []byte) (State, error) {
	d := json.NewDecoder(bytes.NewReader(b))
	d.DisallowUnknownFields()
	var f stateFile
	if err := d.Decode(&f); err != nil {
		return State{}, fmt.Errorf("%w: %w", ErrState, err)
	}
	switch {
	case d.More():
		return State{}, fmt.Errorf("%w: something follows the record", ErrState)
	case f.Version != stateVersion:
		return State{}, fmt.Errorf("%w: its version is %d, not %d", ErrState, f.Version, stateVersion)
	case f.Key != key:
		return State{}, fmt.Errorf("%w: it is that of %q, not of %q", ErrState, f.Key, key)
	case len(f.Restarts) > mostRestarts:
		return State{}, fmt.Errorf("%w: it has %d restarts, more than %d", ErrState, len(f.Restarts), mostRestarts)
	}
	for i, r := range f.Restarts {
		if r.Began.IsZero() {
			return State{}, fmt.Errorf("%w: restart %d has no beginning", ErrState, i+1)
		}
	}
	return State{Restarts: f.Restarts, Stopped: f.Stopped}, nil
}
