// SPDX-License-Identifier: Apache-2.0
// Copyright The Segue Authors

package link

import "errors"

// ErrProtocol means the peer sent something that the link's rules forbid. The link is closed. It points to
// a host and an agent of different builds, or to an engine that breaks the contract of engines.Sink.
var ErrProtocol = errors.New("link: protocol error")

// EngineError is a failure inside the engine that has no kind of its own: the text is the engine's.
type EngineError struct {
	Text string
}

func (e *EngineError) Error() string { return "engine: " + e.Text }
