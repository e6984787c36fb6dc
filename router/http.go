// SPDX-License-Identifier: Apache-2.0
// Copyright The Segue Authors

package router

import (
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/seguekv/segue/engines"
	"github.com/seguekv/segue/fence"
	"github.com/seguekv/segue/router/fleet"
	"github.com/seguekv/segue/router/openai"
	"github.com/seguekv/segue/snapshot"
)

const (
	headerRequestID  = "X-Request-Id"
	headerProtection = "X-Segue-Protection"
	headerSession    = "X-Segue-Session"
	// headerAttempts counts attempts; a trailer of streams.
	headerAttempts = "X-Segue-Attempts"

	maxRequestID = 128
	// bodyTimeout bounds the upload of a request body.
	bodyTimeout = 30 * time.Second
	// bodiesAtOnce bounds the request bodies that are read and parsed at once, which come before any other
	// bound on sessions; more wait for bodyWait.
	bodiesAtOnce = 64
	bodyWait     = headerTimeout
	// seedBits keeps minted seeds exact in clients whose numbers are doubles.
	seedBits = 53
)

// serve is the clients' listener.
func (r *Router) serve(w http.ResponseWriter, req *http.Request) {
	if !r.handlers.enter() {
		return // the connection is being closed
	}
	defer r.handlers.leave()
	c := newClient(w, r.cfg.ClientStall)
	id, err := r.requestID(req)
	w.Header().Set(headerRequestID, id)
	if err == nil {
		err = r.route(c, req, id)
	}
	if err == nil {
		return
	}
	if errors.Is(err, errCut) {
		panic(http.ErrAbortHandler)
	}
	e, ok := errors.AsType[*openai.Error](err)
	if !ok {
		e = &openai.Error{Status: http.StatusInternalServerError, Code: "internal_error", Message: "the router failed: " + err.Error()}
	}
	e.RequestID = id
	r.metrics.sessions.WithLabelValues(resultRejected).Inc()
	// The client may be gone; there is nobody else to tell.
	_ = c.writeError(e)
}

// route returns an error only while nothing is written, or errCut.
func (r *Router) route(c *client, req *http.Request, id string) error {
	tenant, err := r.tenant(c, req)
	if err != nil {
		return err
	}
	path := req.URL.Path
	switch {
	case path == "/v1/chat/completions":
		if err := allow(c, req, http.MethodPost); err != nil {
			return err
		}
		return r.generate(c, req, tenant, id, openai.Chat)
	case path == "/v1/completions":
		if err := allow(c, req, http.MethodPost); err != nil {
			return err
		}
		return r.generate(c, req, tenant, id, openai.Completion)
	case path == "/v1/models" || strings.HasPrefix(path, "/v1/models/"):
		if err := allow(c, req, http.MethodGet, http.MethodHead); err != nil {
			return err
		}
		return r.models(c, strings.TrimPrefix(strings.TrimPrefix(path, "/v1/models"), "/"))
	case strings.HasPrefix(path, requestsPath) && len(path) > len(requestsPath):
		if err := allow(c, req, http.MethodGet, http.MethodHead); err != nil {
			return err
		}
		return r.requestView(c, tenant, path[len(requestsPath):])
	case strings.HasPrefix(path, actionsPath):
		return r.actions(c, req, tenant)
	}
	return &openai.Error{Status: http.StatusNotFound, Code: openai.CodeNotFound,
		Message: fmt.Sprintf("no such path: %s; this server has /v1/chat/completions, /v1/completions, /v1/models, /v1/requests/{id} and /v1/actions/{request}:{call}", short(path))}
}

func allow(c *client, req *http.Request, methods ...string) error {
	if slices.Contains(methods, req.Method) {
		return nil
	}
	c.w.Header().Set("Allow", strings.Join(methods, ", "))
	return &openai.Error{Status: http.StatusMethodNotAllowed, Code: openai.CodeBadMethod,
		Message: fmt.Sprintf("method %s is not allowed here, use %s", short(req.Method), methods[0])}
}

