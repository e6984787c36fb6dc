// SPDX-License-Identifier: Apache-2.0
// Copyright The Segue Authors

package router_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/seguekv/segue/router"
	"github.com/seguekv/segue/router/journal"
)

// stepped plays a stream that waits for step before its deltas up to 1, before those up to 3, and before its end.
func stepped(step <-chan struct{}) func(*answer) {
	return func(a *answer) {
		for _, n := range []int{1, 3} {
			<-step
			if n == 1 {
				a.role()
			}
			a.deltas(n)
		}
		<-step
		_ = a.deltas(total) && a.finish("stop") && a.done()
	}
}

func TestRequests_LiveThenDone(t *testing.T) {
	var step chan struct{}
	journalled(t, "", "u", func(_ *router.Config, w *relays) {
		step = make(chan struct{})
		w.servers["u"].play = stepped(step)
	}, func(t *testing.T, l *lives) {
		answered := make(chan reply, 1)
		go func() { answered <- l.chat(true, "X-Request-Id", "mine") }()
		for _, want := range []struct {
			phase     string
			delivered int
		}{{journal.PhasePrefill, 0}, {journal.PhaseDecode, 1}, {journal.PhaseDecode, 3}} {
			synctest.Wait()
			v := l.view("mine")
			if v.Phase != want.phase || v.Delivered != want.delivered || v.FirstDeltaSent != (want.delivered > 0) || v.UpperBound || len(v.Attempts) != 1 || v.Attempts[0].Replica != "u" {
				t.Errorf("%+v, want %+v", v, want)
			}
			step <- struct{}{}
		}
		r := <-answered
		for _, id := range []string{"mine", r.header.Get("X-Segue-Session")} {
			v := l.view(id)
			if v.Phase != journal.PhaseDone || v.Finish != "stop" || v.Delivered != total || v.Usage == nil || v.Usage.CompletionTokens != total || v.Session != r.header.Get("X-Segue-Session") || v.KeyUsed {
				t.Errorf("%s: %+v", id, v)
			}
		}
		l.restart()
		if v := l.view("mine"); v.Phase != journal.PhaseDone || v.Delivered != total || v.UpperBound {
			t.Errorf("after a restart: %+v", v)
		}
		if r := l.ask("router", http.MethodPost, "/v1/requests/mine", ""); r.status != http.StatusMethodNotAllowed {
			t.Errorf("POST: status %d", r.status)
		}
		if r := l.ask("router", http.MethodGet, "/v1/requests/no-such", ""); r.status != http.StatusNotFound || !strings.Contains(r.fault(t).Message, "retention") {
			t.Errorf("unknown: status %d, %s", r.status, r.body)
		}
	})
}

func TestRequests_Failed(t *testing.T) {
	journalled(t, "", "u", func(_ *router.Config, w *relays) {
		w.servers["u"].play = func(a *answer) { _ = a.role() && a.deltas(3); a.abort() }
	}, func(t *testing.T, l *lives) {
		r := l.chat(true, "X-Request-Id", "mine")
		v := l.view("mine")
		var e errorObject
		if err := json.Unmarshal(v.Error, &e); err != nil {
			t.Fatalf("%s: %v", v.Error, err)
		}
		if v.Phase != journal.PhaseFailed || !v.FirstDeltaSent || v.Delivered != 3 || v.Attempts[0].Cause == "" || e.Code != "upstream_decode_interrupted" || e.Delivered != 3 {
			t.Errorf("%+v, error %+v", v, e)
		}
		if !strings.Contains(r.body, `{"error":`+string(v.Error)+`}`) {
			t.Errorf("recorded error %s, the stream has %s", v.Error, r.body)
		}
	})
}

func TestRequests_BelongToTheirTenant(t *testing.T) {
	var acme, other string
	journalled(t, "", "u", func(c *router.Config, _ *relays) { acme, other = twoTenants(t, c) }, func(t *testing.T, l *lives) {
		r := l.chat(false, "X-Request-Id", "mine", "Authorization", acme)
		for _, id := range []string{"mine", r.header.Get("X-Segue-Session")} {
			for authorization, status := range map[string]int{acme: 200, other: 404, "": 401, "Bearer sk-nobody": 401} {
				if got := l.ask("router", http.MethodGet, "/v1/requests/"+id, "", "Authorization", authorization); got.status != status {
					t.Errorf("%s with %q: status %d, want %d: %s", id, authorization, got.status, status, got.body)
				}
			}
		}
	})
}

