// SPDX-License-Identifier: Apache-2.0
// Copyright The Segue Authors

package link_test

import (
	"context"
	"encoding/binary"
	"errors"
	"io"
	"net"
	"strings"
	"sync"
	"testing"

	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"

	enginev1 "github.com/seguekv/segue/api/segue/engine/v1"
	"github.com/seguekv/segue/engines"
	"github.com/seguekv/segue/engines/link"
)

// Frame kinds as doc.go numbers them; the tests have their own codec.
const (
	kHello = 1 + iota
	kRun
	kState
	kCredit
	kCancel
	kPrompt
	kPrefilled
	kToken
	kEnd
	kFacts
)

func frame(kind byte, payload []byte) []byte {
	b := binary.LittleEndian.AppendUint32(nil, uint32(len(payload)))
	return append(append(b, kind), payload...)
}

func message(kind byte, m proto.Message) []byte {
	b, err := proto.Marshal(m)
	if err != nil {
		panic(err)
	}
	return frame(kind, b)
}

func mixed(kind byte, m proto.Message, rows []byte) []byte {
	b, err := proto.Marshal(m)
	if err != nil {
		panic(err)
	}
	p := binary.LittleEndian.AppendUint32(nil, uint32(len(b)))
	return frame(kind, append(append(p, b...), rows...))
}

func stateFrame(run, first uint32, rows []byte) []byte {
	p := binary.LittleEndian.AppendUint32(nil, run)
	p = binary.LittleEndian.AppendUint32(p, first)
	return frame(kState, append(p, rows...))
}

func decodeMessage(t *testing.T, b []byte, m proto.Message) {
	t.Helper()
	if len(b) < 5 || int(binary.LittleEndian.Uint32(b)) != len(b)-5 {
		t.Fatalf("frame of %d bytes has header %x", len(b), b[:min(5, len(b))])
	}
	if err := proto.Unmarshal(b[5:], m); err != nil {
		t.Fatal(err)
	}
}

func runMessage(id, credit uint32) *enginev1.Run {
	return &enginev1.Run{Run: id, Request: engines.RequestToProto(job(false).Request), Capture: true, Credit: credit}
}

func join(frames ...[]byte) []byte {
	var b []byte
	for _, f := range frames {
		b = append(b, f...)
	}
	return b
}

