// SPDX-License-Identifier: Apache-2.0
// Copyright The Segue Authors

package partstore

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
	lockPoll = 100 * time.Millisecond
	// lockMention is how often a waiting run says so.
	lockMention = 10 * time.Second
)

// Dir is the cache's absolute path: SEGUE_CACHE, else segue in XDG_CACHE_HOME, else ~/.cache/segue.
func Dir(getenv func(string) string) (string, error) {
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

// Store is a folder with parts.
type Store struct {
	Dir string
	// Program begins each line of Log.
	Program string
	// LockName is the name of the lock's file in Dir. Runs with different locks may use one folder if their parts differ.
	LockName string
	// Log is what a person reads; used by one goroutine at a time.
	Log io.Writer
}

// Say writes a line to the log.
func (s Store) Say(format string, args ...any) {
	fmt.Fprintf(s.Log, s.Program+": "+format+"\n", args...)
}

// Lock makes the folder if need be, takes its lock and returns what gives it back. While another run holds it, it waits
// and says so. The lock belongs to the process: it ends with it, however it ends.
func (s Store) Lock(ctx context.Context) (unlock func(), err error) {
	if err := os.MkdirAll(s.Dir, 0o755); err != nil {
		return nil, fmt.Errorf("make cache folder: %w", err)
	}
	f, err := os.OpenFile(filepath.Join(s.Dir, s.LockName), os.O_CREATE|os.O_RDWR, 0o644)
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
			return nil, fmt.Errorf("lock cache %s: %w", s.Dir, err)
		}
		if now := time.Now(); now.After(mention) {
			s.Say("another run works on %s; waiting for it", s.Dir)
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
