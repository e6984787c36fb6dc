// SPDX-License-Identifier: Apache-2.0
// Copyright The Segue Authors

package agent

import (
	"errors"

	"google.golang.org/grpc/codes"

	seguev1 "github.com/seguekv/segue/api/segue/v1"
	"github.com/seguekv/segue/transfer"
)

// statusError maps the agent's own errors, and everything below it as transfer does, to a gRPC status with
// a Refusal.
func statusError(err error) error {
	if _, ok := errors.AsType[*UnprotectedError](err); ok {
		return transfer.StatusOf(codes.FailedPrecondition, seguev1.Reason_REASON_UNPROTECTED, err.Error())
	}
	if e, ok := errors.AsType[*TaintedError](err); ok {
		return transfer.StatusWith(codes.DataLoss, taintedRefusal(e))
	}
	switch {
	case errors.Is(err, errCanceled), errors.Is(err, errOrphan):
		return transfer.StatusOf(codes.Canceled, seguev1.Reason_REASON_CANCELLED, err.Error())
	case errors.Is(err, errReplaced):
		return transfer.StatusOf(codes.Aborted, seguev1.Reason_REASON_FENCED, err.Error())
	case errors.Is(err, errLeaseEnded):
		return transfer.StatusOf(codes.FailedPrecondition, seguev1.Reason_REASON_LEASE_ENDED, err.Error())
	case errors.Is(err, errParked):
		return transfer.StatusOf(codes.Aborted, seguev1.Reason_REASON_PARKED, err.Error())
	case errors.Is(err, errStopping):
		return transfer.StatusOf(codes.Unavailable, seguev1.Reason_REASON_NOT_READY, err.Error())
	}
	return transfer.StatusError(err)
}
