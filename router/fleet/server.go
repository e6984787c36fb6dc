// SPDX-License-Identifier: Apache-2.0
// Copyright The Segue Authors

package fleet

import (
	"context"
	"fmt"
	"slices"
	"time"
)

const (
	serverProbeEvery = 2 * time.Second
	serverProbeAgain = 500 * time.Millisecond // while the server isn't ready
	// mostModels bounds what one server may list.
	mostModels = 1024
)

// Server is one OpenAI-compatible server of the configuration.
type Server struct {
	ID string
	// Addr is for people.
	Addr string
	// Weight is the server's share of the work among others that serve the same model: positive, 1 by default.
	Weight float64
	// Contexts is the largest number of requests at once; less than 1 means no limit.
	Contexts int
	// Models are the names it serves, if that is fixed: the probe then tells only whether the server is ready.
	Models []string
	// Probe asks the server what it serves, without taking a place of its engine's. It returns when its context ends;
	// its error is shown to people. Calls for one server don't overlap. Without it the server counts as one that
	// always answers.
	Probe func(ctx context.Context) (models []string, err error)
	// Watch looks after the server's engine until ctx ends, and says what it finds to the node's Assess; nil for nobody.
	Watch func(ctx context.Context, n *Node)
	// Handle is what Node.Handle returns.
	Handle any
}

// Handle is the configuration's Server.Handle; nil for an agent.
func (n *Node) Handle() any { return n.server.Handle }

// list makes one probe of a server and returns when the next is due.
func (n *Node) list(ctx context.Context) time.Duration {
	f := n.fleet
	f.mu.Lock()
	doubts := n.state.doubts
	f.mu.Unlock()
	var models []string
	var err error
	if n.server.Probe != nil {
		call, cancel := context.WithTimeout(ctx, probeTimeout)
		models, err = n.server.Probe(call)
		cancel()
	}
	if ctx.Err() != nil {
		return serverProbeEvery
	}
	if n.learn(func(s *nodeState) { s.listed(n.server.Models, models, err, doubts) }) {
		return serverProbeEvery
	}
	return serverProbeAgain
}

// listed takes in the outcome of a probe that began at doubts.
func (s *nodeState) listed(fixed, models []string, err error, doubts uint64) {
	if err != nil {
		s.missed++
		if s.missed >= missedProbes {
			s.ready, s.reason = false, "models: "+err.Error()
		}
		return
	}
	s.missed = 0
	complaint := ""
	if len(fixed) == 0 {
		switch {
		case len(models) == 0:
			complaint = "it lists no model; load one, or name its models in the configuration"
		case len(models) > mostModels:
			complaint = fmt.Sprintf("it lists %d models, more than %d; name those to use in the configuration", len(models), mostModels)
		default:
			s.models = slices.Clone(models)
		}
	}
	if s.doubts != doubts {
		return
	}
	s.full = false
	s.ready, s.reason = complaint == "", complaint
}
