// SPDX-License-Identifier: Apache-2.0
// Copyright The Segue Authors

package router

import (
	"errors"
	"io"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	seguev1 "github.com/seguekv/segue/api/segue/v1"
	"github.com/seguekv/segue/router/policy"
)

// Cause is why an attempt or a session ended early: one enumeration for records, metrics, logs and error
// objects.
type Cause string

// Causes. The upper group is seen from outside; the lower one is what agents say.
const (
	CauseConnect        Cause = "connect"
	CauseReset          Cause = "reset"
	CauseEOFNoFinish    Cause = "eof_no_finish"
	CauseStall          Cause = "stall"
	CauseMalformedFrame Cause = "malformed_frame"
	CauseRouterShutdown Cause = "router_shutdown"
	CauseClientGone     Cause = "client_gone"
	CauseUnjournalled   Cause = "unjournalled"
	CauseMigrate        Cause = "migrate"
	CauseDrain          Cause = "drain"
	CauseEvacuate       Cause = "evacuate"
	CauseHung           Cause = "hung"
	CauseDead           Cause = "dead"

	CauseEngineErrorEvent    Cause = "engine_error_event"
	CauseInvalidToolJSON     Cause = "invalid_tool_json"
	CauseEngineAbort         Cause = "engine_abort"
	CauseFenced              Cause = "fenced"
	CauseLeaseEnded          Cause = "lease_ended"
	CauseNotCovered          Cause = "not_covered"
	CauseFingerprintMismatch Cause = "fingerprint_mismatch"
	CauseDigestMismatch      Cause = "digest_mismatch"
	CauseNoCapacity          Cause = "no_capacity"
	CauseGeometryMismatch    Cause = "geometry_mismatch"
	CausePromptMismatch      Cause = "prompt_mismatch"
	CauseNotReady            Cause = "not_ready"
	CauseInvalidRequest      Cause = "invalid_request"
	CauseUnprotected         Cause = "unprotected"
	CauseTainted             Cause = "tainted"
)

// reasonCauses is a read-only table.
var reasonCauses = map[seguev1.Reason]Cause{
	seguev1.Reason_REASON_UNSPECIFIED:          CauseEngineAbort,
	seguev1.Reason_REASON_NOT_COVERED:          CauseNotCovered,
	seguev1.Reason_REASON_FINGERPRINT_MISMATCH: CauseFingerprintMismatch,
	seguev1.Reason_REASON_DIGEST_MISMATCH:      CauseDigestMismatch,
	seguev1.Reason_REASON_NO_CAPACITY:          CauseNoCapacity,
	seguev1.Reason_REASON_GEOMETRY_MISMATCH:    CauseGeometryMismatch,
	seguev1.Reason_REASON_PROMPT_MISMATCH:      CausePromptMismatch,
	seguev1.Reason_REASON_FENCED:               CauseFenced,
	seguev1.Reason_REASON_ENGINE_LOST:          CauseEngineAbort,
	seguev1.Reason_REASON_ENGINE_ERROR:         CauseEngineAbort,
	seguev1.Reason_REASON_INVALID_REQUEST:      CauseInvalidRequest,
	seguev1.Reason_REASON_PROMPT_TOO_LONG:      CauseInvalidRequest,
	seguev1.Reason_REASON_NOT_READY:            CauseNotReady,
	seguev1.Reason_REASON_UNPROTECTED:          CauseUnprotected,
	seguev1.Reason_REASON_UNKNOWN_SESSION:      CauseNotCovered,
	seguev1.Reason_REASON_STORE_FULL:           CauseUnprotected,
	seguev1.Reason_REASON_CANCELLED:            CauseFenced,
	seguev1.Reason_REASON_HOLDER_LOST:          CauseUnprotected,
	seguev1.Reason_REASON_UNKNOWN_MODEL:        CauseInvalidRequest,
	seguev1.Reason_REASON_LEASE_ENDED:          CauseLeaseEnded,
	seguev1.Reason_REASON_TAINTED:              CauseTainted,
}

// ending is how an attempt ended without a finish.
type ending struct {
	cause Cause
	// reason is set when the agent said why.
	reason seguev1.Reason
	detail string
	// private: the detail names addresses or internals and is for operators only.
	private bool
	// refused means that nothing ran: the agent said no at once, or was never reached.
	refused bool
	// planned: the router itself ended the attempt, for a move.
	planned bool
	// said means that the agent itself says that the run has ended.
	said bool
	// clean is set by CauseTainted: the newest boundary that counts, 0 for none.
	clean *uint32
	// What an upstream sent with its refusal.
	status     int
	object     []byte
	retryAfter time.Duration
	// noRetry is what forbade a retry, once that is decided.
	noRetry policy.Why
}

// text is the cause with its detail, for people.
func (e ending) text() string {
	if e.detail == "" {
		return string(e.cause)
	}
	return string(e.cause) + ": " + e.detail
}

// public is the cause with its detail, for clients.
func (e ending) public() string {
	if e.private {
		return string(e.cause)
	}
	return e.text()
}

// neverRan reports a refusal after which the same request may be sent again anywhere.
func (e ending) neverRan() bool {
	switch e.cause {
	case CauseConnect, CauseNoCapacity, CauseNotReady, CauseLeaseEnded:
		return e.refused
	}
	return false
}

// passes reports an end of an unanswered takeover after which the holder may hold what it held: it was never
// reached, or too late, or had no engine or no free context, or the connection broke.
func (e ending) passes() bool {
	switch e.cause {
	case CauseConnect, CauseNotReady, CauseNoCapacity, CauseReset, CauseLeaseEnded:
		return true
	}
	return false
}

// deterministic reports an end that any other node would repeat.
func (e ending) deterministic() bool { return e.cause == CauseInvalidRequest }

// classify says what the end of an attempt's stream means. opened: the call reached the agent; answered:
// at least one event came.
func classify(err error, opened, answered bool) ending {
	if errors.Is(err, io.EOF) {
		if !opened {
			return ending{cause: CauseReset, detail: "connection lost while the call was sent"}
		}
		return ending{cause: CauseEOFNoFinish}
	}
	s := status.Convert(err)
	for _, d := range s.Details() {
		if r, ok := d.(*seguev1.Refusal); ok {
			cause, known := reasonCauses[r.GetReason()]
			if !known {
				cause = CauseEngineAbort
			}
			detail := r.GetDetail()
			if detail == "" {
				detail = s.Message()
			}
			e := ending{cause: cause, reason: r.GetReason(), detail: detail, refused: !answered, said: cause != CauseFenced}
			if cause == CauseTainted {
				clean := r.GetCleanBoundary()
				e.clean = &clean
			}
			return e
		}
	}
	e := ending{detail: s.Message(), private: true}
	switch s.Code() {
	case codes.Unavailable:
		e.cause = CauseReset
		if !opened {
			e.cause, e.refused = CauseConnect, true
		}
	case codes.InvalidArgument:
		e.cause, e.reason = CauseInvalidRequest, seguev1.Reason_REASON_INVALID_REQUEST
	case codes.Internal:
		// What the RPC layer says about a broken frame.
		e.cause = CauseMalformedFrame
	default:
		e.cause = CauseEngineAbort
	}
	return e
}
