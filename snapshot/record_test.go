// SPDX-License-Identifier: Apache-2.0
// Copyright The Segue Authors

package snapshot_test

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"slices"
	"testing"

	"github.com/zeebo/xxh3"

	"github.com/seguekv/segue/fence"
	"github.com/seguekv/segue/snapshot"
)

// sample is a stream of every kind of record.
func sample(t testing.TB, n byte) (*snapshot.Chain, []record) {
	t.Helper()
	h := head(baseOf(n, 5), 18, 9)
	h.Base = 2
	c := chain(t, h, 4)
	return c, records(c, 7)
}

// isDamage reports whether err is one of the refusals of damaged bytes.
func isDamage(err error) bool {
	var order *snapshot.OrderError
	var version *snapshot.VersionError
	return errors.Is(err, snapshot.ErrDigest) || errors.Is(err, snapshot.ErrFormat) || errors.As(err, &order) || errors.As(err, &version)
}

// isUnknown reports whether err says that the record belongs to nothing that is held.
func isUnknown(err error) bool {
	return errors.Is(err, snapshot.ErrUnknownSession) || errors.Is(err, snapshot.ErrUnknownBase) || errors.Is(err, fence.ErrStaleEpoch)
}

// No changed byte is accepted (G6): the record is refused, and what is held stays a beginning of the chain.
func TestReader_RefusesEveryFlippedByte(t *testing.T) {
	c, list := sample(t, 1)
	start := 0
	all := join(list)
	for i, r := range list {
		for o := range r.bytes {
			for _, mask := range []byte{0x01, 0x02, 0x04, 0x08, 0x10, 0x20, 0x40, 0x80, 0xff} {
				frame := slices.Clone(all)
				frame[start+o] ^= mask
				s, b := newStore(1 << 20)
				errs := receive(s, frame)
				where := fmt.Sprintf("record %d (kind %d), byte %d ^ %#x", i, r.kind, o, mask)
				if len(errs) == 0 {
					t.Fatalf("%s: accepted", where)
				}
				// The key of a row or boundary may name something that isn't held, and a base that has
				// become another kind is of a base that isn't held. Everything else is damage.
				key := o >= 8 && o < 36
				if r.kind == snapshot.KindBase {
					key = o == 6
				}
				if first := errs[0]; !isDamage(first) && (!key || !isUnknown(first)) {
					t.Fatalf("%s: %v", where, first)
				}
				checkPrefix(t, s, c)
				for _, x := range s.Offers() {
					if x.Committed == c.Committed() && i < len(list)-1 {
						t.Fatalf("%s: everything is covered", where)
					}
					s.Release(x.Session, x.Epoch)
				}
				if used, _ := b.Used(); used != 0 {
					t.Fatalf("%s: %d bytes stay reserved", where, used)
				}
			}
		}
		start += len(r.bytes)
	}
}

// A frame that ends early is refused unless it ends with a record; then it is a shorter beginning.
func TestReader_RefusesEveryTruncation(t *testing.T) {
	c, list := sample(t, 1)
	all := join(list)
	ends := map[int]bool{0: true}
	end := 0
	for _, r := range list {
		end += len(r.bytes)
		ends[end] = true
	}
	for n := range all {
		s, _ := newStore(1 << 20)
		errs := receive(s, all[:n])
		if ends[n] != (len(errs) == 0) {
			t.Fatalf("%d of %d bytes: %v", n, len(all), errs)
		}
		for _, err := range errs {
			if !errors.Is(err, snapshot.ErrFormat) || !errors.Is(err, io.ErrUnexpectedEOF) && !errors.Is(err, io.EOF) {
				t.Fatalf("%d of %d bytes: %v", n, len(all), err)
			}
		}
		checkPrefix(t, s, c)
	}
}

