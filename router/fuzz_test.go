// SPDX-License-Identifier: Apache-2.0
// Copyright The Segue Authors

package router_test

import (
	"encoding/binary"
	"errors"
	"net/http"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"

	seguev1 "github.com/seguekv/segue/api/segue/v1"
	"github.com/seguekv/segue/internal/invariant"
	"github.com/seguekv/segue/router"
)

// What a script's messages are: events of a primary, events of the holder that takes over, and what the primary
// says of itself.
const (
	sayGenerate = iota
	sayTakeover
	sayDescribe
	says
)

// said splits a script: length in four bytes, kind, message. What isn't such a message is dropped.
func said(script []byte) (events [2][]*seguev1.Event, describe *seguev1.DescribeResponse) {
	for len(script) > 4 {
		n := min(uint64(binary.LittleEndian.Uint32(script)), uint64(len(script)-4))
		m := script[4 : 4+n]
		script = script[4+n:]
		if n == 0 {
			continue
		}
		switch k := m[0] % says; k {
		case sayDescribe:
			d := new(seguev1.DescribeResponse)
			if proto.Unmarshal(m[1:], d) == nil {
				describe = d
			}
		default:
			e := new(seguev1.Event)
			if proto.Unmarshal(m[1:], e) == nil {
				events[k] = append(events[k], e)
			}
		}
	}
	return events, describe
}

func say(b []byte, kind byte, m proto.Message) []byte {
	x, err := proto.MarshalOptions{Deterministic: true}.Marshal(m)
	if err != nil {
		panic(err)
	}
	b = binary.LittleEndian.AppendUint32(b, uint32(len(x)+1))
	return append(append(b, kind), x...)
}

// sayRun records what play sends.
func sayRun(b []byte, kind byte, play func(e *events)) []byte {
	play(&events{send: func(e *seguev1.Event) error { b = say(b, kind, e); return nil }})
	return b
}

// FuzzAgent plays arbitrary agents: the client's stream ends honestly, has every index once, and counts what it
// delivered.
func FuzzAgent(f *testing.F) {
	whole := sayRun(nil, sayGenerate, func(e *events) { _ = e.whole(3) })
	f.Add(whole, uint8(0), true)
	f.Add(whole, uint8(0), false)
	cut := sayRun(nil, sayGenerate, func(e *events) { _ = e.begin("b", 2) })
	f.Add(sayRun(cut, sayTakeover, func(e *events) {
		_ = e.resume(&seguev1.TakeoverRequest{Delivered: 2, TextEnd: uint64(len(words(0, 2)))}, 2, 4)
	}), uint8(2), true)
	f.Add(sayRun(cut, sayTakeover, func(e *events) { _ = e.seam(1); _ = e.whole(4) }), uint8(3), true)
	f.Add(say(whole, sayDescribe, newAgent("a").describe), uint8(4), true)
	f.Add(say(nil, sayDescribe, &seguev1.DescribeResponse{NodeId: "b", Ready: true, Model: model, Contexts: 1<<32 - 1, Fingerprint: []byte("x")}), uint8(1), true)
	f.Add(sayRun(nil, sayGenerate, func(e *events) { _ = e.prompt(); e.next = 1; _ = e.text("\xff", 1<<40) }), uint8(0), true)
	f.Fuzz(func(t *testing.T, script []byte, end uint8, stream bool) {
		heard, describe := said(script)
		change := func(_ *router.Config, agents map[string]*agent) {
			a, b := agents["a"], agents["b"]
			if describe != nil {
				a.describe = describe
			}
			a.generate = func(_ *seguev1.GenerateRequest, e *events) error { return tell(a, e, heard[0], end) }
			b.generate = func(_ *seguev1.GenerateRequest, e *events) error { return tell(b, e, heard[0], 0) }
			b.takeover = func(_ *seguev1.TakeoverRequest, e *events) error { return tell(b, e, heard[1], 0) }
		}
		over := invariant.WithinBytes(48<<20+256*len(script), func() {
			bubble(t, "a b", change, func(t *testing.T, w *world) {
				resp := w.post("/v1/chat/completions", chat(stream, `"return_token_ids":true`))
				if resp.StatusCode != http.StatusOK {
					if e := w.failure(resp); e.Partial || e.Delivered != 0 || e.Code == "" {
						t.Errorf("status %d: %+v", resp.StatusCode, e)
					}
					return
				}
				if !stream {
					if body(t, resp) == "" {
						t.Error("an empty answer")
					}
					return
				}
				tr := w.stream(resp)
				switch {
				case tr.done && (tr.err != nil || tr.roles != 1 || tr.finish != "stop" && tr.finish != "length"):
					t.Errorf("not a whole answer: %s", tr.raw)
				case tr.err != nil && (tr.finish != "" || tr.err.Delivered != len(tr.ids) || tr.err.Partial != (tr.text != "")):
					t.Errorf("wrong error: %s", tr.raw)
				}
			})
		})
		if over != nil {
			t.Errorf("a script of %d bytes: %v", len(script), over)
		}
	})
}

// tell sends events and ends the stream in one of five ways.
func tell(a *agent, e *events, list []*seguev1.Event, end uint8) error {
	for _, x := range list {
		if err := e.send(x); err != nil {
			return err
		}
	}
	switch end % 5 {
	case 0:
		return nil
	case 1:
		return errors.New("oops")
	case 2:
		time.Sleep(time.Millisecond) // virtual: what was sent arrives
		go a.kill()
		return e.hang()
	case 3:
		return refusal(seguev1.Reason_REASON_ENGINE_LOST, "")
	}
	return e.hang()
}
