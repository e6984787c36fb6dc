// SPDX-License-Identifier: Apache-2.0
// Copyright The Segue Authors

package journal_test

import (
	"bytes"
	"encoding/hex"
	"errors"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/seguekv/segue/router/journal"
)

var update = flag.Bool("update", false, "write the golden records of the present format")

// golden is the file with one record a line: table, key and value in hex.
func golden(format string) string {
	return filepath.Join("testdata", "golden", "format-"+format+".txt")
}

// sample makes one record of every kind, in fixed time.
func sample(t *testing.T) *journal.Memory {
	m := journal.NewMemory()
	j, stop := open(t, journal.Options{Storage: m})
	full := begin(t, j, request(1, "key-1"))
	full.Attempt(journal.Attempt{Replica: "a", Kind: "generate", Epoch: 1, Lease: "l1", Revision: "r1"})
	time.Sleep(time.Second)
	full.EndAttempt(0, "reset", "connection lost")
	full.Attempt(journal.Attempt{Replica: "b", Kind: "takeover", Epoch: 1 << 40})
	reserve(t, full, 200)
	full.Tool("call_1", "search", [32]byte{1})
	full.Done("stop", journal.Usage{PromptTokens: 300, CompletionTokens: 200, TotalTokens: 500},
		&journal.Answer{Status: 200, ContentType: "application/json", Body: []byte(`{"x":1}`)})
	failed := begin(t, j, request(2, "key-2"))
	reserve(t, failed, 7)
	failed.Fail([]byte(`{"code":"upstream_decode_interrupted"}`), 7, true)
	left := begin(t, j, request(3, "key-3"))
	reserve(t, left, 70)
	for _, call := range []string{"c1", "c2"} {
		if _, err := j.Claim("t", "r", call, [32]byte{2}, "runner"); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := j.Result("t", "r", "c2", [32]byte{2}, []byte("done")); err != nil {
		t.Fatal(err)
	}
	flush(t, j)
	m = m.Crash()
	_ = stop()
	return m
}

func dump(t *testing.T, m *journal.Memory) string {
	t.Helper()
	var b strings.Builder
	for table := journal.TableMeta; table <= journal.TableResults; table++ {
		if err := m.Load(table, func(key, value []byte) error {
			_, err := fmt.Fprintf(&b, "%s %x %x\n", table, key, value)
			return err
		}); err != nil {
			t.Fatal(err)
		}
	}
	return b.String()
}

type record struct {
	table      journal.Table
	key, value []byte
}

// readGolden is the records of a format.
func readGolden(t testing.TB, format string) []record {
	t.Helper()
	b, err := os.ReadFile(golden(format))
	if err != nil {
		t.Fatal(err)
	}
	var out []record
	for line := range strings.Lines(string(b)) {
		name, rest, _ := strings.Cut(strings.TrimSuffix(line, "\n"), " ")
		k, v, _ := strings.Cut(rest, " ")
		var r record
		for r.table.String() != name {
			r.table++
		}
		var err1, err2 error
		r.key, err1 = hex.DecodeString(k)
		r.value, err2 = hex.DecodeString(v)
		if err := errors.Join(err1, err2); err != nil {
			t.Fatal(err)
		}
		out = append(out, r)
	}
	return out
}

func TestRecord_GoldenBytes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		got := dump(t, sample(t))
		if *update {
			if err := os.WriteFile(golden(journal.Format), []byte(got), 0o644); err != nil {
				t.Fatal(err)
			}
		}
		want, err := os.ReadFile(golden(journal.Format))
		if err != nil {
			t.Fatal(err)
		}
		if d := cmp.Diff(string(want), got); d != "" {
			t.Errorf("records changed: raise Format and keep reading the old one\n%s", d)
		}
	})
}

func TestRecord_GoldenIsRead(t *testing.T) {
	m := journal.NewMemory()
	for _, r := range readGolden(t, "1") {
		if err := m.Commit([]journal.Op{{Table: r.table, Key: r.key, Value: r.value}}); err != nil {
			t.Fatal(err)
		}
	}
	at := time.Date(2000, 1, 2, 0, 0, 0, 0, time.UTC)
	j, _ := open(t, journal.Options{Storage: m, Now: func() time.Time { return at }})
	one, two, three := get(t, j, "req_1"), get(t, j, "req_2"), get(t, j, "req_3")
	if one.Phase != journal.PhaseDone || one.Delivered != 200 || one.Attempts[1].Epoch != 1<<40 || one.Usage.TotalTokens != 500 || !one.ReplayRetained {
		t.Errorf("%+v", one)
	}
	if two.Phase != journal.PhaseFailed || two.Delivered != 7 || string(two.Error) != `{"code":"upstream_decode_interrupted"}` {
		t.Errorf("%+v", two)
	}
	if three.Phase != journal.PhaseFailed || three.Delivered != 128 || !three.UpperBound || !three.EndedAt.Equal(at) {
		t.Errorf("%+v", three)
	}
	if _, err := j.Begin(request(4, "key-1")); !is[*journal.FinishedError](err) {
		t.Errorf("key: %v", err)
	}
	if a, ok := j.Action("t", "r", "c2"); !ok || string(a.Result) != "done" {
		t.Errorf("action: %+v", a)
	}
}

// Each record is refused when it is cut off, or longer.
func TestRecord_IsReadAsAWhole(t *testing.T) {
	for _, r := range readGolden(t, "1") {
		if r.table == journal.TableMeta || r.table == journal.TableResults || r.table == journal.TableAnswers {
			continue // text, or text at the end
		}
		for n := range r.value {
			if _, err := journal.Recoded(r.table, r.value[:n]); !errors.Is(err, journal.ErrFormat) {
				t.Errorf("%s, %d of %d bytes: %v", r.table, n, len(r.value), err)
			}
		}
		if _, err := journal.Recoded(r.table, append(bytes.Clone(r.value), 0)); !errors.Is(err, journal.ErrFormat) {
			t.Errorf("%s, one byte more: %v", r.table, err)
		}
	}
}

func TestOpen_NamesTheDamagedRecord(t *testing.T) {
	m := journal.NewMemory()
	for _, r := range readGolden(t, "1") {
		if r.table == journal.TableRequests {
			r.value = r.value[1:]
		}
		if err := m.Commit([]journal.Op{{Table: r.table, Key: r.key, Value: r.value}}); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := journal.Open(journal.Options{Storage: m}); !errors.Is(err, journal.ErrFormat) || !strings.Contains(err.Error(), "requests/") {
		t.Errorf("got %v", err)
	}
}

// FuzzRecord: a decoder never fails badly, and accepts only what the encoder makes.
func FuzzRecord(f *testing.F) {
	for _, r := range readGolden(f, "1") {
		f.Add(uint8(r.table), r.value)
	}
	f.Fuzz(func(t *testing.T, table uint8, value []byte) {
		again, err := journal.Recoded(journal.Table(table), value)
		if err == nil && !bytes.Equal(again, value) {
			t.Errorf("%s: %x was accepted and is written as %x", journal.Table(table), value, again)
		}
	})
}
