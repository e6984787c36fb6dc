// SPDX-License-Identifier: Apache-2.0
// Copyright The Segue Authors

package fence

// Op is one call of a gate with its result, for whoever checks a gate's history.
type Op struct {
	Kind OpKind
	// Epoch is the caller's: of the attempt for OpAppend and OpFinish, the new one for OpRaise and OpRestart.
	Epoch Epoch
	// Index, Token and TextEnd are those of an OpAppend; Index is the number of tokens of an OpFinish.
	Index   int
	Token   int32
	TextEnd int
	Err     error
}

// OpKind is which method was called.
type OpKind uint8

// Kinds of Op.
const (
	OpAppend OpKind = iota
	OpRaise
	OpRestart
	OpFinish
)

func (k OpKind) String() string { return [...]string{"append", "raise", "restart", "finish"}[k] }

// Observe makes f see every later call of a method that can change the gate, after its effect and in order. f is
// called synchronously and must not call the gate.
func (g *Gate) Observe(f func(Op)) { g.observe = f }

func (g *Gate) seen(op Op) error {
	if g.observe != nil {
		g.observe(op)
	}
	return op.Err
}
