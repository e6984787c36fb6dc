// SPDX-License-Identifier: Apache-2.0
// Copyright The Segue Authors

package scrape

import (
	"bytes"
	"fmt"
	"io"
	"math"
	"slices"

	dto "github.com/prometheus/client_model/go"
	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"
)

// Bounds of a metrics page.
const (
	MaxPage   = 4 << 20 // bytes
	MaxLine   = 64 << 10
	MaxSeries = 4096 // of the names that count
	// MaxEngines is how many engines of one page are told apart; more are taken for one.
	MaxEngines = 256
)

// Page reads a metrics page, up to its end or its bound. VLLM, SGLang and LlamaCPP have one.
func Page(kind Kind, r io.Reader) (Facts, error) {
	page, err := io.ReadAll(io.LimitReader(r, MaxPage+1))
	if err != nil {
		return Facts{}, fmt.Errorf("%w: %w", ErrPage, err)
	}
	return Metrics(kind, page)
}

// Metrics is Page of bytes that are there.
func Metrics(kind Kind, page []byte) (Facts, error) {
	if len(page) > MaxPage {
		return Facts{}, fmt.Errorf("%w: more than %d bytes", ErrPage, MaxPage)
	}
	d := dialectOf(kind)
	if d.read == nil {
		return Facts{}, fmt.Errorf("%w: %s has no metrics page", ErrConfig, kind)
	}
	s, err := parse(page, d.names)
	if err != nil {
		return Facts{}, err
	}
	if !s.any(d.proof...) {
		return Facts{}, fmt.Errorf("%w: %s", ErrForeign, kind)
	}
	f := d.read(s)
	f.Kind = kind
	return f, nil
}

// dialect is how one kind writes its page.
type dialect struct {
	names []string // of the series that count
	proof []string // one of them is in every page of the kind
	read  func(samples) Facts
}

func dialectOf(kind Kind) dialect {
	switch kind {
	case VLLM:
		return dialect{names: vllmNames(), proof: []string{vllmRunning, vllmGenerated}, read: vllm}
	case SGLang:
		return dialect{names: sglangNames(), proof: []string{sglangRunning, sglangQueued, sglangRealtime}, read: sglang}
	case LlamaCPP:
		return dialect{names: llamaNames(), proof: []string{llamaProcessing, llamaDecodes}, read: llama}
	}
	return dialect{}
}

// samples are the series that count, by name.
type samples map[string][]*dto.Metric

// parse keeps the lines of the names, and has them read. Comments are dropped: without its type each series has the name that is
// written there.
func parse(page []byte, names []string) (samples, error) {
	var kept bytes.Buffer
	series := 0
	for line := range bytes.Lines(page) {
		if len(line) > MaxLine {
			return nil, fmt.Errorf("%w: a line of more than %d bytes", ErrPage, MaxLine)
		}
		line = bytes.TrimLeft(line, " \t")
		end := bytes.IndexAny(line, "{ \t")
		if end <= 0 || line[0] == '#' || !slices.Contains(names, string(line[:end])) {
			continue
		}
		if series++; series > MaxSeries {
			return nil, fmt.Errorf("%w: more than %d series", ErrPage, MaxSeries)
		}
		kept.Write(bytes.TrimRight(line, "\r\n"))
		kept.WriteByte('\n')
	}
	p := expfmt.NewTextParser(model.UTF8Validation)
	families, err := p.TextToMetricFamilies(&kept)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrPage, err)
	}
	out := samples{}
	for name, f := range families {
		out[name] = f.GetMetric()
	}
	return out, nil
}

func (s samples) any(names ...string) bool {
	return slices.ContainsFunc(names, func(n string) bool { return len(s[n]) > 0 })
}

// each calls f for the series of that name whose labels are as wanted, given as name, value, name, value.
func (s samples) each(name string, wanted []string, f func(*dto.Metric, float64)) {
	for _, m := range s[name] {
		fits := true
		for i := 0; i+1 < len(wanted); i += 2 {
			fits = fits && label(m, wanted[i]) == wanted[i+1]
		}
		if fits {
			f(m, m.GetUntyped().GetValue())
		}
	}
}

// sum is 0 without such a series. What isn't a number is left out.
func (s samples) sum(name string, wanted ...string) float64 {
	total := 0.0
	s.each(name, wanted, func(_ *dto.Metric, v float64) {
		if !math.IsNaN(v) {
			total += v
		}
	})
	return total
}

// gauge is the sum, not a number without such a series.
func (s samples) gauge(name string, wanted ...string) float64 {
	if !s.has(name, wanted...) {
		return math.NaN()
	}
	return s.sum(name, wanted...)
}

// greatest is the largest value, 0 without such a series.
func (s samples) greatest(name string, wanted ...string) float64 {
	most := 0.0
	s.each(name, wanted, func(_ *dto.Metric, v float64) {
		if v > most {
			most = v
		}
	})
	return most
}

func (s samples) has(name string, wanted ...string) bool {
	found := false
	s.each(name, wanted, func(*dto.Metric, float64) { found = true })
	return found
}

// values lists what a label is in the series of the names, in order. Too many are taken for one that has no name.
func (s samples) values(of string, names ...string) []string {
	var out []string
	for _, n := range names {
		for _, m := range s[n] {
			if v := label(m, of); !slices.Contains(out, v) {
				if out = append(out, v); len(out) > MaxEngines {
					return nil
				}
			}
		}
	}
	slices.Sort(out)
	return out
}

func label(m *dto.Metric, name string) string {
	for _, l := range m.GetLabel() {
		if l.GetName() == name {
			return l.GetValue()
		}
	}
	return ""
}
