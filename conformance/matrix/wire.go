// SPDX-License-Identifier: Apache-2.0
// Copyright The Segue Authors

package matrix

import (
	"encoding/json"
	"strconv"
	"strings"

	"github.com/seguekv/segue/conformance/upstream"
)

// wire checks what only the connection shows: headers, framing, the envelope.
func (v *verdict) wire(attempts int) {
	w := v.r.Wire
	if w.Exit != 0 {
		v.bad("curl's exit code is %d: the body doesn't end cleanly", w.Exit)
	}
	v.header("x-request-id", v.c.RequestID())
	for _, h := range []string{"content-encoding"} {
		if w.Headers[h] != nil {
			v.bad("header %s is %q, want none", h, w.Headers[h])
		}
	}
	if v.want.Outcome == Refused {
		v.header("content-type", "application/json")
		for _, h := range []string{"retry-after", "x-should-retry"} {
			if w.Headers[h] == nil {
				v.bad("no header %s on HTTP status %d", h, w.Status)
			}
		}
		return
	}
	if w.Status != 200 {
		v.bad("HTTP status is %d, want 200", w.Status)
		return
	}
	if w.Headers["x-segue-protection"] == nil {
		v.bad("no header x-segue-protection")
	}
	if got := append(w.Headers["x-segue-attempts"], w.Trailers["x-segue-attempts"]...); len(got) != 1 || got[0] != strconv.Itoa(attempts) {
		v.bad("x-segue-attempts, as header or trailer, is %q, want %d", got, attempts)
	}
	if !v.c.Stream {
		v.header("content-type", "application/json")
		v.envelope(w.Events, false)
		return
	}
	v.header("content-type", "text/event-stream; charset=utf-8")
	v.header("cache-control", "no-cache, no-transform")
	v.header("x-accel-buffering", "no")
	if w.Headers["content-length"] != nil {
		v.bad("a stream has a content length")
	}
	v.frames()
}

func (v *verdict) header(name, want string) {
	if got := v.r.Wire.Headers[name]; len(got) != 1 || got[0] != want {
		v.bad("header %s is %q, want %q", name, got, want)
	}
}

// terminator is the data of the event that ends a whole stream.
const terminator = "[DONE]"

// frames checks the order of a stream's events.
func (v *verdict) frames() {
	events := v.r.Wire.Events
	if v.r.Wire.Rest != "" {
		v.bad("the last event has no blank line: %q", v.r.Wire.Rest)
	}
	if len(events) == 0 {
		v.bad("no events")
		return
	}
	for _, e := range events[:len(events)-1] {
		if e == terminator {
			v.bad("an event follows the terminator")
		}
	}
	body, last := events[:len(events)-1], events[len(events)-1]
	if v.want.Outcome == Whole {
		if last != terminator {
			v.bad("the last event isn't the terminator: %s", last)
		}
		v.envelope(body, true)
		return
	}
	var o map[string]json.RawMessage
	if err := json.Unmarshal([]byte(last), &o); err != nil || o["error"] == nil || o["choices"] != nil {
		v.bad("the last event isn't an error object alone: %s", last)
	}
	if len(body) == 0 || !hasUsage(body[len(body)-1]) {
		v.bad("usage was asked for, and the event before the error has none")
	}
	v.envelope(body, true)
}

func hasUsage(event string) bool {
	var o struct {
		Usage *Usage `json:"usage"`
	}
	return json.Unmarshal([]byte(event), &o) == nil && o.Usage != nil
}

// envelope checks that the chunks are of one answer, which the router owns, and carry what it doesn't know.
func (v *verdict) envelope(events []string, stream bool) {
	var first struct{ id, created string }
	roles, kept := 0, false
	for i, e := range events {
		var o map[string]json.RawMessage
		if err := json.Unmarshal([]byte(e), &o); err != nil {
			v.bad("event %d is not a JSON object: %s", i, e)
			return
		}
		if _, ok := o["error"]; ok {
			v.bad("event %d has a top-level error: %s", i, e)
		}
		id, created := string(o["id"]), string(o["created"])
		if i == 0 {
			first.id, first.created = id, created
		}
		if id == "" || strings.Contains(id, "upstream") || id != first.id || created != first.created {
			v.bad("event %d isn't of the router's own envelope: %s", i, e)
		}
		kept = kept || o["x_upstream"] != nil
		if strings.Contains(e, `"role"`) {
			roles++
		}
		if strings.Contains(e, upstream.CallID) {
			v.bad("event %d has the upstream's tool call id", i)
		}
	}
	if !kept {
		v.bad("an unknown field of the upstream's answer was dropped")
	}
	if stream && v.c.Endpoint == Chat && roles != 1 {
		v.bad("%d chunks with a role, want 1", roles)
	}
}