// After a crash the journal tells whether content was sent and never less than what the client has.
func TestRequests_Crash(t *testing.T) {
	for _, seen := range []int{0, 1, 31, 32, 64, 65, 150} {
		t.Run(fmt.Sprint(seen), func(t *testing.T) {
			journalled(t, "", "u", func(_ *router.Config, w *relays) {
				w.servers["u"].play = func(a *answer) {
					if seen > 0 {
						_ = a.role() && a.deltas(seen)
					}
					a.hang()
				}
			}, func(t *testing.T, l *lives) {
				got := make(chan *http.Response, 1)
				go func() {
					res, err := l.tryPost(t.Context(), "/v1/chat/completions", chat(true, ""), "X-Request-Id", "mine")
					if err == nil {
						got <- res
					}
				}()
				if seen > 0 {
					res := <-got
					readEvents(t, res.Body, seen+1)
					defer res.Body.Close()
				}
				time.Sleep(50 * time.Millisecond) // virtual: the beginning is durable
				l.crash()
				v := l.view("mine")
				if v.Phase != journal.PhaseFailed || v.FirstDeltaSent != (seen > 0) || v.Delivered < seen || v.Delivered > seen+128 || v.UpperBound != (seen > 0) || v.EndedAt.IsZero() {
					t.Errorf("the client saw %d: %+v", seen, v)
				}
				if len(v.Attempts) != 1 || v.Attempts[0].Cause != journal.CauseRouterCrash {
					t.Errorf("attempts %+v", v.Attempts)
				}
			})
		})
	}
}

// A journal that fails in mid-stream costs its own record only.
func TestRequests_JournalFailsInMidStream(t *testing.T) {
	const tokens = 300
	var step chan struct{}
	journalled(t, "", "u", func(_ *router.Config, w *relays) {
		step = make(chan struct{})
		w.servers["u"].play = func(a *answer) {
			_ = a.role() && a.deltas(3)
			<-step
			_ = a.deltas(tokens) && a.finish("stop") && a.done()
		}
	}, func(t *testing.T, l *lives) {
		wait := l.reading(l.post("/v1/chat/completions", chat(true, ""), "X-Request-Id", "mine"))
		synctest.Wait()
		before := l.journal.Commits()
		l.journal.Fail(errors.New("no space left on device"))
		close(step)
		if tr := wait(); tr.text != words(0, tokens) || !tr.done {
			t.Errorf("text of %d bytes, done %v, error %+v", len(tr.text), tr.done, tr.err)
		}
		if l.journal.Commits() != before {
			t.Error("the journal didn't fail")
		}
		if l.counter("segue_journal_unjournalled_reservations_total") == 0 || l.counter("segue_journal_unhealthy") != 1 {
			t.Error("no metric tells")
		}
		for _, text := range []string{"the answer goes on without journal", "no space left on device"} {
			if n := strings.Count(l.log.String(), text); n == 0 || n > 4 {
				t.Errorf("%q is %d times in the log", text, n)
			}
		}
		if v := l.view("mine"); v.Phase != journal.PhaseDone || v.Delivered != tokens {
			t.Errorf("%+v", v)
		}
		l.journal.Fail(nil)
		time.Sleep(2 * time.Second) // virtual: it is tried again
		l.restart()
		if v := l.view("mine"); v.Phase != journal.PhaseDone || v.Delivered != tokens {
			t.Errorf("after the disk came back and a restart: %+v", v)
		}
	})
}

