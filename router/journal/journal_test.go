// SPDX-License-Identifier: Apache-2.0
// Copyright The Segue Authors

package journal_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/seguekv/segue/router/journal"
)

// reopened is a journal after a clean stop, or a crash, of the one that made m.
func reopened(t *testing.T, m *journal.Memory, stop func() error, crash bool) *journal.Journal {
	t.Helper()
	if crash {
		m = m.Crash()
	} else if err := stop(); err != nil {
		t.Fatal(err)
	}
	j, _ := open(t, journal.Options{Storage: m})
	return j
}

func TestJournal_KeyUsedBefore(t *testing.T) {
	answer := &journal.Answer{Status: 200, ContentType: "application/json", Body: []byte(`{"a":1}`)}
	errorObject := []byte(`{"code":"upstream_decode_interrupted"}`)
	for _, c := range []struct {
		name  string
		end   func(*testing.T, *journal.Entry)
		check func(error) bool // nil: the key is free
		crash func(error) bool // after a crash
	}{
		{"running, nothing reserved", func(*testing.T, *journal.Entry) {}, isRunning, nil},
		{"running, output reserved", func(t *testing.T, e *journal.Entry) { reserve(t, e, 1) }, isRunning, isInterrupted(64)},
		{"finished, answer kept", func(t *testing.T, e *journal.Entry) {
			reserve(t, e, 3)
			e.Done("stop", journal.Usage{}, answer)
		}, isFinished(answer), isFinished(answer)},
		{"finished, no answer", func(t *testing.T, e *journal.Entry) { e.Done("stop", journal.Usage{}, nil) }, isFinished(nil), isFinished(nil)},
		{"finished, answer too large", func(t *testing.T, e *journal.Entry) {
			e.Done("stop", journal.Usage{}, &journal.Answer{Status: 200, Body: make([]byte, 1<<20+1)})
		}, isFinished(nil), isFinished(nil)},
		{"failed after content", func(t *testing.T, e *journal.Entry) {
			reserve(t, e, 7)
			e.Fail(errorObject, 7, true)
		}, isInterrupted(7), isInterrupted(7)},
		{"failed, part of a token sent", func(t *testing.T, e *journal.Entry) {
			reserve(t, e, 1)
			e.Fail(errorObject, 0, true)
		}, isInterrupted(0), isInterrupted(0)},
		{"failed before content", func(t *testing.T, e *journal.Entry) { e.Fail(errorObject, 0, false) }, nil, nil},
		{"reserved, failed before content", func(t *testing.T, e *journal.Entry) {
			reserve(t, e, 1)
			e.Fail(errorObject, 0, false)
		}, nil, nil},
	} {
		t.Run(c.name, func(t *testing.T) {
			for _, state := range []string{"at once", "durable", "after a crash"} {
				t.Run(state, func(t *testing.T) {
					m := journal.NewMemory()
					j, stop := open(t, journal.Options{Storage: m})
					c.end(t, begin(t, j, request(1, "key")))
					check := c.check
					if state != "at once" {
						flush(t, j)
					}
					if state == "after a crash" {
						j, check = reopened(t, m, stop, true), c.crash
					}
					other := request(2, "key")
					other.Payload[0]++
					if _, err := j.Begin(other); !is[*journal.PayloadError](err) {
						t.Errorf("another payload: %v", err)
					}
					other = request(3, "key")
					other.Tenant = "u"
					if _, err := j.Begin(other); err != nil {
						t.Errorf("another tenant: %v", err)
					}
					_, err := j.Begin(request(4, "key"))
					switch {
					case check == nil && err != nil:
						t.Errorf("the key isn't free: %v", err)
					case check != nil && !check(err):
						t.Errorf("got %v", err)
					}
				})
			}
		})
	}
}

func is[E error](err error) bool { _, ok := errors.AsType[E](err); return ok }

func isRunning(err error) bool { return is[*journal.RunningError](err) }

