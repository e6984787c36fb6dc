// SPDX-License-Identifier: Apache-2.0
// Copyright The Segue Authors

package router_test

import (
	"bufio"
	"bytes"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/seguekv/segue/router"
	"github.com/seguekv/segue/router/journal"
)

// tail reads in the background; the function it returns gives what has come.
func (w *relays) tail(r io.Reader) func() string {
	var mu sync.Mutex
	var b bytes.Buffer
	go func() { // ends with the stream
		buf := make([]byte, 4096)
		for {
			n, err := r.Read(buf)
			mu.Lock()
			b.Write(buf[:n])
			mu.Unlock()
			if err != nil {
				return
			}
		}
	}()
	return func() string {
		synctest.Wait()
		mu.Lock()
		defer mu.Unlock()
		return b.String()
	}
}

// dial posts on a connection of its own, which nobody reads.
func (w *relays) dial(path, request string) net.Conn {
	w.t.Helper()
	conn, err := w.client.dial(w.t.Context())
	if err != nil {
		w.t.Fatal(err)
	}
	if _, err := fmt.Fprintf(conn, "POST %s HTTP/1.1\r\nHost: router\r\nContent-Length: %d\r\n\r\n%s", path, len(request), request); err != nil {
		w.t.Fatal(err)
	}
	return conn
}

// watched tells of each commit before it is done.
type watched struct {
	*journal.Memory
	before  func([]journal.Op)
	crashed *atomic.Bool // what comes later is lost
}

func (s watched) Commit(ops []journal.Op) error {
	s.before(ops)
	if s.crashed.Load() {
		return nil
	}
	return s.Memory.Commit(ops)
}

// The journal has durably reserved the first content before a byte of it is written, and reads as sent from then on, also
// when the client reads nothing and this process ends here.
func TestRelay_ReservationPrecedesTheWrite(t *testing.T) {
	for _, endpoint := range []string{"chat", "completions"} {
		synctest.Test(t, func(t *testing.T) {
			reserved, crashed := make(chan struct{}), &atomic.Bool{}
			slow := func(m *journal.Memory) journal.Storage {
				var once sync.Once
				return watched{m, func(ops []journal.Op) {
					for _, op := range ops {
						if op.Table == journal.TableReservations && op.Value != nil {
							once.Do(func() { time.Sleep(time.Second); close(reserved) })
						}
					}
				}, crashed}
			}
			w := newRelays(t, "", "s1 s2", nil, slow)
			defer w.close()
			w.servers["s1"].play = func(a *answer) {
				a.role()
				a.deltas(1)
				time.Sleep(3 * time.Second)
				a.played("cut")
				a.abort()
			}
			conn := w.dial(ask(endpoint, true, ""))
			defer conn.Close()
			_ = conn.SetReadDeadline(time.Now().Add(900 * time.Millisecond))
			if n, err := conn.Read(make([]byte, 1)); n > 0 || err == nil {
				t.Error("the client got something before the reservation was durable")
			}
			_ = conn.SetReadDeadline(time.Time{})
			select {
			case <-reserved:
				t.Error("the reservation was not held up")
			default:
			}
			<-reserved
			synctest.Wait() // the first write waits for its reader now
			crashed.Store(true)
			found := w.journal.Crash()
			j, err := journal.Open(journal.Options{Storage: found, Retention: 48 * time.Hour, MaxRequests: 10})
			if err != nil {
				t.Fatal(err)
			}
			list := j.List(journal.Filter{})
			if len(list) != 1 || !list[0].FirstDeltaSent || !list[0].UpperBound || list[0].Delivered < 1 {
				t.Errorf("after a crash the journal reads %+v", list)
			}
			// The server breaks while the write waits: what may have reached the client is never repeated.
			read := w.tail(conn)
			time.Sleep(5 * time.Second)
			if got := read(); !strings.Contains(got, word(0)) || !strings.Contains(got, `"delivered_output_tokens":1`) || strings.Contains(got, "[DONE]") {
				t.Errorf("the client has %s", got)
			}
			if w.asked("s1", 1)[0].state().fault != "cut" {
				t.Error("the fault was not played")
			}
			w.asked("s2", 0)
		})
	}
}

