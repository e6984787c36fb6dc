// SPDX-License-Identifier: Apache-2.0
// Copyright The Segue Authors

package cluster

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strings"
	"time"
)

const (
	// adminTimeout is far more than an answer takes, even of a process that waits for a processor.
	adminTimeout = 5 * time.Second
	// maxAdminBody bounds an answer of an admin listener.
	maxAdminBody = 16 << 20
)

// Admin reads an admin listener. It is safe for concurrent use.
type Admin struct {
	base string
	http *http.Client
}

// NewAdmin makes a reader for host:port. Connections are not kept, so a restarted process is met afresh.
func NewAdmin(addr string) *Admin {
	return &Admin{
		base: "http://" + addr,
		http: &http.Client{Timeout: adminTimeout, Transport: &http.Transport{DisableKeepAlives: true}},
	}
}

// Session is the router's record of one request.
type Session struct {
	Session      string    `json:"session"`
	Phase        string    `json:"phase"`
	Protection   string    `json:"protection"`
	Protected    bool      `json:"protected"`
	Primary      string    `json:"primary"`
	Holder       string    `json:"holder"`
	Epoch        uint64    `json:"epoch"`
	PromptTokens int       `json:"prompt_tokens"`
	Attempts     []Attempt `json:"attempts"`
	Seams        []Seam    `json:"seams"`
	// ProtectionLog has an entry for each change of the protection state.
	ProtectionLog []ProtectionChange `json:"protection_log"`
}

// ProtectionChange says under which protection the tokens from an index on were released.
type ProtectionChange struct {
	Protected bool   `json:"protected"`
	Holder    string `json:"holder"`
	FromIndex int    `json:"from_index"`
	Cause     string `json:"cause"`
}

// Ended reports whether the record is final.
func (s *Session) Ended() bool { return s.Phase == "done" || s.Phase == "failed" }

// Kinds of Attempt.
const (
	AttemptGenerate = "generate"
	AttemptRetry    = "retry"
	AttemptTakeover = "takeover"
)

// Attempt is one engine's work on a session.
type Attempt struct {
	Node      string `json:"node"`
	Epoch     uint64 `json:"epoch"`
	Kind      string `json:"kind"`
	FromIndex int    `json:"from_index"`
	// Accepted is how many tokens of it the gate has let through.
	Accepted int    `json:"accepted"`
	Cause    string `json:"cause"`
}

// Seam is the place where a standby continued a session.
type Seam struct {
	// Index is the first output index that the standby decoded itself.
	Index int `json:"index"`
	// Delivered is how many tokens the gate had accepted when the old epoch was fenced.
	Delivered int       `json:"delivered"`
	From      string    `json:"from"`
	To        string    `json:"to"`
	Cause     string    `json:"cause"`
	FencedAt  time.Time `json:"fenced_at"`
	// ResumedAt is a time stamp, empty until the standby has yielded its first token.
	ResumedAt string `json:"resumed_at"`
	// RestoredRows and RestoredBytes are what the standby loaded into its engine.
	RestoredRows  int64 `json:"restored_rows"`
	RestoredBytes int64 `json:"restored_bytes"`
}

// AgentView is how the router sees an agent.
type AgentView struct {
	ID           string `json:"id"`
	Ready        bool   `json:"ready"`
	Reason       string `json:"reason"`
	BootID       string `json:"boot_id"`
	EngineBootID string `json:"engine_boot_id"`
	// ExcludedFor is how long failures keep sessions away, in seconds.
	ExcludedFor float64 `json:"excluded_for"`
}

// NodeInfo is what an agent says of itself.
type NodeInfo struct {
	ID           string `json:"id"`
	BootID       string `json:"boot_id"`
	EngineBootID string `json:"engine_boot_id"`
	EnginePID    int    `json:"engine_pid"`
	Ready        bool   `json:"ready"`
}

// Session reads one session of a router.
func (a *Admin) Session(ctx context.Context, id string) (*Session, error) {
	var s Session
	return &s, a.readJSON(ctx, "/v1/sessions/"+id, &s)
}

// EndedSession reads a session once its record is final, or fails after a short while: the record lags the last byte
// of the answer only by the router's own bookkeeping.
func (a *Admin) EndedSession(ctx context.Context, id string) (*Session, error) {
	ctx, cancel := context.WithTimeout(ctx, 2*adminTimeout)
	defer cancel()
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for {
		s, err := a.Session(ctx, id)
		if err != nil || s.Ended() {
			return s, err
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return s, fmt.Errorf("session %s stays in phase %q after its answer ended", id, s.Phase)
		}
	}
}

// Agents reads a router's view of its agents.
func (a *Admin) Agents(ctx context.Context) ([]AgentView, error) {
	var list []AgentView
	return list, a.readJSON(ctx, "/v1/agents", &list)
}

// Node reads an agent's view of itself.
func (a *Admin) Node(ctx context.Context) (NodeInfo, error) {
	var n NodeInfo
	return n, a.readJSON(ctx, "/v1/node", &n)
}

// Ready succeeds when /readyz answers 200, and otherwise tells what it answered.
func (a *Admin) Ready(ctx context.Context) error {
	_, err := a.get(ctx, "/readyz")
	return err
}

// Counters reads /metrics.
func (a *Admin) Counters(ctx context.Context) (Counters, error) {
	body, err := a.get(ctx, "/metrics")
	if err != nil {
		return nil, err
	}
	return parseMetrics(body)
}

func (a *Admin) readJSON(ctx context.Context, path string, into any) error {
	body, err := a.get(ctx, path)
	if err != nil {
		return err
	}
	if err := json.Unmarshal(body, into); err != nil {
		return fmt.Errorf("read %s%s: %w", a.base, path, err)
	}
	return nil
}

func (a *Admin) get(ctx context.Context, path string) ([]byte, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, a.base+path, nil)
	if err != nil {
		return nil, fmt.Errorf("ask %s: %w", a.base+path, err)
	}
	resp, err := a.http.Do(req)
	if err != nil {
		return nil, err // names method and address already
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(io.LimitReader(resp.Body, maxAdminBody))
	if err != nil {
		return nil, fmt.Errorf("read %s%s: %w", a.base, path, err)
	}
	if resp.StatusCode != http.StatusOK {
		return nil, fmt.Errorf("%s%s answered %s: %.200s", a.base, path, resp.Status, strings.TrimSpace(string(body)))
	}
	return body, nil
}