func short(s string) string {
	const limit = 80
	if len(s) > limit {
		return s[:limit] + "…"
	}
	return s
}

func (r *Router) models(c *client, name string) error {
	names := r.fleet.Models()
	if name == "" {
		_ = c.writeJSON(http.StatusOK, openai.Models(names, r.started.Unix()))
		return nil
	}
	if !slices.Contains(names, name) {
		return unknownModel(name, names)
	}
	_ = c.writeJSON(http.StatusOK, openai.Model(name, r.started.Unix()))
	return nil
}

func unknownModel(name string, names []string) error {
	return &openai.Error{Status: http.StatusNotFound, Code: openai.CodeModelNotFound, Param: "model",
		Message: fmt.Sprintf("model %q is not served; available: %s", short(name), strings.Join(names, ", "))}
}

// generate serves a chat or completion request.
func (r *Router) generate(c *client, req *http.Request, tenant, id string, kind openai.Kind) error {
	arrived := time.Now()
	if r.draining.Load() {
		return &openai.Error{Status: http.StatusServiceUnavailable, Code: openai.CodeUnavailable, Cause: string(CauseRouterShutdown),
			Message: "the router is stopping", Retryable: true, RetryAfter: retryAfter}
	}
	wish, err := r.protection(req)
	if err != nil {
		return err
	}
	key, err := idempotencyKey(req)
	if err != nil {
		return err
	}
	in, err := r.request(c, req, kind)
	if err != nil {
		return err
	}
	s, err := r.newSession(c, in.request, wish, id, arrived)
	if err != nil {
		return err
	}
	s.tenant, s.kind, s.relayed.reason, s.sdkRetry = tenant, in.kind, in.reason, sdkRetry(req)
	if s.kind == fleet.KindServer && s.mustProtect() {
		return &openai.Error{Status: http.StatusServiceUnavailable, Code: openai.CodeUnprotected, Cause: string(CauseUnprotected), Detail: in.reason,
			Message: "the request runs on an upstream without an agent, where it can't be protected (" + in.reason + "), and router.on_unprotected is fail; send X-Segue-Protection: off to run it all the same"}
	}
	if done, err := r.begin(s, req.URL.Path, key, in.body); done || err != nil {
		return err
	}
	r.registry.add(s.id, s.rec)
	defer func() { r.registry.finish(s.id, time.Now()) }()
	if !s.run(req.Context()) {
		return errCut
	}
	return nil
}

// request reads and parses the request body, when it is its turn.
func (r *Router) request(c *client, req *http.Request, kind openai.Kind) (*routed, error) {
	timer := time.NewTimer(bodyWait)
	defer timer.Stop()
	select {
	case r.bodies <- struct{}{}:
		defer func() { <-r.bodies }()
	case <-timer.C:
		return nil, &openai.Error{Status: http.StatusServiceUnavailable, Code: openai.CodeNoCapacity, Cause: string(CauseNoCapacity),
			Message: "too many request bodies are being received; try again later", Retryable: true, RetryAfter: retryAfter}
	case <-req.Context().Done():
		return nil, &openai.Error{Status: http.StatusServiceUnavailable, Code: openai.CodeUnavailable, Cause: string(contextEnding(req.Context()).cause),
			Message: "the request ended before its body was read", Retryable: true, RetryAfter: retryAfter}
	}
	body, err := r.body(c, req)
	if err != nil {
		return nil, err
	}
	return r.dispatch(kind, body)
}

func (r *Router) protection(req *http.Request) (Protection, error) {
	v := req.Header.Get(headerProtection)
	if v == "" {
		return r.cfg.Protection, nil
	}
	wish := Protection(strings.ToLower(strings.TrimSpace(v)))
	if _, ok := protectionModes[wish]; !ok {
		return "", openai.Invalid(headerProtection, fmt.Sprintf("header %s is %q, want off, async or sync", headerProtection, short(v)))
	}
	return wish, nil
}

