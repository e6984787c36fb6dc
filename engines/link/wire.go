// SPDX-License-Identifier: Apache-2.0
// Copyright The Segue Authors

package link

import (
	"errors"
	"fmt"
	"slices"

	"google.golang.org/protobuf/encoding/protowire"

	enginev1 "github.com/seguekv/segue/api/segue/engine/v1"
	"github.com/seguekv/segue/compat"
	"github.com/seguekv/segue/engines"
	"github.com/seguekv/segue/snapshot"
)

// Limits of names and counts in a description.
const (
	maxNameBytes        = 256
	maxTypeBytes        = 32
	maxFingerprintBytes = 64 << 10
	maxContexts         = 1 << 12
	maxVocabulary       = 1 << 24
)

// hostHello is the host's first frame.
func hostHello(d *engines.Description) *enginev1.Hello {
	layers := make([]*enginev1.LayerRows, len(d.Geometry.Layers))
	for i, l := range d.Geometry.Layers {
		layers[i] = &enginev1.LayerRows{KBytes: uint32(l.KBytes), VBytes: uint32(l.VBytes), KType: l.KType, VType: l.VType}
	}
	return &enginev1.Hello{
		Version: version,
		BootId:  d.Boot[:],
		Description: &enginev1.Description{
			Kind:          d.Kind,
			Model:         d.Model,
			Fingerprint:   d.Fingerprint.Encode(),
			Layers:        layers,
			ContextLength: uint32(d.ContextLength),
			Contexts:      uint32(d.Contexts),
			Vocabulary:    uint32(d.Vocabulary),
		},
	}
}

// descriptionFromHello reads what a host says about its engine; the result is valid.
func descriptionFromHello(h *enginev1.Hello) (*engines.Description, error) {
	p := h.GetDescription()
	if p == nil {
		return nil, errors.New("hello of the host has no description")
	}
	d := &engines.Description{
		Kind:          p.GetKind(),
		Model:         p.GetModel(),
		ContextLength: int(p.GetContextLength()),
		Contexts:      int(p.GetContexts()),
		Vocabulary:    int(p.GetVocabulary()),
	}
	if n := len(h.GetBootId()); n != len(d.Boot) {
		return nil, fmt.Errorf("boot id has %d bytes, want %d", n, len(d.Boot))
	}
	copy(d.Boot[:], h.GetBootId())
	if n := len(p.GetFingerprint()); n > maxFingerprintBytes {
		return nil, fmt.Errorf("fingerprint has %d bytes, limit %d", n, maxFingerprintBytes)
	}
	fp, err := compat.Decode(p.GetFingerprint())
	if err != nil {
		return nil, fmt.Errorf("decode fingerprint: %w", err)
	}
	d.Fingerprint = fp
	if n := len(p.GetLayers()); n > snapshot.MaxLayers {
		return nil, fmt.Errorf("geometry has %d layers, limit %d", n, snapshot.MaxLayers)
	}
	d.Geometry.Layers = make([]snapshot.LayerRows, len(p.GetLayers()))
	for i, l := range p.GetLayers() {
		d.Geometry.Layers[i] = snapshot.LayerRows{
			KBytes: int(l.GetKBytes()), VBytes: int(l.GetVBytes()), KType: l.GetKType(), VType: l.GetVType(),
		}
	}
	return d, validateDescription(d)
}

// validateDescription reports whether every limit computed from d is sane.
func validateDescription(d *engines.Description) error {
	if err := d.Geometry.Validate(); err != nil {
		return err
	}
	for i, l := range d.Geometry.Layers {
		if len(l.KType) > maxTypeBytes || len(l.VType) > maxTypeBytes {
			return fmt.Errorf("layer %d has a type name longer than %d bytes", i, maxTypeBytes)
		}
	}
	switch {
	case d.Kind == "" || len(d.Kind) > maxNameBytes:
		return fmt.Errorf("kind has %d bytes, want 1..%d", len(d.Kind), maxNameBytes)
	case d.Model == "" || len(d.Model) > maxNameBytes:
		return fmt.Errorf("model has %d bytes, want 1..%d", len(d.Model), maxNameBytes)
	case d.Boot == [16]byte{}:
		return errors.New("boot id is zero, want a random one")
	case d.ContextLength < 2 || d.ContextLength > snapshot.MaxTokens:
		return fmt.Errorf("context length is %d, want 2..%d", d.ContextLength, snapshot.MaxTokens)
	case d.Contexts < 1 || d.Contexts > maxContexts:
		return fmt.Errorf("contexts is %d, want 1..%d", d.Contexts, maxContexts)
	case d.Vocabulary < 1 || d.Vocabulary > maxVocabulary:
		return fmt.Errorf("vocabulary is %d, want 1..%d", d.Vocabulary, maxVocabulary)
	}
	return nil
}

// fromMessage is a state without its rows.
func fromMessage(s *snapshot.State) *enginev1.From {
	return &enginev1.From{
		PromptIds: s.Prompt,
		OutputIds: s.Output,
		Rows:      uint32(s.Rows()),
		Sampler:   &enginev1.Sampler{Seed: s.Sampler.Seed, Draws: s.Sampler.Draws},
	}
}

