// SPDX-License-Identifier: Apache-2.0
// Copyright The Segue Authors

package main

import (
	"bytes"
	"errors"
	"fmt"
	"slices"

	"github.com/hybridgroup/yzma/pkg/llama"

	"github.com/seguekv/segue/engines"
	"github.com/seguekv/segue/engines/decode"
	"github.com/seguekv/segue/engines/llamacpp"
	"github.com/seguekv/segue/snapshot"
)

// errCanary means that a restored state doesn't continue exactly on this machine.
var errCanary = errors.New("segue-llamacpp: restored state doesn't continue exactly")

// canaryPrompt is computed at every start.
const canaryPrompt = "Water boils at one hundred degrees"

// probe finds the geometry of the context's rows, from what llama.cpp writes.
func (c *modelContext) probe() error {
	ids, err := c.tokenize("prompt", canaryPrompt, c.length)
	if err != nil {
		return err
	}
	if err := c.Reset(); err != nil {
		return err
	}
	if err := c.Prefill(ids[:1], 0, false); err != nil {
		return err
	}
	size := llama.StateSeqGetSize(c.handle, live)
	if size > snapshot.MaxRowBytes {
		return fmt.Errorf("one row takes %d bytes, limit %d", size, snapshot.MaxRowBytes)
	}
	buf := make([]byte, size)
	n, err := c.save(0, 1, buf)
	if err != nil {
		return err
	}
	g, err := llamacpp.ReadGeometry(buf[:n], 1)
	if err != nil {
		return err
	}
	c.layout, err = llamacpp.NewLayout(g)
	return err
}

// canary computes a short prompt and two steps, restores the state before the second step, and compares
// that step's logits and row with those of the uninterrupted run, bit by bit. It finds what a fingerprint
// can't: a cache whose state doesn't hold everything. The context is empty afterwards.
func canary(c decode.Model, g snapshot.Geometry) error {
	ids, err := c.Render(engines.Prompt{Text: canaryPrompt})
	if err != nil {
		return err
	}
	if err := c.Reset(); err != nil {
		return err
	}
	n, rowBytes := len(ids), g.RowBytes()
	if err := c.Prefill(ids, 0, true); err != nil {
		return err
	}
	first := highest(c.Logits().Values)
	if err := c.Step(first, n); err != nil {
		return err
	}
	second := highest(c.Logits().Values)
	rows := make([]byte, (n+2)*rowBytes)
	if err := c.Capture(0, n+1, rows[:(n+1)*rowBytes]); err != nil {
		return err
	}
	if err := c.Step(second, n+1); err != nil {
		return err
	}
	logits := slices.Clone(c.Logits().Values)
	if err := c.Capture(n+1, 1, rows[(n+1)*rowBytes:]); err != nil {
		return err
	}

	s := &snapshot.State{
		Geometry: g, Prompt: ids, Output: []int32{first, second}, Sampler: snapshot.Sampler{Draws: 2},
		Blocks: slices.Collect(slices.Chunk(rows[:(n+1)*rowBytes], snapshot.BlockRows*rowBytes)),
	}
	if err := c.Load(s); err != nil {
		return err
	}
	if err := c.Step(second, n+1); err != nil {
		return err
	}
	if !slices.Equal(c.Logits().Values, logits) {
		return fmt.Errorf("%w: its next logits differ", errCanary)
	}
	again := make([]byte, len(rows))
	if err := c.Capture(0, n+2, again); err != nil {
		return err
	}
	if !bytes.Equal(again, rows) {
		return fmt.Errorf("%w: its rows differ", errCanary)
	}
	return c.Reset()
}

// highest is the id of the highest logit.
func highest(logits []float32) int32 {
	best := 0
	for i, v := range logits {
		if v > logits[best] {
			best = i
		}
	}
	return int32(best)
}
