// SPDX-License-Identifier: Apache-2.0
// Copyright The Segue Authors

package main

import (
	"errors"
	"fmt"
	"slices"

	"github.com/hybridgroup/yzma/pkg/llama"

	"github.com/seguekv/segue/engines"
	"github.com/seguekv/segue/engines/llamacpp"
	"github.com/seguekv/segue/engines/sampling"
	"github.com/seguekv/segue/snapshot"
)

// Sequences of a context. The scratch sequence is empty between calls: captures and loads pass through it.
const (
	live    llama.SeqId = 0
	scratch llama.SeqId = 1
	// sequences is n_seq_max.
	sequences = 2
)

// cacheType is the element type of the cache, for K and V.
const cacheType = "f16"

// loadRows is how many rows of a state are loaded at once. The blob of that many stays in the processor's
// cache and its buffer is small enough to keep, while a blob of a whole state would be new memory each time.
const loadRows = 8 * snapshot.BlockRows

// modelContext is one context: the memory of one run. It implements decode.Model and belongs to one
// goroutine at a time.
type modelContext struct {
	*model
	handle llama.Context
	memory llama.Memory
	batch  llama.Batch
	length int
	// layout is nil until the geometry is known.
	layout *llamacpp.Layout
	// rows is the number of positions in memory, which are 0 … rows-1.
	rows int
	// blob is the buffer of captures and loads.
	blob []byte
	// logits is a view of memory of the context, valid until the next decode.
	logits []float32
}

// newContext creates a context for prompts and outputs of length tokens together. It takes 0.1 to 0.6 s,
// mostly for touching the memory of all rows.
func newContext(m *model, length, threads int) (*modelContext, error) {
	p := llama.ContextDefaultParams()
	p.NCtx = uint32(length)
	p.NBatch, p.NUbatch = llamacpp.BatchSize, llamacpp.BatchSize
	p.NSeqMax = sequences
	p.KVUnified = 1
	p.NThreads, p.NThreadsBatch = int32(threads), int32(threads)
	p.FlashAttentionType = llama.FlashAttentionTypeEnabled
	p.TypeK, p.TypeV = llama.GGMLTypeF16, llama.GGMLTypeF16
	p.OpOffload, p.Offload_kqv = 0, 0
	p.NoPerf = 1
	h, err := llama.InitFromModel(m.handle, p)
	if err != nil {
		return nil, fmt.Errorf("create context of %d tokens: %s", length, m.lib.log.reason())
	}
	c := &modelContext{model: m, handle: h, length: length}
	if c.memory, err = llama.GetMemory(h); err != nil || c.memory == 0 {
		_ = llama.Free(h)
		return nil, fmt.Errorf("create context of %d tokens: it has no memory", length)
	}
	c.batch = llama.BatchInit(llamacpp.BatchSize, 0, 1)
	return c, nil
}

func (c *modelContext) free() {
	_ = llama.BatchFree(c.batch)
	_ = llama.Free(c.handle)
}

// Render implements decode.Model.
func (c *modelContext) Render(p engines.Prompt) ([]int32, error) { return c.render(p, c.length) }

// Prefill implements decode.Model.
func (c *modelContext) Prefill(ids []int32, first int, last bool) error {
	return c.compute(ids, first, last)
}

// Step implements decode.Model.
func (c *modelContext) Step(id int32, pos int) error {
	return c.compute([]int32{id}, pos, true)
}

// compute decodes one batch at the end of what is in memory.
func (c *modelContext) compute(ids []int32, first int, logits bool) error {
	c.logits = nil
	if first != c.rows || first+len(ids) > c.length {
		return fmt.Errorf("compute positions %d to %d: memory holds %d of %d", first, first+len(ids), c.rows, c.length)
	}
	_ = c.batch.Clear()
	seqs := [...]llama.SeqId{live}
	for i, id := range ids {
		if !c.valid(id) {
			return fmt.Errorf("compute position %d: id %d is not in the vocabulary", first+i, id)
		}
		if err := c.batch.Add(llama.Token(id), llama.Pos(first+i), seqs[:], logits && i == len(ids)-1); err != nil {
			return fmt.Errorf("compute position %d: %w", first+i, err)
		}
	}
	if r, err := llama.Decode(c.handle, c.batch); err != nil {
		return fmt.Errorf("decode: %w", err)
	} else if r != 0 {
		return fmt.Errorf("decode positions %d to %d: llama.cpp returns %d: %s", first, first+len(ids), r, c.lib.log.reason())
	}
	c.rows += len(ids)
	if !logits {
		return nil
	}
	l, err := llama.GetLogitsIth(c.handle, -1, c.size())
	if err != nil || len(l) != c.size() {
		return fmt.Errorf("decode position %d: no logits", c.rows-1)
	}
	c.logits = l
	return nil
}

