// SPDX-License-Identifier: Apache-2.0
// Copyright The Segue Authors

package journal

import (
	"encoding/binary"
	"encoding/json"
	"math"
	"slices"
)

// stored is a request as its record holds it. The session id is the record's key.
type stored struct {
	Request
	key        [32]byte // digest of tenant and Idempotency-Key, if KeyUsed
	answerSize int
}

func (s *stored) encode() []byte {
	b := make([]byte, 0, 512)
	for _, v := range []string{s.RequestID, s.Tenant, s.Endpoint, s.Model, s.ModelRevision, s.Protection, s.Finish} {
		b = putString(b, v)
	}
	b = append(b, byte(slices.Index(phases, s.Phase)))
	b = putFlags(b, s.FirstDeltaSent, s.UpperBound, s.Stream, s.KeyUsed, s.ReplayRetained, s.Usage != nil)
	b = putInt(b, s.Delivered)
	b = putInt(b, s.RetryBudget)
	b = putTime(b, s.StartedAt)
	b = putTime(b, s.EndedAt)
	b = putString(b, string(s.Error))
	if s.Usage != nil {
		b = putInt(putInt(putInt(b, s.Usage.PromptTokens), s.Usage.CompletionTokens), s.Usage.TotalTokens)
	}
	if s.KeyUsed {
		b = append(b, s.key[:]...)
	}
	if s.ReplayRetained {
		b = putInt(b, s.answerSize)
	}
	b = putInt(b, s.AttemptsDropped)
	b = putInt(b, len(s.Attempts))
	for _, a := range s.Attempts {
		for _, v := range []string{a.Replica, a.Kind, a.Lease, a.Cause, a.Detail, a.Revision} {
			b = putString(b, v)
		}
		b = binary.AppendUvarint(b, a.Epoch)
		b = putTime(putTime(b, a.StartedAt), a.EndedAt)
	}
	b = putInt(b, len(s.Tools))
	for _, t := range s.Tools {
		b = putString(putString(putString(b, t.Call), t.Name), t.Arguments)
	}
	return b
}

func decodeRequest(session, record []byte) (*stored, error) {
	s := &stored{}
	r := &reader{b: record}
	for _, v := range []*string{&s.RequestID, &s.Tenant, &s.Endpoint, &s.Model, &s.ModelRevision, &s.Protection, &s.Finish} {
		*v = r.string(MaxLabel)
	}
	s.Session = string(session)
	s.Phase = phases[r.byte(len(phases)-1)]
	var usage bool
	r.flags(&s.FirstDeltaSent, &s.UpperBound, &s.Stream, &s.KeyUsed, &s.ReplayRetained, &usage)
	s.Delivered, s.RetryBudget = r.count(), r.count()
	s.StartedAt, s.EndedAt = r.time(), r.time()
	if e := r.string(MaxError); e != "" {
		s.Error = json.RawMessage(e)
		if !json.Valid(s.Error) {
			r.fail("error object")
		}
	}
	if usage {
		s.Usage = &Usage{r.count(), r.count(), r.count()}
	}
	if s.KeyUsed {
		s.key = r.digest()
	}
	if s.ReplayRetained {
		s.answerSize = r.count()
	}
	s.AttemptsDropped = r.count()
	for range r.int(MaxAttempts) {
		var a Attempt
		for _, v := range []*string{&a.Replica, &a.Kind, &a.Lease, &a.Cause} {
			*v = r.string(MaxLabel)
		}
		a.Detail, a.Revision = r.string(MaxDetail), r.string(MaxLabel)
		a.Epoch, a.StartedAt, a.EndedAt = r.uvarint(), r.time(), r.time()
		s.Attempts = append(s.Attempts, a)
	}
	for range r.int(MaxTools) {
		s.Tools = append(s.Tools, Tool{r.string(MaxLabel), r.string(MaxLabel), r.string(64)})
	}
	return s, r.end()
}

// outcome is what a key's request came to.
type outcome byte

const (
	outcomeRunning     outcome = iota
	outcomeDone                // finished
	outcomeInterrupted         // failed when output had been or may have been delivered
	outcomeFailed              // failed before any delivery: the key may be used again
	outcomes
)

func outcomeOf(r *Request) outcome {
	switch {
	case !r.Ended():
		return outcomeRunning
	case r.Phase == PhaseDone:
		return outcomeDone
	case r.FirstDeltaSent || r.Delivered > 0:
		return outcomeInterrupted
	}
	return outcomeFailed
}

// keyRecord is one use of an Idempotency-Key. It outlives its request's record.
type keyRecord struct {
	payload                [32]byte
	session, tenant, label string
	outcome                outcome
	delivered              int
	upper                  bool
	ended                  int64
}

func (k *keyRecord) encode() []byte {
	b := append(make([]byte, 0, 128), k.payload[:]...)
	b = putString(putString(putString(b, k.session), k.tenant), k.label)
	b = append(b, byte(k.outcome))
	b = putFlags(b, k.upper)
	b = putInt(b, k.delivered)
	return binary.AppendUvarint(b, uint64(k.ended))
}

func decodeKey(record []byte) (*keyRecord, error) {
	r := &reader{b: record}
	k := &keyRecord{payload: r.digest(), session: r.string(MaxLabel), tenant: r.string(MaxLabel), label: r.string(MaxLabel)}
	k.outcome = outcome(r.byte(int(outcomes) - 1))
	r.flags(&k.upper)
	k.delivered, k.ended = r.count(), int64(r.int(math.MaxInt64))
	return k, r.end()
}

// request is what is left of a request whose record has gone.
func (k *keyRecord) request() Request {
	r := Request{
		RequestID: k.label, Session: k.session, Tenant: k.tenant, Phase: PhaseFailed, KeyUsed: true,
		FirstDeltaSent: k.outcome != outcomeFailed, Delivered: k.delivered, UpperBound: k.upper, EndedAt: instant(k.ended),
	}
	if k.outcome == outcomeDone {
		r.Phase = PhaseDone
	}
	return r.clone()
}

func encodeAnswer(a *Answer) []byte {
	b := make([]byte, 0, len(a.Body)+len(a.ContentType)+16)
	return append(putString(putInt(b, a.Status), a.ContentType), a.Body...)
}

func decodeAnswer(record []byte) (*Answer, error) {
	r := &reader{b: record}
	a := &Answer{Status: r.int(999), ContentType: r.string(MaxLabel)}
	a.Body = append([]byte{}, r.b...)
	return a, r.err
}

// actionRecord is one action. Its result is a record of its own.
type actionRecord struct {
	tenant, request, call, by string
	args                      [32]byte
	claimed                   int64
	done                      bool
	size                      int // of the result
}

func (a *actionRecord) encode() []byte {
	b := append(make([]byte, 0, 128), a.args[:]...)
	for _, v := range []string{a.tenant, a.request, a.call, a.by} {
		b = putString(b, v)
	}
	return putInt(putFlags(binary.AppendUvarint(b, uint64(a.claimed)), a.done), a.size)
}

func decodeAction(record []byte) (*actionRecord, error) {
	r := &reader{b: record}
	a := &actionRecord{args: r.digest()}
	for _, v := range []*string{&a.tenant, &a.request, &a.call, &a.by} {
		*v = r.string(MaxLabel)
	}
	a.claimed = int64(r.int(math.MaxInt64))
	r.flags(&a.done)
	a.size = r.int(MaxResult)
	return a, r.end()
}
