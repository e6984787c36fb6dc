// SPDX-License-Identifier: Apache-2.0
// Copyright The Segue Authors

// Package fence holds the two records that keep an old attempt from reaching a client.
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
// The package is pure: no I/O, no clock, no goroutine, no lock. A Gate and a Record belong to one
// goroutine at a time.
//
// INVARIANT: epochs never fall and are never reused within a session.
// INVARIANT: the gate's tokens are exactly indexes 0 … Len()-1, each accepted under one epoch.
package fence
