// SPDX-License-Identifier: Apache-2.0
// Copyright The Segue Authors

package transfer

import "errors"

var (
	// ErrProtocol means the peer broke the replication protocol. The stream is closed and opened again.
	ErrProtocol = errors.New("transfer: protocol error")
	// ErrClosed means the pool has stopped.
	ErrClosed = errors.New("transfer: closed")
	// ErrSealed means the outbox takes nothing more.
	ErrSealed = errors.New("transfer: outbox is sealed")
)
