// SPDX-License-Identifier: Apache-2.0
// Copyright The Segue Authors

package link

import (
	"fmt"

	"github.com/seguekv/segue/engines"
)

// version is the link's version, equal on both sides. 1: the kinds and layouts in doc.go.
const version = 1

// kind names a frame's content.
type kind uint8

const (
	kindHello kind = 1 + iota
	kindRun
	kindState
	kindCredit
	kindCancel
	kindPrompt
	kindPrefilled
	kindToken
	kindEnd
	kindFacts

	kinds = iota + 1
)

func (k kind) String() string {
	names := [kinds]string{"", "hello", "run", "state", "credit", "cancel", "prompt", "prefilled", "token", "end", "facts"}
	if k == 0 || int(k) >= len(names) {
		return fmt.Sprintf("kind %d", uint8(k))
	}
	return names[k]
}

// Sizes in bytes.
const (
	headerBytes  = 5
	stateHeader  = 8       // of a state frame's payload
	mixedHeader  = 4       // of a mixed frame's payload
	bulkBytes    = 1 << 20 // of rows in one frame, unless a single row is larger
	controlBytes = 1 << 10 // of messages with a few numbers
	helloBytes   = 256 << 10
	runBytes     = 24 << 20
	textBytes    = 64 << 10 // of one token's text
	tokenBytes   = textBytes + 2<<10
	endBytes     = 8 << 10
)

// limits is the longest payload of each kind; 0 refuses the kind.
type limits [kinds]int

// helloLimits are those of the first frame.
func helloLimits() limits {
	return limits{kindHello: helloBytes}
}

// agentLimits bound what an agent sends.
func agentLimits(rowBytes int) limits {
	return limits{
		kindRun:    runBytes,
		kindState:  stateHeader + max(bulkBytes, rowBytes),
		kindCredit: controlBytes,
		kindCancel: controlBytes,
	}
}

// hostLimits bound what the host of such an engine sends.
func hostLimits(d *engines.Description) limits {
	row := d.Geometry.RowBytes()
	return limits{
		kindPrompt:    controlBytes + 5*d.ContextLength,
		kindPrefilled: controlBytes + max(bulkBytes, row),
		kindToken:     tokenBytes + row,
		kindEnd:       endBytes,
		kindFacts:     controlBytes,
	}
}

// rowsPerFrame is how many rows travel in one frame: a multiple of unit where possible, at least one.
func rowsPerFrame(rowBytes, unit int) int {
	n := max(1, bulkBytes/rowBytes)
	if n > unit {
		n -= n % unit
	}
	return n
}
