// SPDX-License-Identifier: Apache-2.0
// Copyright The Segue Authors

package router

import (
	"context"
	"errors"
)

// errNotCalled: a call in the background was left out.
var errNotCalled = errors.New("router: too many calls are pending")

// errStopping is the cause of the context of sessions that outlive the drain.
var errStopping = errors.New("router: stopping")

// errCut means that the answer lacks its end and the connection has to show it: a handler that returned
// normally would end the body in good order.
var errCut = errors.New("router: answer cut off")

// stopped reports whether ctx ended because the router stops.
func stopped(ctx context.Context) bool { return errors.Is(context.Cause(ctx), errStopping) }
