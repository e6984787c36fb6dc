// SPDX-License-Identifier: Apache-2.0
// Copyright The Segue Authors

package decode_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"unsafe"

	"github.com/google/go-cmp/cmp"

	"github.com/seguekv/segue/engines"
	"github.com/seguekv/segue/engines/decode"
	"github.com/seguekv/segue/engines/enginetest"
	"github.com/seguekv/segue/engines/sampling"
	"github.com/seguekv/segue/snapshot"
)

const (
	vocabulary = 100
	eog        = 99
)

// model is a decode.Model that writes down what it is asked for. The likeliest id is the number of cached
// positions, then eog.
type model struct {
	log  []string
	rows int
	// eogFirst makes eog the likeliest id.
	eogFirst bool
	// noLogits leaves them out.
	noLogits bool
	// fail maps a call's log line to its error.
	fail map[string]error
	// before is called with each log line.
	before func(line string)
}

func (m *model) note(format string, args ...any) error {
	line := fmt.Sprintf(format, args...)
	m.log = append(m.log, line)
	if m.before != nil {
		m.before(line)
	}
	return m.fail[line]
}

func (m *model) Render(p engines.Prompt) ([]int32, error) {
	for _, id := range p.IDs {
		if id < 0 || id >= vocabulary {
			return nil, &engines.RequestError{Field: "prompt", Reason: fmt.Sprintf("id %d", id)}
		}
	}
	return p.IDs, nil
}

func (m *model) Piece(id int32) []byte { return fmt.Appendf(nil, "%02d ", id) }
func (m *model) EOG(id int32) bool     { return id == eog }

func (m *model) Prefill(ids []int32, first int, last bool) error {
	m.rows = first + len(ids)
	return m.note("prefill %v at %d last=%v", ids, first, last)
}

func (m *model) Step(id int32, pos int) error {
	m.rows = pos + 1
	return m.note("step %d at %d", id, pos)
}

func (m *model) Logits() sampling.Logits {
	if m.noLogits {
		return sampling.Logits{}
	}
	v := make([]float32, vocabulary)
	v[m.rows] = 2
	v[eog] = 1
	if m.eogFirst {
		v[eog] = 3
	}
	return sampling.Logits{Values: v}
}

func (m *model) Capture(first, count int, dst []byte) error {
	for i := range dst {
		dst[i] = byte(first + i/4)
	}
	return m.note("capture %d at %d", count, first)
}

func (m *model) Load(s *snapshot.State) error {
	m.rows = s.Rows()
	return m.note("load %d rows", s.Rows())
}

func (m *model) Reset() error { return m.note("reset") }

// sink writes events to the model's log and may fail one.
type sink struct {
	*enginetest.Recorder
	m    *model
	fail map[string]error
}

func (s sink) note(format string, args ...any) error {
	line := fmt.Sprintf(format, args...)
	s.m.log = append(s.m.log, line)
	return s.fail[line]
}

func (s sink) Prompt(ids []int32) error {
	if err := s.note("> prompt %v", ids); err != nil {
		return err
	}
	return s.Recorder.Prompt(ids)
}

func (s sink) Prefilled(first, count int, rows []byte) error {
	if err := s.note("> prefilled %d at %d rows=%v", count, first, rows); err != nil {
		return err
	}
	return s.Recorder.Prefilled(first, count, rows)
}

func (s sink) Token(t engines.Token) error {
	restored := ""
	if t.Restored {
		restored = " restored"
	}
	if err := s.note("> token %d: %d %q row=%v%s %s", t.Index, t.ID, t.Text, t.Row, restored, t.Finish); err != nil {
		return err
	}
	return s.Recorder.Token(t)
}

func geometry() snapshot.Geometry {
	return snapshot.Geometry{Layers: []snapshot.LayerRows{{KBytes: 3, VBytes: 1, KType: "a", VType: "b"}}}
}

func config() decode.Config {
	return decode.Config{Geometry: geometry(), ContextLength: 20, Chunk: 2}
}

func request(limit int, prompt ...int32) engines.Request {
	if len(prompt) == 0 {
		prompt = []int32{50, 51, 52}
	}
	return engines.Request{Model: "m", Prompt: engines.Prompt{IDs: prompt}, MaxTokens: limit}
}

