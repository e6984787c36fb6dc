// SPDX-License-Identifier: Apache-2.0
// Copyright The Segue Authors

package router

import (
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strconv"

	"github.com/seguekv/segue/router/journal"
	"github.com/seguekv/segue/router/openai"
)

const headerReplayed = "Idempotent-Replayed"

// begin enters a session into the journal. done: a request with the same key has finished, and its answer is written.
func (r *Router) begin(s *session, endpoint, key string, body []byte) (done bool, err error) {
	if err := r.journal.Healthy(); err != nil && key != "" {
		s.client.w.Header().Del(headerSession) // nothing is recorded of this one
		return false, repeated(err)            // a key that may be forgotten promises too much
	}
	entry, err := r.journal.Begin(journal.New{
		Tenant: s.tenant, RequestID: s.rec.requestID(), Session: s.id.String(), Model: s.req.Engine.Model, Endpoint: endpoint,
		Stream: s.req.Stream, Protection: string(s.wish), RetryBudget: s.cfg.MaxAttempts - 1, Key: key,
		Payload: payload(endpoint, body), Started: s.arrived,
	})
	if err == nil {
		s.entry, s.keyed = entry, key != ""
		if key != "" && r.cfg.Journal.Replay {
			s.client.tape = &tape{limit: r.cfg.Journal.MaxAnswer}
		}
		return false, nil
	}
	h := s.client.w.Header()
	if earlier := namesake(err); earlier != "" {
		h.Set(headerSession, earlier)
	} else if key != "" {
		h.Del(headerSession) // nothing is recorded of this one
	}
	if e, ok := errors.AsType[*journal.FinishedError](err); ok && e.Answer != nil {
		return true, s.client.replay(e.Answer)
	}
	if key == "" {
		// The answer doesn't depend on the journal.
		s.unjournalled = true
		s.log.Warn("the answer goes on without journal", "err", err)
		return false, nil
	}
	return false, repeated(err)
}

// namesake is the session of the request that a repeated key stands for, or empty.
func namesake(err error) string {
	if e, ok := errors.AsType[*journal.RunningError](err); ok {
		return e.Request.Session
	}
	if e, ok := errors.AsType[*journal.InterruptedError](err); ok {
		return e.Request.Session
	}
	if e, ok := errors.AsType[*journal.FinishedError](err); ok {
		return e.Request.Session
	}
	return ""
}

// payload is the digest of what a key stands for.
func payload(endpoint string, body []byte) [sha256.Size]byte {
	h := sha256.New()
	h.Write([]byte(endpoint + "\n"))
	h.Write(body)
	return [sha256.Size]byte(h.Sum(nil))
}

// repeated is the error of a request whose key was used before, or can't be remembered.
func repeated(err error) error {
	if e, ok := errors.AsType[*journal.RunningError](err); ok {
		return &openai.Error{Status: http.StatusConflict, Code: openai.CodeKeyRunning, Param: headerKey, RetryAfter: retryAfter, Final: true,
			Message: "request " + e.Request.RequestID + " with this Idempotency-Key is still running; wait for it, or ask for it at /v1/requests/" + e.Request.Session}
	}
	if e, ok := errors.AsType[*journal.PayloadError](err); ok {
		return &openai.Error{Status: http.StatusUnprocessableEntity, Code: openai.CodeKeyReused, Param: headerKey,
			Message: "this Idempotency-Key was used for another request, " + e.Request.RequestID + "; use a new key for a new request"}
	}
	if e, ok := errors.AsType[*journal.InterruptedError](err); ok {
		if e.Request.Error == nil {
			// Only the key is left of the request.
			return &openai.Error{Status: http.StatusBadGateway, Code: openai.CodeInterrupted, PartialOutput: true, Delivered: e.Request.Delivered, Final: true,
				Message: fmt.Sprintf("request %s with this Idempotency-Key was interrupted after %d output tokens; use a new key for a new answer", e.Request.RequestID, e.Request.Delivered)}
		}
		return &openai.Error{Status: http.StatusBadGateway, Final: true, Recorded: e.Request.Error}
	}
	if e, ok := errors.AsType[*journal.FinishedError](err); ok {
		return &openai.Error{Status: http.StatusConflict, Code: openai.CodeKeyFinished, Param: headerKey, Final: true,
			Message: "request " + e.Request.RequestID + " with this Idempotency-Key has finished, and its answer was not kept (router.journal.replay, router.journal.max_answer); use a new key to run it again"}
	}
	return &openai.Error{Status: http.StatusServiceUnavailable, Code: openai.CodeUnavailable, Param: headerKey, Retryable: true, RetryAfter: retryAfter,
		Message: "the router can't remember an Idempotency-Key at the moment; repeat the request later, or send it without a key"}
}

// replay writes a kept answer.
func (c *client) replay(a *journal.Answer) error {
	h := c.w.Header()
	h.Set("Content-Type", a.ContentType)
	h.Set(headerReplayed, "true")
	if a.ContentType == contentTypeJSON {
		h.Set("Content-Length", strconv.Itoa(len(a.Body)))
	} else {
		streamHeaders(h)
	}
	c.w.WriteHeader(a.Status)
	// The client may be gone; there is nobody else to tell.
	_ = c.send(a.Body)
	return nil
}

// answerJSON writes v.
func (c *client) answerJSON(status int, v any) {
	b, err := json.Marshal(v)
	if err != nil {
		status, b = http.StatusInternalServerError, []byte(`{"error":{"message":"the answer could not be encoded"}}`)
	}
	_ = c.writeJSON(status, b)
}
