// SPDX-License-Identifier: Apache-2.0
// Copyright The Segue Authors

package transfer

import (
	"errors"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	seguev1 "github.com/seguekv/segue/api/segue/v1"
	"github.com/seguekv/segue/compat"
	"github.com/seguekv/segue/engines"
	"github.com/seguekv/segue/fence"
	"github.com/seguekv/segue/snapshot"
)

// refusal is one row of the table error → reason → status code.
type refusal struct {
	is     error
	reason seguev1.Reason
	code   codes.Code
}

// refusals is searched in order.
func refusals() []refusal {
	return []refusal{
		{fence.ErrStaleEpoch, seguev1.Reason_REASON_FENCED, codes.FailedPrecondition},
		{fence.ErrCanceled, seguev1.Reason_REASON_CANCELLED, codes.FailedPrecondition},
		{snapshot.ErrUnknownSession, seguev1.Reason_REASON_UNKNOWN_SESSION, codes.NotFound},
		{snapshot.ErrUnknownBase, seguev1.Reason_REASON_NOT_COVERED, codes.FailedPrecondition},
		{snapshot.ErrStoreFull, seguev1.Reason_REASON_STORE_FULL, codes.ResourceExhausted},
		{snapshot.ErrPrompt, seguev1.Reason_REASON_PROMPT_MISMATCH, codes.FailedPrecondition},
		{snapshot.ErrOutput, seguev1.Reason_REASON_DIGEST_MISMATCH, codes.DataLoss},
		{snapshot.ErrDigest, seguev1.Reason_REASON_DIGEST_MISMATCH, codes.DataLoss},
		{snapshot.ErrFormat, seguev1.Reason_REASON_DIGEST_MISMATCH, codes.DataLoss},
		{engines.ErrNoCapacity, seguev1.Reason_REASON_NO_CAPACITY, codes.ResourceExhausted},
		{engines.ErrLost, seguev1.Reason_REASON_ENGINE_LOST, codes.Unavailable},
		{engines.ErrNotReady, seguev1.Reason_REASON_NOT_READY, codes.Unavailable},
		{engines.ErrState, seguev1.Reason_REASON_GEOMETRY_MISMATCH, codes.FailedPrecondition},
		{engines.ErrCanceled, seguev1.Reason_REASON_CANCELLED, codes.Canceled},
	}
}

// Refuse maps an error to the machine-readable reason that travels, and its text.
func Refuse(err error) (seguev1.Reason, string) {
	r, _ := refuse(err)
	return r, err.Error()
}

func refuse(err error) (seguev1.Reason, codes.Code) {
	if _, ok := errors.AsType[*compat.MismatchError](err); ok {
		return seguev1.Reason_REASON_FINGERPRINT_MISMATCH, codes.FailedPrecondition
	}
	if _, ok := errors.AsType[*snapshot.NotCoveredError](err); ok {
		return seguev1.Reason_REASON_NOT_COVERED, codes.FailedPrecondition
	}
	if _, ok := errors.AsType[*snapshot.OrderError](err); ok {
		return seguev1.Reason_REASON_DIGEST_MISMATCH, codes.DataLoss
	}
	if _, ok := errors.AsType[*snapshot.VersionError](err); ok {
		return seguev1.Reason_REASON_FINGERPRINT_MISMATCH, codes.FailedPrecondition
	}
	if _, ok := errors.AsType[*engines.PromptTooLongError](err); ok {
		return seguev1.Reason_REASON_PROMPT_TOO_LONG, codes.InvalidArgument
	}
	if _, ok := errors.AsType[*engines.RequestError](err); ok {
		return seguev1.Reason_REASON_INVALID_REQUEST, codes.InvalidArgument
	}
	for _, r := range refusals() {
		if errors.Is(err, r.is) {
			return r.reason, r.code
		}
	}
	return seguev1.Reason_REASON_ENGINE_ERROR, codes.Internal
}

// StatusError is err as a gRPC status that carries its Refusal.
func StatusError(err error) error {
	reason, code := refuse(err)
	return StatusOf(code, reason, err.Error())
}

// StatusOf makes a gRPC status with a Refusal.
func StatusOf(code codes.Code, reason seguev1.Reason, detail string) error {
	return StatusWith(code, &seguev1.Refusal{Reason: reason, Detail: detail})
}

// StatusWith is a gRPC error that carries r.
func StatusWith(code codes.Code, r *seguev1.Refusal) error {
	s := status.New(code, r.GetDetail())
	if d, err := s.WithDetails(r); err == nil {
		s = d
	}
	return s.Err()
}

// RefusalOf finds the Refusal in a gRPC error, if it carries one.
func RefusalOf(err error) (*seguev1.Refusal, bool) {
	for _, d := range status.Convert(err).Details() {
		if r, ok := d.(*seguev1.Refusal); ok {
			return r, true
		}
	}
	return nil, false
}
