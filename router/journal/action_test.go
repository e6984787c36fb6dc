// SPDX-License-Identifier: Apache-2.0
// Copyright The Segue Authors

package journal_test

import (
	"errors"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/seguekv/segue/router/journal"
)

func TestJournal_ActionLife(t *testing.T) {
	for _, crash := range []bool{false, true} {
		m := journal.NewMemory()
		j, stop := open(t, journal.Options{Storage: m})
		args, other := [32]byte{1}, [32]byte{2}
		if _, err := j.Result("t", "r", "c", args, nil); !errors.Is(err, journal.ErrNotClaimed) {
			t.Errorf("result before a claim: %v", err)
		}
		a, err := j.Claim("t", "r", "c", args, "runner-1")
		if err != nil || !a.Granted || a.State != journal.ActionClaimed || a.By != "runner-1" {
			t.Fatalf("first claim: %+v, %v", a, err)
		}
		if crash {
			m = m.Crash()
			j, stop = open(t, journal.Options{Storage: m})
		}
		if a, err = j.Claim("t", "r", "c", args, "runner-2"); err != nil || a.Granted || a.State != journal.ActionClaimed || a.By != "runner-1" {
			t.Errorf("second claim: %+v, %v", a, err)
		}
		if _, err = j.Claim("t", "r", "c", other, "b"); !is[*journal.ArgumentsError](err) {
			t.Errorf("claim with other arguments: %v", err)
		}
		if _, err = j.Result("t", "r", "c", other, nil); !is[*journal.ArgumentsError](err) {
			t.Errorf("result with other arguments: %v", err)
		}
		if _, err = j.Result("t", "r", "c", args, make([]byte, journal.MaxResult+1)); !errors.Is(err, journal.ErrInvalid) {
			t.Errorf("result that is too large: %v", err)
		}
		if a, err = j.Claim("u", "r", "c", args, "b"); err != nil || !a.Granted {
			t.Errorf("claim of another tenant: %+v, %v", a, err)
		}
		if a, err = j.Result("t", "r", "c", args, []byte("first")); err != nil || string(a.Result) != "first" || a.State != journal.ActionDone {
			t.Errorf("result: %+v, %v", a, err)
		}
		if crash {
			m = m.Crash()
			j, stop = open(t, journal.Options{Storage: m})
		}
		if a, err = j.Result("t", "r", "c", args, []byte("second")); err != nil || string(a.Result) != "first" {
			t.Errorf("second result: %+v, %v", a, err)
		}
		if a, err = j.Claim("t", "r", "c", args, "b"); err != nil || a.Granted || string(a.Result) != "first" || a.State != journal.ActionDone {
			t.Errorf("claim after the result: %+v, %v", a, err)
		}
		if a, ok := j.Action("t", "r", "c"); !ok || string(a.Result) != "first" || a.Granted {
			t.Errorf("read: %+v", a)
		}
		if _, ok := j.Action("t", "r", "d"); ok {
			t.Error("an unknown action is found")
		}
		if err := stop(); err != nil {
			t.Fatal(err)
		}
	}
}

func TestJournal_ActionNamesDontRunTogether(t *testing.T) {
	j, _ := open(t, journal.Options{})
	for _, n := range [][3]string{{"t", "a", "bc"}, {"t", "ab", "c"}, {"ta", "b", "c"}, {"", "ta", "bc"}} {
		if a, err := j.Claim(n[0], n[1], n[2], [32]byte{}, ""); err != nil || !a.Granted {
			t.Errorf("%q: %+v, %v", n, a, err)
		}
	}
}

func TestJournal_OneOfManyClaimsIsGranted(t *testing.T) {
	j, _ := open(t, journal.Options{})
	var granted atomic.Int32
	var group sync.WaitGroup
	for range 50 {
		group.Go(func() {
			a, err := j.Claim("t", "r", "c", [32]byte{}, "")
			if err != nil {
				t.Error(err)
			}
			if a.Granted {
				granted.Add(1)
			}
		})
	}
	group.Wait()
	if n := granted.Load(); n != 1 {
		t.Errorf("%d claims were granted", n)
	}
}

// A claim that nobody was told of is granted to the next one that asks.
func TestJournal_ClaimThatWasNotDurableInTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &slow{Memory: journal.NewMemory(), time: 5 * time.Second}
		j, _ := open(t, journal.Options{Storage: s})
		if _, err := j.Claim("t", "r", "c", [32]byte{}, "a"); !errors.Is(err, journal.ErrUnavailable) {
			t.Fatalf("claim on a hanging disk: %v", err)
		}
		time.Sleep(time.Minute)
		s.set(0)
		if a, err := j.Claim("t", "r", "c", [32]byte{}, "b"); err != nil || !a.Granted {
			t.Errorf("the next claim: %+v, %v", a, err)
		}
		if a, err := j.Claim("t", "r", "c", [32]byte{}, "a"); err != nil || a.Granted {
			t.Errorf("the one after it: %+v, %v", a, err)
		}
	})
}

func TestJournal_LedgerIsBounded(t *testing.T) {
	j, _ := open(t, journal.Options{MaxActions: 2, MaxStored: 10})
	claim := func(call string) error {
		_, err := j.Claim("t", "r", call, [32]byte{}, "")
		return err
	}
	if err := errors.Join(claim("1"), claim("2")); err != nil {
		t.Fatal(err)
	}
	if err := claim("3"); !errors.Is(err, journal.ErrFull) {
		t.Errorf("third action: %v", err)
	}
	if _, err := j.Claim("t", strings.Repeat("r", journal.MaxLabel+1), "c", [32]byte{}, ""); !errors.Is(err, journal.ErrInvalid) {
		t.Errorf("long name: %v", err)
	}
	if _, err := j.Result("t", "r", "1", [32]byte{}, make([]byte, 8)); err != nil {
		t.Fatal(err)
	}
	if _, err := j.Result("t", "r", "2", [32]byte{}, make([]byte, 8)); !errors.Is(err, journal.ErrFull) {
		t.Errorf("results beyond the bound: %v", err)
	}
}
