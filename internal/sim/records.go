// SPDX-License-Identifier: Apache-2.0
// Copyright The Segue Authors

package sim

import (
	"context"
	"encoding/json"
	"fmt"
	"time"

	"github.com/seguekv/segue/router/journal"
)

// recordWait is how long a record may take to tell of its end, once everything is healed.
const recordWait = 10 * time.Second

// journals sees that the journal tells the truth about every session, also to the next process of the router.
func (o *Outcome) journals(w *World) {
	before := map[string]string{}
	for i, x := range o.Exchanges {
		if x.Answer.Session == "" || o.earlier(i) != nil {
			continue
		}
		x.Record, x.Looked = ended(w, x.Answer.Session), true
		before[x.Answer.Session] = text(x.Record)
	}
	c := w.NewClient("auditor")
	defer c.Close()
	ctx := context.Background()
	if o.Plan.Seed%4 == 0 {
		time.Sleep(time.Second) // virtual: ends are written within milliseconds
		w.Router.Crash()
		if err := w.Router.Start(); err != nil {
			o.problem("start the router on its journal: %v", err)
			return
		}
		if err := w.Router.awaitReady(len(w.Nodes), 30*time.Second); err != nil {
			o.problem("the router on its journal: %v", err)
			return
		}
		for session, was := range before {
			if is := text(w.Router.Record(session)); is != was {
				o.problem("session %.8s: the record reads differently after a restart: %s, then %s", session, was, is)
			}
		}
	}
	c.Audit(ctx)
	o.Problems = append(o.Problems, w.Tools.Problems()...)
	o.Actions = w.Tools.Done()
	w.Tools.mu.Lock()
	defer w.Tools.mu.Unlock()
	o.Reclaimed, o.Survived = w.Tools.Repeats, w.Tools.Survived
}

// ended is the record of a session whose answer has ended.
func ended(w *World, session string) *journal.Request {
	for deadline := time.Now().Add(recordWait); ; {
		r := w.Router.Record(session)
		if r == nil || r.Ended() || time.Now().After(deadline) {
			return r
		}
		time.Sleep(50 * time.Millisecond) // virtual
	}
}

func text(r *journal.Request) string {
	b, err := json.Marshal(r)
	if err != nil {
		return err.Error()
	}
	return string(b)
}

// earlier is an exchange before number i about the same session: a repeated key was told of it.
func (o *Outcome) earlier(i int) *Exchange {
	for _, x := range o.Exchanges[:i] {
		if x.Answer.Session == o.Exchanges[i].Answer.Session {
			return x
		}
	}
	return nil
}

// disturbed reports whether the router crashed, and whether its disk ever failed: then the journal may tell less than the
// whole truth after the crash.
func (o *Outcome) disturbed() (crashed, failed bool) {
	for _, s := range o.Struck {
		crashed = crashed || s.Kind == RouterCrash
		failed = failed || s.Kind == JournalFails || s.Kind == JournalSlow
	}
	return crashed, failed
}

// record judges what the journal says of an exchange.
func (o *Outcome) record(x *Exchange, say func(string, ...any)) {
	crashed, failed := o.disturbed()
	for _, why := range JudgeRecord(x.Answer, x.Record, crashed, failed) {
		say("%s", why)
	}
}