// Logits implements decode.Model. The values are memory of the context.
func (c *modelContext) Logits() sampling.Logits { return sampling.Logits{Values: c.logits} }

// Capture implements decode.Model. It computes nothing and leaves the logits as they are.
func (c *modelContext) Capture(first, count int, dst []byte) error {
	if c.layout == nil {
		return fmt.Errorf("capture: %w: the geometry is unknown", llamacpp.ErrBlob)
	}
	size := c.layout.Size(count)
	c.blob = slices.Grow(c.blob[:0], size)
	n, err := c.save(first, count, c.blob[:size])
	if err != nil {
		return err
	}
	return c.layout.Rows(dst, c.blob[:n], first, count)
}

// save writes the blob of positions [first, first+count) into buf, which must be large enough.
func (c *modelContext) save(first, count int, buf []byte) (int, error) {
	if first < 0 || count < 1 || first+count > c.rows {
		return 0, fmt.Errorf("capture positions %d to %d: memory holds %d", first, first+count, c.rows)
	}
	if err := llama.MemorySeqCp(c.memory, live, scratch, llama.Pos(first), llama.Pos(first+count)); err != nil {
		return 0, fmt.Errorf("capture: %w", err)
	}
	n := llama.StateSeqGetData(c.handle, buf, scratch)
	if err := c.dropScratch(); err != nil {
		return 0, err
	}
	if n == 0 || n > uint64(len(buf)) {
		return 0, fmt.Errorf("capture positions %d to %d: llama.cpp writes %d bytes: %s", first, first+count, n, c.lib.log.reason())
	}
	return int(n), nil
}

func (c *modelContext) dropScratch() error {
	if ok, err := llama.MemorySeqRm(c.memory, scratch, -1, -1); err != nil || !ok {
		return fmt.Errorf("empty scratch sequence: refused by llama.cpp")
	}
	return nil
}

// Load implements decode.Model. Its errors wrap engines.ErrState, and leave the context empty.
func (c *modelContext) Load(s *snapshot.State) error {
	if err := c.load(s); err != nil {
		return errors.Join(fmt.Errorf("%w: %w", engines.ErrState, err), c.Reset())
	}
	c.rows = s.Rows()
	return nil
}

func (c *modelContext) load(s *snapshot.State) error {
	if err := errors.Join(c.Reset(), s.Validate()); err != nil {
		return err
	}
	rows := s.Rows()
	if rows >= c.length {
		return fmt.Errorf("it has %d rows and one to compute, the context holds %d", rows, c.length)
	}
	c.blob = slices.Grow(c.blob[:0], c.layout.Size(min(rows, loadRows)))
	for first := 0; first < rows; first += loadRows {
		n := min(loadRows, rows-first)
		blob, err := c.layout.AppendBlob(c.blob[:0], int32(scratch), s, first, n)
		if err != nil {
			return err
		}
		// llama.cpp replaces a sequence when it reads one: later pieces join the live sequence by way of scratch.
		if read := llama.StateSeqSetData(c.handle, blob, scratch); read != uint64(len(blob)) {
			return fmt.Errorf("llama.cpp reads %d of %d bytes: %s", read, len(blob), c.lib.log.reason())
		}
		if err := llama.MemorySeqCp(c.memory, scratch, live, -1, -1); err != nil {
			return fmt.Errorf("append rows: %w", err)
		}
		if err := c.dropScratch(); err != nil {
			return err
		}
	}
	low, err := llama.MemorySeqPosMin(c.memory, live)
	if err != nil {
		return fmt.Errorf("verify load: %w", err)
	}
	high, err := llama.MemorySeqPosMax(c.memory, live)
	if err != nil {
		return fmt.Errorf("verify load: %w", err)
	}
	if low != 0 || int(high) != rows-1 {
		return fmt.Errorf("memory holds positions %d to %d after the load, want 0 to %d", low, high, rows-1)
	}
	return nil
}

// Reset implements decode.Model. Old rows stay in memory, out of reach of every sequence.
func (c *modelContext) Reset() error {
	c.logits, c.rows = nil, 0
	if err := llama.MemoryClear(c.memory, false); err != nil {
		return fmt.Errorf("clear memory: %w", err)
	}
	return nil
}
