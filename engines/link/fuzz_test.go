// SPDX-License-Identifier: Apache-2.0
// Copyright The Segue Authors

package link_test

import (
	"bytes"
	"errors"
	"io"
	"testing"

	enginev1 "github.com/seguekv/segue/api/segue/engine/v1"
	"github.com/seguekv/segue/engines"
	"github.com/seguekv/segue/engines/link"
	"github.com/seguekv/segue/internal/invariant"
)

// addGolden adds each golden frame by itself and all in one stream.
func addGolden(f *testing.F) {
	var all []byte
	for _, g := range goldenFrames() {
		var b []byte
		var err error
		if g.message == nil {
			b, err = link.EncodeState(1, 0, g.rows)
		} else {
			b, err = link.EncodeFrame(g.kind, g.message, g.rows)
		}
		if err != nil {
			f.Fatal(err)
		}
		f.Add(b)
		all = append(all, b...)
	}
	f.Add(all)
}

// The decoder reads no frame beyond its limit and ends with io.EOF or ErrProtocol.
func FuzzFrameReader(f *testing.F) {
	addGolden(f)
	f.Fuzz(func(t *testing.T, b []byte) {
		for _, side := range []string{"hello", "agent", "host"} {
			var longest int
			var err error
			over := invariant.WithinBytes(1<<20+64*len(b), func() { longest, err = link.DecodeAll(bytes.NewReader(b), side, description(64)) })
			if over != nil {
				t.Errorf("%s: a stream of %d bytes: %v", side, len(b), over)
			}
			if !errors.Is(err, io.EOF) && !errors.Is(err, link.ErrProtocol) {
				t.Errorf("%s: ended with %v", side, err)
			}
			if longest > 0 && errors.Is(err, io.EOF) && longest > len(b) {
				t.Errorf("%s: payload of %d in a stream of %d", side, longest, len(b))
			}
		}
	})
}

// Whatever an agent sends after its hello, the host closes the link with a clear result, having ended all
// runs, and never runs a job that isn't whole.
func FuzzServe(f *testing.F) {
	addGolden(f)
	run := message(kRun, runMessage(1, 4))
	from := runMessage(1, 2)
	from.From = &enginev1.From{PromptIds: []int32{1, 2}, OutputIds: []int32{3}, Rows: 2, Sampler: &enginev1.Sampler{Draws: 1}}
	f.Add(join(run, message(kCredit, &enginev1.Credit{Run: 1, Events: 1})))
	f.Add(join(run, message(kCancel, &enginev1.Cancel{Run: 1}), message(kRun, runMessage(2, 1))))
	f.Add(join(message(kRun, from), stateFrame(1, 0, make([]byte, 64)), stateFrame(1, 1, make([]byte, 64))))
	f.Fuzz(func(t *testing.T, script []byte) {
		e := newFake(64)
		var err error
		// Each run has buffers of its own, and may have a context's worth of rows.
		if over := invariant.WithinBytes(8<<20+4096*len(script), func() { _, err = playAgent(t, e, script) }); over != nil {
			t.Errorf("a script of %d bytes: %v", len(script), over)
		}
		if err != nil && !errors.Is(err, link.ErrProtocol) {
			t.Errorf("ended with %v", err)
		}
		for _, j := range e.got() {
			if err := j.Request.Validate(); err != nil {
				t.Errorf("engine got a bad request: %v", err)
			}
			if j.From == nil {
				continue
			}
			if err := j.From.Validate(); err != nil {
				t.Errorf("engine got a bad state: %v", err)
			}
		}
	})
}

// Whatever a host sends after its hello, the client closes the link with a clear result and every run ends.
func FuzzClient(f *testing.F) {
	addGolden(f)
	prompt := message(kPrompt, &enginev1.Prompt{Run: 1, Ids: []int32{1, 2}})
	filled := mixed(kPrefilled, &enginev1.Prefilled{Run: 1, Count: 2}, make([]byte, 128))
	token := mixed(kToken, &enginev1.Token{Run: 1, Text: []byte("a"), TextEnd: 1, RawEnd: 1}, nil)
	last := mixed(kToken, &enginev1.Token{Run: 1, Index: 1, TextEnd: 1, RawEnd: 1, Finish: "stop"}, make([]byte, 64))
	f.Add(join(prompt, filled, token, last, message(kFacts, &enginev1.Facts{DecodeSteps: 2}), message(kEnd, &enginev1.End{Run: 1})))
	f.Fuzz(func(t *testing.T, script []byte) {
		var runErr, err error
		if over := invariant.WithinBytes(8<<20+64*len(script), func() { runErr, err = playHost(t, script) }); over != nil {
			t.Errorf("a script of %d bytes: %v", len(script), over)
		}
		if !errors.Is(err, engines.ErrLost) && !errors.Is(err, link.ErrProtocol) {
			t.Errorf("ended with %v", err)
		}
		if errors.Is(err, link.ErrProtocol) && runErr == nil {
			t.Log("run ended before the mistake")
		}
	})
}