// delivered counts content deltas, or what a server with continuous usage says.
func TestRelay_DeliveredCount(t *testing.T) {
	for _, continuous := range []bool{false, true} {
		relay(t, "", "s1 s2", func(c *router.Config, _ *relays) { c.Upstreams[0].ContinuousUsage = continuous }, func(t *testing.T, w *relays) {
			w.servers["s1"].play = func(a *answer) {
				a.role()
				for i := range 3 {
					usage := ""
					if continuous {
						usage = fmt.Sprintf(`,"usage":{"prompt_tokens":7,"completion_tokens":%d,"total_tokens":%d}`, 4*i+4, 4*i+11)
					}
					a.event(fmt.Sprintf(`{"id":"x","choices":[{"index":0,"delta":{"content":%q},"finish_reason":null}]%s}`, word(i), usage))
				}
				a.chunk(`"delta":{"content":""},"finish_reason":null`)
				a.abort()
			}
			resp := w.post("/v1/chat/completions", chat(true, includeUsage))
			w.interrupted(w.stream(resp), router.CauseReset, map[bool]int{false: 3, true: 12}[continuous])
			w.asked("s2", 0)
		})
	}
}

// A client that stalls holds the server back, and is cut when one write takes longer than client_stall.
func TestRelay_DeadClientIsCut(t *testing.T) {
	relay(t, "", "s1 s2", nil, func(t *testing.T, w *relays) {
		const answerSize = 64 << 20
		w.servers["s1"].play = func(a *answer) {
			a.role()
			piece := strings.Repeat("x", 1000)
			for range answerSize / len(piece) {
				if !a.text(piece) {
					return
				}
			}
		}
		conn := w.dial(ask("chat", true, ""))
		defer conn.Close()
		time.Sleep(29 * time.Second)
		synctest.Wait()
		q := w.asked("s1", 1)[0]
		// The places of the channel, and what the connections' buffers hold.
		if got := q.state(); got.written < 2000 || got.written > 64<<10 || !got.closed.IsZero() {
			t.Errorf("the server could write %d bytes: %+v", got.written, got)
		}
		if n := w.counter("segue_router_sessions_total", "client_gone"); n != 0 {
			t.Error("cut too early")
		}
		time.Sleep(3 * time.Second)
		synctest.Wait()
		if n := w.counter("segue_router_sessions_total", "client_gone"); n != 1 {
			t.Error("not cut after client_stall")
		}
		if !q.state().ended() {
			t.Error("the server goes on")
		}
		w.asked("s2", 0)
	})
}

// A slow client that reads on gets everything from the one server.
func TestRelay_SlowClient(t *testing.T) {
	for _, pause := range []time.Duration{4900 * time.Millisecond, 22 * time.Second} { // the decode silence is 5 s
		relay(t, "", "s1 s2", nil, func(t *testing.T, w *relays) {
			w.servers["s1"].play = func(a *answer) {
				a.role()
				a.deltas(1)
				a.text(strings.Repeat("y", 32<<10)) // more than the connection to the client takes
				time.Sleep(pause + 2*time.Second - time.Since(a.q.at))
				_ = a.deltas(total) && a.finish("stop") && a.done()
			}
			resp := w.post("/v1/chat/completions", chat(true, ""))
			time.Sleep(pause) // less than client_stall
			tr := w.stream(resp)
			if !tr.done || !strings.HasSuffix(tr.text, words(1, total)) {
				t.Errorf("%v: err %+v, %d bytes", pause, tr.err, len(tr.raw))
			}
			if got := ran(w.session(resp)); got != "s1" {
				t.Errorf("%v: ran %q", pause, got)
			}
		})
	}
}

