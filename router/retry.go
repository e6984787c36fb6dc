// SPDX-License-Identifier: Apache-2.0
// Copyright The Segue Authors

package router

import (
	"sync"
	"time"

	"github.com/seguekv/segue/router/policy"
)

// Retry bounds what runs from the prompt may cost that follow a failed one.
type Retry struct {
	// SDKAttempts stands for MaxAttempts when the client's library says that it repeats the request.
	SDKAttempts int `yaml:"sdk_attempts"`
	// MaxPrefillTokens is the longest prompt that is computed again, MaxTime how long after its arrival a request may
	// be begun again, with what its prompt took before. 0 is no bound.
	MaxPrefillTokens int           `yaml:"max_prefill_tokens"`
	MaxTime          time.Duration `yaml:"max_time"`
	// BudgetShare is what all retries may compute, per prompt token that is computed for the first time; BudgetBurst
	// is the credit in prompt tokens that they begin with and never exceed.
	BudgetShare float64 `yaml:"budget_share"`
	BudgetBurst int     `yaml:"budget_burst"`
}

func (c Config) validateRetry(bad func(key, format string, args ...any)) {
	r := c.Retry
	if r.SDKAttempts < 1 || r.SDKAttempts > 16 {
		bad("retry.sdk_attempts", "is %d, want 1 to 16", r.SDKAttempts)
	}
	if r.MaxPrefillTokens < 0 {
		bad("retry.max_prefill_tokens", "is %d, want 0 (no bound) or more", r.MaxPrefillTokens)
	}
	if r.MaxTime < 0 || r.MaxTime > 24*time.Hour {
		bad("retry.max_time", "is %v, want 0 (no bound) to 24h", r.MaxTime)
	}
	if !(r.BudgetShare >= 0 && r.BudgetShare <= 1) {
		bad("retry.budget_share", "is %v, want 0 to 1", r.BudgetShare)
	}
	if r.BudgetBurst < 0 {
		bad("retry.budget_burst", "is %d, want 0 or more prompt tokens", r.BudgetBurst)
	}
}

// retryBudget is the policy's, shared by all sessions.
type retryBudget struct {
	mu     sync.Mutex
	budget *policy.Budget
}

func newRetryBudget(r Retry) *retryBudget {
	return &retryBudget{budget: policy.NewBudget(r.BudgetShare, r.BudgetBurst)}
}

func (b *retryBudget) fresh(tokens int) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.budget.Fresh(tokens)
}

func (b *retryBudget) affords(tokens int) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.budget.Affords(tokens)
}

func (b *retryBudget) take(tokens int) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.budget.Take(tokens)
}

// prefillTokens is the prompt's length as far as it is known.
func (s *session) prefillTokens() int {
	if s.prompt.tokens > 0 {
		return s.prompt.tokens
	}
	return s.promptEstimate
}

// elsewhere counts replicas on which no run of the session failed.
func (s *session) elsewhere() int {
	return s.r.fleet.Candidates(s.req.Engine.Model, s.kind, s.tried)
}

// outstandingGuess is the output of a request that sets no limit.
const outstandingGuess = 256

// outstanding estimates the tokens that the session still costs a replica.
func (s *session) outstanding() int {
	output := s.req.Engine.MaxTokens
	if output <= 0 {
		output = outstandingGuess
	}
	return s.prefillTokens() + output
}
