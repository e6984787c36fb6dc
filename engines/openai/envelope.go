// SPDX-License-Identifier: Apache-2.0
// Copyright The Segue Authors

package openai

import (
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"encoding/json"
	"strconv"
)

// Envelope is what the router decides about an answer, whatever server writes it.
type Envelope struct {
	// ID and Model replace the server's. Created is in Unix seconds.
	ID      string
	Model   string
	Created int64
	// Fingerprint replaces system_fingerprint; empty removes it.
	Fingerprint string
	// Tenant and Session are the parts of a tool call's id that don't depend on the server.
	Tenant, Session string
	// IncludeUsage: the client asked for a usage chunk. Without it no chunk of a stream carries usage.
	IncludeUsage bool
	// ContinuousUsage: the client asked for usage in every chunk. Without it only the usage chunk has it.
	ContinuousUsage bool
}

// callIDBytes of the hash make the 24 hex digits of a call's id.
const callIDBytes = 12

// CallID is a tool call's id: a function of the logical request and the call's place in the answer, so a retry
// on another server gives the same id. ordinal counts the calls of a choice from 0.
func CallID(tenant, session string, choice, ordinal int) string {
	h := sha256.New()
	var n [8]byte
	for _, s := range []string{tenant, session} {
		h.Write(binary.LittleEndian.AppendUint64(n[:0], uint64(len(s))))
		h.Write([]byte(s))
	}
	h.Write(binary.LittleEndian.AppendUint64(n[:0], uint64(choice)))
	h.Write(binary.LittleEndian.AppendUint64(n[:0], uint64(ordinal)))
	return "call_" + hex.EncodeToString(h.Sum(nil)[:callIDBytes])
}

// Rewriter puts an answer's chunks into the router's envelope. It remembers which roles, call ids and names were
// written. It belongs to one goroutine at a time.
type Rewriter struct {
	e                               Envelope
	id, created, model, fingerprint []byte // JSON
	whole                           bool
	chunk                           Chunk
	choices                         []written
}

// written is what the client has of one choice.
type written struct {
	role  bool
	calls []writtenCall
	last  int // the call of the last fragment
	named []byte
}

type writtenCall struct {
	opened bool
	name   []byte
}

// NewRewriter makes the rewriter of one answer.
func NewRewriter(e Envelope) *Rewriter {
	w := &Rewriter{e: e, id: quoted(e.ID), model: quoted(e.Model), created: strconv.AppendInt(nil, e.Created, 10)}
	if e.Fingerprint != "" {
		w.fingerprint = quoted(e.Fingerprint)
	}
	return w
}

// quoted is s as JSON. Bytes that aren't UTF-8 become U+FFFD.
func quoted(s string) []byte {
	b, err := json.Marshal(s)
	if err != nil {
		return []byte(`""`) // A string always has a form.
	}
	return b
}

// Append appends chunk, rewritten, to dst: one line without its end. The error is one of Chunk.Parse; dst is
// unchanged then.
func (w *Rewriter) Append(dst, chunk []byte) ([]byte, error) {
	if err := w.chunk.Parse(chunk); err != nil {
		return dst, err
	}
	return w.append(dst, &w.chunk, false), nil
}

// Rewrite is Append for the first chunk of an answer. What is no chunk is appended as it is.
func Rewrite(dst, chunk []byte, e Envelope) []byte {
	out, err := NewRewriter(e).Append(dst, chunk)
	if err != nil {
		return append(dst, chunk...)
	}
	return out
}

// choice is the state of a choice.
func (w *Rewriter) choice(index int) *written {
	for len(w.choices) <= index {
		w.choices = append(w.choices, written{})
	}
	return &w.choices[index]
}

// restart forgets calls. Roles are kept: the client has them.
func (w *Rewriter) restart() {
	for i := range w.choices {
		w.choices[i] = written{role: w.choices[i].role}
	}
}

// ordinal is the place of a call's fragment in its choice. Without an index a fragment with an id opens the
// next call, and one without goes on with the last.
func ordinal(k *Call, have, last int) int {
	switch {
	case k.index >= 0:
		return k.index
	case isText(k.id):
		return min(have, MaxCalls-1)
	}
	return last
}