// stateFromMessage is the inverse, for an engine such as d. Blocks is empty; all counts are checked.
func stateFromMessage(d *engines.Description, p *enginev1.From) (*snapshot.State, error) {
	s := &snapshot.State{
		Geometry: d.Geometry,
		Prompt:   p.GetPromptIds(),
		Output:   p.GetOutputIds(),
		Sampler:  snapshot.Sampler{Seed: p.GetSampler().GetSeed(), Draws: p.GetSampler().GetDraws()},
	}
	if err := checkState(d, s); err != nil {
		return nil, err
	}
	if int(p.GetRows()) != s.Rows() {
		return nil, fmt.Errorf("%w: %d rows announced for %d ids", engines.ErrState, p.GetRows(), s.Rows()+1)
	}
	return s, nil
}

// checkState checks what a state says about itself against the engine, without its rows.
func checkState(d *engines.Description, s *snapshot.State) error {
	switch {
	case len(s.Prompt) == 0 || len(s.Output) == 0:
		return fmt.Errorf("%w: %d prompt and %d output ids, want at least one of each", engines.ErrState, len(s.Prompt), len(s.Output))
	case len(s.Prompt)+len(s.Output) > d.ContextLength:
		return fmt.Errorf("%w: %d ids, the context holds %d", engines.ErrState, len(s.Prompt)+len(s.Output), d.ContextLength)
	case s.Sampler.Draws != uint64(len(s.Output)):
		return fmt.Errorf("%w: %d output ids and %d draws", engines.ErrState, len(s.Output), s.Sampler.Draws)
	}
	unknown := func(id int32) bool { return id < 0 || int(id) >= d.Vocabulary }
	if slices.ContainsFunc(s.Prompt, unknown) || slices.ContainsFunc(s.Output, unknown) {
		return fmt.Errorf("%w: an id is not in the vocabulary of %d", engines.ErrState, d.Vocabulary)
	}
	return nil
}

// setToken fills p, which the caller reuses, with t. p aliases t.Text.
func setToken(p *enginev1.Token, run uint32, t engines.Token) {
	p.Run = run
	p.Index = uint32(t.Index)
	p.Id = t.ID
	p.Text = t.Text
	p.TextEnd = uint64(t.TextEnd)
	p.RawEnd = uint64(t.RawEnd)
	p.Restored = t.Restored
	p.Finish = string(t.Finish)
	if p.Sampler == nil {
		p.Sampler = &enginev1.Sampler{}
	}
	p.Sampler.Seed, p.Sampler.Draws = t.Sampler.Seed, t.Sampler.Draws
}

// tokenFromMessage reads a token without its row; sequence checks its values.
func tokenFromMessage(p *enginev1.Token) engines.Token {
	return engines.Token{
		Index:    int(p.GetIndex()),
		ID:       p.GetId(),
		Text:     p.GetText(),
		TextEnd:  int(min(p.GetTextEnd(), maxTextEnd+1)),
		RawEnd:   int(min(p.GetRawEnd(), maxTextEnd+1)),
		Sampler:  snapshot.Sampler{Seed: p.GetSampler().GetSeed(), Draws: p.GetSampler().GetDraws()},
		Restored: p.GetRestored(),
		Finish:   engines.Finish(p.GetFinish()),
	}
}

func factsMessage(f engines.Facts) *enginev1.Facts {
	return &enginev1.Facts{
		PrefillTokens:       f.PrefillTokens,
		DecodeSteps:         f.DecodeSteps,
		ReplayedDecodeSteps: f.ReplayedDecodeSteps,
		RestoredRows:        f.RestoredRows,
		RestoredBytes:       f.RestoredBytes,
		CapturedRows:        f.CapturedRows,
		Running:             uint32(f.Running),
		BusyMs:              uint32(f.BusyMillis),
	}
}

func factsFromMessage(p *enginev1.Facts) engines.Facts {
	return engines.Facts{
		PrefillTokens:       p.GetPrefillTokens(),
		DecodeSteps:         p.GetDecodeSteps(),
		ReplayedDecodeSteps: p.GetReplayedDecodeSteps(),
		RestoredRows:        p.GetRestoredRows(),
		RestoredBytes:       p.GetRestoredBytes(),
		CapturedRows:        p.GetCapturedRows(),
		Running:             int(p.GetRunning()),
		BusyMillis:          int(p.GetBusyMs()),
	}
}

// maxRunFields bounds the fields of a run message that cost more memory decoded than encoded: chat
// messages, stop strings, logit biases, and the few scalars.
const maxRunFields = 4096

// checkRunFields counts the fields of an encoded enginev1.Run, of its request and of the request's chat,
// since decoding millions of empty chat messages would take a hundred times their encoded size.
func checkRunFields(b []byte) error {
	const request, chat, sampling = 2, 2, 5
	left := maxRunFields
	var count func(b []byte, path ...protowire.Number) error
	count = func(b []byte, path ...protowire.Number) error {
		for len(b) > 0 {
			num, typ, n := protowire.ConsumeTag(b)
			if n < 0 {
				return fmt.Errorf("%w: run message: %v", ErrProtocol, protowire.ParseError(n))
			}
			size := protowire.ConsumeFieldValue(num, typ, b[n:])
			if size < 0 {
				return fmt.Errorf("%w: run message: %v", ErrProtocol, protowire.ParseError(size))
			}
			if left--; left < 0 {
				return fmt.Errorf("%w: run message has more than %d fields", ErrProtocol, maxRunFields)
			}
			value := b[n : n+size]
			b = b[n+size:]
			if typ != protowire.BytesType {
				continue
			}
			inner, _ := protowire.ConsumeBytes(value)
			var err error
			switch {
			case len(path) == 0 && num == request:
				err = count(inner, request)
			case len(path) == 1 && (num == chat || num == sampling):
				err = count(inner, request, num)
			}
			if err != nil {
				return err
			}
		}
		return nil
	}
	return count(b)
}
