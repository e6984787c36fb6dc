// SPDX-License-Identifier: Apache-2.0
// Copyright The Segue Authors

package transfer

import "fmt"

// phase is where one session's replication to its holder stands.
//
//	connecting --welcome--> base --ack of a boundary--> replicating
//	     ^                   |                              |
//	     +---- stream ends --+------------------------------+
//	any --reject--> rejected (for good, for this base)
type phase uint8

const (
	phaseConnecting phase = iota
	phaseBase
	phaseReplicating
	phaseRejected
)

func (p phase) String() string {
	return [...]string{"connecting", "base", "replicating", "rejected"}[p]
}

// progress decides what one session sends next. It is pure; the Outbox drives it.
//
// INVARIANT: rows >= sentRows >= ackRows and captured >= sent >= committed.
// INVARIANT: boundary n is sent when exactly the rows it needs, prompt+n-1, were sent.
type progress struct {
	rowBytes    int
	windowBytes int
	prompt      int
	first       int // number of the base's first boundary

	phase           phase
	begun           bool
	rows, captured  int
	sentRows, sent  int
	ackRows, commit int
}

// step is one record to send.
type step struct {
	kind         stepKind
	first, count int // rows
	n            int // boundary
}

type stepKind uint8

const (
	stepNone stepKind = iota
	stepBase
	stepRows
	stepBoundary
)

func (s step) String() string {
	switch s.kind {
	case stepBase:
		return "base"
	case stepRows:
		return fmt.Sprintf("rows %d..%d", s.first, s.first+s.count-1)
	case stepBoundary:
		return fmt.Sprintf("boundary %d", s.n)
	}
	return "none"
}

// capture notes what the engine has produced.
func (p *progress) capture(rows, boundary int) { p.rows, p.captured = rows, boundary }

// welcome starts or resumes sending on a new stream: rows and boundary are what the holder has of this
// very base, begun says whether it has it at all.
func (p *progress) welcome(begun bool, rows, boundary int) {
	if p.phase == phaseRejected {
		return
	}
	p.begun = begun
	p.sentRows, p.sent = rows, boundary
	p.ackRows, p.commit = rows, boundary
	p.settle()
}

// disconnect forgets what was sent and not acknowledged. What was acknowledged stays known until welcome
// says what the holder has.
func (p *progress) disconnect() {
	if p.phase == phaseRejected {
		return
	}
	p.phase = phaseConnecting
	p.sentRows, p.sent = p.ackRows, p.commit
}

// detach forgets the holder and all that it acknowledged.
func (p *progress) detach() {
	p.disconnect()
	p.begun = false
	p.sentRows, p.sent, p.ackRows, p.commit = 0, 0, 0, 0
}

// reject ends this base.
func (p *progress) reject() {
	p.phase = phaseRejected
	p.ackRows, p.commit = 0, 0
}

// next is the record to send now, of at most maxBytes of rows but at least one row.
func (p *progress) next(maxBytes int) step {
	if p.phase != phaseBase && p.phase != phaseReplicating {
		return step{}
	}
	if !p.begun {
		return step{kind: stepBase}
	}
	target := p.rows
	if n := max(p.sent+1, p.first); n <= p.captured {
		target = p.prompt + n - 1
		if p.sentRows == target {
			return step{kind: stepBoundary, n: n}
		}
	}
	room := p.windowBytes - (p.sentRows-p.ackRows)*p.rowBytes
	if room <= 0 {
		return step{}
	}
	if count := min(target-p.sentRows, max(1, min(maxBytes, room)/p.rowBytes)); count > 0 {
		return step{kind: stepRows, first: p.sentRows, count: count}
	}
	return step{}
}

// did notes that a step was sent.
func (p *progress) did(s step) {
	switch s.kind {
	case stepBase:
		p.begun = true
	case stepRows:
		p.sentRows = s.first + s.count
	case stepBoundary:
		p.sent = s.n
	}
}

// ack notes what the holder has. It reports an error for an ack of what was never sent.
func (p *progress) ack(rows, boundary int) error {
	if p.phase != phaseBase && p.phase != phaseReplicating {
		return nil
	}
	if rows > p.sentRows || boundary > p.sent {
		return fmt.Errorf("%w: ack of %d rows and boundary %d, sent %d and %d", ErrProtocol, rows, boundary, p.sentRows, p.sent)
	}
	p.ackRows, p.commit = max(p.ackRows, rows), max(p.commit, boundary)
	p.settle()
	return nil
}

func (p *progress) settle() {
	p.phase = phaseBase
	if p.commit > 0 {
		p.phase = phaseReplicating
	}
}

// isDelta reports whether the next step is small and urgent: the session is past its base.
func (p *progress) isDelta() bool { return p.phase == phaseReplicating }
