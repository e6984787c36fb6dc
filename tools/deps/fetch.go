// SPDX-License-Identifier: Apache-2.0
// Copyright The Segue Authors

package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/seguekv/segue/internal/partstore"
)

// fetcher fills one cache.
type fetcher struct{ store partstore.Store }

func newFetcher(cache string, log io.Writer) *fetcher {
	return &fetcher{partstore.Store{Dir: cache, Program: "deps", LockName: ".lock", Log: log}}
}

// ensure makes every part complete. What is missing on the machine is reported before anything is fetched.
func (f *fetcher) ensure(ctx context.Context, parts []part) error {
	if len(parts) == 0 {
		return nil
	}
	if err := f.preflight(ctx, parts, f.missing(parts)); err != nil {
		return err
	}
	if len(f.missing(parts)) == 0 {
		f.store.Say("nothing to fetch, %s is complete", f.store.Dir)
		return nil
	}
	unlock, err := f.store.Lock(ctx)
	if err != nil {
		return err
	}
	defer unlock()
	begin := time.Now()
	for _, p := range parts {
		if f.have(p) {
			f.store.Say("%s: already there", p.what)
			continue
		}
		if err := f.fetch(ctx, p); err != nil {
			if errors.Is(err, errDigest) {
				return fmt.Errorf("%w\n%s", err, refusal(p))
			}
			return err
		}
	}
	f.store.Say("done in %s", seconds(time.Since(begin)))
	return nil
}

func (f *fetcher) have(p part) bool { return f.store.Complete(p.stored()) }

func (f *fetcher) missing(parts []part) []part {
	var out []part
	for _, p := range parts {
		if !f.have(p) {
			out = append(out, p)
		}
	}
	return out
}

// stored is the part as a folder of the cache.
func (p part) stored() partstore.Part {
	return partstore.Part{What: p.what, Dir: p.dir, Marker: func(dir string) ([]byte, error) { return markerText(dir, p.pin) }}
}

// fetch makes one part. The caller holds the cache's lock.
func (f *fetcher) fetch(ctx context.Context, p part) error {
	var begin, downloaded, verified time.Time
	err := f.store.Make(ctx, p.stored(), func(work, out string) error {
		f.store.Say("%s: fetching %s (%s)", p.what, p.spec, megabytes(p.size))
		begin = time.Now()
		archive, err := f.download(ctx, p, work)
		if err != nil {
			return fmt.Errorf("fetch %s: %w", p.spec, err)
		}
		downloaded = time.Now()
		if err := p.pin.checkFile(archive); err != nil {
			return fmt.Errorf("verify %s: %w", p.spec, err)
		}
		verified = time.Now()
		return unpack(archive, out, p)
	})
	if err != nil {
		return err
	}
	f.store.Say("%s: download %s, verify %s, unpack %s", p.what,
		seconds(downloaded.Sub(begin)), seconds(verified.Sub(downloaded)), seconds(time.Since(verified)))
	return nil
}

// refusal says what to do about a download that is not the pinned one.
func refusal(p part) string {
	setting := "npm config get registry"
	if p.client == clientPip {
		setting = "python3 -m pip config list"
	}
	return "nothing of it was kept. Run the same command again; if it repeats, the registry or mirror that " +
		string(p.client) + " uses (" + setting + ") serves another file than the pinned one: don't use it"
}

func seconds(d time.Duration) string { return fmt.Sprintf("%.1f s", d.Seconds()) }

func megabytes(n int64) string { return fmt.Sprintf("%.1f MB", float64(n)/1e6) }
