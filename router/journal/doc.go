// SPDX-License-Identifier: Apache-2.0
// Copyright The Segue Authors

// Package journal keeps what a router knows of its requests, durably: it answers, also after the router's process was
// killed, whether an input may be sent to another replica, what became of the request that an Idempotency-Key stands
// for, and whether a tool call was done. It keeps no prompt and no output, but for answers that a caller hands over for
// replay.
//
//	Begin ─► Entry: Attempt, Phase, …    (a record, with the next batch)
//	         Reserve(n) ─► write ─► Delivered(n)
//	         Done or Fail                 (the record's end, with the next batch)
//
// Output tokens are reserved in runs of 64 before the first of a run is written; when half of a run is used, the next
// one is asked for. So a token costs two atomic loads, a run one small record, and a steady stream never waits for the disk.
//
// INVARIANT: when Reserve(n) has returned nil, a crash reads as first_delta_sent and at most m ≥ n tokens delivered.
// INVARIANT: a key whose request may have delivered anything is never given to another request while it is kept.
// INVARIANT: an action is granted once, after its claim is durable.
// INVARIANT: records of one commit are durable together or not at all; commits keep the order of changes of a request.
//
// After a crash every request that was open has phase failed and cause router_crash. A request whose begin wasn't
// durable yet is unknown then; nothing of it was delivered.
//
// When commits fail or hang, Reserve fails at once, Healthy says why, and callers go on: what they do then is unknown
// after a crash. Changes are kept in memory, within Options' bounds, and committed when the storage works again. Claims
// and results are refused meanwhile.
//
// Storage is the seam: seven tables of records, and an atomic Commit. The file is bbolt, under an exclusive lock, with a
// format version in table meta; another version is refused. Times in records are the wall clock's.
//
// Goroutines: Run is the only committer. An Entry belongs to one goroutine; all else is safe for concurrent use.
// Locks: Entry.mu before Journal.mu.
package journal