// body reads the request body within its limits of size and time.
func (r *Router) body(c *client, req *http.Request) ([]byte, error) {
	if e := req.Header.Get("Content-Encoding"); e != "" && e != "identity" {
		return nil, &openai.Error{Status: http.StatusUnsupportedMediaType, Code: openai.CodeInvalidRequest,
			Message: "the request body must not be compressed"}
	}
	_ = c.rc.SetReadDeadline(time.Now().Add(bodyTimeout))
	body, err := io.ReadAll(http.MaxBytesReader(c.w, req.Body, r.cfg.MaxBody))
	_ = c.rc.SetReadDeadline(time.Time{})
	if _, ok := errors.AsType[*http.MaxBytesError](err); ok {
		return nil, &openai.Error{Status: http.StatusRequestEntityTooLarge, Code: openai.CodeTooLarge,
			Message: fmt.Sprintf("the request body has more than %d bytes (router.max_body)", r.cfg.MaxBody)}
	}
	if err != nil {
		return nil, openai.Invalid("", "the request body could not be read whole")
	}
	return body, nil
}

// requestID is the client's label, or a new one.
func (r *Router) requestID(req *http.Request) (string, error) {
	v := req.Header.Get(headerRequestID)
	if v != "" && len(v) <= maxRequestID && strings.IndexFunc(v, func(c rune) bool { return c <= ' ' || c > '~' }) < 0 {
		return v, nil
	}
	var b [12]byte
	if _, err := io.ReadFull(r.deps.Rand, b[:]); err != nil {
		return "", fmt.Errorf("mint request id: %w", err)
	}
	return "req_" + hex.EncodeToString(b[:]), nil
}

// newSession mints what the router alone may choose: the session id and, without the client's, the seed.
func (r *Router) newSession(c *client, req *openai.Request, wish Protection, requestID string, arrived time.Time) (*session, error) {
	var random [24]byte
	if _, err := io.ReadFull(r.deps.Rand, random[:]); err != nil {
		return nil, fmt.Errorf("mint session id: %w", err)
	}
	id := snapshot.SessionID(random[:16])
	if !req.Seeded {
		req.Engine.Sampling.Seed = binary.LittleEndian.Uint64(random[16:]) & (1<<seedBits - 1)
	}
	s := &session{
		r: r, cfg: &r.cfg, client: c, id: id, req: req, wire: engines.RequestToProto(req.Engine), wish: wish, gate: fence.NewGate(1),
		arrived: arrived, promptEstimate: req.PromptEstimate(), log: r.log.With("session", id.String(), "request_id", requestID),
	}
	if see := r.deps.Gate; see != nil {
		s.gate.Observe(func(op fence.Op) { see(id, op) })
	}
	s.rec = &record{orders: make(chan *order), gone: make(chan struct{}), info: SessionInfo{
		Session: id.String(), RequestID: requestID, Model: req.Engine.Model, Stream: req.Stream, Phase: phaseQueued, Protection: wish,
		Epoch: uint64(s.gate.Epoch()), Seed: req.Engine.Sampling.Seed, StartedAt: stamp(arrived),
	}}
	envelope := &openai.Envelope{
		Kind: req.Kind, ID: openai.ResponseID(req.Kind, id.String()), Model: req.Engine.Model, Created: arrived.Unix(),
		IncludeUsage: req.IncludeUsage,
	}
	s.envelope = envelope
	c.w.Header().Set(headerSession, id.String())
	c.attempts = func() int { return s.attempts }
	if req.Stream {
		s.out = &streamed{client: c, envelope: envelope, granted: s.granted, ids: req.ReturnTokenIDs, doneAfterError: r.cfg.Stream.DoneAfterError}
	} else {
		s.out = &collected{client: c, envelope: envelope, granted: s.granted, ids: req.ReturnTokenIDs}
	}
	return s, nil
}
