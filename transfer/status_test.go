// SPDX-License-Identifier: Apache-2.0
// Copyright The Segue Authors

package transfer_test

import (
	"errors"
	"fmt"
	"testing"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	seguev1 "github.com/seguekv/segue/api/segue/v1"
	"github.com/seguekv/segue/compat"
	"github.com/seguekv/segue/engines"
	"github.com/seguekv/segue/fence"
	"github.com/seguekv/segue/snapshot"
	"github.com/seguekv/segue/transfer"
)

// Each error that a caller branches on travels as its reason and code, wrapped or not.
func TestStatus_RoundTrip(t *testing.T) {
	for _, x := range []struct {
		err    error
		reason seguev1.Reason
		code   codes.Code
	}{
		{fence.ErrStaleEpoch, seguev1.Reason_REASON_FENCED, codes.FailedPrecondition},
		{fence.ErrCanceled, seguev1.Reason_REASON_CANCELLED, codes.FailedPrecondition},
		{snapshot.ErrUnknownSession, seguev1.Reason_REASON_UNKNOWN_SESSION, codes.NotFound},
		{snapshot.ErrUnknownBase, seguev1.Reason_REASON_NOT_COVERED, codes.FailedPrecondition},
		{&snapshot.NotCoveredError{Committed: 3, Need: 4}, seguev1.Reason_REASON_NOT_COVERED, codes.FailedPrecondition},
		{snapshot.ErrStoreFull, seguev1.Reason_REASON_STORE_FULL, codes.ResourceExhausted},
		{snapshot.ErrPrompt, seguev1.Reason_REASON_PROMPT_MISMATCH, codes.FailedPrecondition},
		{snapshot.ErrOutput, seguev1.Reason_REASON_DIGEST_MISMATCH, codes.DataLoss},
		{snapshot.ErrDigest, seguev1.Reason_REASON_DIGEST_MISMATCH, codes.DataLoss},
		{snapshot.ErrFormat, seguev1.Reason_REASON_DIGEST_MISMATCH, codes.DataLoss},
		{&snapshot.OrderError{What: "row", Got: 2, Want: 1}, seguev1.Reason_REASON_DIGEST_MISMATCH, codes.DataLoss},
		{&snapshot.VersionError{Got: 2, Want: 1}, seguev1.Reason_REASON_FINGERPRINT_MISMATCH, codes.FailedPrecondition},
		{&compat.MismatchError{Mismatches: []compat.Mismatch{{Field: "threads"}}}, seguev1.Reason_REASON_FINGERPRINT_MISMATCH, codes.FailedPrecondition},
		{engines.ErrNoCapacity, seguev1.Reason_REASON_NO_CAPACITY, codes.ResourceExhausted},
		{engines.ErrLost, seguev1.Reason_REASON_ENGINE_LOST, codes.Unavailable},
		{engines.ErrNotReady, seguev1.Reason_REASON_NOT_READY, codes.Unavailable},
		{engines.ErrState, seguev1.Reason_REASON_GEOMETRY_MISMATCH, codes.FailedPrecondition},
		{engines.ErrCanceled, seguev1.Reason_REASON_CANCELLED, codes.Canceled},
		{&engines.PromptTooLongError{Tokens: 9, Limit: 8}, seguev1.Reason_REASON_PROMPT_TOO_LONG, codes.InvalidArgument},
		{&engines.RequestError{Field: "top_p", Reason: "too large"}, seguev1.Reason_REASON_INVALID_REQUEST, codes.InvalidArgument},
		{errors.New("boom"), seguev1.Reason_REASON_ENGINE_ERROR, codes.Internal},
	} {
		for _, err := range []error{x.err, fmt.Errorf("takeover: %w", x.err), errors.Join(errors.New("first"), x.err)} {
			if reason, detail := transfer.Refuse(err); reason != x.reason || detail != err.Error() {
				t.Errorf("%v: reason %v, detail %q", err, reason, detail)
			}
			// As a client sees it: only code, message and details travel.
			sent := status.Convert(transfer.StatusError(err)).Proto()
			got := status.FromProto(sent).Err()
			if status.Code(got) != x.code {
				t.Errorf("%v: code %v, want %v", err, status.Code(got), x.code)
			}
			r, ok := transfer.RefusalOf(got)
			if !ok || r.GetReason() != x.reason || r.GetDetail() != err.Error() {
				t.Errorf("%v: refusal %v, want %v", err, r, x.reason)
			}
		}
	}
}

// Every reason travels.
func TestStatus_EveryReason(t *testing.T) {
	for n, name := range seguev1.Reason_name {
		reason := seguev1.Reason(n)
		err := fmt.Errorf("call: %w", transfer.StatusOf(codes.Unavailable, reason, name))
		r, ok := transfer.RefusalOf(err)
		if !ok || r.GetReason() != reason || r.GetDetail() != name {
			t.Errorf("%s: %v", name, r)
		}
	}
	for _, err := range []error{nil, errors.New("plain"), status.Error(codes.Unavailable, "connection reset")} {
		if r, ok := transfer.RefusalOf(err); ok {
			t.Errorf("%v carries %v", err, r)
		}
	}
}
