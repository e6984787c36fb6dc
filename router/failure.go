// SPDX-License-Identifier: Apache-2.0
// Copyright The Segue Authors

package router

import (
	"context"
	"fmt"
	"log/slog"
	"net/http"
	"strings"
	"time"

	seguev1 "github.com/seguekv/segue/api/segue/v1"
	"github.com/seguekv/segue/router/openai"
	"github.com/seguekv/segue/router/policy"
)

const (
	// retryAfter is what clients are told to wait when nothing better is known.
	retryAfter = time.Second
	// retryAfterMost bounds what an upstream may ask for.
	retryAfterMost = time.Hour
	// farewell is how long the last write to a client may take that has closed its side of the connection: it
	// may have gone, or only have nothing more to say.
	farewell = time.Second
	// statusClientGone is what servers log for such clients; the few that read on see it.
	statusClientGone = 499
)

// fail ends the answer with an error and reports whether it was written.
func (s *session) fail(end ending) bool {
	e := s.failure(end)
	usage := openai.Usage{PromptTokens: s.prompt.tokens, CompletionTokens: e.Delivered, TotalTokens: s.prompt.tokens + e.Delivered}
	result := resultFailed
	switch {
	case end.cause == CauseClientGone:
		result = resultClientGone
	case s.gate.ContentWritten():
		result = resultInterrupted
	case e.Status < http.StatusInternalServerError:
		result = resultRejected
	}
	// Recorded first, so that who has read the error finds it here.
	s.rec.update(func(i *SessionInfo) {
		i.Phase, i.Finish, i.Error, i.DeliveredTokens, i.FirstDeltaSent = phaseFailed, "", e, e.Delivered, s.gate.ContentWritten()
	})
	object, _ := e.MarshalJSON() // it never fails
	s.entry.Fail(object, e.Delivered, s.gate.ContentWritten())
	if end.cause == CauseClientGone {
		s.client.stall = min(s.client.stall, farewell)
	}
	err := s.out.fail(e, usage)
	if err != nil && end.cause != CauseClientGone {
		end.detail = "write: " + err.Error()
		result = resultClientGone
	}
	s.r.metrics.sessions.WithLabelValues(result).Inc()
	level := slog.LevelInfo
	if result == resultFailed || result == resultInterrupted {
		level = slog.LevelError
	}
	s.log.Log(context.Background(), level, "session ended", "result", result, "cause", end.cause, "detail", end.detail, "epoch", uint64(s.gate.Epoch()),
		"prompt_tokens", s.prompt.tokens, "accepted", s.gate.Len(), "delivered", e.Delivered, "takeovers", s.takeovers,
		"duration", time.Since(s.arrived))
	return err == nil
}

// complete records the end of a finished session.
func (s *session) complete(a *attempt, reason string, u openai.Usage) {
	s.rec.update(func(i *SessionInfo) {
		i.Phase, i.Finish, i.PromptTokens, i.DeliveredTokens = phaseDone, reason, u.PromptTokens, u.CompletionTokens
		i.Attempts[a.info].EndedAt = stamp(time.Now())
	})
}

// completed counts it, once the answer is written.
func (s *session) completed(a *attempt, reason string, u openai.Usage) {
	s.r.metrics.sessions.WithLabelValues(resultOK).Inc()
	s.log.Info("session ended", "result", resultOK, "finish", reason, "epoch", uint64(s.gate.Epoch()), "agent", a.node.ID(),
		"prompt_tokens", u.PromptTokens, "output_tokens", u.CompletionTokens, "takeovers", s.takeovers, "duration", time.Since(s.arrived))
}

