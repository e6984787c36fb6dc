// SPDX-License-Identifier: Apache-2.0
// Copyright The Segue Authors

// Package fence holds the records that keep an old attempt from reaching a client, and the leases that end it.
//
// A Gate is the router's per-session log and the only publish point: a token exists for the client once
// the gate has appended it. Every entry carries the epoch of the attempt that produced it. Raising the
// epoch is the fence: from then on nothing of a lower epoch is accepted, whatever its sender believes.
//
//	open, epoch e --Append(e,i)--> open      one entry per index, in order
//	open, epoch e --Raise(e,e+1)-> open      fence; accepted tokens stay
//	open, epoch e --Restart(e+1)-> open      retry; only while no content was written
//	open, epoch e --Finish(e,N)--> closed    last entry; no Raise after it
//
// A Record is an agent's memory of one session: the highest epoch it has accepted and the highest that
// was cancelled. It never falls, and it outlives the session by a tombstone of the longest lease.
//
// A lease bounds how long an attempt goes on that its router can't reach. It frees the attempt's slot and lets a router
// wait that must be sure; what keeps publishing safe is the gate alone. The attempt's agent, the holder of the lease,
// has a Term: it counts from before the agent asked, and ends at TTL - margin. The router, the grantor, has a Grant:
// it counts from when the question was received, and is over at TTL + margin. A renewal never shortens either.
//
//	holder   ask k ............ Term: asked k + TTL - margin
//	            \                 ^ quotes k
//	grantor      received k --- renewal: Grant is over at received k + TTL + margin
//
// The package is pure: no I/O, no goroutine, and elapsed time is an argument. Clock is the seam through which the
// machine's clocks come in, package clock has those. A Gate, a Record, a Term and a Grant belong to one goroutine at
// a time.
//
// INVARIANT: epochs never fall and are never reused within a session.
// INVARIANT: when a Grant is over, the Term it was given for is not live.
// INVARIANT: the gate's tokens are exactly indexes 0 … Len()-1, each accepted under one epoch.
package fence
