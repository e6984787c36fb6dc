// SPDX-License-Identifier: Apache-2.0
// Copyright The Segue Authors

package bench

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/seguekv/segue/bench/client"
	"github.com/seguekv/segue/bench/cluster"
)

// answerTimeout bounds one answer; the longest prompts take some 15 s here.
const answerTimeout = 3 * time.Minute

// errDisturbed means that a node lost a session, or was passed over, although nothing was killed.
var errDisturbed = errors.New("bench: disturbed although nothing was killed")

// reference is what the undisturbed request answers, the same on every node.
type reference struct {
	prompt     prompt
	transcript *client.Transcript
	// step is the mean time between two tokens at the client.
	step time.Duration
}

func (r *reference) tokens() int { return len(r.transcript.Tokens()) }

// undisturbed sends a request and returns its transcript and the router's record of it; anything but one complete
// answer by one attempt is an error.
func undisturbed(ctx context.Context, c *client.Client, router *cluster.Admin, call client.Call) (*client.Transcript, *cluster.Session, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, answerTimeout, errors.New("answer takes too long"))
	defer cancel()
	t, err := c.Stream(ctx, call)
	if err != nil {
		return nil, nil, err
	}
	if t.Err != nil {
		return nil, nil, fmt.Errorf("%w: %s", errDisturbed, t.Failure())
	}
	if !t.Complete() {
		return nil, nil, fmt.Errorf("answer is not complete: %s", t.Failure())
	}
	s, err := router.EndedSession(ctx, t.Session)
	if err != nil {
		return nil, nil, err
	}
	if len(s.Attempts) != 1 {
		return nil, nil, fmt.Errorf("%w: session %s took %d attempts", errDisturbed, s.Session, len(s.Attempts))
	}
	return t, s, nil
}

// takeReference runs a request once on each node, unprotected, and checks that they agree. It adjusts the length of the
// text until the measured prompt is what was asked for.
func takeReference(ctx context.Context, c *client.Client, cl *cluster.Cluster, p prompt, lib library, s scale) (*reference, error) {
	run := func() (*client.Transcript, string, error) {
		t, record, err := undisturbed(ctx, c, cl.Router(), client.Call{Body: p.body, Protection: client.ProtectionOff})
		if err != nil {
			return nil, "", fmt.Errorf("take reference: %w", err)
		}
		return t, record.Attempts[0].Node, nil
	}
	first, at, err := p.fit(run, lib, s)
	if err != nil {
		return nil, err
	}
	if p.derive != nil {
		p.derive(&p.body, first)
		if first, at, err = run(); err != nil {
			return nil, err
		}
	}
	if n := len(first.Tokens()); n < minOutput {
		return nil, fmt.Errorf("take reference: only %d tokens although %d were asked for", n, minOutput)
	}
	seen := map[string]bool{at: true}
	for try := 0; len(seen) < len(cl.Nodes()); try++ {
		if try == placementTries+len(cl.Nodes()) {
			return nil, fmt.Errorf("take reference: %w: %d requests in a row were not placed on every node of %v", errDisturbed, try+1, cl.Nodes())
		}
		t, node, err := run()
		if err != nil {
			return nil, err
		}
		seen[node] = true
		if why := client.Differences(t, first); len(why) > 0 {
			return nil, fmt.Errorf("take reference: nodes %s and %s disagree: %s", at, node, strings.Join(why, "; "))
		}
	}
	step := time.Duration(float64(time.Second) / max(first.TokensPerSecond(), 1))
	return &reference{prompt: p, transcript: first, step: step}, nil
}

// fit runs the request until the length of its prompt is what was asked for.
func (p *prompt) fit(run func() (*client.Transcript, string, error), lib library, s scale) (*client.Transcript, string, error) {
	const tries = 4
	for try := 0; ; try++ {
		t, node, err := run()
		if err != nil || p.fits(t.Usage.PromptTokens) {
			return t, node, err
		}
		if try == tries-1 {
			return nil, "", fmt.Errorf("take reference: prompt of %d tokens where %d were asked for", t.Usage.PromptTokens, p.target)
		}
		p.refit(t.Usage.PromptTokens, lib, s)
	}
}
