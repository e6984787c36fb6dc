// SPDX-License-Identifier: Apache-2.0
// Copyright The Segue Authors

package router

import (
	"sync"
	"time"

	"github.com/seguekv/segue/router/openai"
)

// Phases of a session.
const (
	phaseQueued  = "queued"
	phasePrefill = "prefill"
	phaseDecode  = "decode"
	phaseDone    = "done"
	phaseFailed  = "failed"
)

// Kinds of attempts.
const (
	kindGenerate = "generate"
	kindRetry    = "retry"
	kindTakeover = "takeover"
)

// SessionInfo is a session for people and tools. It holds no prompt, text or token.
type SessionInfo struct {
	Session         string           `json:"session"`
	RequestID       string           `json:"request_id"`
	Model           string           `json:"model"`
	Stream          bool             `json:"stream"`
	Phase           string           `json:"phase"`
	Protection      Protection       `json:"protection"`
	Protected       bool             `json:"protected"`
	Primary         string           `json:"primary"`
	Holder          string           `json:"holder"`
	Epoch           uint64           `json:"epoch"`
	Seed            uint64           `json:"seed"`
	PromptTokens    int              `json:"prompt_tokens"`
	AcceptedTokens  int              `json:"accepted_tokens"`
	DeliveredTokens int              `json:"delivered_tokens"`
	FirstDeltaSent  bool             `json:"first_delta_sent"`
	TextEnd         int              `json:"text_end"`
	Finish          string           `json:"finish"`
	Error           *openai.Error    `json:"error"`
	Watermarks      Watermarks       `json:"watermarks"`
	Attempts        []AttemptInfo    `json:"attempts"`
	Seams           []SeamInfo       `json:"seams"`
	ProtectionLog   []ProtectionInfo `json:"protection_log"`
	StartedAt       string           `json:"started_at"`
	EndedAt         string           `json:"ended_at"`
}

// Watermarks are what the primary last reported, as counts of boundaries.
type Watermarks struct {
	Captured  int `json:"captured"`
	Sent      int `json:"sent"`
	Committed int `json:"committed"`
}

// AttemptInfo is one attempt. FromIndex is the first output index it was asked for, Accepted how many tokens of it the
// gate has let through.
type AttemptInfo struct {
	Node      string `json:"node"`
	Epoch     uint64 `json:"epoch"`
	Kind      string `json:"kind"`
	FromIndex int    `json:"from_index"`
	Accepted  int    `json:"accepted"`
	Cause     Cause  `json:"cause"`
	Detail    string `json:"detail,omitempty"`
	StartedAt string `json:"started_at"`
	EndedAt   string `json:"ended_at"`
}

// SeamInfo is one takeover that began. Index is c, the first index that the new node decodes.
type SeamInfo struct {
	Index         int    `json:"index"`
	Delivered     int    `json:"delivered"`
	From          string `json:"from"`
	To            string `json:"to"`
	Epoch         uint64 `json:"epoch"`
	Cause         Cause  `json:"cause"`
	FencedAt      string `json:"fenced_at"`
	ResumedAt     string `json:"resumed_at"`
	RestoredRows  int    `json:"restored_rows"`
	RestoredBytes int64  `json:"restored_bytes"`
}

// ProtectionInfo is one change of the protection state.
type ProtectionInfo struct {
	Protected bool   `json:"protected"`
	Holder    string `json:"holder"`
	FromIndex int    `json:"from_index"`
	Cause     string `json:"cause"`
	Detail    string `json:"detail,omitempty"`
}

// record is a session's SessionInfo: written by its owner, read by the admin listener.
type record struct {
	// orders reach the session's goroutine.
	orders chan *order
	// gone is closed when it has ended.
	gone chan struct{}

	mu   sync.Mutex
	info SessionInfo
}

// update changes the info. f must not block.
func (r *record) update(f func(*SessionInfo)) {
	r.mu.Lock()
	defer r.mu.Unlock()
	f(&r.info)
}

// snapshot is a copy that stays as it is.
func (r *record) snapshot() SessionInfo {
	r.mu.Lock()
	defer r.mu.Unlock()
	i := r.info
	i.Attempts = append([]AttemptInfo{}, i.Attempts...)
	i.Seams = append([]SeamInfo{}, i.Seams...)
	i.ProtectionLog = append([]ProtectionInfo{}, i.ProtectionLog...)
	return i
}

// protectionLogLimit bounds the log of a session whose holder comes and goes.
const protectionLogLimit = 256

func (i *SessionInfo) logProtection(p ProtectionInfo) {
	if len(i.ProtectionLog) < protectionLogLimit {
		i.ProtectionLog = append(i.ProtectionLog, p)
	}
}

func stamp(t time.Time) string { return t.UTC().Format(time.RFC3339Nano) }

// requestID never changes.
func (r *record) requestID() string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.info.RequestID
}
