// SPDX-License-Identifier: Apache-2.0
// Copyright The Segue Authors

package link_test

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"os"
	"slices"
	"sync"
	"sync/atomic"
	"testing"

	"go.uber.org/goleak"

	"github.com/seguekv/segue/compat"
	"github.com/seguekv/segue/engines"
	"github.com/seguekv/segue/engines/link"
	"github.com/seguekv/segue/snapshot"
)

func TestMain(m *testing.M) {
	if os.Getenv(hostMode) != "" {
		os.Exit(hostMain())
	}
	goleak.VerifyTestMain(m)
}

// description is of an engine with rows of the given size.
func description(rowBytes int) *engines.Description {
	return &engines.Description{
		Kind:          "fake",
		Model:         "m",
		Boot:          [16]byte{1, 2, 3},
		Fingerprint:   compat.Fingerprint{},
		Geometry:      snapshot.Geometry{Layers: []snapshot.LayerRows{{KBytes: rowBytes / 2, VBytes: rowBytes - rowBytes/2, KType: "f16", VType: "f16"}}},
		ContextLength: 4096,
		Contexts:      8,
		Vocabulary:    1000,
	}
}

// fake is an engine whose rows and tokens are functions of the position.
type fake struct {
	d      *engines.Description
	prompt int // prompt length
	chunk  int // positions of a prefill chunk
	tokens int // output tokens
	// before, if set, is called before each token with its index.
	before func(ctx context.Context, index int) error
	// run, if set, replaces Run.
	run func(ctx context.Context, job engines.Job, sink engines.Sink) error

	steps   atomic.Uint64
	running atomic.Int64
	mu      sync.Mutex
	jobs    []engines.Job
}

func newFake(rowBytes int) *fake {
	return &fake{d: description(rowBytes), prompt: 5, chunk: 2, tokens: 6}
}

func (f *fake) Describe(context.Context) (*engines.Description, error) { return f.d, nil }

func (f *fake) Observe(context.Context) (engines.Facts, error) {
	return engines.Facts{
		PrefillTokens: 1, DecodeSteps: f.steps.Load(), ReplayedDecodeSteps: 3, RestoredRows: 4, RestoredBytes: 5,
		CapturedRows: 6, Running: int(f.running.Load()), BusyMillis: 8,
	}, nil
}

func (f *fake) Run(ctx context.Context, job engines.Job, sink engines.Sink) error {
	f.running.Add(1)
	defer f.running.Add(-1)
	f.mu.Lock()
	f.jobs = append(f.jobs, job)
	f.mu.Unlock()
	if f.run != nil {
		return f.run(ctx, job, sink)
	}
	rowBytes := f.d.Geometry.RowBytes()
	buf := make([]byte, f.chunk*rowBytes)
	prompt, restored := f.prompt, 0
	if job.From != nil {
		prompt, restored = len(job.From.Prompt), len(job.From.Output)
	} else {
		if err := sink.Prompt(promptIDs(prompt)); err != nil {
			return err
		}
		for first := 0; first < prompt; first += f.chunk {
			count := min(f.chunk, prompt-first)
			if err := sink.Prefilled(first, count, f.rows(job, buf, first, count)); err != nil {
				return err
			}
		}
	}
	for i := range f.tokens {
		t := f.token(i)
		if t.Restored = i < restored; t.Restored {
			t.ID = job.From.Output[i]
		} else if i > 0 {
			t.Row = f.rows(job, buf, prompt+i-1, 1)
		}
		if f.before != nil {
			if err := f.before(ctx, i); err != nil {
				return err
			}
		}
		f.steps.Add(1)
		if err := sink.Token(t); err != nil {
			return err
		}
		if ctx.Err() != nil {
			return fmt.Errorf("%w: %w", engines.ErrCanceled, context.Cause(ctx))
		}
	}
	return nil
}

// got is the jobs that the engine has been given.
func (f *fake) got() []engines.Job {
	f.mu.Lock()
	defer f.mu.Unlock()
	return slices.Clone(f.jobs)
}

func (f *fake) rows(job engines.Job, buf []byte, first, count int) []byte {
	if !job.Capture {
		return nil
	}
	rowBytes := f.d.Geometry.RowBytes()
	for i := range count {
		fillRow(buf[i*rowBytes:(i+1)*rowBytes], first+i)
	}
	return buf[:count*rowBytes]
}

