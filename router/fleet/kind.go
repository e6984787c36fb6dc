// SPDX-License-Identifier: Apache-2.0
// Copyright The Segue Authors

package fleet

import "fmt"

// Kind says what a node is.
type Kind int

const (
	// KindAgent is a node whose sessions can move: the router speaks gRPC with its agent.
	KindAgent Kind = iota
	// KindServer is an OpenAI-compatible server without an agent: what runs on it ends with it.
	KindServer
)

// String is "agent" or "server".
func (k Kind) String() string {
	switch k {
	case KindAgent:
		return "agent"
	case KindServer:
		return "server"
	}
	return fmt.Sprintf("Kind(%d)", int(k))
}

// MarshalText writes what String says.
func (k Kind) MarshalText() ([]byte, error) { return []byte(k.String()), nil }

// UnmarshalText reads what MarshalText writes.
func (k *Kind) UnmarshalText(text []byte) error {
	for _, known := range []Kind{KindAgent, KindServer} {
		if string(text) == known.String() {
			*k = known
			return nil
		}
	}
	return fmt.Errorf("fleet: kind %q is neither agent nor server", text)
}
