// SPDX-License-Identifier: Apache-2.0
// Copyright The Segue Authors

package enginetest

import (
	"fmt"
	"slices"
	"sync"
	"unicode/utf8"

	"github.com/seguekv/segue/engines"
	"github.com/seguekv/segue/snapshot"
)

var _ engines.Sink = (*Recorder)(nil)

// Recorder is a sink that keeps all it receives and answers an event that breaks engines.Sink's rules with
// an error, which ends the run. Its methods may be called concurrently.
type Recorder struct {
	geometry snapshot.Geometry
	capture  bool
	// from is the state that the run continues, nil for a fresh run.
	from *snapshot.State

	mu     sync.Mutex
	prompt []int32
	// blocks hold rows rows, snapshot.BlockRows in each but the last. Bytes of complete rows never change.
	blocks [][]byte
	rows   int
	// prefilled counts prompt positions, chunks the calls that reported them.
	prefilled, chunks int
	tokens            []engines.Token
	text              []byte
}

// NewRecorder records a fresh run. capture must be the job's.
func NewRecorder(g snapshot.Geometry, capture bool) *Recorder {
	return &Recorder{geometry: g, capture: capture}
}

// NewRestoredRecorder records a run that continues s, whose rows it takes over: what it records can be cut
// at a boundary again, below s's too. capture must be the job's.
func NewRestoredRecorder(s *snapshot.State, capture bool) *Recorder {
	r := NewRecorder(s.Geometry, capture)
	r.from = s
	r.prompt = slices.Clone(s.Prompt)
	r.prefilled = len(s.Prompt)
	for i := range s.Rows() {
		r.appendRow(s.RowData(i))
	}
	return r
}

// Prompt implements engines.Sink.
func (r *Recorder) Prompt(ids []int32) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	switch {
	case r.from != nil:
		return fmt.Errorf("prompt in a restored run")
	case r.prompt != nil:
		return fmt.Errorf("second prompt")
	case len(ids) == 0:
		return fmt.Errorf("empty prompt")
	}
	r.prompt = slices.Clone(ids)
	return nil
}

// Prefilled implements engines.Sink.
func (r *Recorder) Prefilled(first, count int, rows []byte) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	rb := r.geometry.RowBytes()
	switch {
	case r.from != nil:
		return fmt.Errorf("prefill in a restored run")
	case first != r.prefilled || count < 1 || first+count > len(r.prompt):
		return fmt.Errorf("prefilled %d positions from %d, have %d of %d", count, first, r.prefilled, len(r.prompt))
	case !r.capture && rows != nil:
		return fmt.Errorf("%d bytes of rows without capture", len(rows))
	case r.capture && len(rows) != count*rb:
		return fmt.Errorf("%d bytes for %d rows, want %d", len(rows), count, count*rb)
	}
	r.prefilled += count
	r.chunks++
	for ; len(rows) > 0; rows = rows[rb:] {
		r.appendRow(rows[:rb])
	}
	return nil
}

// Token implements engines.Sink.
func (r *Recorder) Token(t engines.Token) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if err := r.check(t); err != nil {
		return fmt.Errorf("token %d: %w", t.Index, err)
	}
	if t.Row != nil {
		r.appendRow(t.Row)
	}
	t.Row = nil
	t.Text = slices.Clone(t.Text)
	r.text = append(r.text, t.Text...)
	r.tokens = append(r.tokens, t)
	return nil
}

func (r *Recorder) check(t engines.Token) error {
	n := len(r.tokens)
	recorded := r.from != nil && n < len(r.from.Output)
	row := 0
	if r.capture && n > 0 && !recorded {
		row = r.geometry.RowBytes()
	}
	switch {
	case t.Index != n:
		return fmt.Errorf("want index %d", n)
	case n > 0 && r.tokens[n-1].Finish != engines.FinishNone:
		return fmt.Errorf("after the finish")
	case r.prompt == nil || r.prefilled != len(r.prompt):
		return fmt.Errorf("before the prompt is computed (%d of %d)", r.prefilled, len(r.prompt))
	case t.Restored != recorded:
		return fmt.Errorf("restored is %v", t.Restored)
	case recorded && t.ID != r.from.Output[n]:
		return fmt.Errorf("id %d, recorded is %d", t.ID, r.from.Output[n])
	case len(t.Row) != row:
		return fmt.Errorf("row of %d bytes, want %d", len(t.Row), row)
	case !utf8.Valid(t.Text):
		return fmt.Errorf("text %q is not UTF-8", t.Text)
	case t.TextEnd != len(r.text)+len(t.Text):
		return fmt.Errorf("text ends at %d, want %d", t.TextEnd, len(r.text)+len(t.Text))
	case t.RawEnd < t.TextEnd:
		return fmt.Errorf("raw text ends at %d, released text at %d", t.RawEnd, t.TextEnd)
	case t.Finish != engines.FinishNone && t.RawEnd != t.TextEnd:
		return fmt.Errorf("finish with %d bytes held back", t.RawEnd-t.TextEnd)
	case t.Sampler.Draws != uint64(n)+1:
		return fmt.Errorf("sampler has %d draws, want %d", t.Sampler.Draws, n+1)
	}
	switch t.Finish {
	case engines.FinishNone, engines.FinishStop, engines.FinishLength:
		return nil
	}
	return fmt.Errorf("unknown finish %q", t.Finish)
}

