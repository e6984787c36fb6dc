// SPDX-License-Identifier: Apache-2.0
// Copyright The Segue Authors

package journal

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"slices"
)

// Format is the version of the records that this package reads and writes.
const Format = "1"

// formatKey is where the version is, in TableMeta.
const formatKey = "segue.router.journal.format"

// checkFormat reports whether the storage has a version at all.
func checkFormat(s Storage) (bool, error) {
	v, err := s.Read(TableMeta, []byte(formatKey))
	if err != nil {
		return false, fmt.Errorf("journal: read format: %w", err)
	}
	if v != nil && string(v) != Format {
		return true, fmt.Errorf("%w: the journal has format %q, this program reads format %s: use the program that wrote it, or move the file away to begin a new journal", ErrFormat, cut(string(v), 16), Format)
	}
	return v != nil, nil
}

// errEnough ends a Load.
var errEnough = errors.New("enough")

// recover fills the index, and makes durable what the crash of the last process came to.
func (j *Journal) recover() error {
	known, err := checkFormat(j.store)
	if err != nil {
		return err
	}
	var ops []Op
	if !known {
		for t := range tables {
			if err := j.store.Load(t, func(_, _ []byte) error { return errEnough }); errors.Is(err, errEnough) {
				return fmt.Errorf("%w: records without a format version: this isn't a router's journal; name another file", ErrFormat)
			} else if err != nil {
				return fmt.Errorf("journal: read %s: %w", t, err)
			}
		}
		ops = append(ops, Op{TableMeta, []byte(formatKey), []byte(Format)})
	}
	for _, f := range []func([]Op) ([]Op, error){j.loadRequests, j.loadKeys, j.loadActions} {
		if ops, err = f(ops); err != nil {
			return err
		}
	}
	if len(ops) == 0 {
		return nil
	}
	if err := j.store.Commit(ops); err != nil {
		return fmt.Errorf("journal: recovery: %w", err)
	}
	return nil
}

// load reads a table; f's errors tell which record.
func load(s Storage, t Table, f func(key, value []byte) error) error {
	return s.Load(t, func(key, value []byte) error {
		if err := f(key, value); err != nil {
			return fmt.Errorf("record %s/%.64q: %w", t, key, err)
		}
		return nil
	})
}

// loadReservations is what may have been written to clients of open requests.
func loadReservations(s Storage) (map[string]int, error) {
	reserved := map[string]int{}
	err := load(s, TableReservations, func(key, value []byte) error {
		r := &reader{b: value}
		reserved[string(key)] = r.int(maxTokens + 2*runLength)
		return r.end()
	})
	return reserved, err
}

func (j *Journal) loadRequests(ops []Op) ([]Op, error) {
	reserved, err := loadReservations(j.store)
	if err != nil {
		return nil, err
	}
	var ended []*item
	states := map[*item]*stored{}
	now := j.o.Now().UTC()
	err = load(j.store, TableRequests, func(key, value []byte) error {
		s, err := decodeRequest(key, value)
		if err != nil {
			return err
		}
		it := &item{
			session: s.Session, tenant: s.Tenant, label: s.RequestID, started: nanos(s.StartedAt),
			keyed: s.KeyUsed, key: s.key,
		}
		if !s.Ended() {
			s.crash(reserved[s.Session], now)
			ops = append(ops, Op{TableRequests, []byte(s.Session), s.encode()})
		}
		it.ended = nanos(s.EndedAt)
		ended = append(ended, it)
		// finish needs three fields only.
		states[it] = &stored{Request: Request{Phase: s.Phase, EndedAt: s.EndedAt, ReplayRetained: s.ReplayRetained, FirstDeltaSent: s.FirstDeltaSent, Delivered: s.Delivered, UpperBound: s.UpperBound}, answerSize: s.answerSize}
		return nil
	})
	if err != nil {
		return nil, err
	}
	for id := range reserved {
		ops = append(ops, Op{TableReservations, []byte(id), nil})
	}
	slices.SortStableFunc(ended, func(a, b *item) int { return cmp.Compare(a.started, b.started) })
	for _, it := range ended {
		j.add(it)
	}
	slices.SortStableFunc(ended, func(a, b *item) int { return cmp.Compare(a.ended, b.ended) })
	for _, it := range ended {
		j.finish(it, states[it])
	}
	j.recovered = states
	return ops, nil
}

func (j *Journal) loadKeys(ops []Op) ([]Op, error) {
	var tombs []used
	err := load(j.store, TableKeys, func(key, value []byte) error {
		if len(key) != 32 {
			return fmt.Errorf("%w: key of %d bytes", ErrFormat, len(key))
		}
		d := [32]byte(key)
		k, err := decodeKey(value)
		if err != nil {
			return err
		}
		if it := j.sessions[k.session]; it != nil {
			s := j.recovered[it]
			k.outcome, k.delivered, k.upper, k.ended = outcomeOf(&s.Request), s.Delivered, s.UpperBound, it.ended
		} else {
			if k.outcome == outcomeRunning {
				// Its end was never written: it was about to be taken over, after a failure before any delivery.
				k.outcome, k.ended = outcomeFailed, max(k.ended, nanos(j.o.Now())-1)
			}
			tombs = append(tombs, used{d, k.ended})
		}
		if b := k.encode(); !bytes.Equal(b, value) {
			ops = append(ops, Op{TableKeys, d[:], b})
		}
		j.keys[d] = k
		return nil
	})
	j.recovered = nil
	slices.SortStableFunc(tombs, func(a, b used) int { return cmp.Compare(a.at, b.at) })
	for _, t := range tombs {
		j.tombs.push(t)
	}
	return ops, err
}

func (j *Journal) loadActions(ops []Op) ([]Op, error) {
	var claims []used
	err := load(j.store, TableActions, func(key, value []byte) error {
		if len(key) != 32 {
			return fmt.Errorf("%w: key of %d bytes", ErrFormat, len(key))
		}
		r, err := decodeAction(value)
		if err != nil {
			return err
		}
		a := &action{digest: [32]byte(key), record: *r, granted: true}
		j.actions[a.digest] = a
		j.resultBytes += int64(r.size)
		claims = append(claims, used{a.digest, r.claimed})
		return nil
	})
	slices.SortStableFunc(claims, func(a, b used) int { return cmp.Compare(a.at, b.at) })
	for _, c := range claims {
		j.claims.push(c)
	}
	return ops, err
}
