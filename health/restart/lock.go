// SPDX-License-Identifier: Apache-2.0
// Copyright The Segue Authors

package restart

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"time"

	"golang.org/x/sys/unix"
)

// Owner is who holds a target's lock, as it said itself.
type Owner struct {
	PID   int       `json:"pid"`
	Host  string    `json:"host"`
	Since time.Time `json:"since"`
}

func (o Owner) same(p Owner) bool {
	return o.PID == p.PID && o.Host == p.Host && o.Since.Equal(p.Since)
}

// String is for people.
func (o Owner) String() string {
	if o.PID == 0 {
		return "another process"
	}
	return fmt.Sprintf("process %d on %s, since %s", o.PID, printable(o.Host), o.Since.Format(time.RFC3339))
}

// mostOwner bounds what is read of a lock file, in bytes.
const mostOwner = 4096

// lock is a held lock: the kernel frees it when the process ends, in whatever way. The file stays.
type lock struct {
	path string
	file *os.File
}

// acquire takes the lock, or says who has it: then the lock is nil without an error.
func acquire(path string, now time.Time) (*lock, Owner, error) {
	// Close-on-exec, which package os sets: a command that leaves a process behind doesn't keep the lock.
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o644)
	if err != nil {
		return nil, Owner{}, fmt.Errorf("restart: the lock: %w", err)
	}
	for {
		err = unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB)
		if !errors.Is(err, unix.EINTR) {
			break
		}
	}
	if errors.Is(err, unix.EWOULDBLOCK) {
		defer f.Close()
		return nil, readOwner(f), nil
	}
	l := &lock{path: path, file: f}
	if err == nil && !l.held() { // replaced since it was opened: another may hold the new one
		_ = f.Close()
		return nil, Owner{}, nil
	}
	if err == nil {
		err = l.sign(now)
	}
	if err != nil {
		_ = f.Close()
		return nil, Owner{}, fmt.Errorf("restart: lock %s: %w", path, err)
	}
	return l, Owner{}, nil
}

// sign writes who holds it. The lock holds whatever the file says.
func (l *lock) sign(now time.Time) error {
	host, _ := os.Hostname()
	b, err := json.Marshal(Owner{PID: os.Getpid(), Host: host, Since: now})
	if err != nil {
		return err
	}
	if err := l.file.Truncate(0); err != nil {
		return err
	}
	_, err = l.file.WriteAt(append(b, '\n'), 0)
	return err
}

// readOwner is the zero Owner when the file says nothing usable.
func readOwner(r io.Reader) Owner {
	var o Owner
	b, err := io.ReadAll(io.LimitReader(r, mostOwner))
	if err != nil || json.Unmarshal(b, &o) != nil {
		return Owner{}
	}
	return o
}

// held reports whether the path still is the locked file: removed or replaced, it lets others lock another.
func (l *lock) held() bool {
	ours, err := l.file.Stat()
	if err != nil {
		return false
	}
	there, err := os.Stat(l.path)
	return err == nil && os.SameFile(ours, there)
}

func (l *lock) release() { _ = l.file.Close() }
