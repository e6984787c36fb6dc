// SPDX-License-Identifier: Apache-2.0
// Copyright The Segue Authors

package reload

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
)

// stamp tells versions of a file apart. Its FileInfo is nil for a file that isn't there.
type stamp struct{ fs.FileInfo }

// stampOf follows symbolic links, so that exchanging a link counts as a change.
func stampOf(path string) stamp {
	info, err := os.Stat(path)
	if err != nil {
		return stamp{}
	}
	return stamp{info}
}

func (s stamp) same(o stamp) bool {
	if s.FileInfo == nil || o.FileInfo == nil {
		return s.FileInfo == nil && o.FileInfo == nil
	}
	return os.SameFile(s.FileInfo, o.FileInfo) && s.ModTime().Equal(o.ModTime()) && s.Size() == o.Size()
}

// ReadFile reads a regular file of at most limit bytes and returns it with its mode. Errors name the file.
func ReadFile(path string, limit int64) ([]byte, fs.FileMode, error) {
	// Opening a named pipe would block until somebody writes.
	info, err := os.Stat(path)
	if err != nil {
		return nil, 0, err
	}
	if !info.Mode().IsRegular() {
		return nil, 0, fmt.Errorf("%s is not a regular file", path)
	}
	f, err := os.Open(path)
	if err != nil {
		return nil, 0, err
	}
	b, err := io.ReadAll(io.LimitReader(f, limit+1))
	if err := errors.Join(err, f.Close()); err != nil {
		return nil, 0, fmt.Errorf("read %s: %w", path, err)
	}
	if int64(len(b)) > limit {
		return nil, 0, fmt.Errorf("%s has more than %d bytes, the most that is read", path, limit)
	}
	return b, info.Mode(), nil
}