// Records that are left out, repeated or swapped are refused, and nothing after them is accepted.
func TestStore_RefusesRecordsOutOfOrder(t *testing.T) {
	c, list := sample(t, 1)
	var order *snapshot.OrderError
	check := func(what string, changed []record) {
		t.Helper()
		s, _ := newStore(1 << 20)
		errs := receive(s, join(changed))
		if len(errs) == 0 || !errors.As(errs[0], &order) && !isUnknown(errs[0]) {
			t.Errorf("%s: %v", what, errs)
		}
		if o, ok := offer(s, c.Head().Session); ok && o.Rows > 0 {
			t.Errorf("%s: %d rows are held", what, o.Rows)
		}
	}
	for i := range list {
		if i < len(list)-1 {
			check(fmt.Sprint("missing ", i), slices.Delete(slices.Clone(list), i, i+1))
			swapped := slices.Clone(list)
			swapped[i], swapped[i+1] = swapped[i+1], swapped[i]
			check(fmt.Sprint("swapped ", i), swapped)
		}
		for j := i; j < len(list); j++ {
			if list[i].kind == snapshot.KindBase && j == 0 {
				continue // a base twice in a row begins twice
			}
			if list[i].kind == snapshot.KindBase && j == len(list)-1 {
				continue // a base at the end begins anew
			}
			check(fmt.Sprintf("%d again after %d", i, j), slices.Insert(slices.Clone(list), j+1, list[i]))
		}
	}
}

// A base that is begun again, or replaced, covers nothing until its first boundary.
func TestStore_NewBaseCoversNothing(t *testing.T) {
	c, list := sample(t, 1)
	s, b := newStore(1 << 20)
	mustReceive(t, s, list...)
	before, _ := b.Used()
	mustReceive(t, s, list[0])
	if o, _ := offer(s, c.Head().Session); o.Rows != 0 || o.Committed != 0 {
		t.Fatalf("held %+v", o)
	}
	if after, _ := b.Used(); after != before {
		t.Fatalf("%d bytes reserved, want %d", after, before)
	}
	mustReceive(t, s, list[1:]...)
	next := *c.Head()
	next.Base++
	d := chain(t, next, 1)
	mustReceive(t, s, records(d, 100)[:2]...)
	var none *snapshot.NotCoveredError
	if _, err := s.Takeover(next.Session, 6, needOf(&next, 0)); !errors.As(err, &none) {
		t.Fatal(err)
	}
}

// reseal renews the trailer of a changed record, as a forger would.
func reseal(r record) record {
	b := slices.Clone(r.bytes)
	n := len(b) - 8
	covered := b[:n]
	if r.kind == snapshot.KindRows {
		covered = append(slices.Clone(b[:48]), b[n-16:n]...)
	}
	binary.LittleEndian.PutUint64(b[n:], xxh3.Hash(covered))
	return record{r.kind, b}
}

// Even with a right trailer a row or boundary counts only at its own place.
func TestStore_RefusesForgedPlaces(t *testing.T) {
	c, list := sample(t, 1)
	other := *c.Head()
	other.Session = session(2)
	later := *c.Head()
	later.Base++
	raised := *c.Head()
	raised.Epoch++
	relabel := func(h snapshot.Head) func(r record) record {
		return func(r record) record {
			copy(r.bytes[8:], h.Session[:])
			binary.LittleEndian.PutUint64(r.bytes[24:], uint64(h.Epoch))
			binary.LittleEndian.PutUint32(r.bytes[32:], h.Base)
			return r
		}
	}
	first := func(n int) func(r record) record {
		return func(r record) record {
			binary.LittleEndian.PutUint32(r.bytes[36:], uint32(n))
			return r
		}
	}
	swapRows := func(r record) record {
		p := r.bytes[48:]
		a, b := slices.Clone(p[:rowBytes]), slices.Clone(p[rowBytes:2*rowBytes])
		copy(p, b)
		copy(p[rowBytes:], a)
		return r
	}
	rowsAt := func(i int) record { return list[1+i] } // records 1 … are rows of 7 positions
	for name, x := range map[string]struct {
		before []record
		forged record
		change func(record) record
	}{
		"rows of another session": {[]record{{snapshot.KindBase, snapshot.AppendBaseRecord(nil, &other)}}, rowsAt(0), relabel(other)},
		"rows of an earlier base": {[]record{{snapshot.KindBase, snapshot.AppendBaseRecord(nil, &later)}}, rowsAt(0), relabel(later)},
		"rows of an earlier epoch": {
			[]record{{snapshot.KindBase, snapshot.AppendBaseRecord(nil, &raised)}}, rowsAt(0), relabel(raised),
		},
		"rows of other positions": {list[:1], rowsAt(1), first(0)},
		"rows swapped":            {list[:1], rowsAt(0), swapRows},
		"boundary's token": {list[:4], list[4], func(r record) record {
			r.bytes[48]++
			return r
		}},
		"boundary's seed": {list[:4], list[4], func(r record) record {
			r.bytes[52]++
			return r
		}},
		"boundary's seal": {list[:4], list[4], func(r record) record {
			r.bytes[70]++
			return r
		}},
	} {
		s, _ := newStore(1 << 20)
		mustReceive(t, s, x.before...)
		forged := reseal(x.change(record{x.forged.kind, slices.Clone(x.forged.bytes)}))
		if errs := receive(s, forged.bytes); len(errs) != 1 || !errors.Is(errs[0], snapshot.ErrDigest) {
			t.Errorf("%s: %v", name, errs)
		}
		if o := s.Offers(); len(o) != 0 {
			t.Errorf("%s: the base is still held: %+v", name, o)
		}
	}
}

