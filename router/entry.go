// SPDX-License-Identifier: Apache-2.0
// Copyright The Segue Authors

package router

import (
	"context"
	"fmt"
	"time"

	"github.com/seguekv/segue/router/journal"
	"github.com/seguekv/segue/router/openai"
)

// Journal configures where requests are recorded.
type Journal struct {
	// Path is the file. Empty keeps the journal in memory: then nothing of it survives this process.
	Path string `yaml:"path"`
	// Retention is how long ended requests, idempotency keys and actions are kept, MaxRequests how many requests.
	Retention   time.Duration `yaml:"retention"`
	MaxRequests int           `yaml:"max_requests"`
	// Replay keeps the answers of requests with an Idempotency-Key, up to MaxAnswer bytes each, for their repetition.
	Replay    bool `yaml:"replay"`
	MaxAnswer int  `yaml:"max_answer"`
}

func (c Config) validateJournal(bad func(key, format string, args ...any)) {
	j := c.Journal
	if j.Retention < 24*time.Hour || j.Retention > 365*24*time.Hour {
		bad("journal.retention", "is %v, want 24h to 8760h: clients may repeat a request with its key for a day", j.Retention)
	}
	if j.MaxRequests < 1 || j.MaxRequests > 100_000_000 {
		bad("journal.max_requests", "is %d, want 1 to 100000000", j.MaxRequests)
	}
	if j.MaxAnswer < 1 || j.MaxAnswer > 64<<20 {
		bad("journal.max_answer", "is %d, want 1 to %d bytes", j.MaxAnswer, 64<<20)
	}
}

// openJournal reads what an earlier process left.
func openJournal(cfg Journal, deps Deps) (*journal.Journal, error) {
	return journal.Open(journal.Options{
		Path: cfg.Path, Retention: cfg.Retention, MaxRequests: cfg.MaxRequests, MaxReplay: cfg.MaxAnswer,
		Log: deps.Log, Registerer: deps.Registerer, Storage: deps.JournalStorage,
	})
}

// reserve makes a crash of this process read as at least n delivered output tokens. A journal that fails doesn't hold up
// the answer: it goes on, and the log and the journal's health say so. The exception is the first output of a request
// with a key: after a crash that nothing is recorded of, the key would run again.
func (s *session) reserve(n int) *ending {
	if s.unjournalled && n < s.reserveAgain {
		return nil
	}
	err := s.entry.Reserve(context.Background(), max(n, 1)) // bounded by the journal's patience
	if err == nil {
		return nil
	}
	if s.keyed && !s.gate.ContentWritten() {
		return &ending{cause: CauseUnjournalled, detail: "the router can't remember the Idempotency-Key at the moment"}
	}
	// A journal that has failed is asked again with the next run of tokens, not with each.
	s.reserveAgain = n + reserveAgainAfter
	if !s.unjournalled {
		s.unjournalled = true
		s.log.Warn("the answer goes on without journal", "err", err)
	}
	return nil
}

// reserveAgainAfter is how many tokens go on without asking a journal that has failed.
const reserveAgainAfter = 64

// begun records an attempt.
func (s *session) begun(a *attempt) {
	j := journal.Attempt{Replica: a.node.ID(), Kind: a.kind, Epoch: uint64(a.epoch), StartedAt: a.began}
	if a.lease != nil {
		j.Lease = fmt.Sprintf("%s/%d", s.r.grantor, a.epoch)
		j.Revision = systemFingerprint(a.node.Fingerprint())
	}
	a.entry = s.entry.Attempt(j)
	s.entry.RetryBudget(max(s.cfg.MaxAttempts-s.starts, 0))
	s.entry.Phase(journal.PhasePrefill)
}

// recordEnd has the end of a whole answer recorded just before its last bytes are written, so that who has read it
// finds it here.
func (s *session) recordEnd(a *attempt, reason string, u openai.Usage) {
	s.client.ending = func() {
		s.complete(a, reason, u)
		s.entry.EndAttempt(a.entry, "", "")
		s.entry.Delivered(u.CompletionTokens)
		s.entry.Done(reason, journal.Usage(u), s.answer())
	}
}

// answer is what a repetition of the request gets, or nil.
func (s *session) answer() *journal.Answer {
	t := s.client.tape
	if t == nil || t.over {
		return nil
	}
	return &journal.Answer{Status: 200, ContentType: s.client.w.Header().Get("Content-Type"), Body: t.bytes}
}