// failure is the error object for the client.
func (s *session) failure(end ending) *openai.Error {
	e := &openai.Error{RequestID: s.rec.requestID(), Cause: string(end.cause), Detail: s.publicDetail(end)}
	if s.gate.ContentWritten() {
		e.Status, e.Code, e.PartialOutput, e.Delivered = http.StatusBadGateway, openai.CodeInterrupted, true, s.delivery.delivered
		e.Message = fmt.Sprintf("generation interrupted after %d output tokens (%s) in request %s; the answer is incomplete, and a repeat of the request gives a new answer, not the rest of this one",
			e.Delivered, causeText(e), e.RequestID)
		return e
	}
	e.Status, e.Code = statusOf(end)
	if e.Status < http.StatusInternalServerError {
		e.Upstream = openai.ParseUpstreamError(end.object)
	}
	switch e.Status {
	case http.StatusBadRequest, http.StatusNotFound:
		e.Message = end.detail
		if end.private || end.detail == "" {
			e.Message = "the request was refused by the engine"
		}
	case statusClientGone:
		e.Message = "the client closed its side of the connection; keep it open until the answer is complete"
	case http.StatusTooManyRequests:
		e.Message = "all contexts are in use: " + e.Detail + "; try again later, or add replicas"
	default:
		e.Message = fmt.Sprintf("no output was produced (%s); request %s may be repeated%s", causeText(e), e.RequestID, s.costText(end.noRetry))
	}
	if e.Status >= http.StatusInternalServerError || e.Status == http.StatusTooManyRequests {
		e.Retryable, e.RetryAfter = true, max(retryAfter, min(end.retryAfter, retryAfterMost))
	}
	return e
}

// statusOf maps an end before the first content to HTTP.
func statusOf(end ending) (status int, code string) {
	switch end.cause {
	case CauseInvalidRequest:
		if end.status >= 400 && end.status < 500 {
			return end.status, openai.CodeInvalidRequest
		}
		switch end.reason {
		case seguev1.Reason_REASON_PROMPT_TOO_LONG:
			return http.StatusBadRequest, openai.CodeContextLength
		case seguev1.Reason_REASON_UNKNOWN_MODEL:
			return http.StatusNotFound, openai.CodeModelNotFound
		}
		return http.StatusBadRequest, openai.CodeInvalidRequest
	case CauseClientGone:
		return statusClientGone, openai.CodeClientGone
	case CauseNoCapacity:
		return http.StatusTooManyRequests, openai.CodeNoCapacity
	case CauseUnprotected:
		return http.StatusServiceUnavailable, openai.CodeUnprotected
	case CauseConnect, CauseNotReady, CauseRouterShutdown, CauseUnjournalled:
		return http.StatusServiceUnavailable, openai.CodeUnavailable
	case CauseStall, CauseHung:
		return http.StatusGatewayTimeout, openai.CodeUnavailable
	}
	return http.StatusBadGateway, openai.CodeUnavailable
}

// publicDetail is why nothing continued the answer: the holders' refusals, else what is known of the cause.
func (s *session) publicDetail(end ending) string {
	if s.lost != nil && len(s.lost.refusals) > 0 {
		return strings.Join(s.lost.refusals, "; ")
	}
	if end.private {
		return ""
	}
	return end.detail
}

// costText says which bound of router.retry a repetition would have exceeded; it is empty when cost was not the reason.
func (s *session) costText(why policy.Why) string {
	retry := &s.cfg.Retry
	switch why {
	case policy.PrefillTokens:
		return fmt.Sprintf("; the router did not repeat it: the prompt has about %d tokens, more than router.retry.max_prefill_tokens (%d)", s.prefillTokens(), retry.MaxPrefillTokens)
	case policy.Time:
		return fmt.Sprintf("; the router did not repeat it: the answer would begin after router.retry.max_time (%v)", retry.MaxTime)
	case policy.FleetBudget:
		return "; the router did not repeat it: repeated prompts have used up their share (router.retry.budget_share)"
	}
	return ""
}

func causeText(e *openai.Error) string {
	if e.Detail == "" {
		return "cause: " + e.Cause
	}
	return "cause: " + e.Cause + ", " + e.Detail
}