// Without content in time an attempt ends; what else the server sends doesn't count.
func TestRelay_Silence(t *testing.T) {
	const prefill, decode, whole = 8 * time.Second, 5 * time.Second, 20 * time.Second
	chatter := func(a *answer) { // roles, comments, pings, empty deltas and empty arguments
		for i := 0; ; i++ {
			if !a.send(": ping\n\n") || !a.chunk(`"delta":{"role":"assistant","content":""},"finish_reason":null`) ||
				!a.chunk(`"delta":{"tool_calls":[{"index":0,"function":{"arguments":""}}]},"finish_reason":null`) || !a.event(`{"choices":[]}`) {
				return
			}
			time.Sleep(500 * time.Millisecond)
		}
	}
	for _, tt := range []struct {
		name    string
		stream  bool
		play    func(*answer)
		at      time.Duration
		deltas  int
		atLeast int // bytes that the server sent in vain
	}{
		{"prefill", true, func(a *answer) { a.hang() }, prefill, 0, 0},
		{"prefill with chatter", true, chatter, prefill, 0, 1000},
		{"decode", true, func(a *answer) { a.role(); a.deltas(2); a.hang() }, decode, 2, 0},
		{"decode with chatter", true, func(a *answer) { a.role(); a.deltas(2); chatter(a) }, decode, 2, 1000},
		{"whole", false, func(a *answer) { a.hang() }, whole, 0, 0},
	} {
		t.Run(tt.name, func(t *testing.T) {
			relay(t, "", "s1", nil, func(t *testing.T, w *relays) {
				w.servers["s1"].play = tt.play
				start := time.Now()
				resp := w.post("/v1/chat/completions", chat(tt.stream, includeUsageIf(tt.stream)))
				if tt.deltas > 0 {
					w.interrupted(w.stream(resp), router.CauseStall, tt.deltas)
				} else {
					w.unanswered(resp, router.CauseStall)
				}
				within(t, "the end", time.Since(start), tt.at, tt.at+300*time.Millisecond)
				time.Sleep(time.Second)
				q := w.asked("s1", 1)[0].state()
				if !q.ended() || q.written < tt.atLeast {
					t.Errorf("the server: %+v", q)
				}
			})
		})
	}
}

func includeUsageIf(stream bool) string {
	if stream {
		return includeUsage
	}
	return ""
}

// Content that keeps coming within the decode silence may take as long as it likes, and held calls count as content.
func TestRelay_ContentKeepsItAlive(t *testing.T) {
	relay(t, "", "s1", nil, func(t *testing.T, w *relays) {
		w.servers["s1"].play = func(a *answer) {
			a.role()
			a.callBegins(0, "f")
			for range 10 {
				time.Sleep(4 * time.Second)
				a.arguments(0, " ")
			}
			a.arguments(0, "{}")
			_ = a.finish("tool_calls") && a.done()
		}
		resp := w.post("/v1/chat/completions", chat(true, ""))
		tr := w.stream(resp)
		if calls := joinedCalls(t, tr.raw); !tr.done || len(calls) != 1 || strings.TrimSpace(calls[0].arguments) != "{}" {
			t.Errorf("%s", tr.raw)
		}
	})
}

// A connection is used again after a whole answer.
func TestRelay_KeepsConnections(t *testing.T) {
	relay(t, "", "s1", nil, func(t *testing.T, w *relays) {
		before := w.servers["s1"].connections()
		for range 5 {
			resp := w.post("/v1/chat/completions", chat(true, ""))
			if resp.StatusCode != http.StatusOK || !w.stream(resp).done {
				t.Fatal("no answer")
			}
			w.settle()
		}
		if n := w.servers["s1"].connections() - before; n > 1 {
			t.Errorf("5 answers took %d new connections", n)
		}
	})
}

// The mark that forbids a repetition is there when the client has the first content.
func TestRelay_MarkPrecedesTheWrite(t *testing.T) {
	relay(t, "", "s1 s2", nil, func(t *testing.T, w *relays) {
		w.servers["s1"].play = func(a *answer) {
			a.role()
			a.deltas(1)
			a.hang()
		}
		resp := w.post("/v1/chat/completions", chat(true, ""))
		defer resp.Body.Close()
		lines := bufio.NewScanner(resp.Body)
		for lines.Scan() && !strings.Contains(lines.Text(), word(0)) {
		}
		synctest.Wait()
		if info := w.session(resp); info.DeliveredTokens != 1 || !info.FirstDeltaSent {
			t.Errorf("delivered %d, first delta sent %v", info.DeliveredTokens, info.FirstDeltaSent)
		}
	})
}
