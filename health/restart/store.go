// SPDX-License-Identifier: Apache-2.0
// Copyright The Segue Authors

package restart

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
)

// mostState bounds a state file in bytes: a hundred restarts take less than a quarter of it.
const mostState = 64 << 10

// store is the state file of one target.
type store struct {
	path, key string
}

// load reads the state; without a file it is empty. Errors wrap ErrState, unless the file can't be opened.
func (s store) load() (State, error) {
	f, err := os.Open(s.path)
	if errors.Is(err, fs.ErrNotExist) {
		return State{}, nil
	} else if err != nil {
		return State{}, fmt.Errorf("restart: %w; nothing is restarted without it", err)
	}
	defer f.Close()
	b, err := io.ReadAll(io.LimitReader(f, mostState+1))
	if err == nil && len(b) > mostState {
		err = fmt.Errorf("%w: it is longer than %d bytes", ErrState, mostState)
	}
	var state State
	if err == nil {
		state, err = decode(s.key, b)
	}
	if err != nil {
		return State{}, fmt.Errorf("restart: %s: %w; nothing is restarted until that file is removed, with which the counting begins anew", s.path, err)
	}
	return state, nil
}

// missing reports that there is no file.
func (s store) missing() bool {
	_, err := os.Stat(s.path)
	return errors.Is(err, fs.ErrNotExist)
}

// save replaces the file in one step, and returns when it is on disk.
func (s store) save(state State) (err error) {
	b, err := encode(s.key, state)
	if err != nil {
		return fmt.Errorf("restart: %w", err)
	}
	dir := filepath.Dir(s.path)
	f, err := os.CreateTemp(dir, filepath.Base(s.path)+".new-*")
	if err != nil {
		return fmt.Errorf("restart: %w", err)
	}
	defer func() {
		if err != nil {
			_ = os.Remove(f.Name())
			err = fmt.Errorf("restart: %s: %w; nothing is restarted without a record of it", s.path, err)
		}
	}()
	_, err = f.Write(b)
	if err == nil {
		err = f.Sync()
	}
	if closed := f.Close(); err == nil {
		err = closed
	}
	if err != nil {
		return err
	}
	if err = os.Rename(f.Name(), s.path); err != nil {
		return err
	}
	return syncDir(dir)
}

func syncDir(dir string) error {
	d, err := os.Open(dir)
	if err != nil {
		return err
	}
	return errors.Join(d.Sync(), d.Close())
}
