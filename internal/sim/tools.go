// SPDX-License-Identifier: Apache-2.0
// Copyright The Segue Authors

package sim

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"net/http"
	"slices"
	"sync"
	"time"
)

// Tools is the world outside: it counts how often each action was done.
//
// INVARIANT: an action is done at most once, and whoever asks for its result gets the one that was stored first.
type Tools struct {
	mu       sync.Mutex
	actions  map[string]*deed
	problems []string
	// Repeats counts claims of what was claimed already, Survived those of them that another process of the router
	// answered than the one that had granted the action.
	Repeats, Survived int
}

// deed is one action.
type deed struct {
	done int
	// boot is the router's process that granted it; 0 while none has.
	boot int
	// result is what was stored, once the router has said so.
	result string
}

func newTools() *Tools { return &Tools{actions: map[string]*deed{}} }

func (t *Tools) problem(format string, args ...any) {
	if len(t.problems) < 5 {
		t.problems = append(t.problems, fmt.Sprintf(format, args...))
	}
}

// Problems are the violations so far.
func (t *Tools) Problems() []string {
	t.mu.Lock()
	defer t.mu.Unlock()
	return slices.Clone(t.problems)
}

// Done is how many actions were done.
func (t *Tools) Done() int {
	t.mu.Lock()
	defer t.mu.Unlock()
	n := 0
	for _, d := range t.actions {
		n += d.done
	}
	return n
}

// names lists the actions that were granted, sorted.
func (t *Tools) names() []string {
	t.mu.Lock()
	defer t.mu.Unlock()
	return slices.Sorted(maps.Keys(t.actions))
}

// granted does an action and returns its result.
func (t *Tools) granted(action string, boot int) string {
	t.mu.Lock()
	defer t.mu.Unlock()
	d := t.actions[action]
	if d == nil {
		d = &deed{boot: boot}
		t.actions[action] = d
	}
	if d.done++; d.done > 1 {
		t.problem("action %s is done %d times", action, d.done)
	}
	return Result(d.done, action)
}

// stored notes a result that the router has taken in.
func (t *Tools) stored(action, result string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	switch d := t.actions[action]; {
	case d == nil:
		t.problem("action %s has the result %s, and nobody has done it", action, result)
	case d.result == "":
		d.result = result
	case d.result != result:
		t.problem("action %s has the result %s, and had %s", action, result, d.result)
	}
}

// refused notes a claim that wasn't granted: of what is claimed, or done with a result.
func (t *Tools) refused(action, result string, boot int) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.Repeats++
	d := t.actions[action]
	if d == nil {
		if result != "" {
			t.problem("action %s has the result %s, and nobody has done it", action, result)
		}
		return // the reply that granted it was lost
	}
	if d.boot != boot {
		t.Survived++
	}
	if d.result != "" && d.result != result {
		t.problem("action %s has the result %q, and had %s", action, result, d.result)
	}
}

const (
	actionTries   = 6
	actionTimeout = 5 * time.Second
	actionPause   = 300 * time.Millisecond
	// actionTime is how long an action takes: a router may crash meanwhile.
	actionTime = 15 * time.Millisecond
)

// actionReply is the ledger's answer.
type actionReply struct {
	State   string          `json:"state"`
	Granted bool            `json:"granted"`
	Result  json.RawMessage `json:"result"`
}

// Act claims an action, does it if that is granted, and stores the result, as a tool runner does. A claim without an
// answer is repeated.
func (c *Client) Act(ctx context.Context, action string) {
	t := c.world.Tools
	for range actionTries {
		boot := c.world.Router.Boots()
		status, got := c.action(ctx, http.MethodPut, action, nil)
		switch {
		case status == http.StatusCreated && got.Granted:
			result := t.granted(action, boot)
			c.world.Trace.Addf("tool    %s of %s", action, c.Host)
			c.world.at(Moment{Point: PointActing})
			time.Sleep(actionTime) // virtual
			c.store(ctx, action, result)
			return
		case status == http.StatusOK, status == http.StatusConflict:
			t.refused(action, string(got.Result), boot)
			return
		case ctx.Err() != nil:
			return
		}
		time.Sleep(actionPause) // virtual
	}
}

// store stores a result until the router has it, and then another one, which must not replace it.
func (c *Client) store(ctx context.Context, action, result string) {
	for range actionTries {
		status, got := c.action(ctx, http.MethodPut, action+"/result", []byte(result))
		if status == http.StatusOK {
			c.world.Tools.stored(action, string(got.Result))
			if string(got.Result) != result {
				c.world.Tools.stored(action, result)
			}
			if status, got = c.action(ctx, http.MethodPut, action+"/result", []byte(`"another"`)); status == http.StatusOK {
				c.world.Tools.stored(action, string(got.Result))
			}
			return
		}
		if ctx.Err() != nil {
			return
		}
		time.Sleep(actionPause) // virtual
	}
}

// action makes one call to the ledger; status 0: there was no answer.
func (c *Client) action(ctx context.Context, method, name string, result json.RawMessage) (status int, got actionReply) {
	ctx, cancel := context.WithTimeout(ctx, actionTimeout)
	defer cancel()
	body, err := json.Marshal(struct {
		Arguments string          `json:"arguments"`
		By        string          `json:"by"`
		Result    json.RawMessage `json:"result,omitempty"`
	}{`{"n": 1}`, c.Host, result})
	if err != nil {
		return 0, got
	}
	req, err := http.NewRequestWithContext(ctx, method, "http://"+RouterAddr+"/v1/actions/"+name, bytes.NewReader(body))
	if err != nil {
		return 0, got
	}
	resp, err := c.http.Do(req)
	if err != nil {
		return 0, got
	}
	defer resp.Body.Close()
	data, err := io.ReadAll(resp.Body)
	if err != nil {
		return 0, got
	}
	if err := json.Unmarshal(data, &got); err != nil {
		return 0, got
	}
	return resp.StatusCode, got
}

// Look is the state of an action in the ledger, and its result, as JSON. Both are empty when nobody has claimed it, or the
// router doesn't say.
func (c *Client) Look(ctx context.Context, action string) (state, result string) {
	_, got := c.action(ctx, http.MethodGet, action, nil)
	return got.State, string(got.Result)
}

// Result is what the nth doing of an action comes to.
func Result(n int, action string) string { return fmt.Sprintf(`"result %d of %s"`, n, action) }

// Audit claims every action again: what was granted stays granted, and a result stays. What doesn't is a problem.
func (c *Client) Audit(ctx context.Context) {
	t := c.world.Tools
	for _, name := range t.names() {
		status := 0
		var got actionReply
		for range actionTries {
			if status, got = c.action(ctx, http.MethodPut, name, nil); status != 0 && status < http.StatusInternalServerError {
				break
			}
			time.Sleep(actionPause) // virtual
		}
		t.mu.Lock()
		d := *t.actions[name]
		if d.boot != c.world.Router.Boots() {
			t.Survived++
		}
		switch {
		case got.Granted || status == http.StatusCreated:
			t.problem("action %s, which was granted, is granted again", name)
		case status != http.StatusOK && status != http.StatusConflict:
			t.problem("the claim of action %s has the status %d", name, status)
		case d.result != "" && string(got.Result) != d.result:
			t.problem("action %s has the result %q at last, and had %s", name, got.Result, d.result)
		}
		t.mu.Unlock()
	}
}
