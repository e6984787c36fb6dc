// SPDX-License-Identifier: Apache-2.0
// Copyright The Segue Authors

package router_test

import (
	"errors"
	"flag"
	"math/rand/v2"
	"net/http"
	"strings"
	"testing"
	"time"

	seguev1 "github.com/seguekv/segue/api/segue/v1"
	"github.com/seguekv/segue/router"
)

var (
	oracleSeed = flag.Uint64("seed", 1, "first seed of the oracle test")
	oracleRuns = flag.Int("runs", 150, "runs of the oracle test")
)

// reference is the answer that every honest run gives: token i produces word(i), and every fourth token's
// text is held back until the next.
type reference struct{ n int }

func (r reference) released(tokens int) int {
	if tokens == r.n || tokens%4 != 0 {
		return len(words(0, tokens))
	}
	return len(words(0, tokens-1))
}

// send sends token i of the reference.
func (r reference) send(e *events, i int) error {
	from, to := r.released(i), r.released(i+1)
	return e.send(&seguev1.Event{Event: &seguev1.Event_Token{Token: &seguev1.Token{
		Index: uint32(i), Id: int32(100 + i), Text: []byte(words(0, r.n)[from:to]), TextEnd: uint64(to), RawEnd: uint64(len(words(0, i+1))),
	}}})
}

// delivered is how many tokens are whole within the first n bytes.
func (r reference) delivered(n int) int {
	d := 0
	for d < r.n && len(words(0, d+1)) <= n {
		d++
	}
	return d
}

// play sends the reference from index on, and fails at a random place in a random way, or doesn't.
func (r reference) play(rng *rand.Rand, a *agent, e *events, from int) error {
	fault := rng.IntN(3 * (r.n + 1)) // most runs are without one
	if rng.IntN(4) == 0 {
		fault = from
	}
	for i := from; ; i++ {
		if rng.IntN(3) == 0 {
			time.Sleep(time.Duration(rng.IntN(40)) * time.Millisecond)
		}
		if fault == i {
			return r.fail(rng, a, e, i)
		}
		if i == r.n {
			break
		}
		if err := r.send(e, i); err != nil {
			return err
		}
	}
	e.next = r.n
	return e.finish("length")
}

func (r reference) fail(rng *rand.Rand, a *agent, e *events, i int) error {
	switch rng.IntN(7) {
	case 0:
		go a.kill()
	case 1:
		return nil
	case 2:
		return refusal(seguev1.Reason_REASON_ENGINE_LOST, "")
	case 3:
		return errors.New("oops")
	case 4: // a stall, and stale tokens after it
		time.Sleep(2100 * time.Millisecond)
		for ; i < r.n; i++ {
			if err := r.send(e, i); err != nil {
				return err
			}
		}
	case 5: // a gap
		if i+1 < r.n {
			r.send(e, i+1)
		}
	case 6: // a finish that comes too early or names no good reason
		e.next = i
		e.finish([]string{"abort", "error"}[rng.IntN(2)])
	}
	return e.hang()
}

// Whatever agents do, the client reads a prefix of the reference and one honest end.
func TestRouter_Oracle(t *testing.T) {
	ends := map[string]int{}
	for seed := *oracleSeed; seed < *oracleSeed+uint64(*oracleRuns); seed++ {
		ends[oracle(t, seed)]++
	}
	t.Logf("ends: %v", ends)
	for _, end := range []string{"ok", "ok after takeover", "ok after retry", "interrupted"} {
		if ends[end] == 0 && *oracleRuns >= 150 {
			t.Errorf("no run ended with %q: the faults miss something", end)
		}
	}
}

func oracle(t *testing.T, seed uint64) (end string) {
	rng := rand.New(rand.NewPCG(seed, 0))
	ref := reference{n: 6 + rng.IntN(10)}
	stream := rng.IntN(4) != 0
	script := func(_ *router.Config, agents map[string]*agent) {
		for _, id := range []string{"a", "b", "c"} {
			a, base := agents[id], rng.Uint64()
			a.generate = func(r *seguev1.GenerateRequest, e *events) error {
				rng := rand.New(rand.NewPCG(base, r.GetEpoch()))
				if rng.IntN(8) == 0 {
					return refusal(seguev1.Reason_REASON_NO_CAPACITY, "full")
				}
				e.prompt()
				e.protection(r.GetHolder().GetId(), "")
				return ref.play(rng, a, e, 0)
			}
			a.takeover = func(r *seguev1.TakeoverRequest, e *events) error {
				rng := rand.New(rand.NewPCG(base, r.GetEpoch()))
				d := int(r.GetDelivered())
				switch rng.IntN(6) {
				case 0:
					return refusal(seguev1.Reason_REASON_NOT_COVERED, "behind")
				case 1:
					return refusal(seguev1.Reason_REASON_NOT_READY, "the engine restarts")
				case 2:
					a.cut()
					return e.hang()
				}
				if int(r.GetTextEnd()) != ref.released(d) {
					t.Errorf("seed %d: text_end %d at d=%d", seed, r.GetTextEnd(), d)
				}
				e.seam(max(1, min(d+rng.IntN(3), ref.n)))
				e.protection(r.GetHolder().GetId(), "")
				return ref.play(rng, a, e, d)
			}
		}
	}
	bubble(t, "a b c", script, func(t *testing.T, w *world) {
		resp := w.post("/v1/chat/completions", chat(stream, `"return_token_ids":true`))
		info := func() router.SessionInfo { return w.session(resp) }
		if resp.StatusCode != http.StatusOK {
			e := w.failure(resp)
			if e.Partial || e.Delivered != 0 || !e.Retryable {
				t.Errorf("seed %d: status %d: %+v", seed, resp.StatusCode, e)
			}
			end = "failed"
			return
		}
		if !stream {
			if got := body(t, resp); !strings.Contains(got, words(0, ref.n)) {
				t.Errorf("seed %d: %s", seed, got)
			}
			end = "ok"
			return
		}
		tr := w.stream(resp)
		switch {
		case !strings.HasPrefix(words(0, ref.n), tr.text):
			t.Errorf("seed %d: not a prefix: %s", seed, tr.raw)
		case tr.done && (tr.text != words(0, ref.n) || len(tr.ids) != ref.n || tr.finish != "length" || tr.roles != 1):
			t.Errorf("seed %d: not the whole answer: %s", seed, tr.raw)
		case tr.err != nil && (tr.err.Delivered != ref.delivered(len(tr.text)) || tr.err.Delivered != len(tr.ids) || tr.err.Partial != (tr.text != "") || tr.finish != ""):
			t.Errorf("seed %d: wrong error: %s", seed, tr.raw)
		}
		epoch := uint64(0)
		for _, a := range info().Attempts {
			if a.Epoch <= epoch {
				t.Errorf("seed %d: epoch %d after %d", seed, a.Epoch, epoch)
			}
			epoch = a.Epoch
		}
		switch last := info().Attempts[len(info().Attempts)-1]; {
		case tr.err != nil:
			end = "interrupted"
		case last.Kind == "generate":
			end = "ok"
		default:
			end = "ok after " + last.Kind
		}
	})
	return end
}
