// SPDX-License-Identifier: Apache-2.0
// Copyright The Segue Authors

package agent

import (
	"encoding/hex"
	"encoding/json"
	"fmt"
	"net/http"
	"sort"

	"github.com/prometheus/client_golang/prometheus/promhttp"

	"github.com/seguekv/segue/health"
	"github.com/seguekv/segue/snapshot"
)

// adminHandler serves health, metrics and listings. It changes nothing.
func (a *Agent) adminHandler() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /livez", func(w http.ResponseWriter, _ *http.Request) { _, _ = fmt.Fprintln(w, "ok") })
	mux.HandleFunc("GET /readyz", a.readyz)
	mux.HandleFunc("GET /v1/node", a.nodeView)
	mux.HandleFunc("GET /v1/sessions", func(w http.ResponseWriter, _ *http.Request) { reply(w, a.views()) })
	mux.HandleFunc("GET /v1/sessions/{id}", a.sessionView)
	mux.Handle("GET /metrics", promhttp.HandlerFor(a.gather, promhttp.HandlerOpts{}))
	return mux
}

func (a *Agent) readyz(w http.ResponseWriter, r *http.Request) {
	d, err := a.described(r.Context())
	if err == nil {
		err = a.unwell(d)
	}
	if err != nil {
		http.Error(w, err.Error(), http.StatusServiceUnavailable)
		return
	}
	_, _ = fmt.Fprintln(w, "ok")
}

func (a *Agent) nodeView(w http.ResponseWriter, r *http.Request) {
	v := struct {
		ID         string `json:"id"`
		Boot       string `json:"boot_id"`
		EngineBoot string `json:"engine_boot_id"`
		EnginePID  int    `json:"engine_pid"`
		Ready      bool   `json:"ready"`
		Reason     string `json:"reason,omitempty"`
		// Health is the verdict on the engine with its reasons, GPU what is known of its devices: off, unavailable
		// or read.
		Health  health.Verdict `json:"health"`
		Reasons []string       `json:"health_reasons"`
		GPU     string         `json:"gpu"`
	}{ID: a.cfg.ID, Boot: hex.EncodeToString(a.self.Boot[:]), EnginePID: a.host.PID()}
	if d, err := a.described(r.Context()); err == nil {
		v.Ready, v.EngineBoot = true, hex.EncodeToString(d.Boot[:])
		if err := a.unwell(d); err != nil {
			v.Ready, v.Reason = false, err.Error()
		}
	} else {
		v.Reason = err.Error()
	}
	v.Health, v.Reasons, v.GPU = a.doctor.view()
	reply(w, v)
}

// view is a session in the listings.
type view struct {
	Session   string `json:"session"`
	Epoch     uint64 `json:"epoch"`
	Role      string `json:"role"`
	Peer      string `json:"peer,omitempty"`
	State     string `json:"state"`
	Protected bool   `json:"protected"`
	Prompt    uint32 `json:"prompt_tokens"`
	Captured  uint32 `json:"captured"`
	Sent      uint32 `json:"sent"`
	Committed uint32 `json:"committed"`
	Base      uint32 `json:"base"`
	Bytes     uint64 `json:"bytes,omitempty"`
	Lease     uint32 `json:"lease_ms,omitempty"`
	Prepared  uint32 `json:"prepared_ms,omitempty"`
}

func (a *Agent) views() []view {
	out := []view{}
	for _, s := range a.list() {
		out = append(out, view{
			Session: hex.EncodeToString(s.GetSession()), Epoch: s.GetEpoch(), Role: s.GetRole(), Peer: s.GetPeer(),
			State: s.GetState(), Protected: s.GetProtected(), Prompt: s.GetPromptTokens(),
			Captured: s.GetCaptured(), Sent: s.GetSent(), Committed: s.GetCommitted(), Base: s.GetBase(), Bytes: s.GetBytes(),
			Lease: s.GetLeaseMs(), Prepared: s.GetPreparedMs(),
		})
	}
	sort.Slice(out, func(i, j int) bool {
		if out[i].Session != out[j].Session {
			return out[i].Session < out[j].Session
		}
		return out[i].Role < out[j].Role
	})
	return out
}

func (a *Agent) sessionView(w http.ResponseWriter, r *http.Request) {
	id, err := snapshot.ParseSessionID(r.PathValue("id"))
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	found := []view{}
	for _, v := range a.views() {
		if v.Session == id.String() {
			found = append(found, v)
		}
	}
	if len(found) == 0 {
		http.Error(w, "no such session here", http.StatusNotFound)
		return
	}
	reply(w, found)
}

func reply(w http.ResponseWriter, v any) {
	w.Header().Set("Content-Type", "application/json")
	e := json.NewEncoder(w)
	e.SetIndent("", "  ")
	_ = e.Encode(v)
}
