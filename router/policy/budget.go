// SPDX-License-Identifier: Apache-2.0
// Copyright The Segue Authors

package policy

// Budget bounds the prefill that retries cause, as a share of fresh prefill: a failure of the whole fleet doesn't
// become an avalanche of prompts computed again. It isn't safe for concurrent use.
type Budget struct {
	share, burst, credit float64
}

// NewBudget returns a full one. share is retried prompt tokens per fresh prompt token, ≥ 0; burst is the credit it
// begins with and never exceeds, in prompt tokens.
func NewBudget(share float64, burst int) *Budget {
	return &Budget{share: share, burst: float64(burst), credit: float64(burst)}
}

// Fresh counts a prompt that is computed for the first time.
func (b *Budget) Fresh(tokens int) {
	b.credit = min(b.credit+b.share*float64(tokens), b.burst)
}

// Affords reports whether Take would succeed.
func (b *Budget) Affords(tokens int) bool { return float64(tokens) <= b.credit }

// Take pays for a prompt that is computed again, or reports that it can't be paid for.
func (b *Budget) Take(tokens int) bool {
	if !b.Affords(tokens) {
		return false
	}
	b.credit -= float64(tokens)
	return true
}

// Left is the credit in prompt tokens.
func (b *Budget) Left() int { return int(b.credit) }