func isFinished(a *journal.Answer) func(error) bool {
	return func(err error) bool {
		e, ok := errors.AsType[*journal.FinishedError](err)
		return ok && e.Request.RequestID == "req_1" && e.Request.ReplayRetained == (a != nil) && cmp.Equal(e.Answer, a)
	}
}

func isInterrupted(delivered int) func(error) bool {
	return func(err error) bool {
		e, ok := errors.AsType[*journal.InterruptedError](err)
		return ok && e.Request.RequestID == "req_1" && e.Request.Delivered == delivered &&
			strings.Contains(string(e.Request.Error), `"upstream_decode_interrupted"`)
	}
}

func TestJournal_TakenKeyStaysWithTheNewRequest(t *testing.T) {
	m := journal.NewMemory()
	j, stop := open(t, journal.Options{Storage: m})
	begin(t, j, request(1, "key")).Fail(nil, 0, false)
	e := begin(t, j, request(2, "key"))
	reserve(t, e, 1)
	j = reopened(t, m, stop, true)
	_, err := j.Begin(request(3, "key"))
	if i, ok := errors.AsType[*journal.InterruptedError](err); !ok || i.Request.RequestID != "req_2" {
		t.Fatalf("got %v", err)
	}
}

func TestJournal_RequestAsJSON(t *testing.T) {
	c := newClock()
	m := journal.NewMemory()
	j, stop := open(t, journal.Options{Storage: m, Now: c.Now})
	e := begin(t, j, request(7, "key"))
	c.advance(time.Second)
	a := e.Attempt(journal.Attempt{Replica: "a", Kind: "generate", Epoch: 1, Lease: "l1", Revision: "r1"})
	e.Phase(journal.PhaseDecode)
	reserve(t, e, 37)
	e.Tool("call_1", "search", [32]byte{0xab})
	c.advance(time.Second)
	e.EndAttempt(a, "reset", "connection lost")
	e.Attempt(journal.Attempt{Replica: "b", Kind: "takeover", Epoch: 2, Lease: "l2"})
	reserve(t, e, 40)
	e.RetryBudget(1)
	want := `{"request_id":"req_7","session":"00000000000000000000000000000007","tenant":"t","endpoint":"/v1/chat/completions","model":"m","model_revision":"r1",` +
		`"phase":"decode","attempts":[{"replica":"a","kind":"generate","epoch":1,"lease":"l1","cause":"reset","detail":"connection lost","model_revision":"r1","started_at":"2026-05-04T03:02:02Z","ended_at":"2026-05-04T03:02:03Z"},` +
		`{"replica":"b","kind":"takeover","epoch":2,"lease":"l2","cause":"","started_at":"2026-05-04T03:02:03Z"}],` +
		`"first_delta_sent":true,"delivered_output_tokens":40,"delivered_is_upper_bound":false,"retry_budget":1,"stream":true,"protection":"sync","usage":null,"finish":"","error":null,` +
		`"tools":[{"call":"call_1","name":"search","arguments_sha256":"ab00000000000000000000000000000000000000000000000000000000000000"}],"idempotency_key_used":true,` +
		`"started_at":"2026-05-04T03:02:01Z","replay_retained":false}`
	if got := text(t, get(t, j, "req_7")); got != want {
		t.Errorf("open request:\n%s\nwant\n%s", got, want)
	}
	flush(t, j)
	j2 := reopened(t, m, stop, true)
	crashed := get(t, j2, "req_7")
	if crashed.Phase != journal.PhaseFailed || !crashed.FirstDeltaSent || crashed.Delivered != 128 || !crashed.UpperBound ||
		crashed.Attempts[1].Cause != journal.CauseRouterCrash || crashed.Attempts[0].Cause != "reset" || crashed.ModelRevision != "r1" || len(crashed.Tools) != 1 {
		t.Errorf("after a crash: %s", text(t, crashed))
	}
	var o map[string]any
	if err := json.Unmarshal(crashed.Error, &o); err != nil || o["code"] != "upstream_decode_interrupted" || o["delivered_output_tokens"] != 128.0 ||
		o["partial_output"] != true || o["retryable"] != false || o["request_id"] != "req_7" || o["cause"] != "router_crash" {
		t.Errorf("error object: %s (%v)", crashed.Error, err)
	}
}

