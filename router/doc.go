// SPDX-License-Identifier: Apache-2.0
// Copyright The Segue Authors

// Package router serves OpenAI-shaped requests from a fleet of agents, and keeps each answer going when
// the agent that generates it fails.
//
// A session is one request over its whole life. One goroutine, the request's HTTP handler, owns it: its
// gate, its epochs, its attempts, its output. An attempt is one agent working on the session; a second
// goroutine per attempt reads the agent's stream and hands the events over one by one.
//
//	place ─► Generate(epoch 1) ─► events ─► gate.Append ─► client
//	            │ any end that isn't a finish
//	            ▼
//	         fence: gate.Raise(e → e+1), then Cancel(e) in the background
//	            ├─ a holder is left           ─► Takeover(e+1, d) on it
//	            ├─ one may come back in time  ─► wait for it, then Takeover(e+2, d)
//	            ├─ no content written yet     ─► Restart(e+2), Generate elsewhere
//	            └─ else                       ─► error event with the delivered count, no [DONE]
//
// INVARIANT: a token reaches the client only after the gate has accepted it.
// INVARIANT: the epoch is raised before Takeover or a second Generate is called, and every call carries
// the gate's epoch.
// INVARIANT: the content mark is set before the first content-bearing write; no Generate follows it.
// INVARIANT: a stream ends in finish and [DONE], or in an error event without [DONE], or its connection is cut.
//
// A holder's no is final unless it was never reached or has no engine or no free context at the moment: what it
// holds is untouched then, and it is asked again under a new epoch until takeover_wait is over, after all others. At a session's end
// every node that may hold something of it gets Cancel: unlike Release it also stops what is still on its way.
//
// Each run has a lease, which package fleet renews. With uncertain_source: wait, an attempt on another node begins only
// when the old run has certainly ended: its agent said so, or acknowledged Cancel, or its lease is over. Otherwise
// nobody waits: the gate alone keeps the old run from the client.
//
// d is the number of tokens the gate has accepted, and what a takeover must cover. The delivered count in
// error objects is smaller or equal: tokens whose whole text was handed to the connection.
//
// Calls that only free resources (Cancel, Release, Pair) run in a bounded group of the Router, which Run
// waits for. Package fleet has the connections, placement and queue; package openai the client's wire
// format.
//
// Goroutines: Run owns two HTTP servers, the fleet and the background group; each request's handler owns
// its session, and a session its attempts' readers.
//
// Locks: registry.mu before record.mu; handlers' lock is taken alone.
package router