// JudgeRecord says what is untrue in the journal's record of an answer that has ended; r is nil when there is none. crashed
// and failed tell what the router and its disk met until the record was read.
func JudgeRecord(a *Answer, r *journal.Request, crashed, failed bool) []string {
	var why []string
	say := func(format string, args ...any) { why = append(why, fmt.Sprintf(format, args...)) }
	lenient := crashed && failed
	// The first content of a request with a key waits until it is remembered.
	unkept := lenient && !(a.Keyed && a.content())
	if r == nil {
		if !unkept && (a.content() || !crashed) {
			say("the journal knows nothing of it; %d ids were read", len(a.IDs))
		}
		return why
	}
	if !r.Ended() {
		say("the journal says that it is in phase %s", r.Phase)
	}
	if r.Delivered < len(a.IDs) && !lenient {
		say("the journal says that at most %d tokens were delivered, %d were read", r.Delivered, len(a.IDs))
	}
	if a.content() && !r.FirstDeltaSent && !unkept {
		say("the journal says that no delta was sent, %d bytes were read", len(a.Text))
	}
	if r.UpperBound && !crashed {
		say("the journal has an upper bound only, without a crash")
	}
	var last uint64
	for _, t := range r.Attempts {
		if t.Epoch <= last {
			say("the journal's attempts have epoch %d after %d", t.Epoch, last)
		}
		last = t.Epoch
	}
	if crashed {
		return why
	}
	switch {
	case a.Whole() && (r.Phase != journal.PhaseDone || r.Delivered != len(a.IDs)):
		say("whole with %d ids, and the journal says %s with %d", len(a.IDs), r.Phase, r.Delivered)
	case a.Err != nil && r.Phase != journal.PhaseFailed:
		say("failed with %s, and the journal says %s", a.Err.Code, r.Phase)
	case a.Err != nil && a.Err.Delivered != nil && *a.Err.Delivered != r.Delivered:
		say("failed after %d tokens, and the journal says %d", *a.Err.Delivered, r.Delivered)
	}
	return why
}

// key judges what came of a key that had been used in exchanges before number i.
//
// INVARIANT: once anything of an answer was delivered its key never runs again, whatever the router and its disk met.
func (o *Outcome) key(i int, say func(string, ...any)) {
	x := o.Exchanges[i]
	if !x.Answer.Repeat {
		return
	}
	crashed, failed := o.disturbed()
	for _, y := range o.Exchanges[:i] {
		if y.Plan.Number != x.Plan.Number || !y.Answer.content() {
			continue
		}
		a := x.Answer
		// A journal that failed may have lost the end of an answer, and takes no key meanwhile.
		lost := crashed || failed && a.Status == 503
		switch {
		case a.content() && !a.Replayed:
			say("the key was run again, after try %d had delivered %d tokens", y.Try, len(y.Answer.IDs))
		case a.content() && a.Session != y.Answer.Session:
			say("the answer of another request is replayed")
		case y.Answer.Whole() && o.Plan.Replay && !lost && a.Broken == nil && !a.Left && !a.Replayed:
			say("the answer of try %d was whole, and isn't replayed: status %d, %+v", y.Try, a.Status, a.Err)
		}
		return
	}
}

// moves judges the planned takeovers: one of a protected session, with no fault near, succeeds.
func (o *Outcome) moves() {
	for _, s := range o.Struck {
		if s.Kind != Migrate && s.Kind != Drain && s.Kind != DeviceEvacuate || !o.Plan.roomy() || o.Plan.Temper == Nervous {
			continue
		}
		for _, m := range s.Moves {
			if m.Move.Result == "moved" || m.Move.Result == "ended" || !m.Movable || o.near(s, m) || !o.stayed(m.Session) {
				continue
			}
			o.problem("session %.8s: %s at %v, with no fault near: %q %s %v", m.Session, s.Kind, m.Asked, m.Move.Result, m.Move.Reason, m.Err)
		}
	}
}

// near reports another fault or order at the time of a move, or shortly before.
func (o *Outcome) near(of *Struck, m Moved) bool {
	for _, s := range o.Struck {
		if s != of && s.From <= m.Answered && (s.To == 0 || s.To+slack >= m.Asked) {
			return true
		}
	}
	return false
}

// stayed reports a session whose client read to the end.
func (o *Outcome) stayed(session string) bool {
	for _, x := range o.Exchanges {
		if x.Answer.Session == session {
			return x.Plan.stays() && !x.Answer.Left
		}
	}
	return false
}
