// SPDX-License-Identifier: Apache-2.0
// Copyright The Segue Authors

package router

// Readers of what clients send, for tests.
var (
	ArgumentsDigest = argumentsDigest
	IdempotencyKey  = idempotencyKey
)

// MaxAction is the largest body of a claim or a result.
const MaxAction = maxAction
