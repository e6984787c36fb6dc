// SPDX-License-Identifier: Apache-2.0
// Copyright The Segue Authors

package sim_test

import (
	"bytes"
	"strings"
	"time"

	"github.com/seguekv/segue/internal/faultnet"
	"github.com/seguekv/segue/internal/sim"
	"github.com/seguekv/segue/router/journal"
)

// The points of what is written down: of a request with an Idempotency-Key, and of a tool call. Each record has two, while
// it is asked for and once it is durable but nobody has been told.
var (
	// Of a request: its record, its first tokens, the next ones in mid-stream, its end; that of an answer which fails after
	// content (failure) or before any (refusal).
	requestPoints = []string{
		"begin-asked", "begin-durable", "reserve-asked", "reserve-durable", "run-asked", "run-durable", "end-asked", "end-durable",
		"failure-asked", "failure-durable", "refusal-asked", "refusal-durable",
	}
	// Of the next process, which ends what an earlier crash has left open.
	recoveryPoints = []string{"recovery-asked", "recovery-durable"}
	ledgerPoints   = []string{"claim-asked", "claim-durable", "acting", "result-asked", "result-durable"}
)

// keptCells lists every combination about the journal and the ledger, in the order of the table. Failures after content
// need a session without protection; no other point depends on it.
func keptCells() []cell {
	var out []cell
	add := func(points []string, more ...cell) {
		for _, p := range points {
			protection := "sync"
			if strings.HasPrefix(p, "failure-") {
				protection = "off"
			}
			for _, c := range append([]cell{
				{fault: "crash", target: "router"}, {fault: "fail", target: "disk"}, {fault: "slow", target: "disk"},
				{fault: "hang", target: "disk"}, {fault: "full", target: "disk"},
			}, more...) {
				out = append(out, cell{p, c.fault, protection, c.target})
			}
		}
	}
	add(requestPoints, cell{fault: "crash", target: "both"}, cell{fault: "reset", target: "client"})
	add(recoveryPoints)
	add(ledgerPoints, cell{fault: "crash", target: "both"}, cell{fault: "reset", target: "runner"}, cell{fault: "crash", target: "runner"})
	return out
}

const (
	// keptTokens need a second reservation, which is asked for in mid-stream.
	keptTokens = 100
	// firstRun is what the first reservation covers.
	firstRun = 64
	// failedToken is where an answer fails that is to fail, actingToken the one at whose reading the tool runner begins.
	failedToken = 40
	actingToken = 20

	diskFails = time.Second
	// diskSlow is within the journal's patience, diskHangs beyond it.
	diskSlow  = 500 * time.Millisecond
	diskHangs = 6 * time.Second
	// A disk that fails until the router crashes works again when the next process starts.
	crashLater = 100 * time.Millisecond
	diskBroken = 500 * time.Millisecond
	routerDown = time.Second
)

// record is which record the point is about, and whether the fault meets it when it is durable.
func (s *keptScene) record() (name string, durable bool) {
	name, stage, _ := strings.Cut(s.point, "-")
	return name, stage == "durable"
}

// at is where the world passes its moments.
func (s *keptScene) at(m sim.Moment) {
	if s.w == nil {
		return // it is only being made
	}
	name, durable := s.record()
	switch m.Point {
	case sim.PointPrompt:
		if name == "refusal" {
			s.lose(s.w.Nodes...)
		}
	case sim.PointComputed:
		if name == "failure" && m.Index == failedToken {
			s.lose(s.w.Node(m.Node))
		}
	case sim.PointActing:
		if name == "acting" {
			s.strike()
		}
	case sim.PointCommit:
		s.learn(m.Ops)
		if s.present(name, m.Ops) && (!durable || s.torn()) {
			s.strike()
		}
		s.precede(name, m.Ops)
	case sim.PointDurable:
		if durable && !s.torn() && s.present(name, m.Ops) {
			s.strike()
		}
	}
}

// torn reports a fault in which a durable record is said to have failed: it begins before.
func (s *keptScene) torn() bool { return s.fault == "fail" || s.target == "both" }

// learn notes which session it is about, and what it has reserved.
func (s *keptScene) learn(ops []journal.Op) {
	for _, op := range ops {
		switch {
		case op.Table == journal.TableRequests && s.session.Load() == nil:
			id := string(op.Key)
			s.session.Store(&id)
		case op.Table == journal.TableReservations && op.Value != nil && s.about(op) && s.reserved.Load() == nil:
			n := bytes.Clone(op.Value)
			s.reserved.Store(&n)
		}
	}
}

func (s *keptScene) about(op journal.Op) bool {
	id := s.session.Load()
	return id != nil && string(op.Key) == *id
}