func (f *fake) token(i int) engines.Token {
	t := engines.Token{
		Index: i, ID: int32(100 + i), Text: []byte{'a' + byte(i%26)}, TextEnd: i + 1, RawEnd: i + 2,
		Sampler: snapshot.Sampler{Seed: 7, Draws: uint64(i + 1)},
	}
	if i == f.tokens-1 {
		t.Finish, t.RawEnd = engines.FinishLength, i+1
	}
	return t
}

func promptIDs(n int) []int32 {
	ids := make([]int32, n)
	for i := range ids {
		ids[i] = int32(i % 1000)
	}
	return ids
}

// fillRow writes the row of a position.
func fillRow(row []byte, pos int) {
	for i := 0; i+8 <= len(row); i += 8 {
		binary.LittleEndian.PutUint64(row[i:], uint64(pos)<<32|uint64(i))
	}
}

func row(size, pos int) []byte {
	b := make([]byte, size)
	fillRow(b, pos)
	return b
}

// state is a complete state of that many ids.
func state(d *engines.Description, prompt, output int) *snapshot.State {
	s := &snapshot.State{Geometry: d.Geometry, Prompt: promptIDs(prompt), Sampler: snapshot.Sampler{Seed: 7, Draws: uint64(output)}}
	for i := range output {
		s.Output = append(s.Output, int32(200+i))
	}
	rowBytes := d.Geometry.RowBytes()
	for first := 0; first < s.Rows(); first += snapshot.BlockRows {
		block := make([]byte, 0, snapshot.BlockRows*rowBytes) // the tail block has room to grow
		for i := first; i < min(first+snapshot.BlockRows, s.Rows()); i++ {
			block = append(block, row(rowBytes, i)...)
		}
		s.Blocks = append(s.Blocks, block)
	}
	return s
}

func job(capture bool) engines.Job {
	return engines.Job{Request: engines.Request{Model: "m", Prompt: engines.Prompt{Text: "x"}}, Capture: capture}
}

// record is a sink that copies everything it gets.
type record struct {
	prompt []int32
	chunks [][2]int
	rows   []byte
	tokens []engines.Token
	// before, if set, is called before each event.
	before func() error
	// lent are the distinct buffers that rows came in.
	lent []*byte
}

func (r *record) event(rows []byte) error {
	if len(rows) > 0 {
		if p := &rows[0]; !slices.Contains(r.lent, p) {
			r.lent = append(r.lent, p)
		}
		r.rows = append(r.rows, rows...)
	}
	if r.before != nil {
		return r.before()
	}
	return nil
}

func (r *record) Prompt(ids []int32) error {
	r.prompt = slices.Clone(ids)
	return r.event(nil)
}

func (r *record) Prefilled(first, count int, rows []byte) error {
	r.chunks = append(r.chunks, [2]int{first, count})
	return r.event(rows)
}

func (r *record) Token(t engines.Token) error {
	rows := t.Row
	t.Row = nil
	t.Text = slices.Clone(t.Text)
	r.tokens = append(r.tokens, t)
	return r.event(rows)
}

// connect serves e over a socket pair and returns a client that is being served. Cleanup closes the link and
// waits for both sides.
func connect(tb testing.TB, e engines.Engine) (*link.Client, net.Conn) {
	tb.Helper()
	a, b, err := link.SocketPair()
	if err != nil {
		tb.Fatal(err)
	}
	return connectOver(tb, e, a, b), b
}

func connectOver(tb testing.TB, e engines.Engine, a, b net.Conn) *link.Client {
	tb.Helper()
	ctx := context.Background()
	var wg sync.WaitGroup
	wg.Go(func() {
		if err := link.Serve(ctx, b, e); err != nil {
			tb.Logf("host: %v", err)
		}
	})
	c, err := link.Connect(tb.Context(), a)
	if err != nil {
		b.Close()
		wg.Wait()
		tb.Fatal(err)
	}
	wg.Go(func() {
		if err := c.Serve(ctx); !errors.Is(err, engines.ErrLost) {
			tb.Logf("agent: %v", err)
		}
	})
	tb.Cleanup(func() {
		c.Close()
		wg.Wait()
	})
	return c
}
