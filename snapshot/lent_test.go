// SPDX-License-Identifier: Apache-2.0
// Copyright The Segue Authors

package snapshot_test

import (
	"bytes"
	"errors"
	"slices"
	"testing"

	"github.com/seguekv/segue/snapshot"
)

// The bytes that a caller lends for a call are the caller's again after it, whole blocks and parts of one alike.
func TestChain_AppendRowsCopies(t *testing.T) {
	const prompt = 3*snapshot.BlockRows + 5
	c := chain(t, head(snapshot.BaseID{Session: session(1), Epoch: 1}, prompt, 4), 0)
	if c.Rows() != prompt {
		t.Fatalf("%d rows, want the prompt's", c.Rows())
	}
	for _, step := range []int{1, 5, snapshot.BlockRows, prompt} {
		c, err := snapshot.NewChain(head(snapshot.BaseID{Session: session(1), Epoch: 1}, prompt, 4))
		if err != nil {
			t.Fatal(err)
		}
		lent := make([]byte, step*rowBytes)
		for c.Rows() < prompt {
			n := min(step, prompt-c.Rows())
			copy(lent, rowsOf(c.Rows(), n))
			if err := c.AppendRows(c.Rows(), lent[:n*rowBytes]); err != nil {
				t.Fatal(err)
			}
			for i := range lent {
				lent[i] = 0xa5 // the next run's
			}
		}
		if got := bytes.Join(c.Views(nil, 0, prompt), nil); !bytes.Equal(got, rowsOf(0, prompt)) {
			t.Errorf("%d rows at a time: the chain changed with the caller's buffer", step)
		}
	}
}

// A damaged row is refused with its own record: no boundary, which a takeover could use, has to come first.
func TestReader_DamagedRowIsRefusedAtOnce(t *testing.T) {
	list := records(chain(t, head(snapshot.BaseID{Session: session(1), Epoch: 1}, 20, 4), 1), 8)
	damaged := 0
	for i, r := range list {
		if r.kind != snapshot.KindRows {
			continue
		}
		s, _ := newStore(1 << 20)
		if errs := receive(s, join(list[:i])); len(errs) > 0 {
			t.Fatalf("undamaged records: %v", errs)
		}
		before := s.Offers()
		if len(before) != 1 {
			t.Fatalf("offers %v", before)
		}
		for at := 48; at < len(r.bytes)-24; at += 7 { // between header and digests
			bad := slices.Clone(r.bytes)
			bad[at] ^= 0x10
			s, _ := newStore(1 << 20)
			receive(s, join(list[:i]))
			errs := receive(s, bad)
			if len(errs) != 1 || !errors.Is(errs[0], snapshot.ErrDigest) {
				t.Fatalf("record %d with byte %d changed: %v, want ErrDigest", i, at, errs)
			}
			damaged++
		}
	}
	if damaged == 0 {
		t.Fatal("nothing was damaged")
	}
}
