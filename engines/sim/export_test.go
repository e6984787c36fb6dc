// SPDX-License-Identifier: Apache-2.0
// Copyright The Segue Authors

package sim

import "github.com/seguekv/segue/engines/decode"

// Names for tests of the parts that a run hides.
const (
	Vocabulary = vocabulary
	Words      = words
	EOG        = eog
)

var (
	Piece  = piece
	Lacks  = lacks
	Render = render
	Expand = expand
)

// NewModel is one context outside an engine.
func NewModel(c Config) decode.Model { return newModel(c) }

// Damage flips a bit of a cached row.
func Damage(m decode.Model, row int) { m.(*model).cache.row(row)[0] ^= 1 }