func (r *Recorder) appendRow(row []byte) {
	rb := r.geometry.RowBytes()
	o := r.rows % snapshot.BlockRows * rb
	if o == 0 {
		r.blocks = append(r.blocks, make([]byte, snapshot.BlockRows*rb))
	}
	copy(r.blocks[len(r.blocks)-1][o:o+rb], row)
	r.rows++
}

// State is the state at boundary n, 1 … number of tokens. It shares the recorder's memory: Clone it to
// change it. It works while the run goes on.
func (r *Recorder) State(n int) (*snapshot.State, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if n < 1 || n > len(r.tokens) {
		return nil, fmt.Errorf("boundary %d of a record with %d tokens", n, len(r.tokens))
	}
	s := &snapshot.State{
		Geometry: r.geometry,
		Prompt:   r.prompt,
		Output:   ids(r.tokens[:n]),
		Sampler:  r.tokens[n-1].Sampler,
	}
	rows, rb := s.Rows(), r.geometry.RowBytes()
	if rows > r.rows {
		return nil, fmt.Errorf("boundary %d needs %d rows, %d recorded: was the run captured?", n, rows, r.rows)
	}
	for i := 0; i < rows; i += snapshot.BlockRows {
		b := min(snapshot.BlockRows, rows-i) * rb
		s.Blocks = append(s.Blocks, r.blocks[i/snapshot.BlockRows][:b:b])
	}
	return s, nil
}

// PromptIDs are the ids of the prompt, nil before they are known.
func (r *Recorder) PromptIDs() []int32 {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.Clone(r.prompt)
}

// Rows is the number of recorded rows, those of the continued state among them.
func (r *Recorder) Rows() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.rows
}

// Row is a view of the row of position i < Rows.
func (r *Recorder) Row(i int) []byte {
	r.mu.Lock()
	defer r.mu.Unlock()
	rb := r.geometry.RowBytes()
	o := i % snapshot.BlockRows * rb
	return r.blocks[i/snapshot.BlockRows][o : o+rb : o+rb]
}

// Chunks is the number of prefill chunks.
func (r *Recorder) Chunks() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.chunks
}

// Tokens are the recorded tokens, without rows.
func (r *Recorder) Tokens() []engines.Token {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.Clone(r.tokens)
}

// IDs are the output ids.
func (r *Recorder) IDs() []int32 {
	r.mu.Lock()
	defer r.mu.Unlock()
	return ids(r.tokens)
}

// Text is the released text.
func (r *Recorder) Text() string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return string(r.text)
}

// Finish is the last token's.
func (r *Recorder) Finish() engines.Finish {
	r.mu.Lock()
	defer r.mu.Unlock()
	if len(r.tokens) == 0 {
		return engines.FinishNone
	}
	return r.tokens[len(r.tokens)-1].Finish
}

func ids(tokens []engines.Token) []int32 {
	ids := make([]int32, len(tokens))
	for i, t := range tokens {
		ids[i] = t.ID
	}
	return ids
}

// Clone is a deep copy of a state.
func Clone(s *snapshot.State) *snapshot.State {
	c := *s
	c.Geometry.Layers = slices.Clone(s.Geometry.Layers)
	c.Prompt = slices.Clone(s.Prompt)
	c.Output = slices.Clone(s.Output)
	c.Blocks = make([][]byte, len(s.Blocks))
	for i, b := range s.Blocks {
		c.Blocks[i] = slices.Clone(b)
	}
	return &c
}
