// SPDX-License-Identifier: Apache-2.0
// Copyright The Segue Authors

package sim

import (
	"context"
	"fmt"
	"time"

	"github.com/seguekv/segue/engines"
	"github.com/seguekv/segue/engines/decode"
	"github.com/seguekv/segue/engines/sampling"
	"github.com/seguekv/segue/snapshot"
)

var _ decode.Model = (*model)(nil)

// model is one context of the pseudo-model.
type model struct {
	config Config
	// ctx is that of the run which holds the model: decode.Model's calls carry none, and their sleeps end
	// with it.
	ctx   context.Context
	cache cache
	// history is the hash of the ids at the cached positions, in order.
	history uint64
	// last is the id that was fed last.
	last       int32
	candidates candidates
}

func newModel(c Config) *model {
	return &model{config: c, cache: newCache(c), history: origin(c.SeedOfWeights)}
}

func (m *model) Render(p engines.Prompt) ([]int32, error) { return render(p) }
func (m *model) Piece(id int32) []byte                    { return piece(id) }
func (m *model) EOG(id int32) bool                        { return id == eog }

func (m *model) Prefill(ids []int32, first int, _ bool) error {
	if err := m.sleep(time.Duration(len(ids)) * m.config.PrefillToken); err != nil {
		return err
	}
	return m.feed(ids, first)
}

func (m *model) Step(id int32, pos int) error {
	if err := m.sleep(m.config.Step); err != nil {
		return err
	}
	return m.feed([]int32{id}, pos)
}

// feed writes the rows of ids at the positions from first on.
func (m *model) feed(ids []int32, first int) error {
	if first != m.cache.rows {
		return fmt.Errorf("position %d follows %d cached rows", first, m.cache.rows)
	}
	if n := first + len(ids); n > m.config.ContextLength {
		return fmt.Errorf("position %d is outside the context of %d", n-1, m.config.ContextLength)
	}
	for _, id := range ids {
		m.history = follow(m.history, id)
		expand(m.cache.room(), m.history)
		m.cache.append()
		m.last = id
	}
	return nil
}

func (m *model) Logits() sampling.Logits {
	if m.config.Verify {
		m.cache.digestAll()
	}
	return m.candidates.derive(m.cache.digest(), m.last, m.config.EOGEvery)
}

func (m *model) Capture(first, count int, dst []byte) error {
	return m.cache.copyRows(first, count, dst)
}

func (m *model) Load(s *snapshot.State) error {
	m.reset()
	m.cache.load(s)
	for i := range s.Rows() {
		id := int32(0)
		if i < len(s.Prompt) {
			id = s.Prompt[i]
		} else {
			id = s.Output[i-len(s.Prompt)]
		}
		m.history = follow(m.history, id)
	}
	return nil
}

func (m *model) Reset() error {
	m.reset()
	return nil
}

func (m *model) reset() {
	m.cache.reset()
	m.history = origin(m.config.SeedOfWeights)
}

// sleep waits for d or the end of the run's context.
func (m *model) sleep(d time.Duration) error {
	if d <= 0 {
		return nil
	}
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return nil
	case <-m.ctx.Done():
		return context.Cause(m.ctx)
	}
}
