// SPDX-License-Identifier: Apache-2.0
// Copyright The Segue Authors

package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"time"
)

// partialPrefix begins the names of folders in which a part is being made.
const partialPrefix = ".partial-"

// fetcher fills one cache.
type fetcher struct {
	cache string
	log   io.Writer // what a person reads; used by one goroutine at a time
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
		fmt.Fprintf(f.log, "deps: nothing to fetch, %s is complete\n", f.cache)
		return nil
	}
	if err := os.MkdirAll(f.cache, 0o755); err != nil {
		return fmt.Errorf("make cache folder: %w", err)
	}
	unlock, err := lockCache(ctx, f.cache, f.log)
	if err != nil {
		return err
	}
	defer unlock()
	begin := time.Now()
	for _, p := range parts {
		if f.have(p) {
			fmt.Fprintf(f.log, "deps: %s: already there\n", p.what)
			continue
		}
		if err := f.fetch(ctx, p); err != nil {
			if errors.Is(err, errDigest) {
				return fmt.Errorf("%w\n%s", err, refusal(p))
			}
			return err
		}
	}
	fmt.Fprintf(f.log, "deps: done in %s\n", seconds(time.Since(begin)))
	return nil
}

func (f *fetcher) have(p part) bool { return complete(filepath.Join(f.cache, p.dir), p.pin) }

func (f *fetcher) missing(parts []part) []part {
	var out []part
	for _, p := range parts {
		if !f.have(p) {
			out = append(out, p)
		}
	}
	return out
}

// fetch makes one part in a folder of its own and moves it to its place when it is complete. The caller
// holds the cache's lock.
func (f *fetcher) fetch(ctx context.Context, p part) (err error) {
	if err := f.discard(p); err != nil {
		return err
	}
	work, err := os.MkdirTemp(f.cache, partialPrefix+p.dir+"-")
	if err != nil {
		return fmt.Errorf("make work folder: %w", err)
	}
	defer func() {
		if rerr := os.RemoveAll(work); err == nil && rerr != nil {
			err = rerr
		}
	}()

	fmt.Fprintf(f.log, "deps: %s: fetching %s (%s)\n", p.what, p.spec, megabytes(p.size))
	begin := time.Now()
	archive, err := f.download(ctx, p, work)
	if err != nil {
		return fmt.Errorf("fetch %s: %w", p.spec, err)
	}
	downloaded := time.Now()
	if err := p.pin.checkFile(archive); err != nil {
		return fmt.Errorf("verify %s: %w", p.spec, err)
	}
	verified := time.Now()

	out := filepath.Join(work, "part")
	if err := os.Mkdir(out, 0o755); err != nil {
		return err
	}
	if err := unpack(archive, out, p); err != nil {
		return err
	}
	if err := ctx.Err(); err != nil {
		return context.Cause(ctx)
	}
	if err := writeMarker(out, p.pin); err != nil {
		return fmt.Errorf("write marker: %w", err)
	}
	if err := os.Rename(out, filepath.Join(f.cache, p.dir)); err != nil {
		return fmt.Errorf("move part to its place: %w", err)
	}
	if err := syncDir(f.cache); err != nil {
		return err
	}
	fmt.Fprintf(f.log, "deps: %s: download %s, verify %s, unpack %s\n", p.what,
		seconds(downloaded.Sub(begin)), seconds(verified.Sub(downloaded)), seconds(time.Since(verified)))
	return nil
}

// discard removes what an earlier run left unfinished, and a folder in the part's place that is not this
// part.
func (f *fetcher) discard(p part) error {
	old, err := filepath.Glob(filepath.Join(f.cache, partialPrefix+p.dir+"-*"))
	if err != nil {
		return err
	}
	place := filepath.Join(f.cache, p.dir)
	if _, err := os.Lstat(place); err == nil {
		old = append(old, place)
	}
	for _, name := range old {
		fmt.Fprintf(f.log, "deps: %s: discarding incomplete %s\n", p.what, filepath.Base(name))
		if err := os.RemoveAll(name); err != nil {
			return fmt.Errorf("discard incomplete part: %w", err)
		}
	}
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
