// SPDX-License-Identifier: Apache-2.0
// Copyright The Segue Authors

package decode

import (
	"fmt"

	"github.com/seguekv/segue/engines"
	"github.com/seguekv/segue/snapshot"
)

// checkState refuses a state that can't be continued here. Its errors wrap engines.ErrState.
func checkState(cfg Config, m Model, r engines.Request, s *snapshot.State) error {
	if err := s.Validate(); err != nil {
		return fmt.Errorf("%w: %w", engines.ErrState, err)
	}
	if have, want := s.Geometry.Digest(), cfg.Geometry.Digest(); have != want {
		return fmt.Errorf("%w: its row layout (%d layers, %d bytes) is not this engine's (%d layers, %d bytes)", engines.ErrState,
			len(s.Geometry.Layers), s.Geometry.RowBytes(), len(cfg.Geometry.Layers), cfg.Geometry.RowBytes())
	}
	if n := len(s.Prompt) + len(s.Output); n > cfg.ContextLength {
		return fmt.Errorf("%w: it has %d tokens, the context holds %d", engines.ErrState, n, cfg.ContextLength)
	}
	if s.Sampler.Seed != r.Sampling.Seed {
		return fmt.Errorf("%w: its tokens were drawn with seed %d, the request has %d", engines.ErrState, s.Sampler.Seed, r.Sampling.Seed)
	}
	for _, ids := range [][]int32{s.Prompt, s.Output} {
		if _, err := m.Render(engines.Prompt{IDs: ids}); err != nil {
			return fmt.Errorf("%w: check ids: %v", engines.ErrState, err)
		}
	}
	return nil
}