// Each script follows the hellos and one started run with capture, number 1, row size 64.
func TestClient_RefusesBadHost(t *testing.T) {
	prompt := message(kPrompt, &enginev1.Prompt{Run: 1, Ids: []int32{1, 2}})
	filled := mixed(kPrefilled, &enginev1.Prefilled{Run: 1, Count: 2}, make([]byte, 128))
	token := func(t *enginev1.Token, rows int) []byte {
		t.Run = 1
		return mixed(kToken, t, make([]byte, rows))
	}
	zero := token(&enginev1.Token{}, 0)
	tests := map[string]struct {
		script []byte
		want   string
	}{
		"unknown kind":          {frame(77, nil), "unexpected frame kind 77"},
		"kind zero":             {frame(0, nil), "unexpected frame kind 0"},
		"agent's kind":          {message(kCancel, &enginev1.Cancel{Run: 1}), "unexpected frame cancel"},
		"second hello":          {message(kHello, &enginev1.Hello{}), "unexpected frame hello"},
		"huge frame":            {[]byte{0xff, 0xff, 0xff, 0xff, kToken}, "limit"},
		"too long facts":        {frame(kFacts, make([]byte, 1025)), "limit 1024"},
		"cut header":            {[]byte{1, 0}, "inside a frame header"},
		"cut payload":           {[]byte{9, 0, 0, 0, kFacts, 1}, "inside a frame"},
		"cut row":               {join(prompt, filled[:len(filled)-1]), "inside a frame"},
		"not a message":         {frame(kFacts, []byte{0xff}), "decode Facts"},
		"mixed without length":  {frame(kToken, []byte{1, 2}), "mixed frame of 2 bytes"},
		"message beyond frame":  {frame(kToken, []byte{0xff, 0xff, 0xff, 0xff}), "message of 4294967295 bytes"},
		"unknown run":           {message(kPrompt, &enginev1.Prompt{Run: 2, Ids: []int32{1}}), "run 2, which is not active"},
		"end of unknown run":    {message(kEnd, &enginev1.End{Run: 9, Reason: 4}), "run 9, which is not active"},
		"empty prompt":          {message(kPrompt, &enginev1.Prompt{Run: 1}), "prompt has 0 ids"},
		"two prompts":           {join(prompt, prompt), "after a prompt"},
		"prompt vocabulary":     {message(kPrompt, &enginev1.Prompt{Run: 1, Ids: []int32{1000}}), "not in the vocabulary"},
		"prefill first":         {filled, "prompt has 0"},
		"prefill gap":           {join(prompt, mixed(kPrefilled, &enginev1.Prefilled{Run: 1, First: 1, Count: 1}, make([]byte, 64))), "starts at position 1, want 0"},
		"prefill beyond prompt": {join(prompt, mixed(kPrefilled, &enginev1.Prefilled{Run: 1, Count: 3}, make([]byte, 192))), "prefill of 3 positions"},
		"prefill of nothing":    {join(prompt, mixed(kPrefilled, &enginev1.Prefilled{Run: 1}, nil)), "prefill of 0 positions"},
		"prefill rows":          {join(prompt, mixed(kPrefilled, &enginev1.Prefilled{Run: 1, Count: 2}, make([]byte, 127))), "127 bytes of rows, want 128"},
		"token before prefill":  {join(prompt, zero), "0 of 2 prompt positions"},
		"token gap":             {join(prompt, filled, token(&enginev1.Token{Index: 1}, 64)), "index 1, want 0"},
		"token twice":           {join(prompt, filled, zero, zero), "index 0, want 1"},
		"token with a row":      {join(prompt, filled, token(&enginev1.Token{}, 64)), "row of 64 bytes, want 0"},
		"token without row":     {join(prompt, filled, zero, token(&enginev1.Token{Index: 1}, 0)), "row of 0 bytes, want 64"},
		"token id":              {join(prompt, filled, token(&enginev1.Token{Id: -1}, 0)), "id -1"},
		"token restored":        {join(prompt, filled, token(&enginev1.Token{Restored: true}, 0)), "restored=true"},
		"token finish":          {join(prompt, filled, token(&enginev1.Token{Finish: "boredom"}, 0)), "boredom"},
		"token text end":        {join(prompt, filled, token(&enginev1.Token{TextEnd: 1 << 63, RawEnd: 1 << 63}, 0)), "bytes of text"},
		"token after last":      {join(prompt, filled, token(&enginev1.Token{Finish: "stop"}, 0), token(&enginev1.Token{Index: 1}, 64)), "after the last token"},
		"prefill after token":   {join(prompt, filled, zero, filled), "after token 0"},
		"end without last":      {join(prompt, filled, zero, message(kEnd, &enginev1.End{Run: 1})), "without a last token"},
		"frame after end":       {join(message(kEnd, &enginev1.End{Run: 1, Reason: 4}), prompt), "not active"},
		"no credit": {join(prompt, filled, zero, token(&enginev1.Token{Index: 1}, 64), token(&enginev1.Token{Index: 2}, 64)),
			"without credit"},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			runErr, err := playHost(t, tt.script)
			if !errors.Is(err, link.ErrProtocol) || !strings.Contains(err.Error(), tt.want) {
				t.Errorf("Serve: got %v, want a protocol error with %q", err, tt.want)
			}
			if name != "frame after end" && !errors.Is(runErr, engines.ErrLost) {
				t.Errorf("Run: got %v, want ErrLost", runErr)
			}
		})
	}
}

// playHost sends script as a host's answer to one run whose sink takes nothing, then closes the link. It
// returns what Run and Serve of the client return.
func playHost(tb testing.TB, script []byte) (runErr, serveErr error) {
	tb.Helper()
	a, b, err := link.SocketPair()
	if err != nil {
		tb.Fatal(err)
	}
	var wg sync.WaitGroup
	defer wg.Wait()
	started := make(chan struct{})
	wg.Go(func() {
		defer b.Close()
		if readFrame(b) == nil {
			return
		}
		if _, err := b.Write(message(kHello, link.HostHello(description(64)))); err != nil {
			return
		}
		readFrame(b) // run
		close(started)
		_, _ = b.Write(script)
		_ = b.(*net.UnixConn).CloseWrite()
		_, _ = io.Copy(io.Discard, b)
	})
	c, err := link.Connect(tb.Context(), a)
	if err != nil {
		tb.Fatal(err)
	}
	wg.Go(func() {
		blocked := record{before: func() error { <-c.Done(); return nil }}
		runErr = c.Run(context.Background(), job(true), &blocked)
	})
	<-started
	serveErr = c.Serve(context.Background())
	wg.Wait()
	return runErr, serveErr
}

