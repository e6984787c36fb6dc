// SPDX-License-Identifier: Apache-2.0
// Copyright The Segue Authors

package certs

import (
	"context"
	"fmt"
	"log/slog"
	"net"
	"time"

	"github.com/seguekv/segue/internal/certs/reload"
)

// Options of a Bundle. The zero value is the machine's clock and no reports. Functions are called from handshakes
// and from Run, must return soon and must not call the Bundle.
type Options struct {
	// Now is the clock by which certificates are valid; nil for time.Now.
	Now func() time.Time
	// Reloaded hears nil when changed files are in force, and what is wrong when the ones before them stay.
	Reloaded func(err error)
	// Refused hears of peers that ServerCredentials turned away, and why. Anybody who can connect can cause calls:
	// count them, and bound what is logged.
	Refused func(peer net.Addr, err error)
}

// Logging reports to a log. What peers cause is logged each time.
func Logging(log *slog.Logger) Options {
	return Options{
		Reloaded: func(err error) {
			if err != nil {
				log.Error("certificates not reloaded, those before stay in force", "err", err)
				return
			}
			log.Info("certificates reloaded")
		},
		Refused: func(peer net.Addr, err error) { log.Warn("peer refused", "peer", peer, "err", err) },
	}
}

// Bundle is the files in force. Its methods may be called concurrently.
type Bundle struct {
	files Files
	opt   Options
	value *reload.Value[material]
}

// Load reads all three files. Files that are missing, don't fit together, or are not valid at the moment are errors
// that name the file and what to do about it.
func Load(f Files, opt Options) (*Bundle, error) {
	if err := f.Validate(); err != nil {
		return nil, err
	}
	if !f.Enabled() {
		return nil, fmt.Errorf("%w: no file is named; name ca, cert and key", ErrIncomplete)
	}
	return load(f, opt)
}

// LoadPair reads a certificate and its key for ServerOnly, without authorities: Server and Client of such a Bundle
// refuse every peer. A named CA is an error.
func LoadPair(f Files, opt Options) (*Bundle, error) {
	if f.CA != "" || f.Cert == "" || f.Key == "" {
		return nil, fmt.Errorf("%w: ca is %q, cert is %q, key is %q; name cert and key, and no ca: its clients have no certificates", ErrIncomplete, f.CA, f.Cert, f.Key)
	}
	return load(f, opt)
}

func load(f Files, opt Options) (*Bundle, error) {
	if opt.Now == nil {
		opt.Now = time.Now
	}
	if opt.Refused == nil {
		opt.Refused = func(net.Addr, error) {}
	}
	paths := []string{f.Cert, f.Key}
	if f.CA != "" {
		paths = append(paths, f.CA)
	}
	v, err := reload.New(paths, func() (material, error) { return f.read(opt.Now()) }, reload.Options{Now: opt.Now, Report: opt.Reloaded})
	if err != nil {
		return nil, err
	}
	return &Bundle{files: f, opt: opt, value: v}, nil
}

// Run looks at the files every second until ctx ends, so that a change is in force, or reported, before the next
// handshake. A Bundle works without it. It returns nil.
func (b *Bundle) Run(ctx context.Context) error { return b.value.Run(ctx) }

// Reload looks at the files now. The error is what keeps them from being in force.
func (b *Bundle) Reload() error { return b.value.Reload() }

// NotAfter is the end of the own certificate in force.
func (b *Bundle) NotAfter() time.Time { return b.value.Get().pair.Leaf.NotAfter }
