// SPDX-License-Identifier: Apache-2.0
// Copyright The Segue Authors

package journal_test

import (
	"errors"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/seguekv/segue/router/journal"
)

func records(t *testing.T, m *journal.Memory) map[string]int {
	t.Helper()
	n := map[string]int{}
	for table := journal.TableRequests; table <= journal.TableResults; table++ {
		if err := m.Load(table, func(_, _ []byte) error { n[table.String()]++; return nil }); err != nil {
			t.Fatal(err)
		}
	}
	return n
}

func TestJournal_Retention(t *testing.T) {
	for _, restart := range []bool{false, true} {
		t.Run(fmt.Sprintf("restart %t", restart), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				m := journal.NewMemory()
				o := journal.Options{Storage: m, Retention: 30 * time.Hour}
				j, stop := open(t, o)
				wait := func(d time.Duration) {
					t.Helper()
					if restart {
						if err := stop(); err != nil {
							t.Fatal(err)
						}
						time.Sleep(d)
						j, stop = open(t, o)
						time.Sleep(2 * time.Minute)
					} else {
						time.Sleep(d + 2*time.Minute)
					}
				}
				for i := range 3 {
					begin(t, j, request(i, fmt.Sprint(i))).Done("stop", journal.Usage{}, &journal.Answer{Status: 200, Body: []byte("x")})
				}
				if _, err := j.Claim("t", "r", "c", [32]byte{}, ""); err != nil {
					t.Fatal(err)
				}
				if _, err := j.Result("t", "r", "c", [32]byte{}, []byte("x")); err != nil {
					t.Fatal(err)
				}
				wait(29 * time.Hour)
				begin(t, j, request(3, "3")).Done("stop", journal.Usage{}, nil)
				flush(t, j)
				if d := cmp.Diff(map[string]int{"requests": 4, "keys": 4, "answers": 3, "actions": 1, "results": 1}, records(t, m)); d != "" {
					t.Fatal(d)
				}
				if _, err := j.Begin(request(9, "0")); !isFinishedAs("req_0")(err) {
					t.Errorf("key within the retention: %v", err)
				}
				wait(time.Hour)
				if d := cmp.Diff(map[string]int{"requests": 1, "keys": 1}, records(t, m)); d != "" {
					t.Fatal(d)
				}
				if n := len(j.List(journal.Filter{})); n != 1 {
					t.Errorf("%d requests are listed", n)
				}
				if _, ok := j.Get("t", "req_0"); ok {
					t.Error("a dropped request is found")
				}
				begin(t, j, request(9, "0"))
				if a, err := j.Claim("t", "r", "c", [32]byte{}, ""); err != nil || !a.Granted {
					t.Errorf("an action that was dropped: %+v, %v", a, err)
				}
			})
		})
	}
}

func isFinishedAs(id string) func(error) bool {
	return func(err error) bool {
		e, ok := errors.AsType[*journal.FinishedError](err)
		return ok && e.Request.RequestID == id
	}
}

func TestJournal_KeyOutlivesItsRequest(t *testing.T) {
	for _, restart := range []bool{false, true} {
		t.Run(fmt.Sprintf("restart %t", restart), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				m := journal.NewMemory()
				o := journal.Options{Storage: m, MaxRequests: 2}
				j, stop := open(t, o)
				for i := range 10 {
					e := begin(t, j, request(i, fmt.Sprint(i)))
					reserve(t, e, 5)
					if i%2 == 0 {
						e.Done("stop", journal.Usage{}, &journal.Answer{Status: 200, Body: []byte("x")})
					} else {
						e.Fail([]byte(`{"code":"x"}`), 5, true)
					}
					flush(t, j)
				}
				begin(t, j, request(10, "10")).Fail(nil, 0, false)
				flush(t, j)
				time.Sleep(time.Second)
				if restart {
					if err := stop(); err != nil {
						t.Fatal(err)
					}
					j, _ = open(t, o)
				}
				if d := cmp.Diff(map[string]int{"requests": 2, "keys": 11}, records(t, m)); d != "" {
					t.Fatal(d)
				}
				if _, err := j.Begin(request(20, "0")); !isFinishedAs("req_0")(err) {
					t.Errorf("finished: %v", err)
				}
				_, err := j.Begin(request(20, "1"))
				if e, ok := errors.AsType[*journal.InterruptedError](err); !ok || e.Request.RequestID != "req_1" || e.Request.Delivered != 5 || !e.Request.FirstDeltaSent {
					t.Errorf("interrupted: %v", err)
				}
				time.Sleep(24*time.Hour + 2*time.Minute)
				if n := records(t, m)["keys"]; n > 2 {
					t.Errorf("%d keys are left after a day", n)
				}
				begin(t, j, request(20, "0"))
			})
		})
	}
}

func TestJournal_OldestAnswersMakeRoom(t *testing.T) {
	m := journal.NewMemory()
	j, stop := open(t, journal.Options{Storage: m, MaxStored: 100})
	for i := range 5 {
		begin(t, j, request(i, fmt.Sprint(i))).Done("stop", journal.Usage{}, &journal.Answer{Status: 200, Body: make([]byte, 40)})
		flush(t, j)
	}
	flush(t, j)
	check := func() {
		t.Helper()
		for i := range 5 {
			_, err := j.Begin(request(9, fmt.Sprint(i)))
			e, ok := errors.AsType[*journal.FinishedError](err)
			if kept := i >= 3; !ok || (e.Answer != nil) != kept || e.Request.ReplayRetained != kept {
				t.Errorf("request %d: %+v", i, e)
			}
		}
		if n := records(t, m)["answers"]; n != 2 {
			t.Errorf("%d answers are kept", n)
		}
	}
	check()
	j = reopened(t, m, stop, false)
	check()
}

func TestJournal_DropsTheOldestOfALabel(t *testing.T) {
	m := journal.NewMemory()
	j, stop := open(t, journal.Options{Storage: m, MaxRequests: 2})
	for i := range 9 {
		n := request(i, "")
		n.RequestID = "same"
		begin(t, j, n).Done("stop", journal.Usage{}, nil)
		flush(t, j)
	}
	flush(t, j)
	for range 2 {
		if n := len(j.List(journal.Filter{})); n != 2 {
			t.Errorf("%d requests are kept", n)
		}
		if r := get(t, j, "same"); r.Session != request(8, "").Session {
			t.Errorf("the label finds %s", r.Session)
		}
		if _, ok := j.Session(request(3, "").Session); ok {
			t.Error("a dropped request is found")
		}
		j = reopened(t, m, stop, true)
		m = m.Crash()
	}
}
