// SPDX-License-Identifier: Apache-2.0
// Copyright The Segue Authors

package journal

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"time"
	"unicode/utf8"
)

// Phases of a request.
const (
	PhaseQueued  = "queued"
	PhasePrefill = "prefill"
	PhaseDecode  = "decode"
	PhaseDone    = "done"
	PhaseFailed  = "failed"
)

// phases is a read-only table: a phase's place is its number in records.
var phases = []string{PhaseQueued, PhasePrefill, PhaseDecode, PhaseDone, PhaseFailed}

// CauseRouterCrash is the cause of what was open when the router's process ended.
const CauseRouterCrash = "router_crash"

// New is what is known of a request when it begins.
type New struct {
	// Tenant scopes RequestID and Key.
	Tenant string
	// RequestID is the client's label and need not be unique; Session is.
	RequestID, Session string
	Model, Endpoint    string
	Stream             bool
	Protection         string
	RetryBudget        int
	// Key is the Idempotency-Key, "" for none. Only its digest is kept.
	Key string
	// Payload is the digest of the request body.
	Payload [32]byte
	Started time.Time
}

func (n New) check() error {
	for _, l := range []struct{ name, v string }{
		{"tenant", n.Tenant}, {"request id", n.RequestID}, {"session", n.Session}, {"model", n.Model},
		{"endpoint", n.Endpoint}, {"protection", n.Protection}, {"idempotency key", n.Key},
	} {
		if err := label(l.name, l.v); err != nil {
			return err
		}
	}
	if n.Session == "" {
		return fmt.Errorf("%w: the session has no id", ErrInvalid)
	}
	if n.RetryBudget < 0 {
		return fmt.Errorf("%w: the retry budget is negative", ErrInvalid)
	}
	return nil
}

func label(name, v string) error {
	if len(v) > MaxLabel {
		return fmt.Errorf("%w: the %s has %d bytes, at most %d are kept", ErrInvalid, name, len(v), MaxLabel)
	}
	return nil
}

// Usage counts tokens as the client is told.
type Usage struct {
	PromptTokens     int `json:"prompt_tokens"`
	CompletionTokens int `json:"completion_tokens"`
	TotalTokens      int `json:"total_tokens"`
}

// Attempt is one replica working on a request. Cause, Detail and EndedAt are set when it has ended.
type Attempt struct {
	Replica string `json:"replica"`
	Kind    string `json:"kind"`
	Epoch   uint64 `json:"epoch"`
	Lease   string `json:"lease"`
	Cause   string `json:"cause"`
	Detail  string `json:"detail,omitempty"`
	// Revision is the model revision that the replica states, "" when unknown.
	Revision  string    `json:"model_revision,omitempty"`
	StartedAt time.Time `json:"started_at"`
	EndedAt   time.Time `json:"ended_at,omitzero"`
	number    int
}

// Tool is one tool call handed to the client. Arguments is the digest of its arguments, in hex.
type Tool struct {
	Call      string `json:"call"`
	Name      string `json:"name"`
	Arguments string `json:"arguments_sha256"`
}

// Answer is a finished answer, kept for replay.
type Answer struct {
	Status      int
	ContentType string
	Body        []byte
}

// Request is what the journal knows of one request: no prompt, no output. It is a copy and belongs to the caller, who
// must not change Error's bytes.
type Request struct {
	RequestID       string    `json:"request_id"`
	Session         string    `json:"session"`
	Tenant          string    `json:"tenant"`
	Endpoint        string    `json:"endpoint"`
	Model           string    `json:"model"`
	ModelRevision   string    `json:"model_revision"`
	Phase           string    `json:"phase"`
	Attempts        []Attempt `json:"attempts"`
	AttemptsDropped int       `json:"attempts_dropped,omitempty"`
	// FirstDeltaSent false means that the input may be sent to another replica.
	FirstDeltaSent bool `json:"first_delta_sent"`
	// Delivered counts output tokens; with UpperBound the client got that many or fewer.
	Delivered   int             `json:"delivered_output_tokens"`
	UpperBound  bool            `json:"delivered_is_upper_bound"`
	RetryBudget int             `json:"retry_budget"`
	Stream      bool            `json:"stream"`
	Protection  string          `json:"protection"`
	Usage       *Usage          `json:"usage"`
	Finish      string          `json:"finish"`
	Error       json.RawMessage `json:"error"`
	Tools       []Tool          `json:"tools"`
	KeyUsed     bool            `json:"idempotency_key_used"`
	StartedAt   time.Time       `json:"started_at"`
	EndedAt     time.Time       `json:"ended_at,omitzero"`
	// ReplayRetained: the answer is kept for a repeat with the same Idempotency-Key.
	ReplayRetained bool `json:"replay_retained"`
}

// Ended reports whether the request is done or failed.
func (r *Request) Ended() bool { return r.Phase == PhaseDone || r.Phase == PhaseFailed }

// clone is a copy whose lists are its own and never nil, so that JSON shows them.
func (r *Request) clone() Request {
	c := *r
	c.Attempts = append(make([]Attempt, 0, len(r.Attempts)), r.Attempts...)
	c.Tools = append(make([]Tool, 0, len(r.Tools)), r.Tools...)
	if r.Usage != nil {
		u := *r.Usage
		c.Usage = &u
	}
	c.Error = slices.Clone(r.Error)
	return c
}

// crash turns an open request into what is known after the router's process ended, when reserved output tokens were
// allowed to be written.
func (r *Request) crash(reserved int, at time.Time) {
	r.Phase, r.EndedAt = PhaseFailed, at
	r.FirstDeltaSent, r.Delivered, r.UpperBound = reserved > 0, reserved, reserved > 0
	for i := range r.Attempts {
		if a := &r.Attempts[i]; a.EndedAt.IsZero() {
			a.Cause, a.EndedAt = CauseRouterCrash, at
		}
	}
	code, message := "upstream_unavailable", "the router stopped before any output was sent"
	if r.FirstDeltaSent {
		code = "upstream_decode_interrupted"
		message = fmt.Sprintf("the router stopped while the answer was sent; at most %d output tokens reached the client in request %s", reserved, r.RequestID)
	}
	// Marshal of strings, numbers and bools doesn't fail.
	r.Error, _ = json.Marshal(struct {
		Code       string `json:"code"`
		Message    string `json:"message"`
		Type       string `json:"type"`
		RequestID  string `json:"request_id"`
		Partial    bool   `json:"partial_output"`
		Delivered  int    `json:"delivered_output_tokens"`
		UpperBound bool   `json:"delivered_is_upper_bound"`
		Retryable  bool   `json:"retryable"`
		Cause      string `json:"cause"`
	}{code, message, "server_error", r.RequestID, r.FirstDeltaSent, r.Delivered, r.UpperBound, !r.FirstDeltaSent, CauseRouterCrash})
}

// cut shortens text to at most n bytes of whole runes.
func cut(s string, n int) string {
	if len(s) <= n {
		return s
	}
	for n > 0 && !utf8.RuneStart(s[n]) {
		n--
	}
	return strings.Clone(s[:n])
}
