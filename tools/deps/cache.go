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
	"syscall"
	"time"
)

const (
	lockPoll    = 100 * time.Millisecond
	lockMention = 10 * time.Second
)

// cacheDir is the cache's absolute path: SEGUE_CACHE, else segue in XDG_CACHE_HOME, else ~/.cache/segue.
func cacheDir(getenv func(string) string) (string, error) {
	switch {
	case getenv("SEGUE_CACHE") != "":
		return filepath.Abs(getenv("SEGUE_CACHE"))
	case getenv("XDG_CACHE_HOME") != "":
		return filepath.Abs(filepath.Join(getenv("XDG_CACHE_HOME"), "segue"))
	case getenv("HOME") != "":
		return filepath.Abs(filepath.Join(getenv("HOME"), ".cache", "segue"))
	}
	return "", errors.New("no cache folder: set SEGUE_CACHE, XDG_CACHE_HOME or HOME")
}

// lockCache takes the cache's lock and returns what gives it back. While another run holds it, it waits
// and says so. The lock belongs to the process: it ends with it, however it ends.
func lockCache(ctx context.Context, cache string, log io.Writer) (unlock func(), err error) {
	f, err := os.OpenFile(filepath.Join(cache, ".lock"), os.O_CREATE|os.O_RDWR, 0o644)
	if err != nil {
		return nil, fmt.Errorf("lock cache: %w", err)
	}
	poll := time.NewTicker(lockPoll)
	defer poll.Stop()
	var mention time.Time
	for {
		err := syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB)
		if err == nil {
			return func() { f.Close() }, nil
		}
		if !errors.Is(err, syscall.EWOULDBLOCK) && !errors.Is(err, syscall.EINTR) {
			f.Close()
			return nil, fmt.Errorf("lock cache %s: %w", cache, err)
		}
		if now := time.Now(); now.After(mention) {
			fmt.Fprintf(log, "deps: another run works on %s; waiting for it\n", cache)
			mention = now.Add(lockMention)
		}
		select {
		case <-ctx.Done():
			f.Close()
			return nil, context.Cause(ctx)
		case <-poll.C:
		}
	}
}
