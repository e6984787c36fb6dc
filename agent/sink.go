// SPDX-License-Identifier: Apache-2.0
// Copyright The Segue Authors

package agent

import (
	"context"
	"fmt"
	"sync/atomic"
	"time"

	seguev1 "github.com/seguekv/segue/api/segue/v1"
	"github.com/seguekv/segue/engines"
	"github.com/seguekv/segue/snapshot"
	"github.com/seguekv/segue/transfer"
)

// windowBytes bounds the rows of one session that are on their way to the holder.
const windowBytes = 32 << 20

// sink takes what the engine produces into the session: rows into the outbox, tokens into the log.
type sink struct {
	s *session
	// budget is where the session's memory comes from.
	budget *snapshot.Budget
	// taken counts what was taken.
	taken *atomic.Uint64
	// textEnd is the caller's text_end at index dropped-1, checked when that token is emitted again.
	dropped int
	textEnd uint64
}

var _ engines.Sink = (*sink)(nil)

// Prompt opens the session's base.
func (k *sink) Prompt(ids []int32) error {
	s := k.s
	ids = append([]int32(nil), ids...)
	d := snapshot.IDsDigest(ids)
	s.mu.Lock()
	s.prompt = &seguev1.Prompt{Tokens: uint32(len(ids)), Digest: d[:]}
	s.lastStep = time.Now()
	s.broadcast()
	s.mu.Unlock()
	if !s.order.protects() {
		return nil
	}
	limit := s.desc.ContextLength - len(ids)
	if n := s.order.request.MaxTokens; n > 0 {
		limit = min(limit, n)
	}
	h := snapshot.Head{
		BaseID:   snapshot.BaseID{Session: s.id, Epoch: s.epoch},
		Geometry: s.desc.Geometry, Fingerprint: s.desc.Fingerprint.Encode(),
		Request: s.digest, Prompt: ids, MaxOutput: limit,
	}
	c, err := snapshot.NewChain(h)
	if err != nil {
		return err
	}
	m, err := k.budget.Reserve(h.Bytes())
	if err != nil {
		s.exhausted(err)
		return nil
	}
	s.open(transfer.NewOutbox(c, windowBytes), m)
	return nil
}

// Prefilled captures a prompt chunk.
func (k *sink) Prefilled(first, count int, rows []byte) error {
	s := k.s
	k.taken.Add(1)
	s.mu.Lock()
	s.prefilled, s.lastStep = first+count, time.Now()
	o := s.outbox
	s.broadcast()
	s.mu.Unlock()
	if o == nil || rows == nil {
		return nil
	}
	return o.AppendRows(first, rows)
}

// Token captures a boundary, logs the token and waits while the holder is too far behind.
func (k *sink) Token(t engines.Token) error {
	s := k.s
	k.taken.Add(1)
	if k.dropped > 0 && t.Index == k.dropped-1 && uint64(t.TextEnd) != k.textEnd {
		return fmt.Errorf("%w: text of the delivered tokens ends at byte %d, the caller's at %d", snapshot.ErrOutput, t.TextEnd, k.textEnd)
	}
	s.mu.Lock()
	o := s.outbox
	s.mu.Unlock()
	if o != nil && !t.Restored {
		if err := o.AppendBoundary(t.Index+1, t.ID, t.Sampler, t.Row); err != nil {
			return err
		}
	}
	s.mu.Lock()
	if t.Index != len(s.tokens) {
		s.mu.Unlock()
		return fmt.Errorf("engine emitted token %d, want %d", t.Index, len(s.tokens))
	}
	s.tokens = append(s.tokens, &seguev1.Token{
		Index: uint32(t.Index), Id: t.ID, Text: append([]byte(nil), t.Text...),
		TextEnd: uint64(t.TextEnd), RawEnd: uint64(t.RawEnd),
	})
	if t.Finish != engines.FinishNone {
		s.finish = &seguev1.Finish{Tokens: uint32(len(s.tokens)), Reason: string(t.Finish), PromptTokens: s.prompt.GetTokens()}
	}
	s.lastStep = time.Now()
	s.broadcast()
	s.mu.Unlock()
	if o == nil || t.Restored || t.Finish != engines.FinishNone {
		return nil
	}
	return s.waitForWindow(o)
}

// waitForWindow returns once the holder is less than a window behind, or the session is unprotected.
func (s *session) waitForWindow(o *transfer.Outbox) error {
	for {
		inner := o.Changed()
		st := o.Status()
		s.mu.Lock()
		wait := s.shield.state != unprotected && !s.closed && st.Captured-st.Committed >= s.order.rules.window
		s.atWindow = wait
		outer := s.changed
		if !wait {
			s.lastStep = time.Now()
		}
		s.mu.Unlock()
		if !wait {
			return nil
		}
		select {
		case <-inner:
		case <-outer:
		case <-s.ctx.Done():
			return context.Cause(s.ctx)
		}
	}
}