// readFrame returns the next frame, nil at the end.
func readFrame(r io.Reader) []byte {
	head := make([]byte, 5)
	if _, err := io.ReadFull(r, head); err != nil {
		return nil
	}
	b := make([]byte, 5+binary.LittleEndian.Uint32(head))
	copy(b, head)
	if _, err := io.ReadFull(r, b[5:]); err != nil {
		return nil
	}
	return b
}

// Each script follows the agent's hello. Row size 64.
func TestServe_RefusesBadAgent(t *testing.T) {
	run := message(kRun, runMessage(1, 4))
	from := func(rows uint32) *enginev1.Run {
		m := runMessage(1, 4)
		m.From = &enginev1.From{PromptIds: []int32{1, 2}, OutputIds: []int32{3}, Rows: rows, Sampler: &enginev1.Sampler{Draws: 1}}
		return m
	}
	chats := protowire.AppendTag(nil, 1, protowire.BytesType) // an empty message
	chats = append(chats, 0)
	var many []byte
	for range 1 << 20 {
		many = append(many, chats...)
	}
	request := protowire.AppendBytes(protowire.AppendTag(nil, 2, protowire.BytesType), many)
	bomb := protowire.AppendBytes(protowire.AppendTag(nil, 2, protowire.BytesType), request)
	tests := map[string]struct {
		script []byte
		want   string
	}{
		"host's kind":       {message(kFacts, &enginev1.Facts{}), "unexpected frame facts"},
		"second hello":      {message(kHello, &enginev1.Hello{Version: 1}), "unexpected frame hello"},
		"huge run":          {[]byte{0, 0, 0, 2, kRun}, "limit"},
		"run zero":          {message(kRun, runMessage(0, 4)), "run 0 starts after run 0"},
		"run twice":         {join(run, run), "run 1 starts after run 1"},
		"no credit":         {message(kRun, runMessage(1, 0)), "credit 0"},
		"too much credit":   {message(kRun, runMessage(1, 1000)), "credit 1000"},
		"not a run":         {frame(kRun, []byte{0xff}), "run message"},
		"too many messages": {frame(kRun, bomb), "more than 4096 fields"},
		"credit unknown":    {message(kCredit, &enginev1.Credit{Run: 1, Events: 1}), "never started"},
		"credit flood":      {join(message(kRun, from(2)), message(kCredit, &enginev1.Credit{Run: 1, Events: 1 << 31})), "more credit than it used"},
		"cancel unknown":    {message(kCancel, &enginev1.Cancel{Run: 3}), "never started"},
		"cancel zero":       {message(kCancel, &enginev1.Cancel{}), "never started"},
		"state unknown":     {stateFrame(1, 0, make([]byte, 64)), "never started"},
		"state empty":       {frame(kState, make([]byte, 8)), "state frame of 8 bytes"},
		"state gap":         {join(message(kRun, from(2)), stateFrame(1, 1, make([]byte, 64))), "rows 1 to 2, want 0"},
		"state ragged":      {join(message(kRun, from(2)), stateFrame(1, 0, make([]byte, 65))), "65 bytes of rows of 64"},
		"state too long":    {join(message(kRun, from(2)), stateFrame(1, 0, make([]byte, 192))), "want 0 of 2"},
		"state cut":         {join(message(kRun, from(2)), stateFrame(1, 0, make([]byte, 64))[:20]), "inside a frame"},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			f := newFake(64)
			f.before = func(ctx context.Context, _ int) error { <-ctx.Done(); return ctx.Err() } // runs last
			_, err := playAgent(t, f, tt.script)
			if !errors.Is(err, link.ErrProtocol) || !strings.Contains(err.Error(), tt.want) {
				t.Errorf("got %v, want a protocol error with %q", err, tt.want)
			}
		})
	}
}

