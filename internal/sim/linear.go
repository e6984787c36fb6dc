// SPDX-License-Identifier: Apache-2.0
// Copyright The Segue Authors

package sim

import (
	"errors"
	"fmt"
	"slices"

	"github.com/anishathalye/porcupine"

	"github.com/seguekv/segue/fence"
)

// CheckGate checks a session's history against a sequential model of the gate: the router's calls one after the other, the
// client's reads concurrent with them. A read must find its ids in the gate at some moment between its beginning and
// its end, and once something was read nothing may be discarded.
func CheckGate(h History) error {
	ops := make([]porcupine.Operation, 0, len(h.Ops)+len(h.Reads))
	for _, o := range h.Ops {
		ops = append(ops, porcupine.Operation{ClientId: 0, Input: o.Op, Output: o.Err, Call: o.Seq, Return: o.Seq})
	}
	for _, r := range h.Reads {
		ops = append(ops, porcupine.Operation{ClientId: 1, Input: r, Call: r.Since, Return: r.Until})
	}
	if porcupine.CheckOperations(gateModel(), ops) {
		return nil
	}
	return fmt.Errorf("the gate's history with %d calls and %d reads is not linearizable: %s", len(h.Ops), len(h.Reads), suspect(h))
}

// gateState is what a gate holds. ids and ends are never changed, only replaced.
type gateState struct {
	epoch     fence.Epoch
	ids       []int32
	ends      []int
	closed    bool
	finisher  fence.Epoch
	discarded bool
	read      bool
}

func gateModel() porcupine.Model {
	return porcupine.Model{
		Init: func() any { return gateState{epoch: 1} },
		Step: func(state, input, output any) (bool, any) {
			s := state.(gateState)
			switch in := input.(type) {
			case fence.Op:
				err, _ := output.(error)
				return s.call(in, err)
			case Read:
				return s.readBy(in)
			}
			return false, s
		},
		Equal: func(a, b any) bool {
			x, y := a.(gateState), b.(gateState)
			return x.epoch == y.epoch && x.closed == y.closed && x.read == y.read && x.finisher == y.finisher && slices.Equal(x.ids, y.ids)
		},
	}
}

// call is the gate's contract: whether the call may have this result, and what follows.
func (s gateState) call(op fence.Op, err error) (bool, gateState) {
	current := op.Epoch == s.epoch
	switch op.Kind {
	case fence.OpAppend:
		again := op.Index >= 0 && op.Index < len(s.ids) && s.ids[op.Index] == op.Token && s.ends[op.Index] == op.TextEnd
		last := 0
		if n := len(s.ends); n > 0 {
			last = s.ends[n-1]
		}
		fresh := op.Index == len(s.ids) && !s.closed && op.TextEnd >= last
		if ok := current && (again || fresh); ok != (err == nil) {
			return false, s
		}
		if err == nil && fresh {
			s.ids, s.ends = append(slices.Clip(s.ids), op.Token), append(slices.Clip(s.ends), op.TextEnd)
		}
		return true, s
	case fence.OpRaise:
		if ok := !s.closed && op.Epoch > s.epoch; ok != (err == nil) {
			return false, s
		}
		if err == nil {
			s.epoch = op.Epoch
		}
		return true, s
	case fence.OpRestart:
		if errors.Is(err, fence.ErrCommitted) {
			return true, s
		}
		if ok := !s.closed && op.Epoch > s.epoch && !s.read; ok != (err == nil) {
			return false, s
		}
		if err == nil {
			s.epoch, s.ids, s.ends = op.Epoch, nil, nil
		}
		return true, s
	case fence.OpFinish:
		fresh := !s.closed && op.Index == len(s.ids)
		again := s.closed && op.Index == len(s.ids) && op.Epoch == s.finisher
		if ok := current && fresh; ok != (err == nil) && !again {
			return false, s
		}
		if err == nil && fresh {
			s.closed, s.finisher = true, op.Epoch
		}
		return true, s
	}
	return false, s
}

func (s gateState) readBy(r Read) (bool, gateState) {
	if r.End {
		return s.closed && len(s.ids) == r.Total, s
	}
	if r.First < 0 || r.First+len(r.IDs) > len(s.ids) || !slices.Equal(s.ids[r.First:r.First+len(r.IDs)], r.IDs) {
		return false, s
	}
	s.read = true
	return true, s
}

// suspect replays the calls in their order and names the first that has the wrong result, or the first read that has no
// moment.
func suspect(h History) string {
	s := gateState{epoch: 1}
	states := []gateState{s}
	for i, o := range h.Ops {
		ok, next := s.call(o.Op, o.Err)
		if !ok {
			return fmt.Sprintf("call %d, %s of index %d under epoch %d with result %v, at epoch %d with %d tokens", i, o.Kind, o.Index, o.Epoch, o.Err, s.epoch, len(s.ids))
		}
		s = next
		states = append(states, s)
	}
	for i, r := range h.Reads {
		found := false
		for _, st := range states {
			ok, _ := st.readBy(r)
			found = found || ok
		}
		if !found {
			return fmt.Sprintf("read %d of %d ids from %d on (end %v, %d in all) matches the gate at no time", i, len(r.IDs), r.First, r.End, r.Total)
		}
	}
	return "the order of calls and reads"
}
