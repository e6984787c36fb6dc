// SPDX-License-Identifier: Apache-2.0
// Copyright The Segue Authors

package sim

import (
	"github.com/seguekv/segue/fence"
	"github.com/seguekv/segue/router/journal"
	"github.com/seguekv/segue/snapshot"
)

// Point is a kind of place in the life of a session.
type Point string

// Points, in the order in which a session without faults passes them. Those of an engine are passed on the engine's
// goroutine, which waits; those of the gate on the router's session goroutine; those of the client on the client's; those of
// the disk on the goroutine of the journal, or of who starts the router.
const (
	// PointRun: an engine is about to run a fresh job.
	PointRun Point = "run"
	// PointPrompt: the prompt is rendered, nothing is computed.
	PointPrompt Point = "prompt"
	// PointChunk: a prompt chunk is computed and not captured; Index is its first position.
	PointChunk Point = "chunk"
	// PointComputed: token Index is computed and not captured.
	PointComputed Point = "computed"
	// PointLast is PointComputed for the token that finishes the request.
	PointLast Point = "last"
	// PointCaptured: token Index is captured.
	PointCaptured Point = "captured"
	// PointAppend: the gate has accepted token Index; its text isn't written.
	PointAppend Point = "append"
	// PointRead: the client has read tokens up to Index.
	PointRead Point = "read"
	// PointFinish: the gate holds the finish; the terminator isn't written.
	PointFinish Point = "finish"
	// PointRaise: the gate's epoch was raised; nothing else has happened yet. Index is the number of tokens.
	PointRaise Point = "raise"
	// PointRestart: the gate was emptied for a retry.
	PointRestart Point = "restart"
	// PointResume: an engine is about to run a job from a state of boundary Index: a takeover was accepted.
	PointResume Point = "resume"
	// PointReplayed: restored token Index is about to be emitted again.
	PointReplayed Point = "replayed"
	// PointCommit: the router's journal is about to commit Ops.
	PointCommit Point = "commit"
	// PointDurable: Ops are on the disk, and the journal hasn't heard of it.
	PointDurable Point = "durable"
	// PointActing: a tool runner was granted an action and does it; its result isn't stored.
	PointActing Point = "acting"
)

// Moment is one passing of a Point.
type Moment struct {
	Point Point
	// Node is where, for an engine's points.
	Node string
	// Label names the request: its sampling seed. 0 when only Session is known.
	Label uint64
	// Session is the router's id; zero for an engine's points.
	Session snapshot.SessionID
	Index   int
	// Op is the gate's call, for the gate's points.
	Op fence.Op
	// Ops are a commit's records, for the disk's points; they are the journal's.
	Ops []journal.Op
}