// playAgent sends a hello and script to a host of e, then closes its sending side. It returns the frames
// that the host sent after its hello and what Serve returned.
func playAgent(tb testing.TB, e engines.Engine, script []byte) (frames [][]byte, err error) {
	tb.Helper()
	a, b, err := link.SocketPair()
	if err != nil {
		tb.Fatal(err)
	}
	defer a.Close()
	var wg sync.WaitGroup
	wg.Go(func() {
		_, _ = a.Write(join(message(kHello, &enginev1.Hello{Version: link.Version}), script))
		_ = a.(*net.UnixConn).CloseWrite()
	})
	wg.Go(func() {
		for f := readFrame(a); f != nil; f = readFrame(a) {
			frames = append(frames, f)
		}
	})
	err = link.Serve(context.Background(), b, e)
	wg.Wait()
	return frames[min(1, len(frames)):], err
}

// Frames that cross the end of a run are no mistake, and neither is a state that can't be accepted.
func TestServe_IgnoresFramesOfEndedRuns(t *testing.T) {
	refused := runMessage(1, 4)
	refused.From = &enginev1.From{PromptIds: []int32{1}, OutputIds: []int32{2}, Rows: 99, Sampler: &enginev1.Sampler{Draws: 1}}
	script := join(
		message(kRun, refused),
		stateFrame(1, 0, make([]byte, 640)),
		message(kCredit, &enginev1.Credit{Run: 1, Events: 0}),
		message(kCancel, &enginev1.Cancel{Run: 1}),
		message(kRun, &enginev1.Run{Run: 2, Credit: 1}),
		stateFrame(2, 7, make([]byte, 63)),
	)
	a, b, err := link.SocketPair()
	if err != nil {
		t.Fatal(err)
	}
	var wg sync.WaitGroup
	wg.Go(func() {
		if err := link.Serve(context.Background(), b, newFake(64)); err != nil {
			t.Errorf("host: %v", err)
		}
	})
	if _, err := a.Write(join(message(kHello, &enginev1.Hello{Version: link.Version}), script)); err != nil {
		t.Fatal(err)
	}
	ends := map[uint32]error{}
	for len(ends) < 2 {
		f := readFrame(a)
		if f == nil {
			t.Fatal("host closed the link")
		}
		if f[4] == kEnd {
			end := &enginev1.End{}
			decodeMessage(t, f, end)
			ends[end.GetRun()] = link.ErrorFromEnd(end)
		}
	}
	a.Close()
	wg.Wait()
	if !errors.Is(ends[1], engines.ErrState) {
		t.Errorf("run 1 ends with %v, want ErrState", ends[1])
	}
	if _, ok := errors.AsType[*engines.RequestError](ends[2]); !ok {
		t.Errorf("run 2 ends with %v, want a RequestError", ends[2])
	}
}

// An engine that breaks engines.Sink's promises ends its run, not the link.
func TestServe_EngineMistakeEndsItsRun(t *testing.T) {
	type sink = engines.Sink
	rows := func(n int) []byte { return make([]byte, n) }
	ready := func(s sink) error {
		return errors.Join(s.Prompt([]int32{1, 2}), s.Prefilled(0, 2, rows(128)))
	}
	tests := map[string]struct {
		run  func(s sink) error
		want string
	}{
		"no events":     {func(sink) error { return nil }, "without a last token"},
		"no last token": {func(s sink) error { return errors.Join(ready(s), s.Token(engines.Token{})) }, "without a last token"},
		"no prompt":     {func(s sink) error { return s.Prefilled(0, 1, rows(64)) }, "prompt has 0"},
		"missing rows":  {func(s sink) error { return errors.Join(s.Prompt([]int32{1}), s.Prefilled(0, 1, nil)) }, "0 bytes of rows, want 64"},
		"index":         {func(s sink) error { return errors.Join(ready(s), s.Token(engines.Token{Index: 3})) }, "index 3, want 0"},
		"long text": {func(s sink) error {
			return errors.Join(ready(s), s.Token(engines.Token{Text: rows(1 << 20), TextEnd: 1 << 20, RawEnd: 1 << 20}))
		}, "1048576 bytes of text"},
		"negative id":     {func(s sink) error { return s.Prompt([]int32{-1}) }, "not in the vocabulary"},
		"negative index":  {func(s sink) error { return errors.Join(ready(s), s.Token(engines.Token{Index: -1})) }, "index -1"},
		"negative count":  {func(s sink) error { return errors.Join(s.Prompt([]int32{1}), s.Prefilled(0, -1, nil)) }, "prefill of -1"},
		"strange finish":  {func(s sink) error { return errors.Join(ready(s), s.Token(engines.Token{Finish: "x"})) }, "unknown finish"},
		"its own failure": {func(sink) error { return errors.New("out of memory") }, "out of memory"},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			f := newFake(64)
			f.run = func(_ context.Context, _ engines.Job, s sink) error { return tt.run(s) }
			c, _ := connect(t, f)
			err := c.Run(t.Context(), job(true), &record{})
			e, ok := errors.AsType[*link.EngineError](err)
			if !ok || !strings.Contains(e.Text, tt.want) {
				t.Errorf("got %v, want an EngineError with %q", err, tt.want)
			}
			if _, err := c.Describe(t.Context()); err != nil {
				t.Errorf("link after the run: %v", err)
			}
		})
	}
}

