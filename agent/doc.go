// SPDX-License-Identifier: Apache-2.0
// Copyright The Segue Authors

// Package agent runs the sessions of one node: it is primary for some and holder for others at once.
//
// As a primary it runs a request on its engine, captures each boundary into an outbox, has it replicated to
// the holder the router assigned, and hands tokens to the router as the session's protection allows. As a
// holder it keeps chains in the snapshot store and continues one when the router orders a takeover.
//
//	router --Generate/Takeover--> session --Run--> engine
//	   ^                            |  ^              |
//	   '------- feed: events -------'  '-- sink ------'
//	                                |
//	                             outbox --> transfer --> holder's store
//
// The agent never decides to start or to continue a session, makes no epochs and publishes nothing: the
// router's gate does. What it promises is the order of events on a stream, that under sync protection no
// token leaves before its boundary is committed, and that nothing of a fenced epoch changes its store.
//
// A run has a lease if its caller grants one. It ends when the lease does, by a timer that looks at the lease's clock,
// and the clock is read before each event leaves: a process or machine that was stopped wakes up to nothing it may
// hand out.
//
// A planned move of a session ends its run on purpose. Park gives what the run has captured to the store, as if this
// node were the session's holder; Prepare keeps a context for the takeover. Both only fill in what a takeover needs, which
// stays the one way to continue a session.
//
// Goroutines: Agent.Run owns the gRPC and admin servers, the transfer pool and the sweeper; each session has
// a run and a guard, both owned by the agent's session group. A feed runs on its RPC's goroutine.
// Lock order: session.mu, then the store's lock, then a transfer.Sender's, then an outbox's. Agent.mu and those of slots
// and reservations, in the order reservations, slots, are leaves. No lock is held while
// sending or computing, but for a base that a sender gets for the second time, which is sealed anew.
package agent