func TestRequests_Operators(t *testing.T) {
	var acme, other string
	journalled(t, "", "u", func(c *router.Config, w *relays) {
		acme, other = twoTenants(t, c)
		c.MaxAttempts = 1
		w.servers["u"].play = func(a *answer) {
			if strings.Contains(string(a.q.body), "max_tokens") {
				a.deltas(1)
				a.abort()
				return
			}
			a.whole(total)
		}
	}, func(t *testing.T, l *lives) {
		var sessions []string
		for _, authorization := range []string{acme, other} {
			r := l.chat(true, "X-Request-Id", "mine", "Authorization", authorization)
			sessions = append(sessions, r.header.Get("X-Segue-Session"))
			time.Sleep(time.Minute) // virtual
		}
		r := l.ask("router", "POST", "/v1/chat/completions", chat(true, `"max_tokens":9`), "X-Request-Id", "third", "Authorization", acme)
		sessions = append(sessions, r.header.Get("X-Segue-Session"))
		for query, want := range map[string][]string{
			"":                                   {sessions[2], sessions[1], sessions[0]},
			"?tenant=acme":                       {sessions[2], sessions[0]},
			"?phase=failed":                      {sessions[2]},
			"?phase=done&tenant=acme":            {sessions[0]},
			"?limit=2":                           {sessions[2], sessions[1]},
			"?since=90s":                         {sessions[2], sessions[1]},
			"?since=2999-01-01T00:00:00Z":        {},
			"?phase=queued":                      {},
			"?tenant=nobody":                     {},
			"?since=2000-01-01T00:00:00%2B02:00": {sessions[2], sessions[1], sessions[0]},
		} {
			var list []journal.Request
			if code := l.get("/v1/requests"+query, &list); code != 200 {
				t.Errorf("%s: status %d", query, code)
			}
			var exported []journal.Request
			e := l.ask("admin", "GET", "/v1/requests/export"+query, "")
			for line := range strings.Lines(e.body) {
				var v journal.Request
				if err := json.Unmarshal([]byte(line), &v); err != nil {
					t.Errorf("%s: %q: %v", query, line, err)
				}
				exported = append(exported, v)
			}
			for how, got := range map[string][]journal.Request{"list": list, "export": exported} {
				ids := []string{}
				for _, v := range got {
					ids = append(ids, v.Session)
				}
				if strings.Join(ids, " ") != strings.Join(want, " ") {
					t.Errorf("%s%s: %v, want %v", how, query, ids, want)
				}
			}
		}
		for _, bad := range []string{"?phase=dead", "?limit=0", "?limit=x", "?since=yesterday", "?since=-5m", "?limit=10001", "?tenent=acme", "/" + sessions[0] + "?wait=1h", "/" + sessions[0] + "?wait=x"} {
			if r := l.ask("admin", "GET", "/v1/requests"+bad, ""); r.status != 400 || r.fault(t).Message == "" {
				t.Errorf("%s: status %d: %s", bad, r.status, r.body)
			}
		}
		for path, want := range map[string]string{
			"/" + sessions[1]: sessions[1], "/mine?tenant=acme": sessions[0], "/mine?tenant=other": sessions[1], "/third?tenant=acme": sessions[2],
			"/mine": "", "/third?tenant=other": "", "/" + sessions[0] + "?tenant=other": "",
		} {
			r := l.ask("admin", "GET", "/v1/requests"+path, "")
			var v journal.Request
			if err := json.Unmarshal([]byte(r.body), &v); err != nil {
				t.Errorf("%s: %v", path, err)
			}
			if v.Session != want || r.status == 200 != (want != "") {
				t.Errorf("%s: status %d, session %q, want %q", path, r.status, v.Session, want)
			}
		}
	})
}

// A long poll answers at the next change, at the end of its time, and at once for what has ended.
func TestRequests_Watch(t *testing.T) {
	var step chan struct{}
	journalled(t, "", "u", func(_ *router.Config, w *relays) {
		step = make(chan struct{})
		w.servers["u"].play = stepped(step)
	}, func(t *testing.T, l *lives) {
		answered := make(chan reply, 1)
		go func() { answered <- l.chat(true, "X-Request-Id", "mine") }()
		synctest.Wait()
		poll := func(after string) (reply, journal.Request, time.Duration) {
			began := time.Now()
			r := l.ask("admin", "GET", "/v1/requests/mine?wait=4s&after="+url.QueryEscape(after), "")
			var v journal.Request
			if err := json.Unmarshal([]byte(r.body), &v); err != nil || r.header.Get("ETag") == "" {
				t.Fatalf("status %d, header %v, %s", r.status, r.header, r.body)
			}
			return r, v, time.Since(began)
		}
		first, _, took := poll("")
		if took != 0 {
			t.Errorf("the first answer took %v", took)
		}
		same, _, took := poll(first.header.Get("ETag"))
		if took != 4*time.Second || same.header.Get("ETag") != first.header.Get("ETag") {
			t.Errorf("without a change it took %v, version %s and then %s", took, first.header.Get("ETag"), same.header.Get("ETag"))
		}
		go func() { time.Sleep(time.Second); step <- struct{}{} }() // virtual
		changed, v, took := poll(first.header.Get("ETag"))
		if took < time.Second || took > time.Second+200*time.Millisecond || v.Delivered != 1 || changed.header.Get("ETag") == first.header.Get("ETag") {
			t.Errorf("the change came after %v: %+v", took, v)
		}
		step <- struct{}{}
		step <- struct{}{}
		<-answered
		ended, v, _ := poll(changed.header.Get("ETag"))
		if _, _, took := poll(ended.header.Get("ETag")); took != 0 || v.Phase != journal.PhaseDone {
			t.Errorf("an ended request is waited for: %v, %+v", took, v)
		}
	})
}