// present reports whether a commit has the record in question.
func (s *keptScene) present(name string, ops []journal.Op) bool {
	var begun, reserved, more, ended, claimed, done bool
	for _, op := range ops {
		switch op.Table {
		case journal.TableRequests:
			begun = begun || s.about(op)
		case journal.TableReservations:
			reserved = reserved || s.about(op) && op.Value != nil
			more = more || s.about(op) && op.Value != nil && !bytes.Equal(op.Value, *s.reserved.Load())
			ended = ended || s.about(op) && op.Value == nil
		case journal.TableActions:
			claimed = true
		case journal.TableResults:
			done = true
		}
	}
	switch name {
	case "begin":
		return begun && !reserved && !ended
	case "reserve":
		return reserved && !more && !ended
	case "run":
		return more && !ended
	case "end", "failure", "refusal":
		return ended
	case "recovery":
		return ended && s.preceded.Load()
	case "claim":
		return claimed && !done
	case "result":
		return done
	}
	return false
}

// precede crashes the router in mid-stream, for the points of the next process.
func (s *keptScene) precede(name string, ops []journal.Op) {
	if name == "recovery" && s.present("run", ops) && !s.preceded.Swap(true) {
		s.happened(s.w.Router.Crash())
		time.AfterFunc(routerDown, s.restart)
	}
}

// lose crashes engines for the answer to fail, once: of the node that computes it, or of all, so that nobody is left to try
// again.
func (s *keptScene) lose(nodes ...*sim.Node) {
	s.mu.Lock()
	lost := s.lost != nil
	s.lost = nodes
	s.mu.Unlock()
	for _, n := range nodes {
		if !lost {
			s.happened(n.Engine.Crash())
		}
	}
}

// revive is the agents' work: the engines that were lost on purpose are back.
func (s *keptScene) revive() {
	s.mu.Lock()
	lost := s.lost
	s.mu.Unlock()
	for _, n := range lost {
		if err := n.Engine.Start(); err != nil {
			s.fail("start the engine: %v", err)
		}
	}
}

// strike brings the fault, once, and sees to its end. It is called by whoever passes the point, and keeps him there.
func (s *keptScene) strike() {
	if s.struck.Swap(true) {
		return
	}
	s.w.Trace.Addf("strike  %s of %s", s.fault, s.target)
	disk := s.w.Router.Disk
	failed, slow := disk.Met()
	name, durable := s.record()
	if n := s.accepted(&parts{session: *s.session.Load()}); name == "run" && n >= firstRun {
		s.fail("the next run is asked for when %d tokens are there: the stream waits for it", n)
	}
	works := func() {
		disk.Fail(false, false)
		now, _ := disk.Met()
		s.happened(now > failed)
	}
	switch s.fault + " " + s.target {
	case "crash router":
		if s.preceded.Load() { // the process that recovers
			disk.Crash()
			close(s.restored) // who starts it goes on trying
			return
		}
		s.happened(s.w.Router.Crash())
		s.after(routerDown, s.restart)
	case "crash both":
		disk.Fail(true, durable)
		time.AfterFunc(crashLater, func() { s.happened(s.w.Router.Crash()) })
		time.AfterFunc(diskBroken, works)
		s.after(routerDown, s.restart)
	case "fail disk":
		disk.Fail(true, durable)
		s.after(diskFails, works)
	case "full disk":
		disk.Fill()
		if s.preceded.Load() { // nobody can repeat anything meanwhile
			s.after(diskFails, works)
			return
		}
		s.full = works
		close(s.restored) // for the repetition
	case "slow disk", "hang disk":
		d := diskSlow
		if s.fault == "hang" {
			d = diskHangs
		}
		if s.point != "acting" {
			time.Sleep(d) // virtual: this commit takes so long
			close(s.restored)
			return
		}
		disk.Slow(d)
		s.after(d, func() {
			disk.Slow(0)
			_, now := disk.Met()
			s.happened(now > slow)
		})
	case "reset client", "reset runner":
		before := s.w.Net.Stats(s.target, sim.RouterHost)
		back := s.w.Net.Stats(sim.RouterHost, s.target)
		s.w.Net.Reset(s.target, sim.RouterHost)
		s.happened(resets(s.w.Net.Stats(s.target, sim.RouterHost), s.w.Net.Stats(sim.RouterHost, s.target)) > resets(before, back))
		close(s.restored)
	case "crash runner":
		s.runnerDies()
		close(s.restored)
	}
}

func resets(a, b faultnet.Stats) int64 { return int64(a.Resets) + int64(b.Resets) }

// after ends the fault.
func (s *keptScene) after(d time.Duration, end func()) {
	time.AfterFunc(d, func() {
		defer close(s.restored)
		s.w.Trace.Addf("strike  ends")
		end()
	})
}

// restart starts the router, as often as it takes.
func (s *keptScene) restart() {
	var err error
	for range 200 {
		if err = s.w.Router.Start(); err == nil {
			return
		}
		s.refusals.Add(1)
		time.Sleep(50 * time.Millisecond) // virtual
	}
	s.fail("the router doesn't start: %v", err)
}
