// SPDX-License-Identifier: Apache-2.0
// Copyright The Segue Authors

package router

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"net/http"
	"net/url"
	"strconv"
	"time"

	"github.com/seguekv/segue/router/journal"
	"github.com/seguekv/segue/router/keys"
)

const (
	// listedRequests is how many requests a list has that asks for no number, listedMost how many it may ask for.
	listedRequests = 100
	listedMost     = 10_000
	// watchMost bounds how long an answer waits for a change, watchEvery how late it notices one.
	watchMost  = 25 * time.Second
	watchEvery = 100 * time.Millisecond
)

// addRequests puts the operators' view of the journal on their listener.
func (r *Router) addRequests(mux *http.ServeMux) {
	mux.HandleFunc("GET /v1/requests", r.listRequests)
	mux.HandleFunc("GET /v1/requests/export", r.exportRequests)
	mux.HandleFunc("GET /v1/requests/{id}", r.watchRequest)
}

// listRequests serves the newest requests of all tenants, or of one.
func (r *Router) listRequests(w http.ResponseWriter, req *http.Request) {
	f, err := requestFilter(req.URL.Query(), time.Now())
	if err != nil {
		adminError(w, http.StatusBadRequest, err.Error())
		return
	}
	switch {
	case f.Limit == 0:
		f.Limit = listedRequests
	case f.Limit > listedMost:
		adminError(w, http.StatusBadRequest, fmt.Sprintf("limit is above %d: use /v1/requests/export for more", listedMost))
		return
	}
	writeAdmin(w, http.StatusOK, r.journal.List(f))
}

// exportRequests serves all requests that the filter chooses, one JSON object a line. A reader that stalls for
// adminTimeout is cut; one that is cut sees it by the missing end of the body.
func (r *Router) exportRequests(w http.ResponseWriter, req *http.Request) {
	f, err := requestFilter(req.URL.Query(), time.Now())
	if err != nil {
		adminError(w, http.StatusBadRequest, err.Error())
		return
	}
	w.Header().Set("Content-Type", "application/jsonl")
	w.Header().Set("Cache-Control", "no-store")
	if err := r.journal.Export(&patient{w, http.NewResponseController(w)}, f); err != nil {
		panic(http.ErrAbortHandler) // the part that is out must not look whole
	}
}

// patient gives each write adminTimeout.
type patient struct {
	w  http.ResponseWriter
	rc *http.ResponseController
}

func (p *patient) Write(b []byte) (int, error) {
	// Not every writer has deadlines; one without them blocks as long as its reader.
	_ = p.rc.SetWriteDeadline(time.Now().Add(adminTimeout))
	return p.w.Write(b)
}

// watchRequest serves one request, by session id of any tenant, or by the tenant's request id. With wait it answers when
// the request differs from the version named by after, an earlier answer's ETag, or has ended, or after that time.
func (r *Router) watchRequest(w http.ResponseWriter, req *http.Request) {
	q := req.URL.Query()
	var wait time.Duration
	if v := q.Get("wait"); v != "" {
		var err error
		if wait, err = time.ParseDuration(v); err != nil || wait < 0 || wait > watchMost {
			adminError(w, http.StatusBadRequest, fmt.Sprintf("wait=%s: want a duration of 0s to %v", short(v), watchMost))
			return
		}
	}
	end := time.NewTimer(wait)
	defer end.Stop()
	look := time.NewTicker(watchEvery)
	defer look.Stop()
	for over := wait == 0; ; {
		v, ok := r.anyRequest(req.PathValue("id"), q.Get("tenant"))
		if !ok {
			adminError(w, http.StatusNotFound, fmt.Sprintf("no such request; ended ones are kept for router.journal.retention (%v), and the request id of a tenant's request needs ?tenant=", r.cfg.Journal.Retention))
			return
		}
		version := requestVersion(v)
		if over || v.Ended() || version != q.Get("after") {
			w.Header().Set("ETag", version)
			writeAdmin(w, http.StatusOK, v)
			return
		}
		select {
		case <-look.C:
		case <-end.C:
			over = true
		case <-req.Context().Done():
			return
		}
	}
}

// anyRequest finds a request for operators.
func (r *Router) anyRequest(id, tenant string) (journal.Request, bool) {
	if tenant == "" {
		if v, ok := r.journal.Session(id); ok {
			return v, true
		}
		tenant = keys.DefaultTenant
	}
	return r.journal.Get(tenant, id)
}

// requestVersion is equal for equal views.
func requestVersion(v journal.Request) string {
	b, _ := json.Marshal(v) // it never fails: an error object was checked when it was recorded
	sum := sha256.Sum256(b)
	return `"` + hex.EncodeToString(sum[:12]) + `"`
}

// requestFilter reads tenant, phase, since (a time, or how long ago) and limit.
func requestFilter(q url.Values, now time.Time) (journal.Filter, error) {
	f := journal.Filter{Tenant: q.Get("tenant"), Phase: q.Get("phase")}
	for name := range q {
		switch name {
		case "tenant", "phase", "since", "limit":
		default:
			return f, fmt.Errorf("no such filter: %s; use tenant, phase, since and limit", short(name))
		}
	}
	switch f.Phase {
	case "", journal.PhaseQueued, journal.PhasePrefill, journal.PhaseDecode, journal.PhaseDone, journal.PhaseFailed:
	default:
		return f, fmt.Errorf("phase=%s: want queued, prefill, decode, done or failed", short(f.Phase))
	}
	if v := q.Get("since"); v != "" {
		at, err := time.Parse(time.RFC3339, v)
		if err != nil {
			ago, err := time.ParseDuration(v)
			if err != nil || ago < 0 {
				return f, fmt.Errorf("since=%s: want how long ago, like 15m, or a time like 2026-01-02T15:04:05Z", short(v))
			}
			at = now.Add(-ago)
		}
		f.Since = at
	}
	if v := q.Get("limit"); v != "" {
		n, err := strconv.Atoi(v)
		if err != nil || n < 1 {
			return f, fmt.Errorf("limit=%s: want a number above 0", short(v))
		}
		f.Limit = n
	}
	return f, nil
}
