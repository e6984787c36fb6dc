// SPDX-License-Identifier: Apache-2.0
// Copyright The Segue Authors

package journal

import (
	"cmp"
	"fmt"
	"log/slog"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// Limits of what one record holds. Longer input is refused or, where said, shortened.
const (
	MaxLabel    = 255       // bytes of a tenant, request id, model, endpoint, replica, lease, call or idempotency key
	MaxDetail   = 1024      // bytes of an attempt's detail; the rest is cut off
	MaxError    = 16 << 10  // bytes of an error object; a longer one is replaced by a note
	MaxAttempts = 32        // attempts kept of a request: the first and the newest
	MaxTools    = 128       // tool calls kept of a request: the first ones
	MaxResult   = 256 << 10 // bytes of an action's result
)

const (
	runLength  = 64 // output tokens of one reservation
	runAhead   = 32 // with fewer reserved tokens left the next run is asked for
	keyKeep    = 24 * time.Hour
	linger     = 10 * time.Millisecond  // what nobody waits for is collected that long
	patience   = 2 * time.Second        // a commit that takes longer counts as a failing disk
	retryEvery = 500 * time.Millisecond // after a failed commit
	sweepEvery = time.Minute
	batchLimit = 2048 // requests, and actions, in one commit
)

// Options of a journal. The zero value keeps everything in memory.
type Options struct {
	// Path is the file; "" keeps everything in memory only: the same semantics, lost with the process.
	Path string
	// Retention is how long finished requests and actions are kept; default 48 h, at least 24 h.
	Retention time.Duration
	// MaxRequests bounds the finished requests kept, the oldest go first; default 100,000. The idempotency key of one
	// that went is remembered for 24 h after its end all the same.
	MaxRequests int
	// MaxOpen bounds the requests that have not ended, or whose end isn't durable yet; default 65,536.
	MaxOpen int
	// MaxKeys bounds the idempotency keys; default 10 × MaxRequests.
	MaxKeys int
	// MaxActions bounds the ledger's actions; default MaxRequests.
	MaxActions int
	// MaxReplay bounds one stored answer, in bytes; default 1 MiB. A larger one isn't retained.
	MaxReplay int
	// MaxStored bounds all retained answers, and all results of actions, in bytes each; default 1 GiB. The oldest
	// answers go first; results are refused.
	MaxStored int64
	// Now is the wall clock of records and retention; nil means time.Now.
	Now        func() time.Time
	Log        *slog.Logger
	Registerer prometheus.Registerer
	// Storage is where records go; nil means the file at Path. The journal closes it.
	Storage Storage
}

func (o Options) complete() (Options, error) {
	def := func(v *int, d int) { *v = cmp.Or(*v, d) }
	o.Retention = cmp.Or(o.Retention, 48*time.Hour)
	def(&o.MaxRequests, 100_000)
	def(&o.MaxOpen, 65_536)
	def(&o.MaxKeys, 10*o.MaxRequests)
	def(&o.MaxActions, o.MaxRequests)
	def(&o.MaxReplay, 1<<20)
	o.MaxStored = cmp.Or(o.MaxStored, 1<<30)
	if o.Now == nil {
		o.Now = time.Now
	}
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	if o.Retention < keyKeep {
		return o, fmt.Errorf("journal: retention is %v, must be at least %v: idempotency keys are kept that long", o.Retention, keyKeep)
	}
	for _, b := range []struct {
		name string
		v    int64
	}{
		{"MaxRequests", int64(o.MaxRequests)}, {"MaxOpen", int64(o.MaxOpen)}, {"MaxKeys", int64(o.MaxKeys)},
		{"MaxActions", int64(o.MaxActions)}, {"MaxReplay", int64(o.MaxReplay)}, {"MaxStored", o.MaxStored},
	} {
		if b.v < 1 {
			return o, fmt.Errorf("journal: %s is %d, must be at least 1", b.name, b.v)
		}
	}
	return o, nil
}