func TestHello_Refusals(t *testing.T) {
	hello := func(change func(*enginev1.Hello)) []byte {
		h := link.HostHello(description(64))
		change(h)
		return message(kHello, h)
	}
	tests := map[string]struct {
		frame []byte
		want  string
	}{
		"nothing":        {nil, "closed the link before its hello"},
		"version":        {hello(func(h *enginev1.Hello) { h.Version = 2 }), "host speaks version 2, agent version 1"},
		"no description": {hello(func(h *enginev1.Hello) { h.Description = nil }), "no description"},
		"boot id":        {hello(func(h *enginev1.Hello) { h.BootId = h.BootId[1:] }), "boot id has 15 bytes"},
		"zero boot id":   {hello(func(h *enginev1.Hello) { h.BootId = make([]byte, 16) }), "boot id is zero"},
		"fingerprint":    {hello(func(h *enginev1.Hello) { h.Description.Fingerprint = []byte("x") }), "fingerprint"},
		"no layers":      {hello(func(h *enginev1.Hello) { h.Description.Layers = nil }), "no layers"},
		"wide layer":     {hello(func(h *enginev1.Hello) { h.Description.Layers[0].KBytes = 1 << 31 }), "row sizes"},
		"many layers": {hello(func(h *enginev1.Hello) {
			for range 1024 {
				h.Description.Layers = append(h.Description.Layers, &enginev1.LayerRows{})
			}
		}), "1025 layers"},
		"type name":  {hello(func(h *enginev1.Hello) { h.Description.Layers[0].KType = strings.Repeat("f", 33) }), "type name"},
		"context":    {hello(func(h *enginev1.Hello) { h.Description.ContextLength = 1 << 30 }), "context length"},
		"contexts":   {hello(func(h *enginev1.Hello) { h.Description.Contexts = 0 }), "contexts is 0"},
		"vocabulary": {hello(func(h *enginev1.Hello) { h.Description.Vocabulary = 0 }), "vocabulary is 0"},
		"kind":       {hello(func(h *enginev1.Hello) { h.Description.Kind = "" }), "kind has 0 bytes"},
		"model":      {hello(func(h *enginev1.Hello) { h.Description.Model = strings.Repeat("m", 300) }), "model has 300 bytes"},
		"other kind": {message(kFacts, &enginev1.Facts{}), "unexpected frame facts"},
		"not a link": {[]byte("HTTP/1.1 400 Bad Request\r\n"), "unexpected frame"},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			a, b, err := link.SocketPair()
			if err != nil {
				t.Fatal(err)
			}
			if _, err := b.Write(tt.frame); err != nil {
				t.Fatal(err)
			}
			if err := b.(*net.UnixConn).CloseWrite(); err != nil {
				t.Fatal(err)
			}
			defer b.Close()
			if _, err := link.Connect(t.Context(), a); err == nil || !strings.Contains(err.Error(), tt.want) {
				t.Errorf("got %v, want an error with %q", err, tt.want)
			}
		})
	}
}

func TestHello_HostRefusesOtherVersion(t *testing.T) {
	a, b, err := link.SocketPair()
	if err != nil {
		t.Fatal(err)
	}
	defer a.Close()
	if _, err := a.Write(message(kHello, &enginev1.Hello{Version: 3})); err != nil {
		t.Fatal(err)
	}
	if err := link.Serve(t.Context(), b, newFake(64)); !errors.Is(err, link.ErrProtocol) || !strings.Contains(err.Error(), "agent speaks version 3") {
		t.Errorf("got %v, want a protocol error", err)
	}
	// The host answers all the same, so that the agent can tell what it met.
	h := &enginev1.Hello{}
	decodeMessage(t, readFrame(a), h)
	if h.GetVersion() != link.Version {
		t.Errorf("host answered %v", h)
	}
}