func TestReader_RefusesMalformedHeaders(t *testing.T) {
	_, list := sample(t, 1)
	put := func(at, size int, v uint64) func(b []byte) {
		return func(b []byte) {
			for i := range size {
				b[at+i] = byte(v >> (8 * i))
			}
		}
	}
	for name, change := range map[string]func(b []byte){
		"magic":  put(0, 4, 0),
		"stream": put(7, 1, 1),
		"first":  put(36, 4, snapshot.MaxTokens+1),
		"count":  put(40, 4, snapshot.MaxTokens+1),
		"length": put(44, 4, snapshot.MaxRecordBytes+1),
	} {
		b := slices.Clone(list[0].bytes)
		change(b)
		if _, err := snapshot.NewReader(bytes.NewReader(b)).Next(); !errors.Is(err, snapshot.ErrFormat) {
			t.Errorf("%s: %v", name, err)
		}
	}
	b := slices.Clone(list[0].bytes)
	put(4, 2, 2)(b)
	_, err := snapshot.NewReader(bytes.NewReader(b)).Next()
	if v, ok := errors.AsType[*snapshot.VersionError](err); !ok || v.Got != 2 || v.Want != snapshot.FormatVersion {
		t.Errorf("version: %v", err)
	}
	s, _ := newStore(1 << 20)
	mustReceive(t, s, list[0])
	b = slices.Clone(list[4].bytes)
	put(6, 1, 9)(b)
	if errs := receive(s, b); len(errs) != 1 || !errors.Is(errs[0], snapshot.ErrFormat) {
		t.Errorf("kind: %v", errs)
	}
}

// Every field of a base's payload is checked although the trailer is right.
func TestReader_RefusesMalformedHeads(t *testing.T) {
	c := exampleChain(t)
	good := record{snapshot.KindBase, snapshot.AppendBaseRecord(nil, c.Head())}
	put := func(at int, v uint32) func(b []byte) []byte {
		return func(b []byte) []byte {
			binary.LittleEndian.PutUint32(b[at:], v)
			return b
		}
	}
	for name, change := range map[string]func(b []byte) []byte{
		"session of another":  put(48, 1),
		"epoch 0":             func(b []byte) []byte { return put(24, 0)(put(64, 0)(b)) },
		"another base":        put(72, 9),
		"no layers":           put(76, 0),
		"many layers":         put(76, 1<<31),
		"huge K row":          put(80, 1<<31),
		"empty row":           func(b []byte) []byte { return put(80, 0)(put(84, 0)(b)) },
		"long fingerprint":    put(96, 1<<30),
		"no output":           put(118, 0),
		"huge output":         put(118, 1<<31),
		"no prompt":           put(122, 0),
		"huge prompt":         put(122, 1<<30),
		"restored ids lacked": put(134, 1),
		"a byte too many": func(b []byte) []byte {
			b = slices.Insert(b, len(b)-8, 0)
			return put(44, 91)(b)
		},
		"a byte too few": func(b []byte) []byte {
			b = slices.Delete(b, len(b)-9, len(b)-8)
			return put(44, 89)(b)
		},
	} {
		forged := reseal(record{snapshot.KindBase, change(slices.Clone(good.bytes))})
		s, _ := newStore(1 << 40)
		if errs := receive(s, forged.bytes); len(errs) != 1 || !errors.Is(errs[0], snapshot.ErrFormat) {
			t.Errorf("%s: %v", name, errs)
		}
		if n, _ := s.Records(); n != 0 {
			t.Errorf("%s: the store remembers a session", name)
		}
	}
}