// state is at boundary n of a run with three prompt ids.
func state(n int) *snapshot.State {
	s := &snapshot.State{Geometry: geometry(), Prompt: []int32{50, 51, 52}, Sampler: snapshot.Sampler{Draws: uint64(n)}}
	for i := range n {
		s.Output = append(s.Output, int32(3+i))
	}
	for i := 0; i < s.Rows(); i += snapshot.BlockRows {
		s.Blocks = append(s.Blocks, make([]byte, min(snapshot.BlockRows, s.Rows()-i)*4))
	}
	return s
}

func run(t *testing.T, m *model, job engines.Job) (*decode.Counters, *enginetest.Recorder, error) {
	t.Helper()
	var c decode.Counters
	r := enginetest.NewRecorder(geometry(), job.Capture)
	if job.From != nil {
		r = enginetest.NewRestoredRecorder(job.From, job.Capture)
	}
	err := decode.Run(t.Context(), config(), m, &c, job, sink{Recorder: r, m: m})
	return &c, r, err
}

func checkLog(t *testing.T, m *model, want string) {
	t.Helper()
	if d := cmp.Diff(strings.Split(strings.TrimSpace(want), "\n"), trimmed(m.log)); d != "" {
		t.Errorf("calls (-want +got):\n%s", d)
	}
}

func trimmed(lines []string) []string {
	out := make([]string, len(lines))
	for i, l := range lines {
		out[i] = strings.TrimSpace(l)
	}
	return out
}

func TestRun_Fresh(t *testing.T) {
	m := &model{}
	c, _, err := run(t, m, engines.Job{Request: request(3, 50, 51, 52), Capture: true})
	if err != nil {
		t.Fatal(err)
	}
	checkLog(t, m, `
reset
> prompt [50 51 52]
prefill [50 51] at 0 last=false
capture 2 at 0
> prefilled 2 at 0 rows=[0 0 0 0 1 1 1 1]
prefill [52] at 2 last=true
capture 1 at 2
> prefilled 1 at 2 rows=[2 2 2 2]
> token 0: 3 "03 " row=[]
step 3 at 3
capture 1 at 3
> token 1: 4 "04 " row=[3 3 3 3]
step 4 at 4
capture 1 at 4
> token 2: 5 "05 " row=[4 4 4 4] length`)
	if d := cmp.Diff(engines.Facts{PrefillTokens: 3, DecodeSteps: 2, CapturedRows: 5}, c.Facts()); d != "" {
		t.Errorf("facts (-want +got):\n%s", d)
	}
}

func TestRun_WithoutCapture(t *testing.T) {
	m := &model{}
	c, _, err := run(t, m, engines.Job{Request: request(2, 50, 51)})
	if err != nil {
		t.Fatal(err)
	}
	checkLog(t, m, `
reset
> prompt [50 51]
prefill [50 51] at 0 last=true
> prefilled 2 at 0 rows=[]
> token 0: 2 "02 " row=[]
step 2 at 2
> token 1: 3 "03 " row=[] length`)
	if n := c.Facts().CapturedRows; n != 0 {
		t.Errorf("%d captured rows", n)
	}
}

func TestRun_Restored(t *testing.T) {
	m := &model{}
	c, _, err := run(t, m, engines.Job{Request: request(4), Capture: true, From: state(2)})
	if err != nil {
		t.Fatal(err)
	}
	checkLog(t, m, `
load 4 rows
> token 0: 3 "03 " row=[] restored
> token 1: 4 "04 " row=[] restored
step 4 at 4
capture 1 at 4
> token 2: 5 "05 " row=[4 4 4 4]
step 5 at 5
capture 1 at 5
> token 3: 6 "06 " row=[5 5 5 5] length`)
	want := engines.Facts{DecodeSteps: 2, RestoredRows: 4, RestoredBytes: 16, CapturedRows: 2}
	if d := cmp.Diff(want, c.Facts()); d != "" {
		t.Errorf("facts (-want +got):\n%s", d)
	}
}

func TestRun_FinishInStateLoadsNothing(t *testing.T) {
	for name, change := range map[string]func(q *engines.Request, s *snapshot.State){
		"length": func(q *engines.Request, _ *snapshot.State) { q.MaxTokens = 2 },
		"stop":   func(q *engines.Request, _ *snapshot.State) { q.Stop = []string{"3 04"} },
		"end":    func(_ *engines.Request, s *snapshot.State) { s.Output[1] = eog },
	} {
		m := &model{}
		q, s := request(10), state(4)
		change(&q, s)
		c, r, err := run(t, m, engines.Job{Request: q, Capture: true, From: s})
		if err != nil {
			t.Fatal(err)
		}
		if n := len(r.IDs()); n != 2 || r.Finish() == engines.FinishNone {
			t.Errorf("%s: %d tokens, finish %q, want 2 tokens", name, n, r.Finish())
		}
		if d := cmp.Diff(engines.Facts{}, c.Facts()); d != "" {
			t.Errorf("%s: facts (-want +got):\n%s", name, d)
		}
	}
}

