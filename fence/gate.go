// SPDX-License-Identifier: Apache-2.0
// Copyright The Segue Authors

package fence

import "fmt"

// Epoch numbers the attempts of a session. Only routers make epochs; the first is 1 or higher.
type Epoch uint64

// Usage counts the tokens of a finished session.
type Usage struct {
	PromptTokens, OutputTokens int
}

// Finish is the last entry of a gate.
type Finish struct {
	Epoch  Epoch
	Tokens int
	Reason string
	Usage  Usage
}

// Gate is the publish point of one session.
type Gate struct {
	epoch    Epoch
	tokens   []int32
	textEnds []int
	epochs   []Epoch
	content  bool
	finish   *Finish
	observe  func(Op)
}

// NewGate returns an open gate whose current epoch is first.
func NewGate(first Epoch) *Gate { return &Gate{epoch: first} }

// Append accepts token index of the attempt with epoch e. textEnd is the number of text bytes released by
// tokens 0 … index and never falls. Appending an accepted entry again is a success, whatever epoch it was
// accepted under, as long as e is current: a takeover may re-emit.
//
// Errors: ErrStaleEpoch, ErrFutureEpoch, ErrClosed, ErrConflict, *IndexError.
func (g *Gate) Append(e Epoch, index int, token int32, textEnd int) error {
	return g.seen(Op{Kind: OpAppend, Epoch: e, Index: index, Token: token, TextEnd: textEnd, Err: g.append(e, index, token, textEnd)})
}

func (g *Gate) append(e Epoch, index int, token int32, textEnd int) error {
	if err := g.check(e); err != nil {
		return err
	}
	if index < 0 || index > len(g.tokens) {
		return &IndexError{Got: index, Want: len(g.tokens)}
	}
	if index < len(g.tokens) {
		if g.tokens[index] != token || g.textEnds[index] != textEnd {
			return fmt.Errorf("%w: index %d has token %d and text end %d, got %d and %d",
				ErrConflict, index, g.tokens[index], g.textEnds[index], token, textEnd)
		}
		return nil
	}
	if g.finish != nil {
		return ErrClosed
	}
	if textEnd < g.TextEnd() {
		return fmt.Errorf("%w: text end falls from %d to %d at index %d", ErrConflict, g.TextEnd(), textEnd, index)
	}
	g.tokens = append(g.tokens, token)
	g.textEnds = append(g.textEnds, textEnd)
	g.epochs = append(g.epochs, e)
	return nil
}

// Finish appends the last entry and closes the gate. n must be the number of accepted tokens. The same
// finish again is a success.
func (g *Gate) Finish(e Epoch, n int, reason string, u Usage) error {
	return g.seen(Op{Kind: OpFinish, Epoch: e, Index: n, Err: g.close(e, n, reason, u)})
}

func (g *Gate) close(e Epoch, n int, reason string, u Usage) error {
	if err := g.check(e); err != nil {
		return err
	}
	f := Finish{Epoch: e, Tokens: n, Reason: reason, Usage: u}
	if g.finish != nil {
		if *g.finish == f {
			return nil
		}
		return ErrClosed
	}
	if n != len(g.tokens) {
		return &IndexError{Got: n, Want: len(g.tokens)}
	}
	g.finish = &f
	return nil
}

// Raise moves the current epoch from "from" to a higher "to": compare-and-set. After it returns nil no
// entry of a lower epoch is accepted.
func (g *Gate) Raise(from, to Epoch) error {
	return g.seen(Op{Kind: OpRaise, Epoch: to, Err: g.raise(from, to)})
}

func (g *Gate) raise(from, to Epoch) error {
	if g.finish != nil {
		return ErrClosed
	}
	if from != g.epoch {
		return fmt.Errorf("%w: raise from %d, current is %d", ErrStaleEpoch, from, g.epoch)
	}
	if to <= from {
		return fmt.Errorf("%w: raise to %d, current is %d", ErrStaleEpoch, to, g.epoch)
	}
	g.epoch = to
	return nil
}

// Restart raises the epoch for a retry from the prompt: accepted tokens are discarded, their indexes are
// free again. It fails with ErrCommitted once content was written.
func (g *Gate) Restart(to Epoch) error {
	return g.seen(Op{Kind: OpRestart, Epoch: to, Err: g.restart(to)})
}

func (g *Gate) restart(to Epoch) error {
	if g.content {
		return ErrCommitted
	}
	if err := g.raise(g.epoch, to); err != nil {
		return err
	}
	g.tokens, g.textEnds, g.epochs = nil, nil, nil
	return nil
}

// MarkContent records that a content-bearing write to the client is about to begin. It precedes the write:
// a write with an unknown outcome counts as written.
func (g *Gate) MarkContent() { g.content = true }

// ContentWritten reports whether MarkContent was called.
func (g *Gate) ContentWritten() bool { return g.content }

// Epoch is the current epoch.
func (g *Gate) Epoch() Epoch { return g.epoch }

// Len is d, the number of accepted tokens.
func (g *Gate) Len() int { return len(g.tokens) }

// Tokens are the accepted ids, a read-only view that is valid until the next call of a mutating method.
func (g *Gate) Tokens() []int32 { return g.tokens }

// TextEnd is the number of text bytes released by the accepted tokens.
func (g *Gate) TextEnd() int {
	if len(g.textEnds) == 0 {
		return 0
	}
	return g.textEnds[len(g.textEnds)-1]
}

// EpochOf is the epoch under which index was accepted.
func (g *Gate) EpochOf(index int) Epoch { return g.epochs[index] }

// Closed reports whether the finish is in.
func (g *Gate) Closed() bool { return g.finish != nil }

// Final returns the finish, if it is in.
func (g *Gate) Final() (Finish, bool) {
	if g.finish == nil {
		return Finish{}, false
	}
	return *g.finish, true
}

func (g *Gate) check(e Epoch) error {
	switch {
	case e < g.epoch:
		return fmt.Errorf("%w: %d, current is %d", ErrStaleEpoch, e, g.epoch)
	case e > g.epoch:
		return fmt.Errorf("%w: %d, current is %d", ErrFutureEpoch, e, g.epoch)
	}
	return nil
}
