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
	if !t.Complete() {
		return nil, nil, fmt.Errorf("answer is not complete: %s", t.Failure())
	}
	s, err := router.EndedSession(ctx, t.Session)
	if err != nil {
		return nil, nil, err
	}
	if len(s.Attempts) != 1 {
		return nil, nil, fmt.Errorf("session %s took %d attempts although nothing was killed", s.Session, len(s.Attempts))
	}
	return t, s, nil
}

// takeReference runs a request once on each node, unprotected, and checks that they agree. It adjusts the length of the
// text until the measured prompt is what was asked for.
func takeReference(ctx context.Context, c *client.Client, cl *cluster.Cluster, p prompt, lib library, s scale) (*reference, error) {
	const fits = 4
	var first *client.Transcript
	var at string
	for try := range fits {
		t, record, err := undisturbed(ctx, c, cl.Router(), client.Call{Body: p.body, Protection: client.ProtectionOff})
		if err != nil {
			return nil, fmt.Errorf("take reference: %w", err)
		}
		if p.fits(t.Usage.PromptTokens) {
			first, at = t, record.Attempts[0].Node
			break
		}
		if try == fits-1 {
			return nil, fmt.Errorf("take reference: prompt of %d tokens where %d were asked for", t.Usage.PromptTokens, p.target)
		}
		p.refit(t.Usage.PromptTokens, lib, s)
	}
	if n := len(first.Tokens()); n < p.body.MinTokens {
		return nil, fmt.Errorf("take reference: only %d tokens although min_tokens is %d", n, p.body.MinTokens)
	}
	seen := map[string]bool{at: true}
	for try := 0; len(seen) < len(cl.Nodes()); try++ {
		if try == placementTries {
			return nil, fmt.Errorf("take reference: %d requests in a row were not placed on every node of %v", try+1, cl.Nodes())
		}
		t, record, err := undisturbed(ctx, c, cl.Router(), client.Call{Body: p.body, Protection: client.ProtectionOff})
		if err != nil {
			return nil, fmt.Errorf("take reference: %w", err)
		}
		node := record.Attempts[0].Node
		seen[node] = true
		if why := client.Differences(t, first); len(why) > 0 {
			return nil, fmt.Errorf("take reference: nodes %s and %s disagree: %s", at, node, strings.Join(why, "; "))
		}
	}
	step := time.Duration(float64(time.Second) / max(first.TokensPerSecond(), 1))
	return &reference{prompt: p, transcript: first, step: step}, nil
}
