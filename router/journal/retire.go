// SPDX-License-Identifier: Apache-2.0
// Copyright The Segue Authors

package journal

// plan is what a batch drops. Nothing leaves the index before it is durable.
type plan struct {
	requests []*item
	keys     [][32]byte // to delete with their requests, or as tombs
	tombs    int        // oldest tombs that go
	buried   []used     // keys that outlive their requests
	answers  []*item    // answers dropped for room; nil where one has gone by itself
	claims   int        // oldest actions that go
	size     int64      // of the answers
}

// retire chooses what is too old, if sweep, or too much; mu is held.
func (j *Journal) retire(sweep bool) plan {
	var p plan
	now := j.o.Now().UnixNano()
	old := func(at int64, keep int64) bool { return at+keep <= now }
	for n := j.finished.len(); len(p.requests) < min(n, batchLimit); {
		it := j.finished.at(len(p.requests))
		if n-len(p.requests) <= j.o.MaxRequests && !(sweep && old(it.ended, int64(j.o.Retention))) {
			break
		}
		p.requests = append(p.requests, it)
		if !j.owns(it) {
			continue
		}
		if old(it.ended, int64(keyKeep)) {
			p.keys = append(p.keys, it.key)
		} else {
			p.buried = append(p.buried, used{it.key, it.ended})
		}
	}
	if sweep {
		for p.tombs < min(j.tombs.len(), batchLimit) && old(j.tombs.at(p.tombs).at, int64(keyKeep)) {
			if t := j.tombs.at(p.tombs); j.isTomb(t) {
				p.keys = append(p.keys, t.digest)
			}
			p.tombs++
		}
		for p.claims < min(j.claims.len(), batchLimit) && old(j.claims.at(p.claims).at, int64(j.o.Retention)) {
			p.claims++
		}
		if len(p.requests) == batchLimit || p.tombs == batchLimit || p.claims == batchLimit {
			poke(j.wake) // more of it with the next batch
		}
	}
	for n := j.answers.len(); len(p.answers) < min(n, batchLimit) && j.answerBytes-p.size > j.o.MaxStored; {
		it := j.answers.at(len(p.answers))
		p.size += int64(it.answer)
		p.answers = append(p.answers, it)
	}
	return p
}

// isTomb reports whether the key still stands for the request that it was buried with.
func (j *Journal) isTomb(t used) bool {
	k := j.keys[t.digest]
	return k != nil && k.ended == t.at && j.sessions[k.session] == nil
}

// planned adds the plan's ops.
func (j *Journal) planned(p *plan, ops []Op) []Op {
	// Answers first: their requests may go in the same batch.
	for _, it := range p.answers {
		if it.answer == 0 || it.gone {
			continue
		}
		id := []byte(it.session)
		record, err := j.store.Read(TableRequests, id)
		if err != nil || record == nil {
			continue
		}
		s, err := decodeRequest(id, record)
		if err != nil {
			j.o.Log.Error("journal: record is unreadable", "table", TableRequests, "session", it.session, "err", err)
			continue
		}
		s.ReplayRetained, s.answerSize = false, 0
		ops = append(ops, Op{TableRequests, id, s.encode()}, Op{TableAnswers, id, nil})
	}
	for _, it := range p.requests {
		ops = append(ops, Op{TableRequests, []byte(it.session), nil})
		if it.answer > 0 {
			ops = append(ops, Op{TableAnswers, []byte(it.session), nil})
		}
	}
	for i := range p.keys {
		ops = append(ops, Op{TableKeys, p.keys[i][:], nil})
	}
	j.mu.Lock()
	defer j.mu.Unlock()
	for i := range p.claims {
		d := j.claims.at(i).digest
		ops = append(ops, Op{TableActions, d[:], nil}, Op{TableResults, d[:], nil})
	}
	return ops
}

// retired takes a durable plan into the index; mu is held.
func (j *Journal) retired(p *plan) {
	for _, d := range p.keys {
		// A request may have taken the key over meanwhile.
		if k := j.keys[d]; k != nil && k.outcome != outcomeRunning {
			if it := j.sessions[k.session]; it == nil || it.entry == nil {
				delete(j.keys, d)
			}
		}
	}
	for _, it := range p.answers {
		j.forgetAnswer(it)
	}
	j.answers.pop(len(p.answers))
	for _, it := range p.requests {
		j.remove(it)
	}
	j.finished.pop(len(p.requests))
	j.tombs.pop(p.tombs)
	for _, t := range p.buried {
		j.tombs.push(t)
	}
	for i := range p.claims {
		d := j.claims.at(i).digest
		if a := j.actions[d]; a != nil {
			j.resultBytes -= int64(a.record.size)
			delete(j.actions, d)
		}
	}
	j.claims.pop(p.claims)
}
