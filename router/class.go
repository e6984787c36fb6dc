// SPDX-License-Identifier: Apache-2.0
// Copyright The Segue Authors

package router

import "github.com/seguekv/segue/router/policy"

// class says what kind of failure an end is. What the replica itself said, or never heard of, is over; everything
// else may go on out of sight.
func (e ending) class() policy.Class {
	switch e.cause {
	case CauseClientGone:
		return policy.ClientGone
	case CauseRouterShutdown, CauseUnprotected, CauseUnjournalled:
		return policy.Stopping
	case CauseNoCapacity:
		return policy.Overloaded
	}
	switch {
	case e.deterministic():
		return policy.Refused
	case e.said || e.refused:
		return policy.Dead
	}
	return policy.Uncertain
}
