// SPDX-License-Identifier: Apache-2.0
// Copyright The Segue Authors

package journal

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"time"
)

// Filter chooses requests. The zero value chooses all.
type Filter struct {
	Tenant string // "" for all tenants
	Phase  string
	// Since leaves out what started earlier.
	Since time.Time
	// Limit bounds the answer; 0 for no bound.
	Limit int
}

func (f Filter) match(r *Request) bool {
	return (f.Tenant == "" || r.Tenant == f.Tenant) && (f.Phase == "" || r.Phase == f.Phase) && !r.StartedAt.Before(f.Since)
}

// Get finds a tenant's request by its session id, or the newest one with that request id.
func (j *Journal) Get(tenant, id string) (Request, bool) {
	j.mu.Lock()
	it := j.find(tenant, id)
	j.mu.Unlock()
	return j.view(it)
}

// Session finds a request of any tenant by its session id.
func (j *Journal) Session(id string) (Request, bool) {
	j.mu.Lock()
	it := j.sessions[id]
	j.mu.Unlock()
	return j.view(it)
}

// List returns requests, the newest first.
func (j *Journal) List(f Filter) []Request {
	out := []Request{}
	_ = j.each(f, func(r Request) error {
		out = append(out, r)
		return nil
	})
	return out
}

// Export writes one JSON object a line, the newest request first.
func (j *Journal) Export(w io.Writer, f Filter) error {
	enc := json.NewEncoder(w)
	return j.each(f, func(r Request) error { return enc.Encode(r) })
}

// each calls f for what the filter chooses, the newest first, until f fails.
func (j *Journal) each(filter Filter, f func(Request) error) error {
	j.mu.Lock()
	items := make([]*item, 0, len(j.order)-j.gone)
	since := nanos(filter.Since)
	for _, it := range slices.Backward(j.order) {
		if !it.gone && it.started >= since && (filter.Tenant == "" || it.tenant == filter.Tenant) &&
			(it.entry != nil || filter.Phase == "" || it.phase == filter.Phase) {
			items = append(items, it)
		}
	}
	j.mu.Unlock()
	n := 0
	for _, it := range items {
		if filter.Limit > 0 && n == filter.Limit {
			break
		}
		r, ok := j.view(it)
		if !ok || !filter.match(&r) {
			continue
		}
		n++
		if err := f(r); err != nil {
			return err
		}
	}
	return nil
}

// view is a request as it is now. False: there is none, it was dropped meanwhile, or it can't be read.
func (j *Journal) view(it *item) (Request, bool) {
	if it == nil {
		return Request{}, false
	}
	j.mu.Lock()
	e := it.entry
	j.mu.Unlock()
	if e != nil {
		return e.view(), true
	}
	id := []byte(it.session)
	record, err := j.store.Read(TableRequests, id)
	if err == nil && record == nil {
		return Request{}, false
	}
	var s *stored
	if err == nil {
		s, err = decodeRequest(id, record)
	}
	if err != nil {
		j.o.Log.Error("journal: record is unreadable", "table", TableRequests, "session", it.session, "err", err)
		return Request{}, false
	}
	return s.clone(), true
}

// answer is the answer retained for a request, nil if there is none.
func (j *Journal) answer(it *item) *Answer {
	if it == nil {
		return nil
	}
	j.mu.Lock()
	e := it.entry
	j.mu.Unlock()
	if e != nil {
		e.mu.Lock()
		defer e.mu.Unlock()
		return e.answer
	}
	record, err := j.store.Read(TableAnswers, []byte(it.session))
	if err != nil || record == nil {
		return nil
	}
	a, err := decodeAnswer(record)
	if err != nil {
		j.o.Log.Error("journal: record is unreadable", "table", TableAnswers, "session", it.session, "err", err)
		return nil
	}
	return a
}

// ReadFile calls f for each request in a journal's file, the newest first, until f fails. It changes nothing, and no
// router may have the file open. What was open when its router ended reads as Open would have it.
func ReadFile(path string, f func(Request) error) (err error) {
	store, err := openReadOnly(path)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, store.Close()) }()
	if known, err := checkFormat(store); err != nil {
		return err
	} else if !known {
		return fmt.Errorf("%w: %s isn't a router's journal", ErrFormat, path)
	}
	reserved, err := loadReservations(store)
	if err != nil {
		return err
	}
	type found struct {
		session string
		started time.Time
	}
	var all []found
	if err := load(store, TableRequests, func(key, value []byte) error {
		s, err := decodeRequest(key, value)
		if err == nil {
			all = append(all, found{s.Session, s.StartedAt})
		}
		return err
	}); err != nil {
		return err
	}
	slices.SortStableFunc(all, func(a, b found) int { return cmp.Or(b.started.Compare(a.started), cmp.Compare(a.session, b.session)) })
	now := time.Now().UTC()
	for _, a := range all {
		record, err := store.Read(TableRequests, []byte(a.session))
		if err != nil {
			return fmt.Errorf("journal: %w", err)
		}
		s, err := decodeRequest([]byte(a.session), record)
		if err != nil {
			return err
		}
		if !s.Ended() {
			s.crash(reserved[a.session], now)
		}
		if err := f(s.clone()); err != nil {
			return err
		}
	}
	return nil
}
