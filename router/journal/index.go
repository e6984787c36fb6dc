// SPDX-License-Identifier: Apache-2.0
// Copyright The Segue Authors

package journal

import (
	"crypto/sha256"
	"encoding/binary"
	"hash"
)

// item is what stays in memory of a request.
type item struct {
	session, tenant, label string
	started, ended         int64  // nanoseconds since 1970
	entry                  *Entry // until its end is durable
	phase                  string // once entry is nil
	keyed                  bool
	key                    [32]byte
	answer                 int   // bytes of the retained answer
	newer, older           *item // of the same label
	gone                   bool
}

type labelKey struct{ tenant, label string }

// used is a key or an action with the instant its time of keeping is counted from.
type used struct {
	digest [32]byte
	at     int64
}

// index finds records. Journal.mu guards it; what happened to requests is in it when it is durable, or when its entry
// says so.
type index struct {
	sessions map[string]*item
	labels   map[labelKey]*item // the newest
	order    []*item            // by start
	gone     int                // in order
	finished fifo[*item]        // by end, durable
	answers  fifo[*item]
	keys     map[[32]byte]*keyRecord
	tombs    fifo[used] // keys whose requests are gone
	actions  map[[32]byte]*action
	claims   fifo[used]

	answerBytes, resultBytes int64
}

func newIndex() index {
	return index{
		sessions: map[string]*item{}, labels: map[labelKey]*item{},
		keys: map[[32]byte]*keyRecord{}, actions: map[[32]byte]*action{},
	}
}

// add takes in a request that started last.
func (x *index) add(it *item) {
	x.sessions[it.session] = it
	x.order = append(x.order, it)
	if it.label == "" {
		return
	}
	k := labelKey{it.tenant, it.label}
	if old := x.labels[k]; old != nil {
		old.newer, it.older = it, old
	}
	x.labels[k] = it
}

// finish moves a request whose end is durable to those that may be dropped.
func (x *index) finish(it *item, s *stored) {
	it.entry, it.phase, it.ended = nil, s.Phase, nanos(s.EndedAt)
	x.finished.push(it)
	if s.ReplayRetained {
		it.answer = s.answerSize
		x.answers.push(it)
		x.answerBytes += int64(it.answer)
	}
}

// remove forgets a request.
func (x *index) remove(it *item) {
	delete(x.sessions, it.session)
	x.forgetAnswer(it)
	k := labelKey{it.tenant, it.label}
	switch {
	case it.newer != nil:
		it.newer.older = it.older
	case it.label == "":
	case it.older != nil:
		x.labels[k] = it.older
	default:
		delete(x.labels, k)
	}
	if it.older != nil {
		it.older.newer = it.newer
	}
	it.newer, it.older, it.gone = nil, nil, true
	if x.gone++; x.gone > len(x.order)/2 {
		kept := make([]*item, 0, len(x.order)-x.gone)
		for _, o := range x.order {
			if !o.gone {
				kept = append(kept, o)
			}
		}
		x.order, x.gone = kept, 0
	}
}

func (x *index) forgetAnswer(it *item) {
	x.answerBytes -= int64(it.answer)
	it.answer = 0
}

// find looks for a session id, then for the newest request with that label.
func (x *index) find(tenant, id string) *item {
	if it := x.sessions[id]; it != nil && it.tenant == tenant {
		return it
	}
	if id == "" {
		return nil
	}
	return x.labels[labelKey{tenant, id}]
}

// owns reports whether the request is the one that its key stands for.
func (x *index) owns(it *item) bool {
	if !it.keyed {
		return false
	}
	k := x.keys[it.key]
	return k != nil && k.session == it.session
}

func hashed(kind string, parts ...string) [32]byte {
	h := sha256.New()
	write(h, kind)
	for _, p := range parts {
		write(h, p)
	}
	return [32]byte(h.Sum(nil))
}

func write(h hash.Hash, s string) {
	var size [8]byte
	binary.LittleEndian.PutUint64(size[:], uint64(len(s)))
	h.Write(size[:])
	h.Write([]byte(s))
}

func keyDigest(tenant, key string) [32]byte { return hashed("key", tenant, key) }

func actionDigest(tenant, request, call string) [32]byte {
	return hashed("action", tenant, request, call)
}