func TestRun_MinTokensBansTheEnd(t *testing.T) {
	for _, least := range []int{0, 1, 3} {
		q := request(10, 50)
		q.MinTokens = least
		_, r, err := run(t, &model{eogFirst: true}, engines.Job{Request: q})
		if err != nil {
			t.Fatal(err)
		}
		if ids := r.IDs(); len(ids) != least+1 || slices.Index(ids, eog) != least || r.Finish() != engines.FinishStop {
			t.Errorf("MinTokens %d: ids %v, finish %q", least, ids, r.Finish())
		}
		// The filter counts restored tokens too.
		q.MinTokens = least + 2
		_, r, err = run(t, &model{eogFirst: true}, engines.Job{Request: q, From: state(2)})
		if err != nil {
			t.Fatal(err)
		}
		if ids := r.IDs(); slices.Index(ids, eog) != least+2 {
			t.Errorf("MinTokens %d from boundary 2: ids %v", q.MinTokens, ids)
		}
	}
}

func TestRun_PromptIsPenalised(t *testing.T) {
	q := request(2, 50, 3, 52)
	q.Sampling.RepetitionPenalty = 3
	s := state(1)
	s.Prompt, s.Output = []int32{50, 4, 52}, []int32{7}
	restored := request(2, s.Prompt...)
	restored.Sampling = q.Sampling
	for i, job := range []engines.Job{{Request: q}, {Request: restored, From: s}} {
		// The model's likeliest id is the number of rows, which is in the prompt.
		_, r, err := run(t, &model{}, job)
		if err != nil {
			t.Fatal(err)
		}
		if got := r.IDs()[i]; got != eog {
			t.Errorf("job %d: token %d is %d, want the second likeliest, %d", i, i, got, eog)
		}
	}
}

func TestRun_IgnoreEOSGoesOnToTheLimit(t *testing.T) {
	q := request(4, 50)
	q.IgnoreEOS = true
	_, r, err := run(t, &model{eogFirst: true}, engines.Job{Request: q})
	if err != nil {
		t.Fatal(err)
	}
	if ids := r.IDs(); !slices.Equal(ids, []int32{eog, eog, eog, eog}) || r.Text() != "" || r.Finish() != engines.FinishLength {
		t.Errorf("ids %v, text %q, finish %q", ids, r.Text(), r.Finish())
	}
}

func TestRun_ContextBoundsTheOutput(t *testing.T) {
	prompt := make([]int32, config().ContextLength-2)
	for _, limit := range []int{0, 50} {
		_, r, err := run(t, &model{}, engines.Job{Request: request(limit, prompt...)})
		if err != nil {
			t.Fatal(err)
		}
		if len(r.IDs()) != 2 || r.Finish() != engines.FinishLength {
			t.Errorf("limit %d: %d tokens, finish %q, want the 2 that fit", limit, len(r.IDs()), r.Finish())
		}
	}
	m := &model{}
	_, _, err := run(t, m, engines.Job{Request: request(1, make([]int32, config().ContextLength)...)})
	if e, ok := errors.AsType[*engines.PromptTooLongError](err); !ok || *e != (engines.PromptTooLongError{Tokens: 20, Limit: 20}) {
		t.Errorf("full prompt: %v", err)
	}
	if len(m.log) != 0 {
		t.Errorf("full prompt: calls %q", m.log)
	}
}

func TestRun_ModelErrorsNameTheCall(t *testing.T) {
	broken := errors.New("broken")
	for line, want := range map[string]string{
		"reset":                          "reset context: broken",
		"prefill [50 51] at 0 last=true": "prefill: broken",
		"capture 2 at 0":                 "capture: broken",
		"step 2 at 2":                    "decode: broken",
		"capture 1 at 2":                 "capture: broken",
	} {
		_, _, err := run(t, &model{fail: map[string]error{line: broken}}, engines.Job{Request: request(3, 50, 51), Capture: true})
		if !errors.Is(err, broken) || errors.Is(err, engines.ErrCanceled) || err.Error() != want {
			t.Errorf("%s: error %q, want %q", line, err, want)
		}
	}
	if _, _, err := run(t, &model{fail: map[string]error{"load 3 rows": broken}}, engines.Job{Request: request(3), From: state(1)}); !errors.Is(err, broken) {
		t.Errorf("load: %v", err)
	}
	if _, _, err := run(t, &model{noLogits: true}, engines.Job{Request: request(3, 50)}); err == nil || !strings.Contains(err.Error(), "no logits") {
		t.Errorf("no logits: %v", err)
	}
}