// A refused record can be skipped; the next one is read.
func TestReader_SkipGoesOn(t *testing.T) {
	_, first := sample(t, 1)
	_, second := sample(t, 2)
	s, _ := newStore(1 << 20)
	mustReceive(t, s, first[0])
	var mixed []record
	for i := 1; i < len(first); i++ {
		mixed = append(mixed, first[i], second[i-1])
	}
	mixed[0] = record{mixed[0].kind, slices.Clone(mixed[0].bytes)}
	mixed[0].bytes[60] ^= 1
	errs := receive(s, join(append(mixed, second[len(second)-1])))
	if len(errs) != len(first)-1 {
		t.Fatalf("%d refusals, want %d: %v", len(errs), len(first)-1, errs)
	}
	for _, err := range errs {
		if !errors.Is(err, snapshot.ErrDigest) {
			t.Errorf("later records tell another reason: %v", err)
		}
	}
	if o, _ := offer(s, session(2)); o.Committed != 4 {
		t.Fatalf("second session: %+v", o)
	}
}

// Frames arrive in pieces of any size.
func TestReader_ReadsInPieces(t *testing.T) {
	c, list := sample(t, 1)
	all := join(list)
	for size := 1; size < 70; size++ {
		s, _ := newStore(1 << 20)
		r := snapshot.NewReader(&pieces{b: all, size: size})
		for {
			h, err := r.Next()
			if errors.Is(err, io.EOF) {
				break
			}
			if err != nil {
				t.Fatal(err)
			}
			if h.Kind == snapshot.KindBase {
				var x snapshot.Head
				if x, err = r.Base(); err == nil {
					err = s.Begin(x, [16]byte{})
				}
			} else {
				_, _, err = s.Apply(r)
			}
			if err != nil {
				t.Fatal(err)
			}
		}
		if o, _ := offer(s, c.Head().Session); o.Committed != c.Committed() {
			t.Fatalf("pieces of %d: %+v", size, o)
		}
	}
}

type pieces struct {
	b    []byte
	size int
}

func (p *pieces) Read(b []byte) (int, error) {
	if len(p.b) == 0 {
		return 0, io.EOF
	}
	n := copy(b[:min(len(b), p.size)], p.b)
	p.b = p.b[n:]
	return n, nil
}

func TestParseSessionID_RoundTrip(t *testing.T) {
	id := session(0xab)
	if got, err := snapshot.ParseSessionID(id.String()); err != nil || got != id {
		t.Fatalf("got %v, %v", got, err)
	}
	for _, bad := range []string{"", "00", id.String() + "0", id.String()[:31] + "x"} {
		if _, err := snapshot.ParseSessionID(bad); err == nil {
			t.Errorf("%q is accepted", bad)
		}
	}
}

func TestState_ValidateFindsMisfits(t *testing.T) {
	c := chain(t, head(baseOf(1, 1), 20, 8), 3)
	for name, change := range map[string]func(s *snapshot.State){
		"geometry":    func(s *snapshot.State) { s.Geometry.Layers = nil },
		"no prompt":   func(s *snapshot.State) { s.Prompt = nil },
		"no output":   func(s *snapshot.State) { s.Output = nil },
		"draws":       func(s *snapshot.State) { s.Sampler.Draws++ },
		"block less":  func(s *snapshot.State) { s.Blocks = s.Blocks[:1] },
		"block more":  func(s *snapshot.State) { s.Blocks = append(s.Blocks, s.Blocks[0]) },
		"short block": func(s *snapshot.State) { s.Blocks = [][]byte{s.Blocks[0], s.Blocks[1][:5*rowBytes]} },
	} {
		st, err := c.State()
		if err != nil {
			t.Fatal(err)
		}
		if change(st); st.Validate() == nil {
			t.Errorf("%s: valid", name)
		}
	}
}
