// SPDX-License-Identifier: Apache-2.0
// Copyright The Segue Authors

// Package fleet is the upstreams as one router knows them: a connection to each agent, a probe of each server, what
// each last said about itself, how much of it this router uses, and the queue of sessions that wait for one.
//
// There are two kinds. An agent speaks gRPC, can hold a session of another agent's, and its runs have leases. A server
// is any OpenAI-compatible server without an agent: a name, a probe, and a handle for whoever calls it. Both kinds
// share the queue, the choice and the exclusion; a session asks for one kind and one model, and several nodes that
// serve the same name are its pool.
//
// Everything a node says about itself is a hint for placement. Nothing that keeps a stream correct
// depends on it: an agent that lies about its load refuses, and the session goes on elsewhere.
//
// The choice is the least of (outstanding tokens + the session's own) / weight. Shares of the work converge to the
// weights' shares while sessions overlap; where each ends before the next begins, all go to the greatest weight.
//
// Failures in a row exclude a node for 1 s, 2 s, 4 s … 30 s; then one session at a time tries it until one succeeds.
// Where all that could take a session are excluded, the one whose exclusion ends first is tried at once.
//
// Nouns: a Node is the handle of one agent or server; a View is its state as placement sees it; a Claim counts one
// running session on a node, with its outstanding tokens; a Hold counts one session that a node holds for another; a
// Ticket is a place in the queue; a Lease bounds how long a run goes on that the router can't reach.
//
// INVARIANT: a new session is never placed on a node whose unreserved contexts are used up.
// INVARIANT: a probe takes no place of an engine's.
//
// Run owns all goroutines: one that serves the queue when an exclusion ends, for each node one that probes, and for
// each agent one that renews leases and one that watches the connection. The one mutex guards everything but the
// counts of outstanding tokens, which are atomic; no call is made while it is held.
package fleet