func TestRun_SinkErrors(t *testing.T) {
	closed := errors.New("closed")
	for _, line := range []string{
		"> prompt [50 51]",
		"> prefilled 2 at 0 rows=[]",
		`> token 0: 2 "02 " row=[] `,
		`> token 1: 3 "03 " row=[] `,
	} {
		m := &model{}
		err := decode.Run(t.Context(), config(), m, &decode.Counters{}, engines.Job{Request: request(3, 50, 51)},
			sink{enginetest.NewRecorder(geometry(), false), m, map[string]error{line: closed}})
		if !errors.Is(err, closed) || m.log[len(m.log)-1] != line {
			t.Errorf("%s: error %v, last call %q", line, err, m.log[len(m.log)-1])
		}
	}
}

func TestRun_CancelStopsBeforeTheNextCall(t *testing.T) {
	cause, noise := errors.New("gone"), errors.New("interrupted")
	for line, next := range map[string]error{
		"reset":                           nil,
		"prefill [50 51] at 0 last=false": nil,
		"prefill [52] at 2 last=true":     noise, // a model may give up and say so in its own words
		"step 3 at 3":                     nil,
	} {
		ctx, cancel := context.WithCancelCause(t.Context())
		m := &model{fail: map[string]error{line: next}}
		m.before = func(l string) {
			if l == line {
				cancel(cause)
			}
		}
		err := decode.Run(ctx, config(), m, &decode.Counters{}, engines.Job{Request: request(3, 50, 51, 52)},
			sink{Recorder: enginetest.NewRecorder(geometry(), false), m: m})
		if !errors.Is(err, engines.ErrCanceled) || !errors.Is(err, cause) {
			t.Errorf("%s: %v", line, err)
		}
		calls := slices.DeleteFunc(m.log, func(l string) bool { return strings.HasPrefix(l, ">") })
		if calls[len(calls)-1] != line {
			t.Errorf("%s: last call %q", line, calls[len(calls)-1])
		}
	}
}

// borrowed keeps the addresses of what it is lent.
type borrowed struct{ rows []*byte }

func (b *borrowed) Prompt([]int32) error { return nil }
func (b *borrowed) Prefilled(_, _ int, rows []byte) error {
	b.rows = append(b.rows, unsafe.SliceData(rows))
	return nil
}
func (b *borrowed) Token(t engines.Token) error {
	if t.Row != nil {
		b.rows = append(b.rows, unsafe.SliceData(t.Row))
	}
	return nil
}

func TestRun_ReusesItsRowBuffer(t *testing.T) {
	b := &borrowed{}
	err := decode.Run(t.Context(), config(), &model{}, &decode.Counters{}, engines.Job{Request: request(5, 50, 51, 52), Capture: true}, b)
	if err != nil {
		t.Fatal(err)
	}
	if len(b.rows) != 6 || len(slices.Compact(b.rows)) != 1 {
		t.Errorf("rows at %v, want one address", b.rows)
	}
}

func TestCounters_AreSharedByRuns(t *testing.T) {
	var c decode.Counters
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			m := &model{}
			m.before = func(string) { c.Facts() }
			err := decode.Run(t.Context(), config(), m, &c, engines.Job{Request: request(5, 50, 51, 52), Capture: true},
				enginetest.NewRecorder(geometry(), true))
			if err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	if d := cmp.Diff(engines.Facts{PrefillTokens: 24, DecodeSteps: 32, CapturedRows: 56}, c.Facts()); d != "" {
		t.Errorf("facts (-want +got):\n%s", d)
	}
}

func TestConfig_Validate(t *testing.T) {
	if err := config().Validate(); err != nil {
		t.Error(err)
	}
	err := decode.Config{}.Validate()
	for _, part := range []string{"layers", "context length", "prefill chunk"} {
		if err == nil || !strings.Contains(err.Error(), part) {
			t.Errorf("%s isn't in %v", part, err)
		}
	}
}