func text(t *testing.T, v any) string {
	t.Helper()
	b, err := json.Marshal(v)
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

func TestJournal_EndedRequestReadsTheSameFromMemoryAndDisk(t *testing.T) {
	m := journal.NewMemory()
	j, stop := open(t, journal.Options{Storage: m})
	for i := range 3 {
		e := begin(t, j, request(i, ""))
		for k := range journal.MaxAttempts + 3 {
			e.EndAttempt(e.Attempt(journal.Attempt{Replica: strings.Repeat("é", k*10), Epoch: uint64(k)}), "stall", strings.Repeat("d", 2000))
		}
		for range journal.MaxTools + 1 {
			e.Tool("c", "n", [32]byte{})
		}
		reserve(t, e, i)
		if i == 1 {
			e.Done("stop", journal.Usage{PromptTokens: 1, CompletionTokens: 2, TotalTokens: 3}, nil)
		} else {
			e.Fail([]byte(`{"code":"x"}`), i, i > 0)
		}
		e.Phase(journal.PhaseDecode)
		e.Fail([]byte(`{"code":"late"}`), 99, true)
		if err := e.Reserve(t.Context(), 1000); !errors.Is(err, journal.ErrFinished) {
			t.Errorf("reserve after the end: %v", err)
		}
	}
	before := j.List(journal.Filter{})
	flush(t, j)
	if d := cmp.Diff(before, j.List(journal.Filter{}), cmp.AllowUnexported(journal.Attempt{}), ignoreNumbers()); d != "" {
		t.Error(d)
	}
	after := reopened(t, m, stop, false).List(journal.Filter{})
	if d := cmp.Diff(before, after, ignoreNumbers()); d != "" {
		t.Error(d)
	}
	if n := len(after[0].Attempts); n != journal.MaxAttempts || after[0].AttemptsDropped != 3 || after[0].Attempts[0].Epoch != 0 || after[0].Attempts[1].Epoch != 4 || after[0].Attempts[n-1].Cause != "stall" {
		t.Errorf("attempts: %d kept, %d dropped", n, after[0].AttemptsDropped)
	}
}

func ignoreNumbers() cmp.Option {
	return cmp.FilterPath(func(p cmp.Path) bool { return strings.HasSuffix(p.String(), "number") }, cmp.Ignore())
}

func TestJournal_FindsTheNewestOfALabel(t *testing.T) {
	j, _ := open(t, journal.Options{})
	for i := range 3 {
		n := request(i, "")
		n.RequestID = "same"
		begin(t, j, n)
	}
	if r := get(t, j, "same"); r.Session != request(2, "").Session {
		t.Errorf("label finds %s", r.Session)
	}
	if r := get(t, j, request(1, "").Session); r.Session != request(1, "").Session {
		t.Errorf("session id finds %s", r.Session)
	}
	if _, ok := j.Get("u", request(1, "").Session); ok {
		t.Error("another tenant reads the request")
	}
	if _, ok := j.Get("u", "same"); ok {
		t.Error("another tenant reads the request by its label")
	}
	if r, ok := j.Session(request(1, "").Session); !ok || r.Tenant != "t" {
		t.Error("the operator doesn't find it")
	}
}

func TestJournal_ListsTheNewestFirst(t *testing.T) {
	c := newClock()
	j, _ := open(t, journal.Options{Now: c.Now})
	for i := range 6 {
		n := request(i, "")
		if i%2 == 1 {
			n.Tenant = "u"
		}
		e := begin(t, j, n)
		if i < 3 {
			e.Done("stop", journal.Usage{}, nil)
		}
		c.advance(time.Minute)
	}
	flush(t, j)
	start := newClock().now
	for _, tc := range []struct {
		f    journal.Filter
		want string
	}{
		{journal.Filter{}, "543210"},
		{journal.Filter{Tenant: "u"}, "531"},
		{journal.Filter{Phase: journal.PhaseDone}, "210"},
		{journal.Filter{Phase: journal.PhaseQueued, Limit: 2}, "54"},
		{journal.Filter{Since: start.Add(4 * time.Minute)}, "54"},
		{journal.Filter{Tenant: "x"}, ""},
	} {
		var b bytes.Buffer
		if err := j.Export(&b, tc.f); err != nil {
			t.Fatal(err)
		}
		var got strings.Builder
		for l := range strings.Lines(b.String()) {
			var r struct {
				ID string `json:"request_id"`
			}
			if err := json.Unmarshal([]byte(l), &r); err != nil {
				t.Fatal(err)
			}
			got.WriteString(strings.TrimPrefix(r.ID, "req_"))
		}
		if got.String() != tc.want || len(j.List(tc.f)) != len(tc.want) {
			t.Errorf("%+v: %q, want %q", tc.f, got.String(), tc.want)
		}
	}
}

func TestJournal_ChangedTellsOfEachChange(t *testing.T) {
	j, stop := open(t, journal.Options{})
	c := j.Changed()
	e := begin(t, j, request(1, ""))
	<-c
	c = j.Changed()
	select {
	case <-c:
		t.Fatal("told of a change without one")
	default:
	}
	e.Phase(journal.PhaseDecode)
	<-c
	c = j.Changed()
	if err := stop(); err != nil {
		t.Fatal(err)
	}
	<-c
	<-j.Changed()
}

func TestJournal_RefusesWhatNoRecordHolds(t *testing.T) {
	j, _ := open(t, journal.Options{MaxOpen: 2, MaxKeys: 1})
	long := strings.Repeat("x", journal.MaxLabel+1)
	for _, change := range []func(*journal.New){
		func(n *journal.New) { n.Key = long }, func(n *journal.New) { n.RequestID = long }, func(n *journal.New) { n.Model = long },
		func(n *journal.New) { n.Tenant = long }, func(n *journal.New) { n.Session = "" }, func(n *journal.New) { n.RetryBudget = -1 },
	} {
		n := request(1, "")
		change(&n)
		if _, err := j.Begin(n); !errors.Is(err, journal.ErrInvalid) {
			t.Errorf("%+v: %v", n, err)
		}
	}
	begin(t, j, request(1, long[1:]))
	if _, err := j.Begin(request(1, "")); !errors.Is(err, journal.ErrInvalid) {
		t.Errorf("the same session: %v", err)
	}
	if _, err := j.Begin(request(2, "second")); !errors.Is(err, journal.ErrFull) {
		t.Errorf("one key too many: %v", err)
	}
	e := begin(t, j, request(2, ""))
	if _, err := j.Begin(request(3, "")); !errors.Is(err, journal.ErrFull) {
		t.Errorf("one request too many: %v", err)
	}
	e.Done("", journal.Usage{}, nil)
	flush(t, j)
	begin(t, j, request(3, ""))
	var none *journal.Entry
	none.Attempt(journal.Attempt{})
	none.Delivered(1)
	none.Done("", journal.Usage{}, nil)
	if err := none.Reserve(t.Context(), 1); err != nil {
		t.Errorf("an entry that isn't journalled: %v", err)
	}
}

func TestOpen_RefusesBadOptions(t *testing.T) {
	for _, o := range []journal.Options{{Retention: time.Hour}, {MaxRequests: -1}, {MaxReplay: -1}, {MaxStored: -1}} {
		if _, err := journal.Open(o); err == nil {
			t.Errorf("%+v is accepted", o)
		}
	}
}
