// SPDX-License-Identifier: Apache-2.0
// Copyright The Segue Authors

package router

import (
	"encoding/json"
	"net/http"

	"github.com/prometheus/client_golang/prometheus/promhttp"

	"github.com/seguekv/segue/snapshot"
)

// adminHandler is the operators' listener.
func (r *Router) adminHandler() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /livez", func(w http.ResponseWriter, _ *http.Request) {
		writeAdmin(w, http.StatusOK, map[string]any{"live": true})
	})
	mux.HandleFunc("GET /readyz", r.readyz)
	mux.HandleFunc("GET /healthz", r.readyz)
	mux.Handle("GET /metrics", promhttp.HandlerFor(r.deps.Gatherer, promhttp.HandlerOpts{}))
	mux.HandleFunc("GET /v1/agents", func(w http.ResponseWriter, _ *http.Request) {
		writeAdmin(w, http.StatusOK, r.fleet.Status())
	})
	mux.HandleFunc("GET /v1/sessions", func(w http.ResponseWriter, _ *http.Request) {
		writeAdmin(w, http.StatusOK, r.registry.list())
	})
	mux.HandleFunc("GET /v1/sessions/{id}", func(w http.ResponseWriter, req *http.Request) {
		id, err := snapshot.ParseSessionID(req.PathValue("id"))
		if err != nil {
			adminError(w, http.StatusBadRequest, err.Error())
			return
		}
		info, ok := r.registry.get(id)
		if !ok {
			adminError(w, http.StatusNotFound, "no such session; the last 1024 finished ones are kept")
			return
		}
		writeAdmin(w, http.StatusOK, info)
	})
	mux.HandleFunc("POST /v1/sessions/{id}/migrate", r.migrate)
	mux.HandleFunc("POST /v1/agents/{id}/drain", r.drainAgent)
	mux.HandleFunc("DELETE /v1/agents/{id}/drain", r.undrainAgent)
	r.addRequests(mux)
	mux.HandleFunc("/", func(w http.ResponseWriter, _ *http.Request) {
		adminError(w, http.StatusNotFound, "no such path; see /livez, /readyz, /metrics, /v1/sessions, /v1/requests, /v1/agents, POST /v1/sessions/{id}/migrate, POST and DELETE /v1/agents/{id}/drain")
	})
	return mux
}

// readyz answers 200 while new sessions can be served.
func (r *Router) readyz(w http.ResponseWriter, _ *http.Request) {
	ready := r.fleet.Ready()
	answer := map[string]any{"ready": true, "agents_ready": ready}
	status := http.StatusOK
	switch {
	case r.leaving.Load():
		status, answer["ready"], answer["reason"] = http.StatusServiceUnavailable, false, "the router is stopping"
	case ready == 0:
		status, answer["ready"], answer["reason"] = http.StatusServiceUnavailable, false, "no agent is ready"
	}
	writeAdmin(w, status, answer)
}

func writeAdmin(w http.ResponseWriter, status int, v any) {
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("Cache-Control", "no-store")
	w.WriteHeader(status)
	// The reader may be gone; there is nobody else to tell.
	_ = json.NewEncoder(w).Encode(v)
}

func adminError(w http.ResponseWriter, status int, message string) {
	writeAdmin(w, status, map[string]any{"error": map[string]string{"message": message}})
}
