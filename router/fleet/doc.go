// SPDX-License-Identifier: Apache-2.0
// Copyright The Segue Authors

// Package fleet is the agents as one router knows them: a connection to each, what each last said about
// itself, how many of its contexts this router uses, and the queue of sessions that wait for one.
//
// Everything an agent says by Describe is a hint for placement. Nothing that keeps a stream correct
// depends on it: an agent that lies about its load refuses, and the session goes on elsewhere.
//
// Nouns: a Node is the handle of one agent; a View is its state as placement sees it; a Claim counts one
// running session on a node; a Hold counts one session that a node holds for another; a Ticket is a place
// in the queue; a Lease bounds how long a run goes on that the router can't reach.
//
// INVARIANT: a new session is never placed on a node whose unreserved contexts are used up.
//
// Run owns all goroutines: for each node one that probes, one that renews leases and one that watches the
// connection. The one mutex guards everything; no call is made while it is held.
package fleet
