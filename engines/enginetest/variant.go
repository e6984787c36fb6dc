// SPDX-License-Identifier: Apache-2.0
// Copyright The Segue Authors

package enginetest

import (
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/seguekv/segue/engines"
	"github.com/seguekv/segue/engines/sampling"
)

// variant is one way to sample.
type variant struct {
	name    string
	request engines.Request
}

// job is a captured fresh run.
func (v variant) job() engines.Job { return engines.Job{Request: v.request, Capture: true} }

// greedy always makes all of the reference run's tokens.
func (s *suite) greedy() variant {
	return variant{"Greedy", engines.Request{
		Model: s.d.Model, Prompt: s.o.Prompts[0], MaxTokens: s.o.Tokens, MinTokens: s.o.Tokens,
		Sampling: sampling.Params{Seed: 1},
	}}
}

func (s *suite) seeded() variant {
	v := s.greedy()
	v.name = "Seeded"
	v.request.Prompt = s.prompt(1)
	v.request.Sampling = sampling.Params{Temperature: 0.8, TopK: 40, TopP: 0.95, Seed: 0x5e9e}
	return v
}

// penalties depend on all ids so far, of the prompt and the output.
func (s *suite) penalties() variant {
	v := s.greedy()
	v.name = "Penalties"
	v.request.Prompt = s.prompt(2)
	v.request.Sampling = sampling.Params{
		Temperature: 1.2, MinP: 0.02, RepetitionPenalty: 1.3, PresencePenalty: 0.7, FrequencyPenalty: 0.5, Seed: 1 << 63,
	}
	return v
}

// biased bans the first token of the greedy reference and one more.
func (s *suite) biased(greedy *Recorder) variant {
	v := s.greedy()
	v.name = "Bias"
	ids := greedy.IDs()
	v.request.Sampling.LogitBias = map[int32]float64{ids[0]: -100, ids[len(ids)/2]: -100}
	return v
}

// stopped ends at a string from the greedy reference's text which begins before a token and ends in it.
func (s *suite) stopped(t *testing.T, greedy *Recorder) variant {
	t.Helper()
	v := s.greedy()
	v.name = "Stop"
	v.request.MinTokens = 0
	stop := stopString(greedy)
	if stop == "" {
		t.Fatalf("no stop string in the reference's text %q", greedy.Text())
	}
	v.request.Stop = []string{"\x01 never", stop}
	return v
}

// stopString is a piece of text that spans tokens in the second half of the run, where possible one whose
// beginning is nowhere before it.
func stopString(r *Recorder) string {
	text, tokens := r.Text(), r.Tokens()
	found := ""
	for _, k := range tokens[len(tokens)/2:] {
		from, to := max(0, k.TextEnd-len(k.Text)-6), k.TextEnd
		for from < to && !utf8.RuneStart(text[from]) {
			from++
		}
		stop := text[from:to]
		if len(k.Text) == 0 || len(stop) <= len(k.Text) || len(stop) > engines.MaxStopBytes {
			continue
		}
		if strings.Index(text, stop) == from {
			return stop
		}
		found = stop
	}
	return found
}

func (s *suite) prompt(i int) engines.Prompt { return s.o.Prompts[i%len(s.o.Prompts)] }

// variants are all of them, with the first one's reference run.
func (s *suite) variants(t *testing.T) []variant {
	t.Helper()
	greedy := s.record(t, s.first, s.greedy().job())
	return []variant{s.greedy(), s.seeded(), s.penalties(), s.biased(greedy), s.stopped(t, greedy)}
}
